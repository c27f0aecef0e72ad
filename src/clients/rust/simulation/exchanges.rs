//! Exchanges that outlive their requests, explored completely: callers that ask for a hold, give up and ask again, while
//! a network executes late, answers late or never. What is taken back, and with which commands, the client itself says.

use std::hash::Hash;
use std::sync::Arc;

use stateright::{Checker, HasDiscoveries, Model, Property};
use swlimit_hold::{Holds, KeyDigest, Request, Reservation, Reserved, Verdict};
use swlimit_window::{Entry, Verdict as Units};

use super::{compared_by_seen, PROMISES};
use crate::demand::Demand;
use crate::protocol::{Clause, Command, HoldClause};
use crate::quota::Quota;
use crate::transport::Reply;

/// In ms.
const TTL: u64 = 2;
const CALLERS: usize = 2;
/// The first instant; before it there is room for a window.
const START: u64 = 10;

#[derive(Clone, Debug)]
struct Exchanges {
    /// Each exchange draws an id of its own; else all have the one that their callers chose.
    own_id: bool,
    /// A unit of a rate is admitted with the hold.
    admits: bool,
    /// For so many ms.
    lasting: u64,
    /// Exchanges altogether.
    most: u8,
    mutant: Option<Mutant>,
}

/// What could be wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// What is granted late is given back under any id.
    GivesBackAnyId,
    /// What is granted late is kept under any id.
    KeepsAnyId,
    /// What was not answered is not taken back.
    ForgetsTheUnanswered,
    /// An exchange ends with its request.
    ForgetsTheLate,
    /// A hold counts from its reply.
    HoldsFromTheReply,
    /// A request that gives up takes back at once what may be executed yet.
    UndoesTooEarly,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Exchange {
    id: u8,
    caller: usize,
    sent: u64,
    /// Whether it was executed, and then the token of its hold, if it was granted.
    executed: Option<Option<u64>>,
    /// Nobody waits any more.
    is_abandoned: bool,
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    holds: Holds,
    rate: Entry,
    exchanges: Vec<Exchange>,
    /// Ids that will be taken back.
    undone: Vec<u8>,
    begun: u8,
    /// What each caller has heard: until when it holds, under which id and token.
    told: [Option<(u64, u8, u64)>; CALLERS],
}

impl State {
    fn counted(&self) -> u64 {
        self.rate.window().map_or(0, |window| window.total())
    }

    fn seen(&self) -> impl Hash + PartialEq + '_ {
        let holds: Vec<_> = self.holds.iter().map(|hold| (hold.id(), hold.end(), hold.token())).collect();
        (self.now, holds, self.counted(), &self.exchanges, &self.undone, self.begun, self.told)
    }
}

compared_by_seen!(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A ms passes.
    Wait,
    Ask(usize),
    /// The time of the request is up.
    GiveUp(usize),
    /// The server decides: at once, or when a client's turn or its timeout has come.
    Execute(usize),
    /// The reply arrives.
    Answer(usize),
    /// Its connection is lost, before or after it was executed.
    Lose(usize),
    TakeBack(usize),
}

impl Exchanges {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn demand() -> Demand {
        Demand::of(&Quota::with_resolution(9, "1m", "1m").unwrap())
    }

    /// What an exchange sends.
    fn command(&self, id: u8) -> Command {
        let own_id = (self.own_id || self.is(Mutant::GivesBackAnyId)) && !self.is(Mutant::KeepsAnyId);
        let hold = HoldClause { limit: 1, ttl: TTL, id: Arc::from([id]), cost: 1, own_id };
        let key: Arc<[u8]> = Arc::from(*b"jobs");
        match self.admits {
            false => Command::Hold { key, hold, wait: None },
            true => {
                let rate = (Arc::from(*b"rate"), Clause::Rate(Self::demand()));
                Command::Admit { members: vec![(key, Clause::Hold(hold)), rate], strict: false }
            }
        }
    }

