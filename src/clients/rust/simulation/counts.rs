//! ACQUIRE and BUDGET beyond their requests, explored completely: what they count has no id, so that a late grant is
//! taken back by an instant. Which grants are, and with which commands, the client itself says.

use std::hash::Hash;
use std::sync::Arc;

use stateright::{Checker, HasDiscoveries, Model, Property};
use swlimit_budget::{Budget, Request};
use swlimit_window::{Entry, Verdict};

use super::exchanges::Action;
use super::{compared_by_seen, PROMISES};
use crate::demand::Demand;
use crate::protocol::{BudgetClause, Command, Counted};
use crate::quota::Quota;
use crate::transport::Reply;

/// A window, and a period, in ms.
const WINDOW: u64 = 3;
const PERIOD: u64 = 2;
const CALLERS: usize = 2;
/// The first instant, at which a period begins; before it there is room for a window.
const START: u64 = 10;

#[derive(Clone, Debug)]
struct Counts {
    is_budget: bool,
    limit: u64,
    /// For so many ms.
    lasting: u64,
    /// Exchanges altogether.
    most: u8,
    mutant: Option<Mutant>,
}

/// What could be wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// An exchange ends with its request.
    ForgetsTheLate,
    /// A refund says no instant: it takes the newest units.
    DropsTheDate,
    /// Units count since the reply.
    DatesByTheReply,
    /// A unit is given back twice.
    GivesBackTwice,
    /// What a caller took is given back, too.
    GivesBackTheTaken,
    /// What was not answered is given back, as if it had been granted.
    GivesBackTheUnanswered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Exchange {
    caller: usize,
    sent: u64,
    executed: Option<Executed>,
    /// Nobody waits any more.
    is_abandoned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Executed {
    Refused,
    Denied,
    /// When, and how long before nothing counts any more.
    Granted {
        at: u64,
        reset_after: u64,
    },
}

/// A unit that will be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Undone {
    /// What the refund says.
    since: Option<u64>,
    /// When it was counted indeed, if it was.
    at: Option<u64>,
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    window: Entry,
    budget: Option<Budget>,
    exchanges: Vec<Exchange>,
    undone: Vec<Undone>,
    begun: u8,
    /// When each unit was counted that still matters and was not given back.
    counted: Vec<u64>,
    /// Those of them that a caller took, whose reply was lost, or that cannot be given back in time.
    kept: Vec<u64>,
    /// A unit was to be given back that mattered still, and was not.
    is_stuck: bool,
}

impl State {
    /// What the server holds, by instant; units of a budget count until the end of its period.
    fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.window.window().into_iter().flat_map(|window| window.counts());
        let budget = Budget::in_force(self.budget.as_ref(), self.now).map(|budget| (budget.until() - 1, budget.used()));
        counts.map(|count| (count.subinterval, count.units)).chain(budget).collect()
    }

    /// From when on units matter.
    fn matters(&self) -> u64 {
        match &self.budget {
            Some(budget) if self.now < budget.end() => budget.since(),
            Some(_) => self.now,
            None => self.now - WINDOW,
        }
    }

    /// A unit is not given back.
    fn keep(&mut self, at: u64) {
        if at >= self.matters() {
            self.kept.push(at);
        }
    }

    fn seen(&self) -> impl Hash + PartialEq + '_ {
        let since = Budget::in_force(self.budget.as_ref(), self.now).map(Budget::since);
        let server = (self.now, self.counts(), since);
        (server, &self.exchanges, &self.undone, self.begun, &self.counted, &self.kept, self.is_stuck)
    }
}

compared_by_seen!(State);

impl Counts {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn demand(&self) -> Demand {
        Demand::of(&Quota::with_resolution(self.limit, &format!("{WINDOW}ms"), "1ms").unwrap())
    }

    /// What an exchange sends. A period ends as the caller's calendar says.
    fn command(&self, sent: u64) -> Command {
        let key: Arc<[u8]> = Arc::from(*b"key");
        match self.is_budget {
            false => Command::Acquire { key, demand: self.demand(), timeout: 1 },
            true => {
                let budget = BudgetClause { limit: self.limit, until: sent / PERIOD * PERIOD + PERIOD, cost: 1 };
                Command::Budget { key, budget, partial: false, force: false }
            }
        }
    }

