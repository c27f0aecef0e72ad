//! `SWLIMIT.UNBLOCK key [AT unix-ms] [UNTIL unix-ms]`

use super::request::{self, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effect, Expiry, Key, Keys, Reply};

/// Lift a block.
pub struct Unblock;

/// `AT` and `UNTIL`.
struct UnblockArguments(Options);

impl Parse for UnblockArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        Ok(Self(words.options(&[Keyword::At, Keyword::Until])?))
    }
}

impl Command for Unblock {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.unblock",
        summary: c"Lifts the block of a key.",
        complexity: c"O(1)",
        since: c"0.2.0",
        arity: -2,
        flags: c"write fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[request::KEY_PARAMETER, request::AT, request::UNTIL],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let UnblockArguments(options) = call.parse()?;
        let name = &call.arguments()[KEY];
        let moment = call.moment(options.at);

        let mut key: Key = call.write(name)?;
        if key.entry().and_then(|entry| entry.blocked_for(moment.now())).is_none() {
            return Ok(Reply::Integer(0));
        }
        let mut change = key.change()?;
        change.entry().unblock();
        let until = change.done(Expiry::of(options.until, moment));
        drop(key);
        call.replicate(name, Effect::Unblock { instant: moment.now(), until });
        call.notify(c"swlimit.unblocked", name);
        Ok(Reply::Integer(1))
    }
}
