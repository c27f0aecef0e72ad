//! `key limit window resolution [options]`, which several commands share, and the block that a denial may begin.

use std::marker::PhantomData;

use swlimit_effect::Effect;
use swlimit_window::{Entry, Grant, Quota, Request};

use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Key, Moment, Parameter, Reply, Text};
use crate::statistics;

/// The index of the key among a call's arguments.
pub const KEY: usize = 1;

/// A command that accepts some of the options.
pub trait TakesOptions {
    /// The options it accepts.
    const OPTIONS: &'static [Keyword];
}

/// The arguments of the command `C` on one key.
pub struct QuotaRequest<C> {
    /// The limit and its window.
    pub quota: Quota,
    /// Cost, strictness, instant.
    pub options: Options,
    command: PhantomData<C>,
}

impl<C: TakesOptions> Parse for QuotaRequest<C> {
    #[inline(always)]
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let quota = words.quota(max_subintervals)?;
        Ok(Self { quota, options: words.options(C::OPTIONS)?, command: PhantomData })
    }
}

impl<C> QuotaRequest<C> {
    /// What is demanded of the window.
    pub fn request(&self) -> Request {
        let Options { cost, partial, strict, warm_up, .. } = self.options;
        Request { quota: self.quota, cost, partial, strict, warm_up }
    }

    /// The duration, in ms, of the block that a denial at `now` begins: a block that holds is neither prolonged nor renewed.
    pub fn block_begun(&self, entry: Option<&Entry>, now: u64) -> Option<u64> {
        self.options.block.filter(|_| entry.is_none_or(|entry| entry.blocked_for(now).is_none()))
    }
}

/// Count and notify a denial of so many units, by each of these keys.
#[inline(always)]
pub fn deny<'a>(call: &Call<'a>, names: impl IntoIterator<Item = &'a Text>, units: u64, moment: Moment) {
    statistics::denied(units);
    for name in names {
        call.count_denial(name, moment);
        call.notify(c"swlimit.denied", name);
    }
}

/// Count, replicate and notify a grant.
#[inline(always)]
pub fn grant<'a>(call: &Call<'a>, mut key: Key, name: &'a Text, grant: Grant, moment: Moment) -> Result<Reply, Error> {
    let effect = counted(&grant);
    let units = grant.units();
    let mut change = key.change()?;
    let decision = grant.apply(change.entry());
    let expiry = change.done(moment);
    drop(key);
    call.replicate(name, effect, expiry);
    statistics::granted(units);
    call.notify(c"swlimit.granted", name);
    Ok(Reply::Decision(decision))
}

/// The effect of a grant.
#[inline(always)]
pub fn counted<'a>(grant: &Grant) -> Effect<'a> {
    let (geometry, units, instant, since) = (grant.geometry(), grant.units(), grant.instant(), grant.since());
    Effect::Count { geometry, units, instant, dated: None, since }
}

/// Count and notify a block that began.
pub fn announce_block<'a>(call: &Call<'a>, name: &'a Text) {
    statistics::BLOCKED.add(1);
    call.notify(c"swlimit.blocked", name);
}

/// How `key` is declared.
pub const KEY_PARAMETER: Parameter = Parameter::key(c"key");
/// How `limit` is declared.
pub const LIMIT: Parameter = Parameter::integer(c"limit");
/// How `window` is declared.
pub const WINDOW: Parameter = Parameter::string(c"window");
/// How `resolution` is declared.
pub const RESOLUTION: Parameter = Parameter::string(c"resolution");
/// How `cost` is declared.
pub const UNITS: Parameter = Parameter::integer(c"cost");
/// How `limit window resolution cost [WARMUP duration [COLD n]]` is declared.
pub const QUOTA_AND_COST: &[Parameter] = &[LIMIT, WINDOW, RESOLUTION, UNITS, WARM_UP];
/// How `[COST n]` is declared.
pub const COST: Parameter = Parameter::integer(c"n").after(c"COST").optional();
/// How `[PARTIAL]` is declared.
pub const PARTIAL: Parameter = Parameter::flag(c"partial", c"PARTIAL").optional();
/// How `[STRICT]` is declared.
pub const STRICT: Parameter = Parameter::flag(c"strict", c"STRICT").optional();
/// How `[WARMUP duration [COLD n]]` is declared.
pub const WARM_UP: Parameter = Parameter::block(
    c"warm-up",
    &[Parameter::string(c"duration").after(c"WARMUP"), Parameter::integer(c"n").after(c"COLD").optional()],
)
.optional();
/// How `AGE duration` is declared.
pub const AGE: Parameter = Parameter::string(c"age").after(c"AGE");
/// How `[BLOCK duration]` is declared.
pub const BLOCK: Parameter = Parameter::string(c"duration").after(c"BLOCK").optional();
/// How `[AT unix-ms]` is declared.
pub const AT: Parameter = Parameter::unix_time(c"unix-ms").after(c"AT").optional();
