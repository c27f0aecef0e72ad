//! `SWLIMIT.ACQUIRE key limit window resolution timeout [COST n] [STRICT] [WARMUP duration [COLD n]]`

use swlimit_window::{Entry, Quota, Request, Verdict};

use super::request::{self, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Keys, Parameter, Reply};
use crate::waiting::Wish;

/// ALLOW that waits for its turn.
pub struct Acquire;

/// The request, and how long it may wait, in ms.
struct AcquireArguments {
    request: Request,
    timeout: u64,
}

impl Parse for AcquireArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let quota: Quota = words.quota(max_subintervals)?;
        let timeout = words.duration_or_zero("timeout")?;
        let options = words.options(&[Keyword::Cost, Keyword::Strict, Keyword::WarmUp, Keyword::Cold])?;
        let Options { cost, strict, warm_up, .. } = options;
        Ok(Self { request: Request { quota, cost, partial: false, strict, warm_up }, timeout })
    }
}

impl Command for Acquire {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.acquire",
        summary: c"Waits until a request is within a sliding-window limit, first come, first served, and counts it.",
        complexity: c"O(log C + log W), C being the number of subintervals that hold a count and W that of waiting \
            clients; O(C) when the window or resolution changes",
        since: c"0.2.0",
        arity: -6,
        flags: c"write deny-oom blocking",
        categories: "write blocking",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            request::LIMIT,
            request::WINDOW,
            request::RESOLUTION,
            Parameter::string(c"timeout"),
            request::COST,
            request::STRICT,
            request::WARM_UP,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let AcquireArguments { request, timeout } = call.parse()?;
        let name = &call.arguments()[KEY];
        let moment = call.moment(None);
        let now = moment.now();

        let first = call.due(name);
        let key = call.write(name)?;
        let decision = match (Entry::decide(key.entry(), now, &request)?, first) {
            (Verdict::Granted(grant), None) => return request::grant(call, key, name, grant, moment),
            (Verdict::Granted(_), Some(_)) => Entry::peek(key.entry(), now, &request)?,
            (Verdict::Denied(decision), _) => decision,
        };
        let due = key.next_check(now, decision.retry_after);
        drop(key);
        let in_time = decision.retry_after.is_some_and(|ms| ms <= timeout);
        if timeout > 0 && in_time && call.may_block() {
            return call.wait(name, Wish::Units(request), timeout, due);
        }
        request::deny(call, [name], request.cost, moment);
        Ok(Reply::Decision(match first {
            Some(due) => decision.behind(due.saturating_sub(now).max(1)),
            None => decision,
        }))
    }
}
