//! `SWLIMIT.ADMIT numkeys key [key …] clause [clause …] [STRICT] [AT unix-ms]`, a clause being `RATE limit window resolution
//! cost [WARMUP duration [COLD n]]`, `HOLD limit ttl id cost` or `BUDGET limit until cost`.
//!
//! The first HOLD clause's hold remembers what is taken with it: asked again with that id, nothing is counted again, and
//! `SWLIMIT.SETTLE` settles it.

use swlimit_budget::{self as budgets, Budget};
use swlimit_effect::Effect;
use swlimit_hold::{self as holds, Hold, Holds, KeyDigest, Reservation, Reserved};
use swlimit_window::{integer, Decision, Entry, Quota, Request, Verdict, WarmUp};

use super::budget::{check_end, count};
use super::holding;
use super::request;
use crate::arguments::{distinct, Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Admitted, Call, Command, Declaration, Effects, Key, Keys, Moment, Parameter, Reply, Text};
use crate::statistics;

/// Decide rates, holds and budgets at once: all or nothing.
pub struct Admit;

/// The index of the first key among a call's arguments.
pub const FIRST_KEY: usize = 2;
/// The most keys.
pub const MOST_KEYS: usize = 64;

/// What is asked of a key.
enum Clause {
    Rate { quota: Quota, cost: u64, warm_up: Option<WarmUp> },
    Hold { limit: u64, ttl: u64, cost: u64 },
    Budget { limit: u64, until: u64, cost: u64 },
}

/// A clause, and the index of its first word after the kind among the words after the command's name.
struct Placed {
    clause: Clause,
    words: usize,
}

struct AdmitArguments {
    clauses: Vec<Placed>,
    options: Options,
}

impl Parse for AdmitArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error> {
        let numkeys = Some(words.numkeys()?).filter(|numkeys| *numkeys <= MOST_KEYS).ok_or(Error::NumKeys)?;
        let words: Vec<&[u8]> = words.collect();
        let keys = words.get(..numkeys).ok_or(Error::NumKeys)?;
        let mut place = numkeys;
        let mut clauses = Vec::with_capacity(numkeys);
        for _ in keys {
            let kind = words.get(place).ok_or(Error::NumKeys)?;
            let mut rest = words[place + 1..].iter().copied();
            let clause = Clause::parse(kind, &mut rest, max_subintervals).map_err(|error| match error {
                Error::Arity => Error::Syntax(kind.to_vec()),
                error => error,
            })?;
            // The command's name and the number of keys come before these words.
            clauses.push(Placed { clause, words: FIRST_KEY + place + 1 });
            place = words.len() - rest.len();
        }
        let options = words[place..].iter().copied().options(&[Keyword::Strict, Keyword::At])?;
        holding::check_instant(options.at)?;
        distinct(keys)?;
        Ok(Self { clauses, options })
    }
}

impl Clause {
    fn parse<'a>(
        kind: &[u8],
        words: &mut (impl Iterator<Item = &'a [u8]> + Clone),
        max_subintervals: u64,
    ) -> Result<Self, Error> {
        if kind.eq_ignore_ascii_case(b"RATE") {
            let (quota, cost) = (words.quota(max_subintervals)?, words.units("cost")?);
            Ok(Clause::Rate { quota, cost, warm_up: words.warm_up()? })
        } else if kind.eq_ignore_ascii_case(b"HOLD") {
            let (limit, ttl) = (words.limit()?, words.duration("ttl")?);
            words.id()?;
            Ok(Clause::Hold { limit, ttl, cost: words.units("cost")? })
        } else if kind.eq_ignore_ascii_case(b"BUDGET") {
            let (limit, until) = (words.limit()?, integer(words.word()?).ok_or(Error::PeriodEnd)?);
            Ok(Clause::Budget { limit, until, cost: words.units("cost")? })
        } else {
            Err(Error::Syntax(kind.to_vec()))
        }
    }

    fn cost(&self) -> u64 {
        match self {
            Clause::Rate { cost, .. } | Clause::Hold { cost, .. } | Clause::Budget { cost, .. } => *cost,
        }
    }
}

/// A clause with its open key.
enum Opened<'c, 'a> {
    Rate {
        key: Key<'c, Entry>,
        request: Request,
    },
    /// With when the first of those that wait for the key is due.
    Hold {
        key: Key<'c, Holds>,
        request: holds::Request<'a>,
        id: &'a Text,
        due: Option<u64>,
    },
    Budget {
        key: Key<'c, Budget>,
        request: budgets::Request,
    },
}

/// What a clause comes to, by itself.
enum Outcome {
    Denied,
    Rate(swlimit_window::Grant),
    Hold(holds::Grant),
    /// The hold is live: it is renewed.
    Live(holds::Decision),
    Budget(budgets::Count, Decision),
    /// The hold that reserves it is live: nothing is counted again.
    Reserved,
}