    /// The token, where it is granted.
    fn execute(&self, state: &mut State, id: u8) -> Option<u64> {
        let now = state.now;
        let request = Request { limit: 1, ttl: TTL, id: &[id], cost: 1 };
        match Holds::decide(Some(&state.holds), now, &request, 1000).unwrap() {
            Verdict::Denied(_) => None,
            Verdict::Renewed(decision) => {
                state.holds.sweep(now);
                state.holds.renew(&[id], now + TTL);
                Some(decision.token)
            }
            Verdict::Granted(grant) => {
                let demand = Self::demand().exact;
                let reserved = self.admits.then(|| {
                    let Units::Granted(units) = Entry::decide(Some(&state.rate), now, &demand).unwrap() else {
                        panic!("there is room for all")
                    };
                    let of =
                        Reserved::Rate { instant: units.instant(), geometry: demand.quota.geometry, warms_up: false };
                    let _ = units.apply(&mut state.rate);
                    Box::from([Reservation { key: KeyDigest::of(b"rate"), units: 1, of }])
                });
                state.holds.sweep(now);
                Some(grant.apply(&mut state.holds, reserved).token)
            }
        }
    }

    /// The reply, as the client reads it.
    fn reply(&self, token: Option<u64>) -> Reply {
        let integers = |integers: [u64; 6]| Reply::Array(integers.map(|number| Reply::Integer(number as i64)).to_vec());
        let granted = u64::from(token.is_some());
        let hold = integers([granted, 1, 0, 0, TTL, token.unwrap_or(0)]);
        match self.admits {
            false => hold,
            true => Reply::Array(vec![Reply::Integer(granted as i64), hold, Reply::Array(vec![])]),
        }
    }

    /// An exchange is over, of which nobody wants to hear: it is taken back as the client says.
    fn undo(&self, state: &mut State, exchange: &Exchange, reply: Option<&Reply>) {
        for undo in self.command(exchange.id).undo(reply, state.now, 0) {
            let id = match undo {
                Command::Release { ids, .. } => ids[0][0],
                Command::Settle { id, reserved, .. } if reserved.iter().all(|(_, used)| *used == 0) => id[0],
                undo => panic!("{undo:?} takes no hold back"),
            };
            state.undone.push(id);
            state.undone.sort_unstable();
        }
    }

    /// RELEASE, or SETTLE with zeros.
    fn take_back(state: &mut State, id: u8) {
        state.holds.sweep(state.now);
        let Some(hold) = state.holds.release(&[id]) else { return };
        for Reservation { units, of, .. } in hold.reserved() {
            let Reserved::Rate { instant, .. } = of else { continue };
            state.rate.refund(*units, Some(state.now - instant), state.now);
        }
    }
}

