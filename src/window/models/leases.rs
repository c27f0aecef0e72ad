//! The protocol of leases explored completely: clients that lease units of one key, use them and give them back, a server
//! that fails over once, and a network that delivers late or never.
//!
//! How many units a client asks for, and when, is left open within its share: so what is proved holds for every rule of
//! sizing and renewing. The server decides by the window's own code; the client's part is what the contract of leases says.

use std::hash::{Hash, Hasher};

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::PROMISES;
use crate::{Entry, Geometry, Quota, Request, Verdict};

/// Subintervals of a window, each of a ms, so that STRICT changes no decision; and for how long units are in hand.
const SUBINTERVALS: u64 = 3;
const LENGTH: u64 = 1;
const CLIENTS: usize = 2;
/// The first instant; before it there is room for a window.
const START: u64 = 10;

#[derive(Clone, Debug)]
struct Leases {
    limit: u64,
    /// The most units of a client, in hand and on their way.
    share: u64,
    /// For so many ms.
    lasting: u64,
    /// Messages under way at a time.
    under_way: usize,
    mutant: Option<Mutant>,
}

/// What could be wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Units go back with their age when that is sent.
    RefundsByAge,
    /// Units count since the reply, not since the server's TIME.
    DatesByTheReply,
    /// A refund that was not answered is sent again.
    RefundsTwice,
    /// Units go back to any server.
    IgnoresTheRunId,
    /// Units are used for as long after the reply as they may be after asking.
    UsesLate,
    /// What comes after closing is dropped.
    ForgetsOnClosing,
}

/// Units that were granted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Units {
    client: usize,
    units: u64,
    /// What TIME said before the grant.
    since: u64,
    /// When they were counted indeed.
    counted: u64,
    /// When they were asked for.
    sent: u64,
    run_id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    /// TIME, and ALLOW of so many units, PARTIAL.
    Lease {
        client: usize,
        units: u64,
        sent: u64,
        time: Option<u64>,
    },
    Reply(Units),
    Refund {
        units: Units,
        age: Option<u64>,
    },
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    run_id: u64,
    window: Entry,
    /// Every unit that this server counted and that was not given back to it, by its instant.
    counted: Vec<u64>,
    /// What a replica holds of both: all but the last grant.
    replica: (Entry, Vec<u64>),
    air: Vec<Message>,
    hands: Vec<Units>,
    closed: [bool; CLIENTS],
    /// When units were used, as far as it matters still.
    used: Vec<u64>,
    /// Units that were granted and are neither used, given back nor lost.
    left: u64,
}

fn counts(window: &Entry) -> Vec<(u64, u64)> {
    let counts = window.window().into_iter().flat_map(|window| window.counts());
    counts.map(|count| (count.subinterval, count.units)).collect()
}

impl State {
    fn seen(&self) -> impl Hash + PartialEq + '_ {
        let server = (self.now, self.run_id, counts(&self.window), &self.counted);
        (server, counts(&self.replica.0), &self.replica.1, &self.air, &self.hands, self.closed, &self.used, self.left)
    }

    fn send(&mut self, message: Message) {
        self.air.push(message);
        self.air.sort_unstable();
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
    /// A client asks for so many units.
    Lease(usize, u64),
    /// A request that no lease covers is decided by the server.
    Ask,
    /// One of these units in hand.
    Use(usize),
    /// What is left of these units in hand.
    GiveBack(usize),
    Close(usize),
    /// The message at this place arrives.
    Arrive(usize),
    /// It is executed or came, and the reply is lost.
    Lose(usize),
    FailOver,
}

impl Leases {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn request(&self, cost: u64, partial: bool) -> Request {
        let quota = Quota { limit: self.limit, geometry: Geometry::new(SUBINTERVALS, 1).unwrap() };
        Request { quota, cost, partial, strict: true }
    }

    /// In hand and on their way.
    fn of_client(state: &State, client: usize) -> u64 {
        let flying = state.air.iter().map(|message| match message {
            Message::Lease { client: of, units, .. } if *of == client => *units,
            Message::Reply(of) if of.client == client => of.units,
            _ => 0,
        });
        let in_hand = state.hands.iter().filter(|hand| hand.client == client).map(|hand| hand.units);
        flying.chain(in_hand).sum()
    }