impl<'c, 'a> Opened<'c, 'a> {
    fn open(call: &'c Call<'a>, name: &'a Text, placed: &Placed, strict: bool) -> Result<Self, Error> {
        Ok(match placed.clause {
            Clause::Rate { quota, cost, warm_up } => {
                let request = Request { quota, cost, partial: false, strict, warm_up };
                Opened::Rate { key: call.write(name)?, request }
            }
            Clause::Hold { limit, ttl, cost } => {
                let [id] = call.words(placed.words + 2)?;
                let request = holds::Request { limit, ttl, id: id.bytes(), cost };
                let due = call.due(name);
                Opened::Hold { key: call.write(name)?, request, id, due }
            }
            Clause::Budget { limit, until, cost } => Opened::Budget {
                key: call.write(name)?,
                request: budgets::Request { limit, until, cost, partial: false },
            },
        })
    }

    /// The live hold of a HOLD clause's id.
    fn live(&self, now: u64) -> Option<&Hold> {
        match self {
            Opened::Hold { key, request, .. } => key.entry()?.get(request.id, now),
            Opened::Rate { .. } | Opened::Budget { .. } => None,
        }
    }

    fn decide(&self, now: u64) -> Result<Outcome, Error> {
        Ok(match self {
            Opened::Rate { key, request, .. } => match Entry::decide(key.entry(), now, request)? {
                Verdict::Granted(grant) => Outcome::Rate(grant),
                Verdict::Denied(_) => Outcome::Denied,
            },
            Opened::Hold { key, request, due, .. } => {
                match Holds::decide(key.entry(), now, request, holding::most(*due))? {
                    // Others wait for their turn.
                    holds::Verdict::Granted(_) if due.is_some() => Outcome::Denied,
                    holds::Verdict::Granted(grant) => Outcome::Hold(grant),
                    holds::Verdict::Renewed(decision) => Outcome::Live(decision),
                    holds::Verdict::Denied(_) => Outcome::Denied,
                }
            }
            Opened::Budget { key, request } => match Budget::decide(key.entry(), now, request) {
                (Some(count), decision) => Outcome::Budget(count, decision),
                (None, _) => Outcome::Denied,
            },
        })
    }

    /// What a look would say.
    fn peek(&self, now: u64) -> Result<Admitted, Error> {
        Ok(match self {
            Opened::Rate { key, request, .. } => Admitted::Units(Entry::peek(key.entry(), now, request)?),
            Opened::Hold { key, request, due, .. } => {
                let decision = Holds::peek(key.entry(), now, request);
                Admitted::Hold(match due.filter(|_| self.live(now).is_none()) {
                    Some(due) => decision.behind(due.saturating_sub(now).max(1)),
                    None => decision,
                })
            }
            Opened::Budget { key, request } => Admitted::Units(Budget::peek(key.entry(), now, request)),
        })
    }

    /// The decision for units that are already reserved: granted, whatever the limit is by now.
    fn reserved(&self, now: u64) -> Result<Admitted, Error> {
        Ok(match (self.peek(now)?, self) {
            (Admitted::Units(decision), Opened::Rate { request: Request { cost, .. }, .. })
            | (Admitted::Units(decision), Opened::Budget { request: budgets::Request { cost, .. }, .. }) => {
                Admitted::Units(Decision { granted: *cost, retry_after: Some(0), ..decision })
            }
            (other, _) => other,
        })
    }

    /// Whether a reservation is what this clause asks for.
    fn is_reserved_as(&self, name: &Text, reservation: &Reservation) -> bool {
        let same = match (self, &reservation.of) {
            (Opened::Rate { request, .. }, Reserved::Rate { .. }) => request.cost == reservation.units,
            (Opened::Budget { request, .. }, Reserved::Budget { .. }) => request.cost == reservation.units,
            (Opened::Hold { request, .. }, Reserved::Hold { id, .. }) => {
                request.cost == reservation.units && request.id == &**id
            }
            _ => false,
        };
        same && reservation.key == KeyDigest::of(name.bytes())
    }
}

