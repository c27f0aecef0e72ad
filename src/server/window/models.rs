//! Windows explored completely: every state that one key can reach, beside the log of all instants.
//!
//! Time has no end, but what happened before the window matters no more, and a window moved by whole subintervals decides
//! the same. So each state is moved until its instant is in one and the same subinterval, and there are finitely many.

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::tests::Log;
use crate::*;

const PROMISES: &str = include_str!("../../../docs/understand/promises.md");

/// A key's window, and what is asked of it.
#[derive(Clone, Copy, Debug)]
struct Windows {
    subintervals: u64,
    limit: u64,
    resolution: u64,
    strict: bool,
    mutant: Option<Mutant>,
}

/// What could be wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// What slides out is forgotten at once.
    ForgetsTheTrailing,
    /// The clock is one subinterval behind for what is counted.
    CountsTooOld,
    /// Of a grant, a unit is not counted.
    CountsTooFew,
    /// STRICT is not heeded.
    NotStrict,
    /// What is given back is taken from the youngest, as if it had no age.
    RefundsTheYoungest,
}

/// One instant: how many ms into its subinterval, what is counted, and every unit that was granted and not given back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    passed: u64,
    counts: Vec<(u64, u64)>,
    granted: Vec<(u64, u64)>,
    /// Whether the decisions were others once what no longer matters was forgotten.
    forgetting_matters: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A ms passes.
    Wait,
    Allow(u64),
    /// A unit that was granted at this instant.
    Refund(u64),
}

impl Windows {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.subintervals * self.resolution, self.resolution).unwrap()
    }

    fn request(&self, cost: u64, partial: bool) -> Request {
        let quota = Quota { limit: self.limit, geometry: self.geometry() };
        Request { quota, cost, partial, strict: self.strict, warm_up: None }
    }

    /// The start of the subinterval in which all happens.
    fn start(&self) -> u64 {
        (self.subintervals + 1) * self.resolution
    }

    fn now(&self, state: &State) -> u64 {
        self.start() + state.passed
    }

    fn entry(&self, counts: &[(u64, u64)]) -> Entry {
        let resolution = self.resolution;
        let counts = counts.iter().map(|(start, units)| Count { subinterval: start / resolution, units: *units });
        Window::with_counts(self.geometry(), counts).map_or_else(|_| Entry::default(), Entry::from)
    }

    fn counts(&self, entry: &Entry) -> Vec<(u64, u64)> {
        let counts = entry.window().into_iter().flat_map(Window::counts);
        counts.map(|count| (count.subinterval * self.resolution, count.units)).collect()
    }

    /// Every request that can be asked, as the window and as the log decide it.
    fn decisions(&self, counts: &[(u64, u64)], granted: &[(u64, u64)], now: u64) -> [Vec<Decision>; 2] {
        let (entry, geometry) = (self.entry(counts), self.geometry());
        let log = Log::of(geometry.window(), geometry.resolution(), granted.to_vec());
        let requests: Vec<_> =
            (1..=self.limit + 1).flat_map(|cost| [false, true].map(|partial| self.request(cost, partial))).collect();
        let heeds = |request: &Request| Request { strict: request.strict && !self.is(Mutant::NotStrict), ..*request };
        let by_window = |request: &Request| Entry::peek(Some(&entry), now, &heeds(request)).unwrap();
        [requests.iter().map(by_window).collect(), requests.iter().map(|request| log.decide(now, request)).collect()]
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// How many units were granted since an instant, with it.
    fn granted_since(state: &State, instant: u64) -> u64 {
        state.granted.iter().filter(|(at, _)| *at >= instant).map(|(_, units)| units).sum()
    }
}

/// Adds units to those of an instant.
fn add(granted: &mut Vec<(u64, u64)>, instant: u64, units: u64) {
    match granted.last_mut() {
        Some((at, already)) if *at == instant => *already += units,
        _ => granted.push((instant, units)),
    }
}

