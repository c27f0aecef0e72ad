//! `SWLIMIT.ALLOW key limit window resolution [COST n] [PARTIAL] [STRICT] [WARMUP duration [COLD n]] [BLOCK duration]
//! [AT unix-ms]`

use swlimit_effect::Effect;
use swlimit_window::{Entry, Verdict};

use super::request::{self, announce_block, QuotaRequest, TakesOptions, KEY};
use crate::arguments::Keyword;
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Keys, Reply};

/// Decide, and count if granted.
pub struct Allow;

impl TakesOptions for Allow {
    const OPTIONS: &'static [Keyword] = &[
        Keyword::Cost,
        Keyword::Partial,
        Keyword::Strict,
        Keyword::WarmUp,
        Keyword::Cold,
        Keyword::Block,
        Keyword::At,
    ];
}

impl Command for Allow {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.allow",
        summary: c"Decides whether a request is within a sliding-window limit, and counts it if it is.",
        complexity: c"O(log C), C being the number of subintervals that hold a count; O(C) when the window or \
            resolution changes",
        since: c"0.1.0",
        arity: -5,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            request::LIMIT,
            request::WINDOW,
            request::RESOLUTION,
            request::COST,
            request::PARTIAL,
            request::STRICT,
            request::WARM_UP,
            request::BLOCK,
            request::AT,
        ],
    };

    #[inline(always)]
    fn run(call: &Call) -> Result<Reply, Error> {
        let arguments: QuotaRequest<Self> = call.parse()?;
        let request = arguments.request();
        let name = &call.arguments()[KEY];
        let moment = call.moment(arguments.options.at);
        let now = moment.now();

        let mut key = call.write(name)?;
        match Entry::decide(key.entry(), now, &request)? {
            Verdict::Granted(grant) => request::grant(call, key, name, grant, moment),
            Verdict::Denied(decision) => {
                let block = arguments.block_begun(key.entry(), now);
                if let Some(duration) = block {
                    let mut change = key.change()?;
                    change.block(Some(now + duration));
                    let expiry = change.done(moment);
                    call.replicate(name, Effect::Block { until: now + duration }, expiry);
                }
                drop(key);
                request::deny(call, [name], request.cost, moment);
                if block.is_some() {
                    announce_block(call, name);
                }
                Ok(Reply::Decision(decision.blocked_for(block)))
            }
        }
    }
}
