//! `SWLIMIT.REFUND key units [AGE duration | SINCE unix-ms] [AT unix-ms]`

use swlimit_effect::Effect;

use super::request::{self, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{AnyKey, Call, Command, Declaration, Keys, Parameter, Reply};
use crate::statistics;

/// Give back counted units: newest subinterval first, or those counted from an instant on.
pub struct Refund;

/// The units to give back, and options.
struct RefundArguments {
    units: u64,
    options: Options,
}

impl Parse for RefundArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let units = words.units("units")?;
        Ok(Self { units, options: words.options(&[Keyword::Age, Keyword::Since, Keyword::At])? })
    }
}

impl Command for Refund {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.refund",
        summary:
            c"Gives back units counted in a sliding window, newest subinterval first, or those counted since then; or in \
            a budget.",
        complexity: c"O(log C), C being the number of subintervals that hold a count; O(C) with AGE or SINCE, and when counts \
            that slid out have to be dropped first",
        since: c"0.1.0",
        arity: -3,
        flags: c"write fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            Parameter::integer(c"units"),
            Parameter::one_of(
                c"from",
                &[request::AGE, Parameter::unix_time(c"since-unix-ms").after(c"SINCE")],
            )
            .optional(),
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let RefundArguments { units, options } = call.parse()?;
        let name = &call.arguments()[KEY];
        let moment = call.moment(options.at);
        let now = moment.now();
        let since = options.age.map(|age| now.saturating_sub(age)).or(options.since.map(|since| since.min(now)));
        let age = since.map(|since| now - since);

        let (given, expiry) = match call.write_any(name)? {
            Some(AnyKey::Window(mut key)) => {
                if key.entry().map_or(0, |entry| entry.refundable(units, age, now)) == 0 {
                    return Ok(Reply::Integer(0));
                }
                let mut change = key.change()?;
                let given = change.entry().refund(units, age, now);
                (given, change.done(moment))
            }
            Some(AnyKey::Budget(mut key)) => {
                let given = key.entry().map_or(0, |budget| budget.refundable(units, age, now));
                if given == 0 {
                    return Ok(Reply::Integer(0));
                }
                let mut change = key.change()?;
                change.entry().refund(given);
                (given, change.done(moment))
            }
            Some(AnyKey::Holds(_)) => return Err(Error::WrongType),
            None => return Ok(Reply::Integer(0)),
        };
        call.replicate(name, Effect::Refund { units: given, since, instant: now }, expiry);
        statistics::REFUNDED.add(1);
        call.notify(c"swlimit.refunded", name);
        Ok(Reply::Integer(given))
    }
}
