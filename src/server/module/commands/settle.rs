//! `SWLIMIT.SETTLE numkeys key [key …] id used [used …] [AT unix-ms]`
//!
//! At most once for a hold: it ends. Everything is decided before anything is changed, so that an error leaves it as it is.

use std::slice;

use swlimit_budget::{self as budgets, Budget};
use swlimit_effect::Effect;
use swlimit_hold::{Holds, KeyDigest, Reservation, Reserved};
use swlimit_window::{integer, Entry, Quota, Record, Recording, Request, WarmUp, MAX_WINDOW};

use super::admit::{FIRST_KEY, MOST_KEYS};
use super::budget::count;
use super::holding;
use super::request;
use crate::arguments::{distinct, Keyword, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effects, Key, Keys, Moment, OwnText, Parameter, Reply, Text};
use crate::statistics;

/// End a hold, and count what was really used of what it has reserved.
pub struct Settle;

struct SettleArguments {
    numkeys: usize,
    /// Units used of each reservation, in order.
    used: Vec<u64>,
    at: Option<u64>,
}

impl Parse for SettleArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        let numkeys = Some(words.numkeys()?).filter(|numkeys| *numkeys <= MOST_KEYS).ok_or(Error::NumKeys)?;
        let words: Vec<&[u8]> = words.collect();
        let (keys, rest) = words.split_at_checked(numkeys).ok_or(Error::NumKeys)?;
        let mut rest = rest.iter().copied();
        rest.id()?;
        let mut used = Vec::with_capacity(numkeys);
        for _ in 1..numkeys {
            used.push(integer(rest.next().ok_or(Error::NumKeys)?).ok_or(Error::Used)?);
        }
        let options = rest.options(&[Keyword::At])?;
        distinct(keys)?;
        Ok(Self { numkeys, used, at: options.at })
    }
}

