//! `SWLIMIT.BLOCK key duration [NX | GT] [AT unix-ms]`

use swlimit_effect::Effect;

use super::request::{self, announce_block, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Key, Keys, Parameter, Reply};

/// Block a key for a while: it grants nothing.
pub struct Block;

/// The block's duration, in ms, and options.
struct BlockArguments {
    duration: u64,
    options: Options,
}

impl Parse for BlockArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let duration = words.duration("BLOCK")?;
        Ok(Self { duration, options: words.options(&[Keyword::Nx, Keyword::Gt, Keyword::At])? })
    }
}

impl Command for Block {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.block",
        summary: c"Blocks a key for a while: until then nothing is granted.",
        complexity: c"O(1)",
        since: c"0.2.0",
        arity: -3,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            Parameter::string(c"duration"),
            Parameter::one_of(c"unless", &[Parameter::flag(c"nx", c"NX"), Parameter::flag(c"gt", c"GT")]).optional(),
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let BlockArguments { duration, options } = call.parse()?;
        let name = &call.arguments()[KEY];
        let moment = call.moment(options.at);
        let now = moment.now();

        let mut key: Key = call.write(name)?;
        let held = key.entry().and_then(|entry| entry.blocked_for(now));
        if let Some(ms) = held.filter(|ms| options.nx || options.gt && *ms >= duration) {
            return Ok(Reply::Integer(now + ms));
        }
        let mut change = key.change()?;
        change.block(Some(now + duration));
        let expiry = change.done(moment);
        drop(key);
        call.replicate(name, Effect::Block { until: now + duration }, expiry);
        announce_block(call, name);
        Ok(Reply::Integer(now + duration))
    }
}
