//! `SWLIMIT.REFUND key units [AT unix-ms]`

use super::request::KEY;
use crate::arguments::{Keyword, Words};
use crate::error::Error;
use crate::server::{Call, Command, Documentation, Keys, Parameter, Parse};
use crate::statistics;

/// Give back counted units, newest subinterval first.
pub struct Refund;

/// What is to be given back, and when.
struct Return {
    units: u64,
    at: Option<u64>,
}

impl Parse for Return {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let units = words.units("units")?;
        Ok(Self { units, at: words.options(&[Keyword::At])?.at })
    }
}

impl Command for Refund {
    const DOCUMENTATION: Documentation = Documentation {
        name: c"swlimit.refund",
        summary: c"Gives back units counted in a sliding window, newest subinterval first.",
        complexity: c"O(log C), C being the number of subintervals that hold a count; O(C) when counts that slid out \
            have to be dropped first",
        since: c"0.1.0",
        arity: -3,
        flags: c"write fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            Parameter::Key(c"key"),
            Parameter::Integer(c"units"),
            Parameter::UnixTimeAfter(c"AT", c"unix-ms"),
        ],
    };

    fn run(call: &Call) -> Result<(), Error> {
        let request: Return = call.parse()?;
        let name = &call.arguments()[KEY];
        let now = call.instant(request.at).ms();

        let mut key = call.write(name)?;
        if key.window().is_none() {
            call.reply_integer(0);
            return Ok(());
        }
        let given = key.change(None, now, |window| window.refund(request.units))?;
        drop(key);
        call.replicate_refund(name, given, now);
        statistics::REFUNDED.add(1);
        call.notify(c"swlimit.refunded", name);
        call.reply_integer(given);
        Ok(())
    }
}