    /// Until when units may be used, as far as their holder knows.
    fn end(&self, units: &Units) -> u64 {
        units.sent + LENGTH
    }

    /// The server's decision: how many units it counts.
    fn grant(&self, state: &mut State, request: &Request) -> u64 {
        let before = (state.window.clone(), state.counted.clone());
        let Verdict::Granted(grant) = Entry::decide(Some(&state.window), state.now, request).unwrap() else { return 0 };
        let granted = grant.apply(&mut state.window).granted;
        state.counted.extend((0..granted).map(|_| state.now));
        state.replica = before;
        granted
    }

    /// Sends back what is left, to the server that counted it, or writes it off.
    fn give_back(&self, state: &mut State, units: Units) {
        if units.run_id == state.run_id || self.is(Mutant::IgnoresTheRunId) {
            let age = self.is(Mutant::RefundsByAge).then(|| state.now - units.since);
            state.send(Message::Refund { units, age });
        } else {
            state.left -= units.units;
        }
    }

    fn refund(&self, state: &mut State, units: &Units, age: Option<u64>) {
        let age = age.unwrap_or(state.now.saturating_sub(units.since));
        state.window.refund(units.units, Some(age), state.now);
        if units.run_id == state.run_id {
            for _ in 0..units.units {
                if let Some(place) = state.counted.iter().position(|at| *at == units.counted) {
                    state.counted.remove(place);
                }
            }
        }
    }