impl Command for Admit {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.admit",
        summary: c"Decides rates, holds and budgets in one, and takes all of them or none.",
        complexity:
            c"O(K log C), K being the number of keys and C that of subintervals or holds of a key; O(K C) when windows \
            or resolutions change, or more than a quarter of the holds has ended",
        since: c"0.2.0",
        arity: -7,
        flags: c"write deny-oom",
        categories: "write",
        keys: Keys::ChangeCounted,
        parameters: &[
            Parameter::integer(c"numkeys"),
            Parameter::key(c"key").multiple(),
            Parameter::one_of(
                c"clause",
                &[
                    Parameter::block(c"rate", request::QUOTA_AND_COST).after(c"RATE"),
                    Parameter::block(c"hold", &[request::LIMIT, holding::TTL, holding::ID, request::UNITS])
                        .after(c"HOLD"),
                    Parameter::block(c"budget", &[request::LIMIT, Parameter::integer(c"until"), request::UNITS])
                        .after(c"BUDGET"),
                ],
            )
            .multiple(),
            request::STRICT,
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let AdmitArguments { clauses, options } = call.parse()?;
        let moment = call.moment(options.at);
        let now = moment.now();
        let names = &call.arguments()[FIRST_KEY..][..clauses.len()];
        for Placed { clause, .. } in &clauses {
            if let Clause::Budget { until, .. } = clause {
                check_end(*until, now)?;
            }
        }
        call.check_slots(names)?;
        let open = |(name, placed)| Opened::open(call, name, placed, options.strict);
        let opened = call.open(|| names.iter().zip(&clauses).map(open).collect::<Result<Vec<_>, _>>())?;

        let first = opened.iter().position(|opened| matches!(opened, Opened::Hold { .. }));
        let repeated = match first.and_then(|first| opened[first].live(now)) {
            Some(hold) if !hold.reserved().is_empty() => {
                let others: Vec<usize> = (0..opened.len()).filter(|place| Some(*place) != first).collect();
                let same = others.len() == hold.reserved().len()
                    && others
                        .iter()
                        .zip(hold.reserved())
                        .all(|(place, reservation)| opened[*place].is_reserved_as(&names[*place], reservation));
                if !same {
                    return Err(Error::OtherReservations);
                }
                Some(hold.reserved().to_vec())
            }
            _ => None,
        };
        let outcomes = opened
            .iter()
            .map(|opened| match opened {
                Opened::Rate { .. } | Opened::Budget { .. } if repeated.is_some() => Ok(Outcome::Reserved),
                opened => opened.decide(now),
            })
            .collect::<Result<Vec<_>, Error>>()?;

        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Denied)) {
            let decisions = opened.iter().map(|opened| opened.peek(now)).collect::<Result<Vec<_>, _>>()?;
            drop(opened);
            let units = clauses.iter().fold(0u64, |units, placed| units.saturating_add(placed.clause.cost()));
            let denied = names.iter().zip(&outcomes).filter(|(_, outcome)| matches!(outcome, Outcome::Denied));
            request::deny(call, denied.map(|(name, _)| name), units, moment);
            return Ok(Reply::Admission { granted: false, decisions });
        }
        let taken = Taking { call, names, moment, first, repeated };
        taken.apply(opened, outcomes)
    }
}

/// All clauses of a decision that is granted.
struct Taking<'c, 'a> {
    call: &'c Call<'a>,
    names: &'a [Text],
    moment: Moment,
    /// The place of the first HOLD clause.
    first: Option<usize>,
    /// What its hold has reserved before.
    repeated: Option<Vec<Reservation>>,
}

