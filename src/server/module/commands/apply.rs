//! `SWLIMIT.APPLY key effect [key effect …]`
//!
//! What a primary, an append-only file or a moving slot has, and who takes a key over: results, which no limit and no setting
//! changes. They go on to replicas and the append-only file as they are.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use swlimit_budget::Budget;
use swlimit_effect::{Effect, Expiry, Word};
use swlimit_hold::{Hold, Holds};
use swlimit_window::{Entry, Overflow, Window, MAX_EXACT};

use super::holding;
use super::request::{self, announce_block};
use crate::configuration::MAX_SUBINTERVALS;
use crate::error::Error;
use crate::server::{AnyKey, Call, Command, Declaration, Key, Keys, Parameter, Reply, Text, Value};
use crate::statistics;

/// Apply effects to keys.
pub struct Apply;

impl Command for Apply {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.apply",
        summary: c"Applies what other commands have changed: for replication, append-only files and taking keys over.",
        complexity:
            c"O(E log C), E being the number of effects and C that of subintervals or holds of a key; O(E C) where \
            windows or resolutions change, or more than a quarter of the holds has ended",
        since: c"0.2.0",
        arity: -3,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::ChangeEachSecond,
        parameters: &[Parameter::block(c"effects", &[request::KEY_PARAMETER, Parameter::string(c"effect")]).multiple()],
    };

    #[inline(always)]
    fn run(call: &Call) -> Result<Reply, Error> {
        match &call.arguments()[1..] {
            [name, word] => {
                let words = [read(call, word)?];
                let Some(mut key) = open(call, name, &words)? else { return Ok(Reply::Integer(0)) };
                let applied = apply(call, name, &mut key, &words)?;
                call.replicate_verbatim();
                Ok(Reply::Integer(applied))
            }
            pairs => apply_all(call, pairs),
        }
    }
}

/// The effect of a word. Clients may use up to `swlimit.max-subintervals`, as with any command.
#[inline(always)]
fn read<'a>(call: &Call, word: &'a Text) -> Result<Word<'a>, Error> {
    let word = Word::read(word.bytes()).map_err(|invalid| Error::Effect(invalid.0))?;
    if let Effect::Count { geometry, .. } = word.effect {
        let (subintervals, max) = (geometry.subintervals(), MAX_SUBINTERVALS.get());
        if subintervals > max && !call.must_obey() {
            return Err(Error::TooManySubintervals { subintervals, max });
        }
    }
    Ok(word)
}

/// Apply effects on several keys, or several on one. All words are read first, then all keys are opened.
fn apply_all<'a>(call: &Call<'a>, pairs: &'a [Text]) -> Result<Reply, Error> {
    let keys = grouped(call, pairs)?;
    let is_obeyed = call.must_obey();
    let opened = call.open(|| {
        let open = |(name, words): &(&'a Text, Vec<Word>)| match open(call, name, words) {
            // This key stays as it is, and all others become what they are where the effects come from.
            Err(Error::WrongType) if is_obeyed => Ok(Err(Error::WrongType)),
            opened => opened.map(Ok),
        };
        keys.iter().map(open).collect::<Result<Vec<_>, Error>>()
    })?;
    let (mut applied, mut fault) = (0, None);
    let overflows =
        |(key, (_, words)): (&Result<_, _>, &(_, Vec<Word>))| key.as_ref().is_ok_and(|key| may_overflow(key, words));
    if !is_obeyed && opened.iter().zip(&keys).any(overflows) {
        return Err(Error::Overflow);
    }
    for (key, (name, words)) in opened.into_iter().zip(&keys) {
        match key.and_then(|key| key.map_or(Ok(0), |mut key| apply(call, name, &mut key, words))) {
            Ok(more) => applied += more,
            Err(error) => fault = Some(error),
        }
    }
    call.replicate_verbatim();
    fault.map_or(Ok(Reply::Integer(applied)), Err)
}

