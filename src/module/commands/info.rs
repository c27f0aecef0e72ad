//! `SWLIMIT.INFO key`

use super::request::KEY;
use crate::arguments::Words;
use crate::error::Error;
use crate::server::{Call, Command, Documentation, Keys, Parameter, Parse};

/// Show what a key holds.
pub struct Info;

/// Just a key.
struct Name;

impl Parse for Name {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        words.end()?;
        Ok(Self)
    }
}

impl Command for Info {
    const DOCUMENTATION: Documentation = Documentation {
        name: c"swlimit.info",
        summary: c"Shows the window, resolution and counts that a key holds.",
        complexity: c"O(C), C being the number of subintervals that hold a count",
        since: c"0.1.0",
        arity: 2,
        flags: c"readonly fast",
        categories: "read fast",
        keys: Keys::Read,
        parameters: &[Parameter::Key(c"key")],
    };

    fn run(call: &Call) -> Result<(), Error> {
        call.parse::<Name>()?;
        let key = call.read(&call.arguments()[KEY])?;
        let window = key.window().ok_or(Error::NoSuchKey)?;
        let numbers = [
            ("window", window.geometry().window()),
            ("resolution", window.geometry().resolution()),
            ("subintervals", window.geometry().subintervals()),
            ("newest", window.newest()),
            ("total", window.total()),
            ("memory", window.bytes() as u64),
        ];
        call.reply_map(numbers.len() + 1);
        for (name, number) in numbers {
            call.reply_name(name);
            call.reply_integer(number);
        }
        call.reply_name("counts");
        call.reply_array(window.counts_held());
        for (start, units) in window.counts() {
            call.reply_array(2);
            call.reply_integer(start);
            call.reply_integer(units);
        }
        Ok(())
    }
}