impl Model for Exchanges {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (holds, rate, told) = (Holds::default(), Entry::default(), [None; CALLERS]);
        vec![State { now: START, holds, rate, exchanges: vec![], undone: vec![], begun: 0, told }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < START + self.lasting {
            actions.push(Action::Wait);
        }
        let waits = |caller| state.exchanges.iter().any(|one| one.caller == caller && !one.is_abandoned);
        for caller in 0..CALLERS {
            match waits(caller) {
                true => actions.push(Action::GiveUp(caller)),
                false if state.begun < self.most => actions.push(Action::Ask(caller)),
                false => {}
            }
        }
        for (place, exchange) in state.exchanges.iter().enumerate() {
            match exchange.executed {
                None => actions.push(Action::Execute(place)),
                Some(_) => actions.push(Action::Answer(place)),
            }
            actions.push(Action::Lose(place));
        }
        actions.extend((0..state.undone.len()).map(Action::TakeBack));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wait => state.now += 1,
            Action::Ask(caller) => {
                let id = if self.own_id { state.begun } else { 0 };
                state.begun += 1;
                let sent = state.now;
                state.exchanges.push(Exchange { id, caller, sent, executed: None, is_abandoned: false });
            }
            Action::GiveUp(caller) => {
                let is_its = |one: &&mut Exchange| one.caller == caller && !one.is_abandoned;
                let exchange = state.exchanges.iter_mut().find(is_its)?;
                exchange.is_abandoned = true;
                if self.is(Mutant::UndoesTooEarly) {
                    let exchange = exchange.clone();
                    self.undo(&mut state, &exchange, None);
                }
            }
            Action::Execute(place) => {
                let token = self.execute(&mut state, last.exchanges[place].id);
                state.exchanges[place].executed = Some(token);
            }
            Action::Answer(place) => {
                let exchange = state.exchanges.remove(place);
                let token = exchange.executed?;
                let from = if self.is(Mutant::HoldsFromTheReply) { state.now } else { exchange.sent };
                match token {
                    Some(token) if !exchange.is_abandoned && state.now < from + TTL => {
                        state.told[exchange.caller] = Some((from + TTL, exchange.id, token));
                    }
                    _ if self.is(Mutant::ForgetsTheLate) || self.is(Mutant::UndoesTooEarly) => {}
                    token => self.undo(&mut state, &exchange, Some(&self.reply(token))),
                }
            }
            Action::Lose(place) => {
                let exchange = state.exchanges.remove(place);
                if !self.is(Mutant::ForgetsTheUnanswered) && !self.is(Mutant::UndoesTooEarly) {
                    self.undo(&mut state, &exchange, None);
                }
            }
            Action::TakeBack(place) => {
                let id = state.undone.remove(place);
                Self::take_back(&mut state, id);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("limits hold", |_, state: &State| state.holds.live(state.now).units <= 1),
            Property::always("who heard that it holds, holds", |_, state: &State| {
                let is_held = |(until, id, token): (u64, u8, u64)| {
                    state.now >= until || state.holds.get(&[id], state.now).is_some_and(|hold| hold.token() == token)
                };
                state.told.iter().flatten().copied().all(is_held)
            }),
            Property::always("what nobody learned of is given back", |model: &Self, state: &State| {
                let is_told = |id: &[u8]| state.told.iter().flatten().any(|(_, told, _)| [*told] == *id);
                let mut live = state.holds.iter().filter(|hold| state.now < hold.end());
                let is_quiet = state.exchanges.is_empty() && state.undone.is_empty();
                !model.own_id || !is_quiet || live.all(|hold| is_told(hold.id()))
            }),
            Property::sometimes("a caller holds", |_, state: &State| state.told.iter().any(Option::is_some)),
        ]
    }
}

fn explored(lasting: u64, most: u8) {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let explored = kinds.map(|(own_id, admits)| {
        let checker = Exchanges { own_id, admits, lasting, most, mutant: None }.checker().spawn_bfs().join();
        checker.assert_properties();
        checker.unique_state_count()
    });
    let states: usize = explored.iter().sum();
    let row = format!("| exchanges | HOLD and ADMIT, chosen ids and own ones, {lasting} ms, {most} tries | {states} |");
    assert!(PROMISES.contains(&row), "the page does not say\n{row}");
}

#[test]
fn all_few_exchanges() {
    explored(2, 3);
}

#[test]
#[ignore = "it takes minutes"]
fn all_more_exchanges() {
    explored(3, 3);
}

fn is_found(mutant: Mutant) {
    let own_id = mutant != Mutant::GivesBackAnyId;
    let model = Exchanges { own_id, admits: true, lasting: 3, most: 3, mutant: Some(mutant) };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discoveries().keys().any(|name| *name != "a caller holds"), "{mutant:?} is not found");
}

#[test]
fn finds_that_what_is_late_is_given_back_under_a_chosen_id() {
    is_found(Mutant::GivesBackAnyId);
}

#[test]
fn finds_that_what_is_late_is_kept() {
    is_found(Mutant::KeepsAnyId);
}

#[test]
fn finds_that_what_is_unanswered_is_forgotten() {
    is_found(Mutant::ForgetsTheUnanswered);
}

#[test]
fn finds_that_an_exchange_ends_with_its_request() {
    is_found(Mutant::ForgetsTheLate);
}

#[test]
fn finds_a_hold_that_counts_from_its_reply() {
    is_found(Mutant::HoldsFromTheReply);
}

#[test]
fn finds_that_something_is_taken_back_before_it_is_executed() {
    is_found(Mutant::UndoesTooEarly);
}