/// A reservation's key.
enum Opened<'c> {
    Rate(Key<'c, Entry>),
    Budget(Key<'c, Budget>),
    Hold(Key<'c, Holds>),
}

impl<'c> Opened<'c> {
    fn open<'a>(call: &'c Call<'a>, name: &'a Text, reservation: &Reservation) -> Result<Self, Error> {
        Ok(match reservation.of {
            Reserved::Rate { .. } => Opened::Rate(call.write(name)?),
            Reserved::Budget { .. } => Opened::Budget(call.write(name)?),
            Reserved::Hold { .. } => Opened::Hold(call.write(name)?),
        })
    }
}

/// What becomes of a reservation.
enum Change<'c> {
    /// What was used, was reserved; or what was not matters no more.
    None,
    /// So many units of a rate go back, at an age and a moment.
    Refund { key: Key<'c, Entry>, units: u64, age: u64, moment: Moment },
    /// So many more are counted.
    Record { key: Key<'c, Entry>, record: Record, units: u64 },
    /// So many units of a budget go back.
    Return { key: Key<'c, Budget>, units: u64 },
    /// So many more are counted.
    Count { key: Key<'c, Budget>, count: budgets::Count },
    /// Another hold is released, of so many units.
    Release { key: Key<'c, Holds>, id: OwnText, units: u64 },
}

impl<'c> Change<'c> {
    /// What has to be done where so many units were used of a reservation.
    fn of(opened: Opened<'c>, reservation: &Reservation, used: u64, moment: Moment) -> Result<Self, Error> {
        let now = moment.now();
        let unused = reservation.units.saturating_sub(used);
        let beyond = used.saturating_sub(reservation.units);
        match (opened, &reservation.of) {
            (Opened::Rate(key), Reserved::Rate { instant, geometry, warms_up }) => {
                if beyond > 0 {
                    let quota = Quota { limit: 0, geometry: *geometry };
                    // Nobody sees the decision, so that any warm-up will do.
                    let warm_up = WarmUp::new(1, WarmUp::COLD).filter(|_| *warms_up);
                    let request = Request { quota, cost: beyond, partial: false, strict: false, warm_up };
                    return Ok(match Entry::record(key.entry(), now, None, &request)? {
                        Recording::Counted(record) => Change::Record { key, record, units: beyond },
                        Recording::Dropped(_) => Change::None,
                    });
                }
                // A clock that stepped back does not make the units older than they are.
                let moment = if *instant > now { Moment::At(*instant) } else { moment };
                let age = moment.now() - instant;
                let units = key.entry().map_or(0, |entry| entry.refundable(unused, Some(age), moment.now()));
                Ok(match units {
                    0 => Change::None,
                    units => Change::Refund { key, units, age, moment },
                })
            }
            (Opened::Budget(key), Reserved::Budget { until }) => {
                let in_force = Budget::in_force(key.entry(), now);
                if beyond > 0 {
                    let ahead = until.checked_sub(now).is_some_and(|ms| (1..=MAX_WINDOW).contains(&ms));
                    if in_force.is_none() && !ahead {
                        return Ok(Change::None);
                    }
                    let count = Budget::count(key.entry(), now, *until, beyond)?;
                    return Ok(Change::Count { key, count });
                }
                let units = in_force
                    .filter(|budget| budget.until() == *until)
                    .map_or(0, |budget| budget.refundable(unused, None, now));
                Ok(match units {
                    0 => Change::None,
                    units => Change::Return { key, units },
                })
            }
            (Opened::Hold(key), Reserved::Hold { id, token }) => {
                if used > 0 {
                    return Err(Error::Syntax(used.to_string().into_bytes()));
                }
                let same = key.entry().and_then(|holds| holds.get(id, now)).filter(|hold| hold.token() == *token);
                Ok(match same.map(|hold| hold.units()) {
                    Some(units) => Change::Release { key, id: OwnText::new(id), units },
                    None => Change::None,
                })
            }
            _ => Ok(Change::None),
        }
    }

    /// Do it; the units counted (or given back: below 0).
    fn apply<'a>(
        self,
        call: &Call<'a>,
        name: &'a Text,
        moment: Moment,
        effects: &mut Effects<'a>,
    ) -> Result<i64, Error> {
        let (units, event) = match self {
            Change::None => return Ok(0),
            Change::Refund { mut key, units, age, moment } => {
                let mut change = key.change()?;
                let units = change.entry().refund(units, Some(age), moment.now());
                let (expiry, instant) = (change.done(moment), moment.now());
                let since = Some(instant.saturating_sub(age));
                effects.add(name, Effect::Refund { units, since, instant }, expiry);
                statistics::REFUNDED.add(1);
                (-(units as i64), c"swlimit.refunded")
            }
            Change::Record { mut key, record, units } => {
                let (geometry, instant, since) = (record.geometry(), record.instant(), record.since());
                let mut change = key.change()?;
                record.apply(change.entry());
                let expiry = change.done(moment);
                effects.add(name, Effect::Count { geometry, units, instant, dated: None, since }, expiry);
                statistics::RECORDED.add(1);
                (units as i64, c"swlimit.recorded")
            }
            Change::Return { mut key, units } => {
                let mut change = key.change()?;
                change.entry().refund(units);
                let expiry = change.done(moment);
                effects.add(name, Effect::Refund { units, since: None, instant: moment.now() }, expiry);
                statistics::REFUNDED.add(1);
                (-(units as i64), c"swlimit.refunded")
            }
            Change::Count { mut key, count: counted } => {
                let units = counted.units();
                let (effect, expiry) = count(&mut key, counted, moment)?;
                effects.add(name, effect, expiry);
                statistics::RECORDED.add(1);
                (units as i64, c"swlimit.recorded")
            }
            Change::Release { mut key, id, units } => {
                holding::release(call, &mut key, name, OwnText::borrow_slice(slice::from_ref(&id)), moment, effects)?;
                statistics::RELEASED.add(1);
                (-(units as i64), c"swlimit.released")
            }
        };
        call.notify(event, name);
        Ok(units)
    }
}

impl Command for Settle {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.settle",
        summary: c"Ends a hold, and counts what was really used of what was admitted together with it.",
        complexity:
            c"O(K C), K being the number of keys and C that of subintervals that hold a count; O(H) for a key of H \
            holds when more than a quarter of them has ended, else O(log H)",
        since: c"0.2.0",
        arity: -4,
        flags: c"write",
        categories: "write",
        keys: Keys::ChangeCounted,
        parameters: &[
            Parameter::integer(c"numkeys"),
            Parameter::key(c"key").multiple(),
            holding::ID,
            Parameter::integer(c"used").optional().multiple(),
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let SettleArguments { numkeys, used, at } = call.parse()?;
        let (names, rest) = call.arguments()[FIRST_KEY..].split_at(numkeys);
        let (Some((own_name, names)), Some(id)) = (names.split_first(), rest.first()) else { return Err(Error::Arity) };
        call.check_slots(&call.arguments()[FIRST_KEY..][..numkeys])?;
        let moment = call.moment(at);

        let opened = call.open(|| {
            let key = call.write::<Holds>(own_name)?;
            let Some(hold) = key.entry().and_then(|holds| holds.get(id.bytes(), moment.now())) else {
                return Ok(None);
            };
            let reserved = hold.reserved().to_vec();
            let is_of = |(name, reservation): (&Text, &Reservation)| KeyDigest::of(name.bytes()) == reservation.key;
            if reserved.len() != names.len() || !names.iter().zip(&reserved).all(is_of) {
                return Err(Error::OtherKeys);
            }
            let open = |(name, reservation)| Opened::open(call, name, reservation);
            let others = names.iter().zip(&reserved).map(open).collect::<Result<Vec<_>, _>>()?;
            Ok(Some((key, reserved, others)))
        })?;
        let Some((mut key, reserved, others)) = opened else { return Ok(Reply::Integers(vec![0])) };
        let mut changes = Vec::with_capacity(names.len());
        for ((opened, reservation), used) in others.into_iter().zip(&reserved).zip(used) {
            changes.push(Change::of(opened, reservation, used, moment)?);
        }

        let mut effects = Effects::new();
        holding::release(call, &mut key, own_name, slice::from_ref(id), moment, &mut effects)?;
        drop(key);
        statistics::SETTLED.add(1);
        call.notify(c"swlimit.settled", own_name);
        let mut reply = vec![1];
        for (name, change) in names.iter().zip(changes) {
            reply.push(change.apply(call, name, moment, &mut effects)?);
        }
        call.replicate_all(effects);
        Ok(Reply::Integers(reply))
    }
}
