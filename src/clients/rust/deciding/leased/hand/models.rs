//! The protocol of leases explored completely: the hand of one client, requests that are cancelled at any time, a server
//! that others ask, too, and that restarts once without its data, and a network that is late or loses what it carries.
//!
//! The hand is the client's own, and so is the choice of the server to which units go back, and the command. What the hand
//! makes of demand is left open: which keys are hot, when units are renewed, and how many are asked for, within the share,
//! where that has room for three requests. So what is proved holds for every rule of sizing that asks for nothing where
//! there is less. The server decides by the window's own code.

use std::hash::Hash;
use std::sync::Arc;

use stateright::{Checker, HasDiscoveries, Model, Property};
use swlimit_window::{Entry, Geometry, Quota, Request, Verdict};

use super::super::returns::Return;
use super::*;
use crate::protocol::Command;
use crate::protocol::Counted::Since;
use crate::simulation::{compared_by_seen, PROMISES};

/// How long a trip takes, in ms.
const TRIP: u64 = 1;
/// The first instant; before it there is room for a window.
const START: u64 = 10;

#[derive(Clone, Debug)]
struct Leases {
    /// Of the key, and of what the client has in hand and on its way.
    limit: u64,
    /// A window, in subintervals of a ms each, and for how long units are in hand.
    window: u64,
    length: u64,
    /// Of each request.
    cost: u64,
    /// For so many ms.
    lasting: u64,
    /// Pipelines altogether.
    tries: u8,
    /// Requests that wait for units at a time.
    waiting: usize,
    mutant: Option<Mutant>,
    /// The instant of ms 0.
    epoch: Instant,
}

/// What could be wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Units count since the reply, not since the server's TIME.
    DatesByTheReply,
    /// A refund gives back the youngest units.
    RefundsTheYoungest,
    /// A refund is sent again.
    RefundsTwice,
    /// Units go back to any server.
    IgnoresTheServer,
    /// Units are used for as long after the reply as they may be after asking.
    UsesLate,
    /// What comes after closing stays in hand.
    KeepsWhenClosed,
    /// Who is cancelled gives up nothing.
    ForgetsTheCancelled,
    /// What was promised to who is cancelled stays promised.
    KeepsThePromise,
    /// Units on their way take no room.
    ForgetsTheFlying,
    /// A flight whose connection is lost goes on.
    ForgetsTheLost,
}

/// TIME, perhaps a request's own ALLOW, and perhaps the ALLOW of a flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pipeline {
    sent: u64,
    own: Own,
    /// Its number, and how many units it asks for.
    flight: Option<(u64, u64)>,
    executed: Option<Executed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Own {
    None,
    Awaited,
    /// Its request was cancelled.
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Executed {
    /// What TIME said before, or the client knows.
    since: u64,
    own: u64,
    ahead: u64,
}

/// A request that units are kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Waiting {
    number: u64,
    /// Other limits have to grant it, too.
    is_several: bool,
}

/// A unit that the server counted and nobody gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Counted {
    at: u64,
    /// Since when it counts, as TIME said to the client that may give it back.
    since: Option<u64>,
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    has_restarted: bool,
    window: Entry,
    counted: Vec<Counted>,
    pipelines: Vec<Pipeline>,
    begun: u8,
    /// Units on their way back, by what their refund says.
    refunds: Vec<u64>,
    hand: Hand,
    is_closed: bool,
    waiting: Vec<Waiting>,
    /// Units that came and are neither used nor given back nor written off.
    left: u64,
    /// Something that must never happen.
    wrong: Option<&'static str>,
}

