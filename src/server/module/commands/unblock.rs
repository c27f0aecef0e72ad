//! `SWLIMIT.UNBLOCK key [AT unix-ms]`

use swlimit_effect::Effect;

use super::request::{self, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Key, Keys, Reply};

/// Lift a block.
pub struct Unblock;

/// `AT`.
struct UnblockArguments(Options);

impl Parse for UnblockArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        Ok(Self(words.options(&[Keyword::At])?))
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
        parameters: &[request::KEY_PARAMETER, request::AT],
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
        change.block(None);
        let expiry = change.done(moment);
        drop(key);
        call.replicate(name, Effect::Unblock { instant: moment.now() }, expiry);
        call.notify(c"swlimit.unblocked", name);
        Ok(Reply::Integer(1))
    }
}