impl Model for Windows {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        (0..self.resolution)
            .map(|passed| State { passed, counts: vec![], granted: vec![], forgetting_matters: false })
            .collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Wait);
        actions.extend((1..=self.limit).map(Action::Allow));
        actions.extend(state.granted.iter().map(|(instant, _)| Action::Refund(*instant)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (mut state, now) = (last.clone(), self.now(last));
        let mut entry = self.entry(&state.counts);
        match action {
            Action::Wait if state.passed + 1 < self.resolution => state.passed += 1,
            Action::Wait => {
                let (resolution, next) = (self.resolution, self.start() + self.resolution);
                let slides_out = if self.is(Mutant::ForgetsTheTrailing) { 2 * resolution } else { resolution };
                let before = self.decisions(&state.counts, &state.granted, next);
                state.counts.retain(|(start, _)| *start > slides_out);
                state.granted.retain(|(instant, _)| *instant >= 2 * resolution);
                state.forgetting_matters = before != self.decisions(&state.counts, &state.granted, next);
                state.counts.iter_mut().chain(&mut state.granted).for_each(|(instant, _)| *instant -= resolution);
                state.passed = 0;
            }
            Action::Allow(cost) => {
                let strict = self.strict && !self.is(Mutant::NotStrict);
                let request = Request { strict, ..self.request(cost, false) };
                let Verdict::Granted(grant) = Entry::decide(Some(&entry), now, &request).unwrap() else { return None };
                let units = grant.units();
                let _ = match self.mutant {
                    Some(Mutant::CountsTooFew) if units > 1 => self.count(&mut entry, now, units - 1),
                    Some(Mutant::CountsTooOld) => self.count(&mut entry, now - self.resolution, units),
                    _ => grant.apply(&mut entry),
                };
                add(&mut state.granted, now, units);
                state.counts = self.counts(&entry);
            }
            Action::Refund(instant) => {
                let age = (!self.is(Mutant::RefundsTheYoungest)).then_some(now - instant);
                if entry.refund(1, age, now) == 0 {
                    return None;
                }
                state.granted.iter_mut().filter(|(at, _)| *at == instant).for_each(|(_, units)| *units -= 1);
                state.granted.retain(|(_, units)| *units > 0);
                state.counts = self.counts(&entry);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("limits hold", |model: &Self, state| {
                let (now, window) = (model.now(state), model.geometry().window());
                let in_span = |length: u64| Self::granted_since(state, now - length);
                match model.strict {
                    true => in_span(window) <= model.limit,
                    false => in_span(window - model.resolution) <= model.limit && in_span(window) <= 2 * model.limit,
                }
            }),
            Property::always("replies are exact", |model: &Self, state: &State| {
                let [by_window, by_log] = model.decisions(&state.counts, &state.granted, model.now(state));
                by_window == by_log
            }),
            Property::always("what slid out matters no more", |_, state: &State| !state.forgetting_matters),
            Property::sometimes("the limit is used up", |model: &Self, state| {
                Self::granted_since(state, model.now(state)) == model.limit
            }),
        ]
    }
}

impl Windows {
    /// Counts units at an instant, whatever the limit.
    fn count(&self, entry: &mut Entry, instant: u64, units: u64) -> Decision {
        let request = self.request(units, false);
        match Entry::record(Some(entry), instant, None, &request).unwrap() {
            Recording::Counted(record) => record.apply(entry),
            Recording::Dropped(decision) => decision,
        }
    }
}

/// All windows up to these bounds: how many, and how many states they have together, as the page says.
fn explored(subintervals: u64, limit: u64, resolution: u64) {
    let mut states = 0;
    for subintervals in 1..=subintervals {
        for limit in 0..=limit {
            for resolution in 1..=resolution {
                for strict in [false, true] {
                    let model = Windows { subintervals, limit, resolution, strict, mutant: None };
                    let checker = model.checker().spawn_bfs().join();
                    checker.assert_properties();
                    states += checker.unique_state_count();
                }
            }
        }
    }
    let row = format!(
        "| windows | N ≤ {subintervals}, limits ≤ {limit}, R ≤ {resolution} ms, with `STRICT` and without | {states} |"
    );
    assert!(PROMISES.contains(&row), "the page does not say\n{row}");
}

#[test]
fn all_small_windows() {
    explored(3, 4, 3);
}

#[test]
#[ignore = "it takes minutes"]
fn all_larger_windows() {
    explored(4, 5, 3);
}

fn is_found(mutant: Mutant) {
    let model = Windows { subintervals: 2, limit: 2, resolution: 2, strict: true, mutant: Some(mutant) };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    assert!(found.keys().any(|name| *name != "the limit is used up"), "{mutant:?} is not found");
}

#[test]
fn finds_that_the_trailing_subinterval_is_forgotten() {
    is_found(Mutant::ForgetsTheTrailing);
}

#[test]
fn finds_units_that_count_too_early() {
    is_found(Mutant::CountsTooOld);
}

#[test]
fn finds_units_that_are_not_counted() {
    is_found(Mutant::CountsTooFew);
}

#[test]
fn finds_that_strict_is_not_heeded() {
    is_found(Mutant::NotStrict);
}

#[test]
fn finds_that_the_youngest_units_are_given_back() {
    is_found(Mutant::RefundsTheYoungest);
}
