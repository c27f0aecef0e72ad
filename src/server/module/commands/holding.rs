//! What several commands do with holds: grant, renew, release and replicate them.

use swlimit_effect::{Effect, Expiry, Id, MAX_IDS};
use swlimit_hold::{Decision, Grant, Holds, Reservation, MAX_INSTANT};
use swlimit_window::integer;

use crate::arguments::Words;
use crate::configuration::MAX_HOLDS;
use crate::error::Error;
use crate::server::{Call, Effects, Key, Moment, Parameter, Text};
use crate::statistics;

/// How `ttl` is declared.
pub const TTL: Parameter = Parameter::string(c"ttl");
/// How `id` is declared.
pub const ID: Parameter = Parameter::string(c"id");
/// How `id [id …]` is declared.
pub const IDS: Parameter = Parameter::string(c"id").multiple();

/// What follows the ids of RENEW and RELEASE. Ids may be any bytes: only what stands at the end is an option.
pub struct IdOptions {
    /// How many ids there are.
    pub ids: usize,
    /// `AT unix-ms`
    pub at: Option<u64>,
}

impl IdOptions {
    /// Parse `id [id …] [AT unix-ms]`.
    pub fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Self, Error> {
        let mut words: Vec<&[u8]> = words.collect();
        let at = take_at(&mut words)?;
        if words.is_empty() {
            return Err(Error::Arity);
        }
        for id in &words {
            [*id].into_iter().id()?;
        }
        Ok(Self { ids: words.len(), at })
    }
}

/// Take `AT` with its instant off the end of ids, of which one is left.
fn take_at(words: &mut Vec<&[u8]>) -> Result<Option<u64>, Error> {
    match words[..] {
        [_, .., option, value] if option.eq_ignore_ascii_case(b"AT") => {
            let instant = integer(value).ok_or(Error::Instant("AT"))?;
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

/// Put a hold that is granted among the others, with what it reserves; the effect to replicate, and the key's expiry.
pub fn grant<'a>(
    call: &Call,
    key: &mut Key<Holds>,
    id: &'a Text,
    grant: Grant,
    moment: Moment,
    reserved: &'a [Reservation],
) -> Result<(Decision, Effect<'a>, Expiry), Error> {
    let instant = moment.now();
    let (units, end, token) = (grant.hold().units(), grant.hold().end(), grant.hold().token());
    let mut change = key.change()?;
    sweep(call, change.entry(), instant);
    let decision = grant.apply(change.entry(), (!reserved.is_empty()).then(|| reserved.into()));
    change.lasts_until(end);
    let expiry = change.done(moment);
    Ok((
        decision,
        Effect::Hold { id: id.bytes().into(), end, token, units, reserved: reserved.into(), instant },
        expiry,
    ))
}

/// Renew the live holds with these ids for `ttl` ms; the effects are about those that changed.
pub fn renew<'a>(
    call: &Call<'a>,
    key: &mut Key<Holds>,
    name: &'a Text,
    ttl: u64,
    ids: &[Text],
    moment: Moment,
    effects: &mut Effects<'a>,
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
    let renewed: Vec<Id> =
        ids.iter().zip(is_renewed).filter(|(_, is_renewed)| *is_renewed).map(|(id, _)| id.bytes().into()).collect();
    change.lasts_until(end);
    let expiry = change.done(moment);
    statistics::RENEWED.add(renewed.len() as u64);
    for ids in renewed.chunks(MAX_IDS) {
        effects.add(name, Effect::Renew { ids: ids.into(), end, instant: now }, expiry);
    }
    call.notify(c"swlimit.renewed", name);
    Ok(())
}

/// Release live holds with these ids; the units of each, 0 for one that is not live. The effects are about the others.
pub fn release<'a>(
    call: &Call,
    key: &mut Key<Holds>,
    name: &'a Text,
    ids: &[Text],
    moment: Moment,
    effects: &mut Effects<'a>,
) -> Result<Vec<u64>, Error> {
    let instant = moment.now();
    let mut change = key.change()?;
    let holds = change.entry();
    sweep(call, holds, instant);
    let freed = holds.release_all(ids.iter().map(Text::bytes));
    let released: Vec<Id> =
        ids.iter().zip(&freed).filter(|(_, units)| **units > 0).map(|(id, _)| id.bytes().into()).collect();
    change.lasts_until(instant);
    let expiry = change.done(moment);
    for ids in released.chunks(MAX_IDS) {
        effects.add(name, Effect::Release { ids: ids.into(), instant }, expiry);
    }
    Ok(freed)
}
