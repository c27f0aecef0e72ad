//! `SWLIMIT.RECORD key limit window resolution [COST n] [STRICT] [AT unix-ms]`

use super::request::{Request, KEY, QUOTA};
use crate::error::Error;
use crate::server::{Call, Command, Documentation, Keys, Parameter};
use crate::statistics;
use swlimit_window::Window;

/// Count units whatever the limit says.
pub struct Record;

impl Command for Record {
    const DOCUMENTATION: Documentation = Documentation {
        name: c"swlimit.record",
        summary: c"Counts units in a sliding window, whatever the limit says.",
        complexity: c"O(log C), C being the number of subintervals that hold a count; O(C) when the window or \
            resolution changes, or for an instant before the newest count",
        since: c"0.1.0",
        arity: -5,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            Parameter::Key(c"key"),
            Parameter::Integer(c"limit"),
            Parameter::Word(c"window"),
            Parameter::Word(c"resolution"),
            Parameter::IntegerAfter(c"COST", c"n"),
            Parameter::Flag(c"strict", c"STRICT"),
            Parameter::UnixTimeAfter(c"AT", c"unix-ms"),
        ],
    };

    fn run(call: &Call) -> Result<(), Error> {
        let request: Request<false> = call.parse()?;
        let demand = request.demand();
        let name = &call.arguments()[KEY];
        let instant = call.instant(request.options.at);
        let now = instant.ms();

        let mut key = call.write(name)?;
        let window = Window::seen_at(key.window(), request.quota.geometry, now);
        let counted_at = window.recording_instant(instant, demand.cost)?;
        let decision = window.decide(now, &demand)?;
        let Some(counted_at) = counted_at else {
            call.reply_decision(&decision);
            return Ok(());
        };

        let decision = key.change(window.into_replacement(), now, |window| {
            window.count(counted_at, demand.cost);
            window.after_recording(now, &demand, decision)
        })?;
        drop(key);
        call.replicate_record(name, &call.arguments()[QUOTA], demand.cost, counted_at);
        statistics::RECORDED.add(1);
        call.notify(c"swlimit.recorded", name);
        call.reply_decision(&decision);
        Ok(())
    }
}