impl State {
    fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.window.window().into_iter().flat_map(|window| window.counts());
        counts.map(|count| (count.subinterval, count.units)).collect()
    }

    fn seen(&self) -> impl Hash + PartialEq + '_ {
        let Self { now, has_restarted, counted, pipelines, refunds, hand, is_closed, waiting, left, wrong, .. } = self;
        let hand = (&hand.batches, &hand.flights, &hand.claims, hand.dry.is_some());
        let server = (has_restarted, self.counts(), counted);
        (now, server, (pipelines, self.begun), refunds, hand, is_closed, waiting, left, wrong)
    }

    /// What can still go back to the server, by since when it counts.
    fn returnable(&self) -> Vec<u64> {
        let kept = self.hand.claims.iter().filter_map(|claim| match &claim.state {
            super::State::Granted(units) => Some(units),
            _ => None,
        });
        let held = self.hand.batches.iter().chain(kept.flatten()).filter(|units| units.server == self.server());
        let executed = self.pipelines.iter().filter_map(|pipeline| pipeline.executed);
        let coming = executed.map(|Executed { since, own, ahead }| (since, own + ahead));
        let units = held.map(|units| (units.since, units.units)).chain(coming);
        units.flat_map(|(since, units)| (0..units).map(move |_| since)).chain(self.refunds.iter().copied()).collect()
    }

    fn server(&self) -> Option<Identity> {
        Some(Identity::of(self.has_restarted))
    }

    /// Of what came, some is used or goes back.
    fn leave(&mut self, units: u64) {
        match self.left.checked_sub(units) {
            Some(left) => self.left = left,
            None => self.wrong = Some("more is used and given back than came"),
        }
    }
}

compared_by_seen!(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A ms passes.
    Wait,
    /// A request of the client. A flight goes out with so many units, if it may.
    Ask {
        is_own: bool,
        is_hot: bool,
        units: u64,
    },
    /// A request that several limits have to grant.
    AskSeveral,
    /// What became of a request that waits.
    Take(usize),
    Cancel(usize),
    CancelOwn(usize),
    /// Nobody asks just now.
    Renew(u64),
    /// What has ended goes back.
    End,
    Close,
    /// A pipeline is executed, when TIME said this.
    Execute(usize, u64),
    Answer(usize),
    /// Its connection is lost. What is executed only then counts as a request of others.
    Lose(usize),
    Refund(usize),
    /// A request of others.
    AskOther,
    Restart,
}

impl Leases {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn at(&self, ms: u64) -> Instant {
        self.epoch + Duration::from_millis(ms)
    }

    /// Any demand: what follows from it is left open.
    fn demand(&self, hand: &mut Hand, is_hot: bool, is_renewed: bool) {
        let low_water = if is_renewed { u64::MAX } else { 0 };
        let need = Need { rate: 1e9, cost: self.cost, requests: 1 };
        let until = self.epoch + LEAST_SPAN;
        hand.meter = Meter::new(LEAST_SPAN, self.epoch);
        hand.demand = Derived { need, is_hot, is_warm: is_hot, low_water, horizon: Duration::ZERO, until };
    }

    /// How many units the server counts.
    fn grant(&self, state: &mut State, cost: u64, partial: bool, since: Option<u64>) -> u64 {
        let quota = Quota { limit: self.limit, geometry: Geometry::new(self.window, 1).unwrap() };
        let request = Request { quota, cost, partial, strict: true, warm_up: None };
        let Verdict::Granted(grant) = Entry::decide(Some(&state.window), state.now, &request).unwrap() else {
            return 0;
        };
        let granted = grant.apply(&mut state.window).granted;
        state.counted.extend((0..granted).map(|_| Counted { at: state.now, since }));
        granted
    }

    /// Sends back units to the server that counted them, or writes them off.
    fn give_back(&self, state: &mut State, batches: impl IntoIterator<Item = GrantedUnits>) {
        for batch in batches {
            state.leave(batch.units);
            let server = if self.is(Mutant::IgnoresTheServer) { batch.server.clone() } else { state.server() };
            let units = Return::new(&Arc::from(*b"k"), batch, self.epoch);
            if !units.is_of(server.as_ref()) {
                continue;
            }
            let Command::Refund { units, counted: Since(since), .. } = units.refund() else {
                state.wrong = Some("units go back without their date");
                continue;
            };
            let since = if self.is(Mutant::RefundsTheYoungest) { state.now } else { since };
            state.refunds.extend((0..units).map(|_| since));
        }
    }

    /// A request uses units that came. Those that it waited for are used as soon as they are counted.
    fn take_units(&self, state: &mut State, decision: &Decision, is_now: bool) {
        if is_now && decision.since.is_none_or(|since| state.now >= since + self.length) {
            state.wrong = Some("a unit is used late");
        }
        state.leave(decision.units());
    }