impl<'a> Taking<'_, 'a> {
    /// Take all, the first hold last, which remembers the others.
    fn apply(self, mut opened: Vec<Opened<'_, 'a>>, outcomes: Vec<Outcome>) -> Result<Reply, Error> {
        let mut decisions: Vec<Option<Admitted>> = outcomes.iter().map(|_| None).collect();
        let (mut reserved, mut own, mut counted) = (Vec::new(), None, None::<u64>);
        let mut effects = Effects::new();
        let mut before = self.repeated.clone().unwrap_or_default().into_iter();
        for (place, (opened, outcome)) in opened.iter_mut().zip(outcomes).enumerate() {
            if self.first == Some(place) {
                own = Some((opened, outcome));
                continue;
            }
            let name = &self.names[place];
            let known = before.next();
            let units = match outcome {
                Outcome::Rate(_) | Outcome::Hold(_) | Outcome::Budget(..) => opened_cost(opened),
                Outcome::Live(_) | Outcome::Reserved | Outcome::Denied => 0,
            };
            if units > 0 {
                counted = Some(counted.unwrap_or(0).saturating_add(units));
            }
            let (decision, of) = self.take(name, opened, outcome, &mut effects)?;
            decisions[place] = Some(decision);
            if self.first.is_some() {
                let units = opened_cost(opened);
                reserved.extend(of.map(|of| Reservation { key: KeyDigest::of(name.bytes()), units, of }).or(known));
            }
        }
        if let (Some(place), Some((opened, outcome))) = (self.first, own) {
            if matches!(outcome, Outcome::Hold(_)) {
                counted = Some(counted.unwrap_or(0).saturating_add(opened_cost(opened)));
            }
            decisions[place] = Some(self.take_first(&self.names[place], opened, outcome, reserved, &mut effects)?);
        }
        drop(opened);
        self.call.replicate_all(effects);
        if let Some(units) = counted {
            statistics::granted(units);
        }
        Ok(Reply::Admission { granted: true, decisions: decisions.into_iter().flatten().collect() })
    }

    /// Take one clause: its decision, and where its units count now.
    fn take(
        &self,
        name: &'a Text,
        opened: &mut Opened<'_, 'a>,
        outcome: Outcome,
        effects: &mut Effects<'a>,
    ) -> Result<Taken, Error> {
        let Self { call, moment, .. } = *self;
        match (opened, outcome) {
            (Opened::Rate { key, request }, Outcome::Rate(grant)) => {
                let (geometry, instant, warms_up) = (grant.geometry(), grant.instant(), request.warm_up.is_some());
                let effect = request::counted(&grant);
                let mut change = key.change()?;
                let decision = grant.apply(change.entry());
                let expiry = change.done(moment);
                effects.add(name, effect, expiry);
                call.notify(c"swlimit.granted", name);
                Ok((Admitted::Units(decision), Some(Reserved::Rate { instant, geometry, warms_up })))
            }
            (Opened::Budget { key, .. }, Outcome::Budget(counted, decision)) => {
                let until = counted.budget().until();
                let (effect, expiry) = count(key, counted, moment)?;
                effects.add(name, effect, expiry);
                call.notify(c"swlimit.granted", name);
                Ok((Admitted::Units(decision), Some(Reserved::Budget { until })))
            }
            (Opened::Hold { key, id, .. }, Outcome::Hold(grant)) => {
                let (decision, effect, expiry) = holding::grant(call, key, id, grant, moment, &[])?;
                effects.add(name, effect, expiry);
                statistics::HELD.add(1);
                call.notify(c"swlimit.held", name);
                let of = Reserved::Hold { id: id.bytes().into(), token: decision.token };
                Ok((Admitted::Hold(decision), Some(of)))
            }
            (Opened::Hold { key, request, id, .. }, Outcome::Live(decision)) => {
                holding::renew(call, key, name, request.ttl, std::slice::from_ref(*id), moment, effects)?;
                let of = Reserved::Hold { id: id.bytes().into(), token: decision.token };
                Ok((Admitted::Hold(decision), Some(of)))
            }
            (opened, _) => Ok((opened.reserved(moment.now())?, None)),
        }
    }

    /// Take the first HOLD clause, which reserves the others.
    fn take_first(
        &self,
        name: &'a Text,
        opened: &mut Opened<'_, 'a>,
        outcome: Outcome,
        reserved: Vec<Reservation>,
        effects: &mut Effects<'a>,
    ) -> Result<Admitted, Error> {
        let Self { call, moment, .. } = *self;
        let now = moment.now();
        let Opened::Hold { key, request, id, .. } = opened else { return Err(Error::WrongType) };
        match outcome {
            Outcome::Hold(grant) => {
                let (decision, effect, expiry) = holding::grant(call, key, id, grant, moment, &reserved)?;
                effects.add(name, effect, expiry);
                statistics::HELD.add(1);
                call.notify(c"swlimit.held", name);
                Ok(Admitted::Hold(decision))
            }
            Outcome::Live(decision) if self.repeated.as_deref().unwrap_or_default() == reserved => {
                holding::renew(call, key, name, request.ttl, std::slice::from_ref(*id), moment, effects)?;
                Ok(Admitted::Hold(decision))
            }
            // What it reserves is new, or another than before: the whole hold is replicated.
            Outcome::Live(decision) => {
                let (units, end, token) = (decision.granted, now + request.ttl, decision.token);
                call.hold_is_known(name, request.id);
                let mut change = key.change()?;
                let held = change.entry();
                holding::sweep(call, held, now);
                held.renew(request.id, end);
                held.reserve(request.id, reserved.clone().into_boxed_slice());
                change.lasts_until(end);
                let expiry = change.done(moment);
                let (id, reserved) = (request.id.into(), reserved.into());
                effects.add(name, Effect::Hold { id, end, token, units, reserved, instant: now }, expiry);
                statistics::RENEWED.add(1);
                call.notify(c"swlimit.renewed", name);
                Ok(Admitted::Hold(decision))
            }
            _ => Err(Error::WrongType),
        }
    }
}

/// A clause's decision, and where its units count now.
type Taken = (Admitted, Option<Reserved>);

fn opened_cost(opened: &Opened) -> u64 {
    match opened {
        Opened::Rate { request, .. } => request.cost,
        Opened::Hold { request, .. } => request.cost,
        Opened::Budget { request, .. } => request.cost,
    }
}
