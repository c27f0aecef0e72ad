//! `SWLIMIT.ALLOW key limit window resolution [COST n] [PARTIAL] [STRICT] [AT unix-ms]`

use super::request::{Request, KEY, PARAMETERS, QUOTA};
use crate::error::Error;
use crate::server::{Call, Command, Documentation, Keys};
use crate::statistics;
use swlimit_window::Window;

/// Decide, and count if granted.
pub struct Allow;

impl Command for Allow {
    const DOCUMENTATION: Documentation = Documentation {
        name: c"swlimit.allow",
        summary: c"Decides whether a request is within a sliding-window limit, and counts it if it is.",
        complexity: c"O(log C), C being the number of subintervals that hold a count; O(C) when the window or \
            resolution changes",
        since: c"0.1.0",
        arity: -5,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: PARAMETERS,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let request: Request<true> = call.parse()?;
        let demand = request.demand();
        let name = &call.arguments()[KEY];
        let now = call.instant(request.options.at).ms();

        let mut key = call.write(name)?;
        let window = Window::seen_at(key.window(), request.quota.geometry, now);
        let decision = window.decide(now, &demand)?;
        if decision.granted == 0 {
            drop(key);
            statistics::denied(demand.cost);
            call.notify(c"swlimit.denied", name);
            call.reply_decision(&decision);
            return Ok(());
        }

        let instant = window.decision_instant(now);
        let decision = key.change(window.into_replacement(), now, |window| {
            window.count(instant, decision.granted);
            window.after_grant(now, decision)
        })?;
        drop(key);
        call.replicate_record(name, &call.arguments()[QUOTA], decision.granted, instant);
        statistics::granted(decision.granted);
        call.notify(c"swlimit.granted", name);
        call.reply_decision(&decision);
        Ok(())
    }
}