/// The effects of each key, in their order.
fn grouped<'a>(call: &Call, pairs: &'a [Text]) -> Result<Vec<(&'a Text, Vec<Word<'a>>)>, Error> {
    let mut places = HashMap::with_hasher(RandomState::default());
    let mut keys: Vec<(&Text, Vec<Word>)> = Vec::new();
    for pair in pairs.chunks(2) {
        let [name, word] = pair else { return Err(Error::Arity) };
        let place = *places.entry(name.bytes()).or_insert(keys.len());
        if place == keys.len() {
            keys.push((name, Vec::new()));
        }
        keys[place].1.push(read(call, word)?);
    }
    Ok(keys)
}

/// The type of the value that an effect is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Window,
    Budget,
    Holds,
}

impl Kind {
    /// Units are given back to what is there.
    fn of(effect: &Effect) -> Option<Self> {
        match effect {
            Effect::Count { .. } | Effect::Block { .. } | Effect::Unblock { .. } => Some(Kind::Window),
            Effect::Period { .. } => Some(Kind::Budget),
            Effect::Hold { .. } | Effect::Renew { .. } | Effect::Release { .. } => Some(Kind::Holds),
            Effect::Refund { .. } => None,
        }
    }
}

/// Open the key of some effects; `None` if it does not exist and they don't make it.
#[inline(always)]
fn open<'c, 'a>(call: &'c Call<'a>, name: &'a Text, words: &[Word]) -> Result<Option<AnyKey<'c>>, Error> {
    let mut kinds = words.iter().filter_map(|word| Kind::of(&word.effect));
    let kind = kinds.next();
    if kinds.any(|other| Some(other) != kind) {
        return Err(Error::WrongType);
    }
    Ok(Some(match kind {
        Some(Kind::Window) => AnyKey::Window(call.write(name)?),
        Some(Kind::Budget) => AnyKey::Budget(call.write(name)?),
        Some(Kind::Holds) => AnyKey::Holds(call.write(name)?),
        None => match call.write_any(name)? {
            Some(AnyKey::Holds(_)) => return Err(Error::WrongType),
            opened => return Ok(opened),
        },
    }))
}

/// Whether effects on a key may hold more units than a value can, if none of them gives any back.
fn may_overflow(key: &Option<AnyKey>, words: &[Word]) -> bool {
    let held = match key {
        Some(AnyKey::Window(key)) => key.entry().and_then(Entry::window).map_or(0, Window::total),
        Some(AnyKey::Budget(key)) => key.entry().map_or(0, Budget::used),
        Some(AnyKey::Holds(key)) => key.entry().map_or(0, |holds| holds.live(0).units),
        None => 0,
    };
    words.iter().fold(held, |held, word| held.saturating_add(word.effect.added())) > MAX_EXACT
}

/// Apply effects to an open key; how many have changed it.
#[inline(always)]
fn apply<'a>(call: &Call<'a>, name: &'a Text, key: &mut AnyKey, words: &[Word]) -> Result<u64, Error> {
    match key {
        AnyKey::Window(key) => change(call, name, key, words, apply_to_window),
        AnyKey::Budget(key) => change(call, name, key, words, apply_to_budget),
        AnyKey::Holds(key) => change(call, name, key, words, |holds, effect| apply_to_holds(call, holds, effect)),
    }
}

