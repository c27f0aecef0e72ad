//! `SWLIMIT.PEEK key limit window resolution [COST n] [PARTIAL] [STRICT] [AT unix-ms]`

use super::request::{Request, KEY, PARAMETERS};
use crate::error::Error;
use crate::server::{Call, Command, Documentation, Keys};
use swlimit_window::Window;

/// Decide as ALLOW would, without counting.
pub struct Peek;

impl Command for Peek {
    const DOCUMENTATION: Documentation = Documentation {
        name: c"swlimit.peek",
        summary: c"Decides whether a request would be within a sliding-window limit, without counting it.",
        complexity: c"O(log C), C being the number of subintervals that hold a count; O(C) for another window or \
            resolution than they are kept at",
        since: c"0.1.0",
        arity: -5,
        flags: c"readonly fast",
        categories: "read fast",
        keys: Keys::Read,
        parameters: PARAMETERS,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let request: Request<true> = call.parse()?;
        let now = call.instant(request.options.at).ms();

        let key = call.read(&call.arguments()[KEY])?;
        let window = Window::seen_at(key.window(), request.quota.geometry, now);
        let decision = window.decide(now, &request.demand())?;
        call.reply_decision(&decision);
        Ok(())
    }
}