    fn arrived(&self, state: &mut State, message: Message, is_heard: bool) {
        match message {
            // TIME is answered first, ALLOW at once or later.
            Message::Lease { client, units, sent, time: None } => {
                state.send(Message::Lease { client, units, sent, time: Some(state.now) });
            }
            Message::Lease { client, units, sent, time: Some(since) } => {
                let units = self.grant(state, &self.request(units, true));
                if units > 0 && is_heard {
                    let (counted, run_id) = (state.now, state.run_id);
                    state.send(Message::Reply(Units { client, units, since, counted, sent, run_id }));
                    state.left += units;
                }
            }
            Message::Reply(units) if !is_heard => state.left -= units.units,
            Message::Reply(units) => {
                let since = if self.is(Mutant::DatesByTheReply) { state.now } else { units.since };
                let sent = if self.is(Mutant::UsesLate) { state.now } else { units.sent };
                let units = Units { since, sent, ..units };
                match (state.closed[units.client], state.now < self.end(&units)) {
                    (false, true) => {
                        state.hands.push(units);
                        state.hands.sort_unstable();
                    }
                    (true, _) if self.is(Mutant::ForgetsOnClosing) => {}
                    _ => self.give_back(state, units),
                }
            }
            Message::Refund { units, age } => {
                self.refund(state, &units, age);
                state.left -= units.units.min(state.left);
                if !is_heard && self.is(Mutant::RefundsTwice) {
                    state.send(message);
                }
            }
        }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: START,
            run_id: 0,
            window: Entry::default(),
            counted: vec![],
            replica: (Entry::default(), vec![]),
            air: vec![],
            hands: vec![],
            closed: [false; CLIENTS],
            used: vec![],
            left: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < START + self.lasting {
            actions.push(Action::Wait);
        }
        for client in (0..CLIENTS).filter(|client| !state.closed[*client]) {
            if state.air.len() < self.under_way {
                let room = self.share.saturating_sub(Self::of_client(state, client));
                actions.extend((1..=room).map(|units| Action::Lease(client, units)));
            }
            actions.push(Action::Close(client));
        }
        actions.push(Action::Ask);
        for (place, hand) in state.hands.iter().enumerate() {
            if state.now < self.end(hand) {
                actions.push(Action::Use(place));
            }
            actions.push(Action::GiveBack(place));
        }
        actions.extend((0..state.air.len()).flat_map(|place| [Action::Arrive(place), Action::Lose(place)]));
        if state.run_id == 0 {
            actions.push(Action::FailOver);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Wait => {
                state.now += 1;
                let matters = state.now - SUBINTERVALS;
                state.used.retain(|at| *at > matters);
                state.counted.retain(|at| *at >= matters);
                state.replica.1.retain(|at| *at >= matters);
            }
            Action::Lease(client, units) => {
                let sent = state.now;
                state.send(Message::Lease { client, units, sent, time: None });
            }
            Action::Ask => {
                if self.grant(&mut state, &self.request(1, false)) == 0 {
                    return None;
                }
                state.used.push(state.now);
            }
            Action::Use(place) => {
                state.hands[place].units -= 1;
                state.hands.retain(|hand| hand.units > 0);
                state.hands.sort_unstable();
                state.used.push(state.now);
                state.left -= 1;
            }
            Action::GiveBack(place) => {
                let units = state.hands.remove(place);
                self.give_back(&mut state, units);
            }
            Action::Close(client) => {
                state.closed[client] = true;
                let (its, others) = state.hands.iter().partition(|hand| hand.client == client);
                state.hands = others;
                let its: Vec<Units> = its;
                its.into_iter().for_each(|units| self.give_back(&mut state, units));
            }
            Action::Arrive(place) => {
                let message = state.air.remove(place);
                self.arrived(&mut state, message, true);
            }
            Action::Lose(place) => {
                let message = state.air.remove(place);
                self.arrived(&mut state, message, false);
            }
            Action::FailOver => {
                state.run_id = 1;
                (state.window, state.counted) = state.replica.clone();
                // Connections are lost, and what was under way with them.
                for message in std::mem::take(&mut state.air) {
                    match message {
                        Message::Reply(units) | Message::Refund { units, .. } => {
                            state.left -= units.units.min(state.left)
                        }
                        Message::Lease { .. } => {}
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no span of use sees more than the limit", |model: &Self, state: &State| {
                let used = state.used.iter().filter(|at| **at + SUBINTERVALS - LENGTH > state.now).count() as u64;
                state.run_id > 0 || used <= model.limit
            }),
            Property::always("what is counted stays counted, dated no earlier", |_, state: &State| {
                let counts = counts(&state.window);
                state.counted.iter().all(|instant| {
                    let in_window: u64 = counts.iter().filter(|(at, _)| at >= instant).map(|(_, units)| units).sum();
                    in_window >= state.counted.iter().filter(|at| *at >= instant).count() as u64
                })
            }),
            Property::always("a client that is closed has given everything back", |_, state: &State| {
                !state.closed.iter().all(|closed| *closed) || !state.air.is_empty() || state.left == 0
            }),
            Property::sometimes("a leased unit is used", |_, state: &State| !state.used.is_empty()),
        ]
    }
}

fn explored(limit: u64, lasting: u64) {
    let model = Leases { limit, share: limit, lasting, under_way: 2, mutant: None };
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    let states = checker.unique_state_count();
    let row = format!("| leases | L = B = {limit}, W = 3 ms, R = T = 1 ms, for {lasting} ms | {states} |");
    assert!(PROMISES.contains(&row), "the page does not say\n{row}");
}

#[test]
fn all_short_leases() {
    explored(1, 3);
}

#[test]
#[ignore = "it takes minutes"]
fn all_longer_leases() {
    explored(1, 4);
    explored(2, 2);
}

fn is_found(mutant: Mutant, limit: u64) {
    let model = Leases { limit, share: limit, lasting: 4, under_way: 2, mutant: Some(mutant) };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discoveries().keys().any(|name| *name != "a leased unit is used"), "{mutant:?} is not found");
}

#[test]
fn finds_refunds_by_age() {
    is_found(Mutant::RefundsByAge, 2);
}

#[test]
fn finds_units_that_are_dated_by_the_reply() {
    is_found(Mutant::DatesByTheReply, 2);
}

#[test]
fn finds_that_units_go_back_twice() {
    is_found(Mutant::RefundsTwice, 2);
}

#[test]
fn finds_that_units_go_back_to_another_server() {
    is_found(Mutant::IgnoresTheRunId, 2);
}

#[test]
fn finds_units_that_are_used_late() {
    is_found(Mutant::UsesLate, 1);
}

#[test]
fn finds_what_comes_after_closing() {
    is_found(Mutant::ForgetsOnClosing, 1);
}
