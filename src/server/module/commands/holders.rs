//! `SWLIMIT.HOLDERS key [count] [AT unix-ms]`

use swlimit_hold::Holds;
use swlimit_window::integer;

use super::request::{self, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::configuration::MOST_SHOWN;
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Holder, Keys, Parameter, Reply};

/// Show the holds of a key.
pub struct Holders;

/// At most how many holds, and options.
struct HoldersArguments {
    count: usize,
    options: Options,
}

const DEFAULT: usize = 100;

impl Parse for HoldersArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let mut words = words.peekable();
        let count = match words.next_if(|word| !word.eq_ignore_ascii_case(b"AT")) {
            None => DEFAULT,
            Some(word) => integer(word).filter(|count| (1..=MOST_SHOWN).contains(count)).ok_or(Error::Count)? as usize,
        };
        Ok(Self { count, options: words.options(&[Keyword::At])? })
    }
}

impl Command for Holders {
    /// Not `fast`: it looks at all holds.
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.holders",
        summary: c"Shows the live holds of a key, oldest first.",
        complexity: c"O(H + C log C), H being the number of holds of the key and C that of those shown",
        since: c"0.2.0",
        arity: -2,
        flags: c"readonly",
        categories: "read",
        keys: Keys::Read,
        parameters: &[request::KEY_PARAMETER, Parameter::integer(c"count").optional(), request::AT],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let HoldersArguments { count, options } = call.parse()?;
        let now = call.moment(options.at).now();
        let key = call.read::<Holds>(&call.arguments()[KEY])?;
        let holds = key.entry().map_or_else(Vec::new, |holds| holds.oldest(now, count));
        Ok(Reply::Holders(holds.into_iter().map(|hold| Holder::of(hold, now)).collect()))
    }
}
