//! Holds with ADMIT and SETTLE explored completely: all that two callers, a clock and a network can do for some ms.
//!
//! Each caller chooses an id, admits a hold and a unit of a rate together, again and again until it is answered, and
//! settles until it is answered. What was sent is executed at any later time, once, and its reply may be lost.

use std::hash::{Hash, Hasher};

use stateright::{Checker, HasDiscoveries, Model, Property};
use swlimit_window::{Entry, Geometry, Quota, Recording, Verdict as Units};

use crate::*;

const PROMISES: &str = include_str!("../../../docs/understand/promises.md");

/// In ms.
const TTL: u64 = 2;
const CALLERS: usize = 2;
const IDS: [&[u8]; CALLERS] = [b"a", b"b"];
/// The first instant; before it there is room for a window.
const START: u64 = 10;

#[derive(Clone, Debug)]
struct Admissions {
    /// Of units that are held.
    limit: u64,
    /// For so many ms.
    lasting: u64,
    /// Messages under way at a time.
    under_way: usize,
    /// Units used of the one that is reserved, at most.
    used: u64,
    mutant: Option<Mutant>,
}

/// What could be wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// An ADMIT that is repeated counts again.
    CountsAgain,
    /// A hold is taken although the rate denies.
    TakesApart,
    /// A hold is live at its end, too.
    EndsLate,
    /// Units go back without the age at which they were counted.
    RefundsTheYoungest,
    /// Settling leaves the hold, so that it can be settled again.
    SettlesTwice,
    /// The token of a hold is as old as its key.
    ReusesTokens,
}

/// A message that will be executed at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Admit { caller: usize, sent: u64 },
    Settle { caller: usize, used: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Caller {
    Asking,
    /// Until this instant by its own clock, with this token.
    Holding(u64, u64),
    Settling(u64),
    Over,
}

/// A hold that was granted: what was counted with it, when, and whether it was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Admitted {
    caller: usize,
    token: u64,
    instant: u64,
    units: u64,
    settled: bool,
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    callers: [Caller; CALLERS],
    air: Vec<Message>,
    holds: Holds,
    rate: Entry,
    /// Units that were used beyond what was reserved, by instant.
    beyond: Vec<u64>,
    admitted: Vec<Admitted>,
}

impl State {
    fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.rate.window().into_iter().flat_map(|window| window.counts());
        counts.map(|count| (count.subinterval, count.units)).collect()
    }

    fn seen(&self) -> impl Hash + PartialEq + '_ {
        let holds: Vec<_> = self.holds.iter().map(|hold| (hold.id(), hold.end(), hold.token())).collect();
        (self.now, self.callers, &self.air, holds, self.counts(), &self.beyond, &self.admitted)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.seen() == other.seen()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, to: &mut H) {
        self.seen().hash(to);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A ms passes.
    Wait,
    Send(Message),
    /// The message at this place is executed; its reply arrives, or is lost.
    Execute(usize, bool),
}

impl Admissions {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn request(units: u64) -> swlimit_window::Request {
        let quota = Quota { limit: 2, geometry: Geometry::new(2, 1).unwrap() };
        swlimit_window::Request { quota, cost: units, partial: false, strict: true, warm_up: None }
    }

    /// The token, where it is admitted.
    fn admit(&self, state: &mut State, caller: usize) -> Option<u64> {
        let (now, id) = (state.now, IDS[caller]);
        let at = if self.is(Mutant::EndsLate) { now - 1 } else { now };
        let request = Request { limit: self.limit, ttl: TTL, id, cost: 1 };
        let rate = Self::request(1);
        match Holds::decide(Some(&state.holds), now, &request, 1000).unwrap() {
            Verdict::Denied(_) => None,
            Verdict::Renewed(decision) => {
                state.holds.sweep(at);
                state.holds.renew(id, now + TTL);
                if let (true, Ok(Units::Granted(grant))) =
                    (self.is(Mutant::CountsAgain), Entry::decide(Some(&state.rate), now, &rate))
                {
                    let _ = grant.apply(&mut state.rate);
                }
                Some(decision.token)
            }
            Verdict::Granted(grant) => {
                let instant = match Entry::decide(Some(&state.rate), now, &rate).unwrap() {
                    Units::Granted(units) => {
                        let instant = units.instant();
                        let _ = units.apply(&mut state.rate);
                        Some(instant)
                    }
                    Units::Denied(_) => None,
                };
                if instant.is_none() && !self.is(Mutant::TakesApart) {
                    return None;
                }
                let of =
                    Reserved::Rate { instant: instant.unwrap_or(now), geometry: rate.quota.geometry, warms_up: false };
                let reserved = Reservation { key: KeyDigest::of(b"rate"), units: 1, of };
                state.holds.sweep(at);
                let token = grant.apply(&mut state.holds, Some(Box::new([reserved]))).token;
                let token = if self.is(Mutant::ReusesTokens) { START } else { token };
                state.admitted.push(Admitted { caller, token, instant: now, units: 1, settled: false });
                Some(token)
            }
        }
    }

    /// Whether the hold was there.
    fn settle(&self, state: &mut State, caller: usize, used: u64) -> bool {
        let (now, id) = (state.now, IDS[caller]);
        let Some(hold) = state.holds.get(id, now) else { return false };
        let admitted = state.admitted.iter_mut().rev().find(|admitted| admitted.caller == caller).unwrap();
        let was_settled = std::mem::replace(&mut admitted.settled, true);
        for Reservation { units, of, .. } in hold.reserved() {
            let Reserved::Rate { instant, .. } = of else { continue };
            if used > *units {
                let request = Self::request(used - units);
                if let Recording::Counted(record) = Entry::record(Some(&state.rate), now, None, &request).unwrap() {
                    let _ = record.apply(&mut state.rate);
                }
            } else {
                let age = (!self.is(Mutant::RefundsTheYoungest)).then_some(now - instant);
                state.rate.refund(units - used, age, now);
            }
        }
        if !was_settled {
            admitted.units = used.min(1);
            state.beyond.extend((1..used).map(|_| now));
        }
        if !self.is(Mutant::SettlesTwice) {
            state.holds.sweep(now);
            state.holds.release(id);
        }
        true
    }

