//! What several commands do with holds: grant, renew, release and replicate them.

use swlimit_hold::{Decision, Grant, Holds, Reservation, MAX_INSTANT};
use swlimit_window::integer;

use crate::arguments::Words;
use crate::configuration::MAX_HOLDS;
use crate::error::Error;
use crate::server::{Call, Effect, Expiry, HoldEffect, Key, Moment, OwnText, Parameter, Text};
use crate::statistics;

/// How `ttl` is declared.
pub const TTL: Parameter = Parameter::string(c"ttl");
/// How `id` is declared.
pub const ID: Parameter = Parameter::string(c"id");
/// How `id [id …]` is declared.
pub const IDS: Parameter = Parameter::string(c"id").multiple();

/// What follows the ids of RENEW and RELEASE. Ids may be any bytes: only what stands at the end, in this order, is an
/// option.
pub struct IdOptions {
    /// How many ids there are.
    pub ids: usize,
    /// `AT unix-ms`
    pub at: Option<u64>,
    /// `UNTIL unix-ms`
    pub until: Option<u64>,
}

impl IdOptions {
    /// Parse `id [id …] [AT unix-ms] [UNTIL unix-ms]`.
    pub fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Self, Error> {
        let mut words: Vec<&[u8]> = words.collect();
        let until = take_last(&mut words, b"UNTIL", "UNTIL")?;
        let at = take_last(&mut words, b"AT", "AT")?;
        if words.is_empty() {
            return Err(Error::Arity);
        }
        for id in &words {
            [*id].into_iter().id()?;
        }
        Ok(Self { ids: words.len(), at, until })
    }
}

/// Take an option with its instant off the end of ids, of which one is left.
fn take_last(words: &mut Vec<&[u8]>, keyword: &[u8], name: &'static str) -> Result<Option<u64>, Error> {
    match words[..] {
        [_, .., option, value] if option.eq_ignore_ascii_case(keyword) => {
            let instant = integer(value).ok_or(Error::Instant(name))?;
            words.truncate(words.len() - 2);
            Ok(Some(instant))
        }
        _ => Ok(None),
    }
}

/// An error if this is no instant at which holds may be granted or renewed.
pub fn check_instant(at: Option<u64>) -> Result<(), Error> {
    match at {
        Some(at) if at > MAX_INSTANT => Err(Error::Instant("AT")),
        _ => Ok(()),
    }
}

/// The most live holds that a key may have. While others wait, a denial comes before this bound.
pub fn most(first_due: Option<u64>) -> u64 {
    first_due.map_or(MAX_HOLDS.get(), |_| u64::MAX)
}

/// Remove what has ended. Every change of holds begins with this, and nothing else does it, so that all servers store
/// the same.
pub fn sweep(call: &Call, holds: &mut Holds, now: u64) {
    let swept = holds.sweep(now);
    if swept > 0 && !call.must_obey() {
        statistics::HOLDS_EXPIRED.add(swept);
    }
}

/// Put a hold that is granted among the others; the effect to replicate says when the key expires.
pub fn grant<'a>(
    call: &Call,
    key: &mut Key<Holds>,
    id: &'a Text,
    grant: Grant,
    moment: Moment,
    reserved: Option<(Box<[Reservation]>, &'a [OwnText])>,
) -> Result<(Decision, Effect<'a>), Error> {
    let now = moment.now();
    let (units, end, token) = (grant.hold().units(), grant.hold().end(), grant.hold().token());
    let (reserved, words) = reserved.map_or((None, &[][..]), |(reserved, words)| (Some(reserved), words));
    let mut change = key.change()?;
    sweep(call, change.entry(), now);
    let decision = grant.apply(change.entry(), reserved);
    change.lasts_until(end);
    let until = change.done(Expiry::AfterEnd(moment));
    let effect = HoldEffect::Put { id, units, end, token, reserved: words };
    Ok((decision, Effect::Holds { effect, instant: now, until }))
}

/// Renew the live holds with these ids for `ttl` ms, and replicate those that changed.
pub fn renew<'a>(
    call: &Call<'a>,
    key: &mut Key<Holds>,
    name: &'a Text,
    ttl: u64,
    ids: &[Text],
    moment: Moment,
    until: Option<u64>,
) -> Result<(), Error> {
    let (now, end) = (moment.now(), moment.now() + ttl);
    ids.iter().for_each(|id| call.hold_is_known(name, id.bytes()));
    let changes =
        |id: &&Text| key.entry().and_then(|holds| holds.get(id.bytes(), now)).is_some_and(|hold| hold.end() != end);
    if !ids.iter().any(|id| changes(&id)) {
        return Ok(());
    }
    let mut change = key.change()?;
    let holds = change.entry();
    sweep(call, holds, now);
    let is_renewed = holds.renew_all(ids.iter().map(Text::bytes), end);
    let renewed: Vec<&Text> =
        ids.iter().zip(is_renewed).filter(|(_, is_renewed)| *is_renewed).map(|(id, _)| id).collect();
    change.lasts_until(end);
    let until = change.done(Expiry::of(until, moment));
    call.replicate(name, Effect::Holds { effect: HoldEffect::Renew { ttl, ids: &renewed }, instant: now, until });
    statistics::RENEWED.add(renewed.len() as u64);
    call.notify(c"swlimit.renewed", name);
    Ok(())
}