    fn execute(&self, state: &mut State, sent: u64) -> Executed {
        let at = state.now;
        let decision = match self.command(sent) {
            Command::Budget { budget: BudgetClause { until, .. }, .. } if until <= at => return Executed::Refused,
            Command::Budget { budget: BudgetClause { limit, until, cost }, .. } => {
                let request = Request { limit, until, cost, partial: false };
                let (count, decision) = Budget::decide(state.budget.as_ref(), at, &request);
                state.budget = count.map(|count| count.budget()).or(state.budget);
                decision
            }
            _ => match Entry::decide(Some(&state.window), at, &self.demand().exact).unwrap() {
                Verdict::Granted(grant) => grant.apply(&mut state.window),
                Verdict::Denied(decision) => decision,
            },
        };
        if decision.granted == 0 {
            return Executed::Denied;
        }
        state.counted.push(at);
        Executed::Granted { at, reset_after: decision.reset_after }
    }

    /// The reply, as the client reads it.
    fn reply(&self, executed: Executed) -> Reply {
        let integers = |granted, reset_after: u64| {
            let integers = [granted, self.limit as i64, 0, 0, reset_after as i64];
            Reply::Array(integers.map(Reply::Integer).to_vec())
        };
        match executed {
            Executed::Refused => Reply::Error("ERR the period is over".into()),
            Executed::Denied => integers(0, 0),
            Executed::Granted { reset_after, .. } => integers(1, reset_after),
        }
    }

    /// An exchange is over, of which nobody wants to hear: it is taken back as the client says.
    fn undo(&self, state: &mut State, exchange: &Exchange, executed: Option<Executed>) {
        let since = if self.is(Mutant::DatesByTheReply) { state.now } else { exchange.sent };
        let reply = executed.map(|executed| self.reply(executed));
        let at = match executed {
            Some(Executed::Granted { at, .. }) => Some(at),
            _ => None,
        };
        for undo in self.command(exchange.sent).undo(reply.as_ref(), since, 0) {
            let since = match undo {
                Command::Refund { counted: Counted::Since(_), .. } if self.is(Mutant::DropsTheDate) => None,
                Command::Refund { units: 1, counted: Counted::Since(since), .. } => Some(since),
                undo => panic!("{undo:?} gives no unit back"),
            };
            let twice = if self.is(Mutant::GivesBackTwice) { 2 } else { 1 };
            state.undone.extend((0..twice).map(|_| Undone { since, at }));
            state.undone.sort_unstable();
        }
    }

    /// REFUND.
    fn take_back(state: &mut State, Undone { since, at }: Undone) {
        let age = since.map(|since| state.now.saturating_sub(since));
        let is_too_old = since.is_some_and(|since| since < state.matters());
        let given = match &mut state.budget {
            Some(budget) => {
                let given = budget.refundable(1, age, state.now);
                budget.refund(given);
                given
            }
            None => state.window.refund(1, age, state.now),
        };
        // Units that may have slid out, or are perhaps of another period, stay.
        if let (true, Some(at)) = (is_too_old, at) {
            state.keep(at);
        } else if let Some(place) = state.counted.iter().position(|counted| Some(*counted) == at) {
            state.counted.remove(place);
            state.is_stuck |= given == 0;
        }
    }
}