/// Change the value of a key by each of some effects, and its expiry as the last of them says it.
#[inline(always)]
fn change<'a, V: Value>(
    call: &Call<'a>,
    name: &'a Text,
    key: &mut Key<V>,
    words: &[Word],
    apply_to: impl Fn(&mut V, &Effect) -> Result<bool, Overflow>,
) -> Result<u64, Error> {
    let makes = |word: &Word| word.effect.added() > 0 || matches!(word.effect, Effect::Block { .. });
    if key.entry().is_none() && !words.iter().any(makes) {
        return Ok(0);
    }
    let mut change = key.change()?;
    let (mut applied, mut instant, mut expiry, mut overflow) = (0, 0, Expiry::Kept, false);
    for word in words {
        match apply_to(change.entry(), &word.effect) {
            Ok(true) => {
                applied += 1;
                instant = instant.max(word.effect.instant());
                expiry = if word.expiry == Expiry::Kept { expiry } else { word.expiry };
                announce(call, name, &word.effect);
            }
            Ok(false) => {}
            Err(Overflow) => overflow = true,
        }
    }
    if applied > 0 || change.entry().end() == 0 {
        change.done_as(expiry, instant);
    }
    match overflow {
        true => Err(Error::Overflow),
        false => Ok(applied),
    }
}

/// Apply an effect to a window; whether that changes it.
#[inline(always)]
fn apply_to_window(entry: &mut Entry, effect: &Effect) -> Result<bool, Overflow> {
    Ok(match *effect {
        Effect::Count { geometry, units, instant, dated, since } => {
            return entry.count(geometry, instant, dated.unwrap_or(instant), units, since);
        }
        Effect::Refund { units, instant, since } => {
            entry.refund(units, since.map(|since| instant - since), instant) > 0
        }
        Effect::Block { until } => {
            entry.block(until);
            true
        }
        Effect::Unblock { .. } => {
            let was_blocked = entry.blocked_until() > 0;
            entry.unblock();
            was_blocked
        }
        _ => false,
    })
}

/// Apply an effect to a budget; whether that changes it.
fn apply_to_budget(budget: &mut Budget, effect: &Effect) -> Result<bool, Overflow> {
    Ok(match *effect {
        Effect::Period { until, units, instant } => {
            *budget = Budget::count(Some(budget), instant, until, units)?.budget();
            true
        }
        Effect::Refund { units, instant, since } => {
            let given = budget.refundable(units, since.map(|since| instant - since), instant);
            budget.refund(given);
            given > 0
        }
        _ => false,
    })
}

/// Apply an effect to holds; whether that changes them.
fn apply_to_holds(call: &Call, holds: &mut Holds, effect: &Effect) -> Result<bool, Overflow> {
    let instant = effect.instant();
    Ok(match effect {
        Effect::Hold { id, end, token, units, reserved, .. } => {
            let reserved = Some(reserved.iter().cloned().collect());
            let Ok(hold) = Hold::new(id, *units, *end, *token, reserved) else { return Ok(false) };
            Holds::check_put(Some(holds), instant, &hold)?;
            holding::sweep(call, holds, instant);
            holds.put(hold);
            true
        }
        Effect::Renew { ids, end, .. } => {
            holding::sweep(call, holds, instant);
            holds.renew_all(ids.iter().map(|id| &**id), *end).contains(&true)
        }
        Effect::Release { ids, .. } => {
            holding::sweep(call, holds, instant);
            holds.release_all(ids.iter().map(|id| &**id)).iter().any(|units| *units > 0)
        }
        _ => false,
    })
}

/// Count and notify an effect as the command that it comes from, or that counts the same.
#[inline(always)]
fn announce<'a>(call: &Call<'a>, name: &'a Text, effect: &Effect) {
    let (statistic, times, event) = match effect {
        Effect::Count { .. } | Effect::Period { .. } => (&statistics::RECORDED, 1, c"swlimit.recorded"),
        Effect::Refund { .. } => (&statistics::REFUNDED, 1, c"swlimit.refunded"),
        Effect::Hold { .. } => (&statistics::HELD, 1, c"swlimit.held"),
        Effect::Renew { ids, .. } => (&statistics::RENEWED, ids.len(), c"swlimit.renewed"),
        Effect::Release { ids, .. } => (&statistics::RELEASED, ids.len(), c"swlimit.released"),
        Effect::Block { .. } => return announce_block(call, name),
        Effect::Unblock { .. } => return call.notify(c"swlimit.unblocked", name),
    };
    statistic.add(times as u64);
    call.notify(event, name);
}