    /// Units that count at an instant, by what callers heard.
    fn expected(state: &State, instant: u64) -> u64 {
        let admitted = state.admitted.iter().filter(|admitted| admitted.instant == instant);
        let beyond = state.beyond.iter().filter(|at| **at == instant).count() as u64;
        admitted.map(|admitted| admitted.units).sum::<u64>() + beyond
    }
}

impl Model for Admissions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (holds, rate) = (Holds::default(), Entry::default());
        let callers = [Caller::Asking; CALLERS];
        vec![State { now: START, callers, air: vec![], holds, rate, beyond: vec![], admitted: vec![] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < START + self.lasting {
            actions.push(Action::Wait);
        }
        if state.air.len() < self.under_way {
            for (caller, is) in state.callers.iter().enumerate() {
                match is {
                    Caller::Asking => actions.push(Action::Send(Message::Admit { caller, sent: state.now })),
                    Caller::Holding(..) => {
                        actions.push(Action::Send(Message::Admit { caller, sent: state.now }));
                        let settle = |used| Action::Send(Message::Settle { caller, used });
                        actions.extend((0..=self.used).map(settle));
                    }
                    Caller::Settling(used) => actions.push(Action::Send(Message::Settle { caller, used: *used })),
                    Caller::Over => {}
                }
            }
        }
        let executed = |place| [Action::Execute(place, true), Action::Execute(place, false)];
        actions.extend((0..state.air.len()).flat_map(executed));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wait => state.now += 1,
            Action::Send(message) => {
                if let Message::Settle { caller, used } = message {
                    state.callers[caller] = Caller::Settling(used);
                }
                state.air.push(message);
                state.air.sort_unstable();
            }
            Action::Execute(place, arrives) => match state.air.remove(place) {
                Message::Admit { caller, sent } => {
                    let token = self.admit(&mut state, caller).filter(|_| arrives);
                    if let (Some(token), Caller::Asking | Caller::Holding(..)) = (token, state.callers[caller]) {
                        state.callers[caller] = Caller::Holding(sent + TTL, token);
                    }
                }
                Message::Settle { caller, used } => {
                    self.settle(&mut state, caller, used);
                    if arrives {
                        state.callers[caller] = Caller::Over;
                    }
                }
            },
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("limits hold", |model: &Self, state: &State| {
                let believes = |is: &&Caller| matches!(is, Caller::Holding(until, _) if state.now < *until);
                let holding = state.callers.iter().filter(believes).count() as u64;
                holding <= model.limit && state.holds.live(state.now).units <= model.limit
            }),
            Property::always("what a caller holds is held, with its token", |_, state: &State| {
                state.callers.iter().zip(IDS).all(|(is, id)| match is {
                    Caller::Holding(until, token) if state.now < *until => {
                        state.holds.get(id, state.now).is_some_and(|hold| hold.token() == *token)
                    }
                    _ => true,
                })
            }),
            Property::always("each token is larger than all before", |_, state: &State| {
                state.admitted.windows(2).all(|two| two[0].token < two[1].token)
            }),
            Property::always("decisions are atomic, and settled once", |_, state: &State| {
                // Whatever is older matters no more.
                let within = state.now - 2..=state.now;
                let counts = state.counts();
                let counted = |instant| counts.iter().find(|(at, _)| *at == instant).map_or(0, |(_, units)| *units);
                within.into_iter().all(|instant| counted(instant) == Self::expected(state, instant))
            }),
            Property::sometimes("a hold is settled", |_, state: &State| state.admitted.iter().any(|one| one.settled)),
        ]
    }
}

fn explored(lasting: u64, used: u64) {
    let explored = [1, 2].map(|limit| {
        let model = Admissions { limit, lasting, under_way: 2, used, mutant: None };
        let checker = model.checker().threads(2).spawn_bfs().join();
        checker.assert_properties();
        checker.unique_state_count()
    });
    let states: usize = explored.iter().sum();
    let row = format!("| holds with ADMIT and SETTLE | limits ≤ 2, {lasting} ms, 0 to {used} units used | {states} |");
    assert!(PROMISES.contains(&row), "the page does not say\n{row}");
}

#[test]
fn all_short_admissions() {
    explored(2, 1);
}

#[test]
#[ignore = "it takes minutes"]
fn all_longer_admissions() {
    explored(3, 2);
}

fn is_found(mutant: Mutant) {
    let model = Admissions { limit: 2, lasting: 4, under_way: 2, used: 2, mutant: Some(mutant) };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discoveries().keys().any(|name| *name != "a hold is settled"), "{mutant:?} is not found");
}

#[test]
fn finds_that_a_repeated_admit_counts_again() {
    is_found(Mutant::CountsAgain);
}

#[test]
fn finds_a_hold_without_its_rate() {
    is_found(Mutant::TakesApart);
}

#[test]
fn finds_that_a_hold_ends_late() {
    is_found(Mutant::EndsLate);
}

#[test]
fn finds_that_the_youngest_units_are_given_back() {
    is_found(Mutant::RefundsTheYoungest);
}

#[test]
fn finds_that_a_hold_is_settled_twice() {
    is_found(Mutant::SettlesTwice);
}

#[test]
fn finds_that_tokens_are_used_again() {
    is_found(Mutant::ReusesTokens);
}