impl Model for Counts {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (window, budget) = (Entry::default(), None);
        let (exchanges, undone, counted, kept) = (vec![], vec![], vec![], vec![]);
        vec![State { now: START, window, budget, exchanges, undone, begun: 0, counted, kept, is_stuck: false }]
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
            actions.push(if exchange.executed.is_none() { Action::Execute(place) } else { Action::Answer(place) });
            actions.push(Action::Lose(place));
        }
        actions.extend((0..state.undone.len()).map(Action::TakeBack));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wait => {
                state.now += 1;
                let matters = state.matters();
                state.counted.retain(|at| *at >= matters);
                state.kept.retain(|at| *at >= matters);
            }
            Action::Ask(caller) => {
                state.begun += 1;
                let sent = state.now;
                state.exchanges.push(Exchange { caller, sent, executed: None, is_abandoned: false });
            }
            Action::GiveUp(caller) => {
                let is_its = |one: &&mut Exchange| one.caller == caller && !one.is_abandoned;
                state.exchanges.iter_mut().find(is_its)?.is_abandoned = true;
            }
            Action::Execute(place) => {
                state.exchanges[place].executed = Some(self.execute(&mut state, last.exchanges[place].sent));
            }
            Action::Answer(place) => {
                let exchange = state.exchanges.remove(place);
                let executed = exchange.executed?;
                match executed {
                    Executed::Granted { at, .. } if !exchange.is_abandoned => {
                        state.keep(at);
                        if self.is(Mutant::GivesBackTheTaken) {
                            self.undo(&mut state, &exchange, Some(executed));
                        }
                    }
                    _ if self.is(Mutant::ForgetsTheLate) => {}
                    executed => self.undo(&mut state, &exchange, Some(executed)),
                }
            }
            Action::Lose(place) => {
                let exchange = state.exchanges.remove(place);
                if let Some(Executed::Granted { at, .. }) = exchange.executed {
                    state.keep(at);
                }
                self.undo(&mut state, &exchange, None);
                if self.is(Mutant::GivesBackTheUnanswered) {
                    let (at, reset_after) = (exchange.sent, PERIOD);
                    self.undo(&mut state, &exchange, Some(Executed::Granted { at, reset_after }));
                }
            }
            Action::TakeBack(place) => {
                let undone = state.undone.remove(place);
                Self::take_back(&mut state, undone);
            }
        }
        state.kept.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("limits hold", |model: &Self, state: &State| {
                let matters = |at: &&u64| model.is_budget || **at + WINDOW > state.now;
                state.counted.iter().filter(matters).count() as u64 <= model.limit
            }),
            Property::always("what is counted stays counted, dated no earlier", |_, state: &State| {
                let counts = state.counts();
                state.kept.iter().all(|instant| {
                    let is_since = |at: &u64| *at >= *instant;
                    let held: u64 = counts.iter().filter(|(at, _)| is_since(at)).map(|(_, units)| units).sum();
                    held >= state.kept.iter().filter(|at| is_since(at)).count() as u64
                })
            }),
            Property::always("what nobody learned of is given back", |_, state: &State| {
                let is_quiet = state.exchanges.is_empty() && state.undone.is_empty();
                !is_quiet || (state.counted == state.kept && !state.is_stuck)
            }),
            Property::sometimes("a caller takes a unit", |_, state: &State| !state.kept.is_empty()),
            Property::sometimes("a unit is given back", |_, state: &State| !state.undone.is_empty()),
        ]
    }
}

fn explored(lasting: u64, most: u8) {
    for (command, is_budget) in [("ACQUIRE", false), ("BUDGET", true)] {
        let explored = [1, 2].map(|limit| {
            let checker = Counts { is_budget, limit, lasting, most, mutant: None }.checker().spawn_bfs().join();
            checker.assert_properties();
            checker.unique_state_count()
        });
        let states: usize = explored.iter().sum();
        let row = format!("| exchanges | {command}, limits ≤ 2, {lasting} ms, {most} tries | {states} |");
        assert!(PROMISES.contains(&row), "the page does not say\n{row}");
    }
}

#[test]
fn all_few_counts() {
    explored(3, 3);
}

#[test]
#[ignore = "it takes minutes"]
fn all_more_counts() {
    explored(4, 3);
}

fn is_found(mutant: Mutant, is_budget: bool) {
    let model = Counts { is_budget, limit: 2, lasting: 4, most: 3, mutant: Some(mutant) };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let failed =
        ["limits hold", "what is counted stays counted, dated no earlier", "what nobody learned of is given back"];
    assert!(failed.iter().any(|name| checker.discovery(name).is_some()), "{mutant:?} is not found");
}

#[test]
fn finds_that_a_late_grant_is_forgotten() {
    is_found(Mutant::ForgetsTheLate, false);
    is_found(Mutant::ForgetsTheLate, true);
}

#[test]
fn finds_that_a_refund_is_not_dated() {
    is_found(Mutant::DropsTheDate, false);
    is_found(Mutant::DropsTheDate, true);
}

#[test]
fn finds_that_units_are_dated_by_the_reply() {
    is_found(Mutant::DatesByTheReply, false);
    is_found(Mutant::DatesByTheReply, true);
}

#[test]
fn finds_that_a_unit_is_given_back_twice() {
    is_found(Mutant::GivesBackTwice, false);
    is_found(Mutant::GivesBackTwice, true);
}

#[test]
fn finds_that_a_taken_unit_is_given_back() {
    is_found(Mutant::GivesBackTheTaken, false);
    is_found(Mutant::GivesBackTheTaken, true);
}

#[test]
fn finds_that_an_unanswered_unit_is_given_back() {
    is_found(Mutant::GivesBackTheUnanswered, false);
    is_found(Mutant::GivesBackTheUnanswered, true);
}