    /// A flight asks for so many units, if it asks for as many at all.
    fn sized(&self, state: &mut State, flight: Option<Flight>, units: u64) -> Option<Option<(u64, u64)>> {
        let Some(flight) = flight else { return (units == 0).then_some(None) };
        let flying = if self.is(Mutant::ForgetsTheFlying) { state.hand.flying() - flight.units } else { 0 };
        if !(1..=flight.units + flying).contains(&units) {
            return None;
        }
        if state.is_closed {
            state.hand.lost(flight.number, None);
            return Some(None);
        }
        state.hand.flights.last_mut()?.units = units;
        Some(Some((flight.number, units)))
    }

    fn send(&self, state: &mut State, own: Own, flight: Option<(u64, u64)>) -> Option<()> {
        if own == Own::None && flight.is_none() {
            return Some(());
        }
        state.pipelines.push(Pipeline { sent: state.now, own, flight, executed: None });
        state.begun += 1;
        (state.begun <= self.tries).then_some(())
    }

    fn ask(&self, state: &mut State, is_own: bool, is_hot: bool, units: u64) -> Option<()> {
        self.demand(&mut state.hand, is_hot, units > 0);
        let ask = Ask { cost: self.cost, is_own, is_blocking: is_own };
        match state.hand.decide(ask, self.at(state.now), || None::<()>) {
            Step::Granted(decision, flight) => {
                self.take_units(state, &decision, true);
                let flight = self.sized(state, flight, units)?;
                self.send(state, Own::None, flight)
            }
            Step::Denied(_, flight) => {
                let flight = self.sized(state, flight, units)?;
                self.send(state, Own::None, flight)
            }
            Step::Own(flight) => {
                let flight = self.sized(state, flight, units)?;
                self.send(state, Own::Awaited, flight)
            }
            Step::Claimed(number) => (units == 0).then(|| self.wait(state, number, false))?,
            Step::Known(()) => None,
        }
    }

    fn wait(&self, state: &mut State, number: u64, is_several: bool) -> Option<()> {
        state.waiting.push(Waiting { number, is_several });
        (state.waiting.len() <= self.waiting).then_some(())
    }

    /// What became of a request that waits, if that is known. Several limits grant only what has not ended.
    fn take(&self, state: &mut State, place: usize) -> Option<()> {
        let Waiting { number, is_several } = state.waiting.remove(place);
        let now = self.at(state.now);
        match state.hand.standing(number) {
            Standing::Awaited { .. } => return None,
            Standing::Granted { until } if is_several && now >= until => return None,
            Standing::Granted { .. } | Standing::Failed => {}
        }
        match state.hand.claimed(number, now) {
            Some(Claimed::Decided(decision)) if decision.granted() => self.take_units(state, &decision, is_several),
            Some(_) => {}
            None => state.wrong = Some("a request is not answered"),
        }
        if state.hand.claimed(number, now).is_some() || !state.hand.abandon(number, now).is_empty() {
            state.wrong = Some("a request is answered twice");
        }
        Some(())
    }

    fn land(&self, state: &mut State, pipeline: Pipeline, Executed { since, own, ahead }: Executed) {
        let now = self.at(state.now);
        let since = if self.is(Mutant::DatesByTheReply) { state.now } else { since };
        let server = state.server();
        let mut back = Vec::new();
        if let Some((number, _)) = pipeline.flight {
            state.left += ahead;
            if self.is(Mutant::UsesLate) {
                state.hand.flights.iter_mut().for_each(|flight| flight.sent = now);
            }
            let landed = Landed { units: ahead, since, server: server.clone(), retry_after: None, spread: 0.0 };
            back.extend(state.hand.landed(number, landed, now));
        }
        if pipeline.own == Own::Cancelled {
            state.left += own;
            let until = self.at(pipeline.sent + self.length);
            back.extend(state.hand.keep(GrantedUnits { units: own, since, until, server }, now));
        }
        if state.is_closed && !self.is(Mutant::KeepsWhenClosed) {
            back.extend(state.hand.surrender());
        }
        self.give_back(state, back);
    }

