//! `key limit window resolution [options]`, which several commands share, and the block that a denial may begin.

use std::marker::PhantomData;

use swlimit_window::{Demand, Entry, Grant, Quota};

use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Effect, Expiry, Key, Moment, Parameter, Reply, Text};
use crate::statistics;

/// Where the key stands among a call's arguments.
pub const KEY: usize = 1;
/// Where `limit window resolution` begin.
pub const QUOTA: usize = 2;

/// A command that takes some of the options.
pub trait Takes {
    /// Those it takes.
    const OPTIONS: &'static [Keyword];
}

/// What a client asks of one key with the command `C`.
pub struct Request<C> {
    /// The limit and its window.
    pub quota: Quota,
    /// Cost, strictness, instant.
    pub options: Options,
    command: PhantomData<C>,
}

impl<C: Takes> Parse for Request<C> {
    #[inline(always)]
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let quota = words.quota(max_subintervals)?;
        Ok(Self { quota, options: words.options(C::OPTIONS)?, command: PhantomData })
    }
}

impl<C> Request<C> {
    /// What is demanded of the window.
    pub fn demand(&self) -> Demand {
        let Options { cost, partial, strict, .. } = self.options;
        Demand { quota: self.quota, cost, partial, strict }
    }

    /// The duration, in ms, of the block that a denial at `now` begins: a block that holds is neither prolonged nor renewed.
    pub fn block_begun(&self, entry: Option<&Entry>, now: u64) -> Option<u64> {
        self.options.block.filter(|_| entry.is_none_or(|entry| entry.blocked_for(now).is_none()))
    }
}

/// Count what is granted, and tell of it.
#[inline(always)]
pub fn grant(call: &Call, mut key: Key, name: &Text, grant: Grant, moment: Moment) -> Result<Reply, Error> {
    let quota = call.words(QUOTA)?;
    let (units, instant) = (grant.units(), grant.instant());
    let mut change = key.change()?;
    let decision = grant.apply(change.entry());
    let until = change.done(Expiry::AfterEnd(moment));
    drop(key);
    call.replicate(name, Effect::Record { quota, units, age: None, instant, until });
    statistics::granted(units);
    call.notify(c"swlimit.granted", name);
    Ok(Reply::Decision(decision))
}

/// Tell that a key is blocked from now on. Replicas have been told: whoever listens may change the key again.
pub fn announce_block(call: &Call, name: &Text) {
    statistics::BLOCKED.add(1);
    call.notify(c"swlimit.blocked", name);
}

/// How `key` is declared.
pub const KEY_PARAMETER: Parameter = Parameter::Key(c"key");
/// How `limit` is declared.
pub const LIMIT: Parameter = Parameter::Integer(c"limit");
/// How `window` is declared.
pub const WINDOW: Parameter = Parameter::String(c"window");
/// How `resolution` is declared.
pub const RESOLUTION: Parameter = Parameter::String(c"resolution");
/// How `[COST n]` is declared.
pub const COST: Parameter = Parameter::IntegerAfter(c"COST", c"n");
/// How `[PARTIAL]` is declared.
pub const PARTIAL: Parameter = Parameter::Flag(c"partial", c"PARTIAL");
/// How `[STRICT]` is declared.
pub const STRICT: Parameter = Parameter::Flag(c"strict", c"STRICT");
/// How `[AGE duration]` is declared.
pub const AGE: Parameter = Parameter::StringAfter(c"AGE", c"age");
/// How `[BLOCK duration]` is declared.
pub const BLOCK: Parameter = Parameter::StringAfter(c"BLOCK", c"duration");
/// How `[AT unix-ms]` is declared.
pub const AT: Parameter = Parameter::UnixTimeAfter(c"AT", c"unix-ms");
/// How `[UNTIL unix-ms]` is declared.
pub const UNTIL: Parameter = Parameter::UnixTimeAfter(c"UNTIL", c"until-unix-ms");
