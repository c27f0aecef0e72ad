//! `SWLIMIT.PEEK key limit window resolution [COST n] [PARTIAL] [STRICT] [WARMUP duration [COLD n]] [AT unix-ms]`

use swlimit_window::Entry;

use super::request::{self, QuotaRequest, TakesOptions, KEY};
use crate::arguments::Keyword;
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Keys, Reply};

/// The decision of ALLOW, without counting.
pub struct Peek;

impl TakesOptions for Peek {
    const OPTIONS: &'static [Keyword] =
        &[Keyword::Cost, Keyword::Partial, Keyword::Strict, Keyword::WarmUp, Keyword::Cold, Keyword::At];
}

impl Command for Peek {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.peek",
        summary: c"Decides whether a request would be within a sliding-window limit, without counting it.",
        complexity: c"O(log C), C being the number of subintervals that hold a count",
        since: c"0.1.0",
        arity: -5,
        flags: c"readonly fast",
        categories: "read fast",
        keys: Keys::Read,
        parameters: &[
            request::KEY_PARAMETER,
            request::LIMIT,
            request::WINDOW,
            request::RESOLUTION,
            request::COST,
            request::PARTIAL,
            request::STRICT,
            request::WARM_UP,
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let arguments: QuotaRequest<Self> = call.parse()?;
        let now = call.moment(arguments.options.at).now();
        let key = call.read(&call.arguments()[KEY])?;
        Ok(Reply::Decision(Entry::peek(key.entry(), now, &arguments.request())?))
    }
}