    fn lose(&self, hand: &mut Hand, pipeline: &Pipeline) {
        if let Some((number, _)) = pipeline.flight.filter(|_| !self.is(Mutant::ForgetsTheLost)) {
            hand.lost(number, None);
        }
    }

    fn refund(&self, state: &mut State, place: usize) {
        let since = match self.is(Mutant::RefundsTwice) {
            true => state.refunds[place],
            false => state.refunds.remove(place),
        };
        state.window.refund(1, Some(state.now.saturating_sub(since)), state.now);
        if let Some(oldest) = state.counted.iter().position(|counted| counted.since == Some(since)) {
            state.counted.remove(oldest);
        }
    }

    /// Forgets what makes no difference: the numbers of flights and claims, and what is left open anyway.
    fn simplify(&self, state: &mut State) {
        self.demand(&mut state.hand, false, false);
        let (hand, past, now) = (&mut state.hand, self.epoch, self.at(state.now));
        hand.dry = hand.dry.map(|dry| Dry { pace: past, retry_at: past, known_by: past, was_known: false, ..dry });
        let flights: Vec<u64> = hand.flights.iter().map(|flight| flight.number).collect();
        let claims: Vec<u64> = hand.claims.iter().map(|claim| claim.number).collect();
        let place = |of: &[u64], number: &mut u64| {
            *number = of.iter().position(|one| one == number).map_or(u64::MAX, |place| place as u64);
        };
        hand.batches.retain(|batch| batch.units > 0 || now < batch.until);
        hand.numbers = flights.len().max(claims.len()) as u64;
        hand.flights.iter_mut().for_each(|flight| place(&flights, &mut flight.number));
        for claim in &mut hand.claims {
            place(&claims, &mut claim.number);
            if let super::State::Awaited(flight) = &mut claim.state {
                place(&flights, flight);
            }
        }
        state.waiting.iter_mut().for_each(|waiting| place(&claims, &mut waiting.number));
        state.pipelines.iter_mut().filter_map(|pipeline| pipeline.flight.as_mut()).for_each(|(flight, _)| {
            place(&flights, flight);
        });
        state.pipelines.sort_unstable();
        state.waiting.sort_unstable();
        state.refunds.sort_unstable();
        let mut returnable = state.returnable();
        for counted in &mut state.counted {
            let place = returnable.iter().position(|since| counted.since == Some(*since));
            counted.since = place.map(|place| returnable.swap_remove(place));
        }
        state.counted.sort_unstable();
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let terms = Terms { length: Duration::from_millis(self.length), most: self.limit, limit: self.limit };
        let mut state = State {
            now: START,
            has_restarted: false,
            window: Entry::default(),
            counted: vec![],
            pipelines: vec![],
            begun: 0,
            refunds: vec![],
            hand: Hand::new(terms, Duration::from_millis(TRIP), self.epoch),
            is_closed: false,
            waiting: vec![],
            left: 0,
            wrong: None,
        };
        self.simplify(&mut state);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < START + self.lasting {
            actions.push(Action::Wait);
        }
        for is_own in [false, true] {
            actions.push(Action::Ask { is_own, is_hot: false, units: 0 });
            actions.extend((0..=self.limit).map(|units| Action::Ask { is_own, is_hot: true, units }));
        }
        actions.extend([Action::AskSeveral, Action::End, Action::AskOther]);
        actions.extend((1..=self.limit).map(Action::Renew));
        actions.extend((0..state.waiting.len()).flat_map(|place| [Action::Take(place), Action::Cancel(place)]));
        for (place, pipeline) in state.pipelines.iter().enumerate() {
            let latest = if pipeline.flight.is_none() { pipeline.sent } else { state.now };
            actions.extend((pipeline.sent..=latest).map(|since| Action::Execute(place, since)));
            actions.extend([Action::Answer(place), Action::Lose(place), Action::CancelOwn(place)]);
        }
        actions.extend((0..state.refunds.len()).map(Action::Refund));
        if !state.is_closed {
            actions.push(Action::Close);
        }
        if !state.has_restarted {
            actions.push(Action::Restart);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = self.at(state.now);
        match action {
            Action::Wait => {
                state.now += 1;
                let matters = state.now - self.window;
                state.counted.retain(|counted| counted.at >= matters);
            }
            Action::Ask { is_own, is_hot, units } => self.ask(&mut state, is_own, is_hot, units)?,
            Action::AskSeveral => {
                let ask = Ask { cost: self.cost, is_own: false, is_blocking: false };
                let number = state.hand.reserve(self.cost, now).or_else(|| state.hand.claim(ask, now))?;
                self.wait(&mut state, number, true)?;
            }
            Action::Take(place) => self.take(&mut state, place)?,
            Action::Cancel(place) => {
                let waiting = state.waiting.remove(place);
                if !self.is(Mutant::ForgetsTheCancelled) {
                    let promised = state.hand.flights.clone();
                    let mut back = state.hand.abandon(waiting.number, now);
                    if self.is(Mutant::KeepsThePromise) {
                        state.hand.flights = promised;
                    }
                    if state.is_closed {
                        back.extend(state.hand.surrender());
                    }
                    self.give_back(&mut state, back);
                }
            }
            Action::CancelOwn(place) => match &mut state.pipelines[place].own {
                own @ Own::Awaited => *own = Own::Cancelled,
                _ => return None,
            },
            Action::Renew(units) => {
                self.demand(&mut state.hand, true, true);
                let flight = state.hand.renewal(now)?;
                let flight = self.sized(&mut state, Some(flight), units)?;
                self.send(&mut state, Own::None, flight)?;
            }
            Action::End => {
                let back = state.hand.ended(now);
                self.give_back(&mut state, back);
            }
            Action::Close => {
                state.is_closed = true;
                let back = state.hand.surrender();
                self.give_back(&mut state, back);
            }
            Action::Execute(place, since) => {
                let Pipeline { own, flight, executed: None, .. } = state.pipelines[place] else { return None };
                let own = if own == Own::None { 0 } else { self.grant(&mut state, self.cost, false, Some(since)) };
                let ahead = flight.map_or(0, |(_, units)| self.grant(&mut state, units, true, Some(since)));
                state.pipelines[place].executed = Some(Executed { since, own, ahead });
            }
            Action::Answer(place) => {
                let executed = state.pipelines[place].executed?;
                let pipeline = state.pipelines.remove(place);
                self.land(&mut state, pipeline, executed);
            }
            Action::Lose(place) => {
                let pipeline = state.pipelines.remove(place);
                self.lose(&mut state.hand, &pipeline);
            }
            Action::Refund(place) => self.refund(&mut state, place),
            Action::AskOther => {
                if self.grant(&mut state, self.cost, false, None) == 0 {
                    return None;
                }
            }
            Action::Restart => {
                state.has_restarted = true;
                (state.window, state.counted) = (Entry::default(), vec![]);
                // Connections are lost, and what was under way with them.
                state.refunds.clear();
                for pipeline in std::mem::take(&mut state.pipelines) {
                    self.lose(&mut state.hand, &pipeline);
                }
            }
        }
        self.simplify(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("limits hold", |model: &Self, state: &State| {
                let counted = state.counted.iter().filter(|counted| counted.at + model.window > state.now);
                counted.count() as u64 <= model.limit
            }),
            Property::always("what is counted stays counted, dated no earlier", |_, state: &State| {
                let counts = state.counts();
                state.counted.iter().all(|Counted { at: instant, .. }| {
                    let in_window: u64 = counts.iter().filter(|(at, _)| at >= instant).map(|(_, units)| units).sum();
                    in_window >= state.counted.iter().filter(|counted| counted.at >= *instant).count() as u64
                })
            }),
            Property::always("in hand and on its way is no more than the share", |model: &Self, state: &State| {
                state.hand.held() + state.hand.flying() <= model.limit && state.hand.flights.len() <= FLIGHTS
            }),
            Property::always("what came is used, given back, or in hand", |_, state: &State| {
                state.left == state.hand.held()
            }),
            Property::always("a flight ends with its pipeline", |_, state: &State| {
                let mut flying: Vec<_> = state.pipelines.iter().filter_map(|pipeline| pipeline.flight).collect();
                flying.sort_unstable();
                flying.into_iter().eq(state.hand.flights.iter().map(|flight| (flight.number, flight.units)))
            }),
            Property::always("a claim ends with its request, and is promised what it gets", |_, state: &State| {
                let claims = &state.hand.claims;
                let promised = |flight: &Flight| {
                    let its = claims.iter().filter(|claim| claim.is_awaiting(flight.number));
                    its.map(|claim| claim.cost).sum::<u64>() == flight.claimed && flight.claimed <= flight.units
                };
                let is_known = |claim: &Claim| match claim.state {
                    super::State::Awaited(number) => state.hand.flights.iter().any(|flight| flight.number == number),
                    _ => true,
                };
                let waiting = state.waiting.iter().map(|waiting| waiting.number);
                claims.iter().map(|claim| claim.number).eq(waiting)
                    && claims.iter().all(is_known)
                    && state.hand.flights.iter().all(promised)
            }),
            Property::always("a client that is closed has nothing in hand", |_, state: &State| {
                !state.is_closed || state.hand.batches.iter().all(|batch| batch.units == 0)
            }),
            Property::always("nothing goes wrong", |_, state: &State| state.wrong.is_none()),
            Property::sometimes("units are given back", |_, state: &State| !state.refunds.is_empty()),
        ]
    }
}

/// With so many units of the limit, in requests of such a cost, for so many ms.
fn leases(limit: u64, cost: u64, lasting: u64) -> Leases {
    let (mutant, epoch) = (None, Instant::now());
    Leases { limit, window: 3, length: 1, cost, lasting, tries: 2, waiting: 1, mutant, epoch }
}

fn explored(model: Leases) {
    let Leases { limit, window, length, cost, lasting, tries, waiting, .. } = model;
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    let states = checker.unique_state_count();
    let times = format!("W = {window} ms, T = {length} ms, for {lasting} ms");
    let row = format!(
        "| leases | L = B = {limit}, costs of {cost}, {times}, {tries} pipelines, {waiting} waiting | {states} |"
    );
    assert!(PROMISES.contains(&row), "the page does not say\n{row}");
}

#[test]
fn all_short_leases() {
    explored(leases(3, 1, 1));
    explored(leases(4, 1, 0));
    explored(Leases { waiting: 2, ..leases(3, 1, 0) });
}

#[test]
#[ignore = "it takes minutes"]
fn all_longer_leases() {
    explored(leases(4, 1, 1));
    explored(leases(6, 2, 1));
    explored(Leases { waiting: 2, ..leases(4, 1, 0) });
    explored(Leases { waiting: 2, ..leases(3, 1, 1) });
    explored(Leases { window: 4, length: 2, ..leases(3, 1, 2) });
}

fn is_found(mutant: Mutant) {
    let model = Leases { mutant: Some(mutant), ..leases(4, 1, 1) };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discoveries().keys().any(|name| *name != "units are given back"), "{mutant:?} is not found");
}

#[test]
fn finds_units_that_are_dated_by_the_reply() {
    is_found(Mutant::DatesByTheReply);
}

#[test]
fn finds_that_the_youngest_units_go_back() {
    is_found(Mutant::RefundsTheYoungest);
}

#[test]
fn finds_that_units_go_back_twice() {
    is_found(Mutant::RefundsTwice);
}

#[test]
fn finds_that_units_go_back_to_another_server() {
    is_found(Mutant::IgnoresTheServer);
}

#[test]
fn finds_units_that_are_used_late() {
    is_found(Mutant::UsesLate);
}

#[test]
fn finds_what_is_kept_when_closed() {
    is_found(Mutant::KeepsWhenClosed);
}

#[test]
fn finds_a_cancelled_request_that_is_forgotten() {
    is_found(Mutant::ForgetsTheCancelled);
}

#[test]
fn finds_units_that_stay_promised() {
    is_found(Mutant::KeepsThePromise);
}

#[test]
fn finds_units_on_their_way_that_take_no_room() {
    is_found(Mutant::ForgetsTheFlying);
}

#[test]
fn finds_a_lost_flight_that_is_forgotten() {
    is_found(Mutant::ForgetsTheLost);
}
