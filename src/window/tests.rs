//! The window against independent models: a log that keeps every unit's instant and adds them up anew each time, and a
//! plain map for the counts.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::counts::Counts;
use super::*;

/// Every counted unit with its instant. Nothing is clever here: sums are taken over all events, and retries are found by
/// asking millisecond after millisecond.
#[derive(Clone, Debug)]
struct Log {
    window: u64,
    resolution: u64,
    events: Vec<(u64, u64)>,
}

impl Log {
    fn newest(&self) -> u64 {
        self.events.iter().map(|(instant, _)| instant / self.resolution * self.resolution).max().unwrap_or(0)
    }

    fn at(&self, window: u64, resolution: u64, now: u64) -> Self {
        if (self.window, self.resolution) == (window, resolution) {
            return self.clone();
        }
        let decided = now.max(self.newest());
        let latest = |instant: u64| (instant / self.resolution + 1) * self.resolution - 1;
        let events = self.events.iter().map(|(instant, units)| (latest(*instant).min(decided), *units)).collect();
        Self { window, resolution, events }
    }

    /// Units in all subintervals of the window, and in the one before them.
    fn full_and_trailing(&self, instant: u64) -> (u64, u64) {
        let start = instant / self.resolution * self.resolution;
        let age = |event: u64| start.checked_sub(event / self.resolution * self.resolution);
        let of = |wanted: &dyn Fn(u64) -> bool| {
            self.events.iter().filter(|(event, _)| age(*event).is_some_and(wanted)).map(|(_, units)| units).sum()
        };
        (of(&|age| age < self.window), of(&|age| age == self.window))
    }

    /// The estimate times the resolution, which makes it whole.
    fn scaled_estimate(&self, instant: u64, strict: bool) -> u128 {
        let (full, trailing) = self.full_and_trailing(instant);
        let weight = if strict { self.resolution } else { self.resolution - instant % self.resolution };
        u128::from(full) * u128::from(self.resolution) + u128::from(trailing) * u128::from(weight)
    }

    fn fits(&self, now: u64, units: u64, demand: &Demand) -> bool {
        let instant = now.max(self.newest());
        self.scaled_estimate(instant, demand.strict) + u128::from(units) * u128::from(self.resolution)
            <= u128::from(demand.limit) * u128::from(self.resolution)
    }

    fn decide(&self, now: u64, demand: &Demand) -> Decision {
        let remaining = (0..=demand.limit).rev().find(|units| self.fits(now, *units, demand)).unwrap_or(0);
        let granted = match demand.partial {
            true => remaining.min(demand.cost),
            false if self.fits(now, demand.cost, demand) => demand.cost,
            false => 0,
        };
        Decision {
            granted,
            limit: demand.limit,
            remaining,
            retry_after: if granted > 0 {
                Some(0)
            } else {
                self.retry_after(self.window, self.resolution, now, demand)
            },
            reset_after: self.reset_after(now),
        }
    }

    /// When this log, kept as it is, would let a demand with a certain geometry through.
    fn retry_after(&self, window: u64, resolution: u64, now: u64, demand: &Demand) -> Option<u64> {
        let units = if demand.partial { 1 } else { demand.cost };
        let fits = |at| self.at(window, resolution, at).fits(at, units, demand);
        (units <= demand.limit).then(|| (0..).find(|ms| fits(now + ms)).unwrap())
    }

    fn reset_after(&self, now: u64) -> u64 {
        if self.events.is_empty() {
            return 0;
        }
        (0..).find(|ms| now + ms >= self.newest() && self.gone(now + ms)).unwrap()
    }

    fn gone(&self, instant: u64) -> bool {
        self.scaled_estimate(instant, false) == 0
    }

    fn count(&mut self, instant: u64, units: u64) {
        self.events.push((instant, units));
        let oldest = self.newest().saturating_sub(self.window);
        self.events.retain(|(event, _)| event / self.resolution * self.resolution >= oldest);
    }

    fn refund(&mut self, units: u64) -> u64 {
        let mut taken = 0;
        self.events.sort_by_key(|(instant, _)| instant / self.resolution);
        while let Some((_, held)) = self.events.last_mut().filter(|_| taken < units) {
            let take = (*held).min(units - taken);
            taken += take;
            *held -= take;
            if *held == 0 {
                self.events.pop();
            }
        }
        taken
    }

    fn counts(&self) -> Vec<(u64, u64)> {
        let mut counts = BTreeMap::new();
        for (instant, units) in &self.events {
            *counts.entry(instant / self.resolution * self.resolution).or_insert(0) += units;
        }
        counts.into_iter().collect()
    }
}

/// Decide a demand and count what is granted.
fn allow(window: &mut Window, now: u64, demand: &Demand) -> Result<Decision, Overflow> {
    let decision = window.decide(now, demand)?;
    if decision.granted == 0 {
        return Ok(decision);
    }
    window.count(window.decision_instant(now), decision.granted);
    Ok(window.after_grant(now, decision))
}

fn geometry(window: u64, resolution: u64) -> Geometry {
    Geometry::new(window, resolution).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Allow(Demand),
    Record(Demand, bool),
    Refund(u64),
}

fn demands() -> impl Strategy<Value = Demand> {
    (0..30u64, 1..12u64, any::<bool>(), any::<bool>()).prop_map(|(limit, cost, partial, strict)| Demand {
        limit,
        cost,
        partial,
        strict,
    })
}

/// Something to do, at how many ms after the step before it, with one of a few geometries.
fn steps() -> impl Strategy<Value = Vec<(Step, i64, (u64, u64))>> {
    let step = prop_oneof![
        6 => demands().prop_map(Step::Allow),
        2 => (demands(), any::<bool>())
            .prop_map(|(demand, dated)| Step::Record(Demand { partial: false, ..demand }, dated)),
        1 => (1..20u64).prop_map(Step::Refund),
    ];
    let elapsed = prop_oneof![6 => 0..8i64, 2 => 0..60i64, 1 => -40..0i64];
    // Mostly one geometry, so that its window fills.
    let geometry = prop_oneof![
        12 => Just((24, 4)),
        1 => Just((24, 8)),
        1 => Just((30, 5)),
        1 => Just((7, 1)),
        1 => Just((12, 12)),
        1 => Just((40, 20)),
    ];
    vec((step, elapsed, geometry), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    /// Decisions, records and refunds in any order, with clocks that jump and geometries that change.
    #[test]
    fn agrees_with_the_log(steps in steps(), start in prop_oneof![0..50u64, 1_000_000..1_000_100u64]) {
        let mut now = start;
        let mut stored: Option<Window> = None;
        let mut log = Log { window: 24, resolution: 4, events: vec![] };
        for (step, elapsed, (length, resolution)) in steps {
            now = now.saturating_add_signed(elapsed);
            let view = Window::seen_at(stored.as_ref(), geometry(length, resolution), now);
            let mut seen_log = match stored {
                Some(_) => log.at(length, resolution, now),
                None => Log { window: length, resolution, events: vec![] },
            };
            match step {
                Step::Allow(demand) => {
                    let mut expected = seen_log.decide(now, &demand);
                    if stored.is_some() && expected.granted == 0 {
                        expected.retry_after = log.retry_after(length, resolution, now, &demand);
                    }
                    let decision = view.decide(now, &demand).unwrap();
                    prop_assert_eq!(decision, expected);
                    if decision.granted > 0 {
                        let instant = view.decision_instant(now);
                        let mut window = view.into_replacement().or(stored).unwrap();
                        window.count(instant, decision.granted);
                        seen_log.count(now.max(seen_log.newest()), decision.granted);
                        let after = window.after_grant(now, decision);
                        prop_assert_eq!(after.remaining, seen_log.decide(now, &demand).remaining);
                        prop_assert_eq!(after.reset_after, seen_log.reset_after(now));
                        (stored, log) = (Some(window), seen_log);
                    }
                }
                Step::Record(demand, dated) => {
                    let mut before = seen_log.decide(now, &demand);
                    if stored.is_some() && before.granted == 0 {
                        before.retry_after = log.retry_after(length, resolution, now, &demand);
                    }
                    let decision = view.decide(now, &demand).unwrap();
                    prop_assert_eq!(decision, before);
                    let instant = if dated { Instant::At(now) } else { Instant::Clock(now) };
                    let counted_at = if dated { now } else { now.max(seen_log.newest()) };
                    let matters = counted_at / resolution * resolution + length >= seen_log.newest();
                    let recorded_at = view.recording_instant(instant, demand.cost).unwrap();
                    prop_assert_eq!(recorded_at, matters.then_some(counted_at));
                    if matters {
                        let mut window = view.into_replacement().or(stored).unwrap();
                        window.count(counted_at, demand.cost);
                        seen_log.count(counted_at, demand.cost);
                        let after = window.after_recording(now, &demand, decision);
                        let expected = seen_log.decide(now, &demand);
                        let retry_after = if before.granted > 0 { Some(0) } else { expected.retry_after };
                        prop_assert_eq!(after, Decision { granted: before.granted, retry_after, ..expected });
                        (stored, log) = (Some(window), seen_log);
                    }
                }
                Step::Refund(units) => {
                    if let Some(window) = &mut stored {
                        prop_assert_eq!(window.refund(units), log.refund(units));
                        if window.end() == 0 {
                            stored = None;
                        }
                    }
                }
            }
            if let Some(window) = &stored {
                prop_assert_eq!(window.counts().collect::<Vec<_>>(), log.counts());
                prop_assert_eq!(window.newest(), log.newest());
                prop_assert_eq!(window.total(), log.events.iter().map(|(_, units)| units).sum::<u64>());
                prop_assert!(window.counts_held() as u64 <= window.geometry().subintervals() + 1);
            }
        }
    }

    /// No span of W ever sees more than L granted units with STRICT; by default, no span of W − R more than L, and no
    /// span of W more than 2·L.
    #[test]
    fn grants_in_any_span_are_bounded(
        limit in 1..20u64,
        (length, resolution) in prop_oneof![Just((24, 4)), Just((12, 12)), Just((30, 1)), Just((20, 10))],
        strict in any::<bool>(),
        requests in vec((0..9u64, 1..8u64, any::<bool>()), 1..200),
    ) {
        let mut window = Window::new(geometry(length, resolution));
        let (mut now, mut grants) = (1_000, vec![]);
        for (elapsed, cost, partial) in requests {
            now += elapsed;
            let decision = allow(&mut window, now, &Demand { limit, cost, partial, strict }).unwrap();
            grants.push((now, decision.granted));
        }
        let most_in = |span: u64| -> u64 {
            let from = |first: u64| grants.iter().filter(move |(at, _)| (first..first + span).contains(at));
            grants.iter().map(|(first, _)| from(*first).map(|(_, units)| units).sum()).max().unwrap_or(0)
        };
        if strict {
            prop_assert!(most_in(length) <= limit);
        }
        prop_assert!(most_in(length - resolution) <= limit);
        prop_assert!(most_in(length) <= 2 * limit);
    }

    /// Granted exactly where a denial says so, denied one ms earlier, at any magnitude.
    #[test]
    fn retry_after_is_exact(
        units in vec((1..MAX_EXACT / 64, 0..400u64), 1..40),
        resolution in prop_oneof![1..10u64, 1_000..100_000u64, 1..MAX_WINDOW / 64],
        subintervals in 1..64u64,
        (cost, spare) in (1..MAX_EXACT / 2, 0..MAX_EXACT / 2),
        (partial, strict) in any::<(bool, bool)>(),
        elapsed in 0..1_000u64,
    ) {
        let mut window = Window::new(geometry(resolution * subintervals, resolution));
        let mut now = 1_700_000_000_000;
        for (units, tenths) in units {
            now += resolution * tenths / 100;
            window.count(now, units);
        }
        now += resolution * elapsed / 100;
        let demand = Demand { limit: cost + spare, cost, partial, strict };
        let Ok(decision) = window.decide(now, &demand) else { return Ok(()) };
        let retry_after = decision.retry_after.unwrap();
        prop_assert_eq!(retry_after == 0, decision.granted > 0);
        if let Ok(then) = window.decide(now + retry_after, &demand) {
            prop_assert!(then.granted > 0);
        }
        if retry_after > 0 {
            prop_assert_eq!(window.decide(now + retry_after - 1, &demand).unwrap().granted, 0);
        }
    }

    #[test]
    fn refund_undoes_allow(
        before in vec((0..30u64, 1..9u64), 0..40),
        cost in 1..9u64,
        elapsed in 0..4u64,
    ) {
        let mut window = Window::new(geometry(24, 4));
        let mut now = 1_000;
        for (elapsed, units) in before {
            now += elapsed;
            window.count(now, units);
        }
        now += elapsed;
        let counted = window.clone();
        let generous = Demand { limit: MAX_EXACT, cost, partial: false, strict: false };
        prop_assert_eq!(allow(&mut window, now, &generous).unwrap().granted, cost);
        prop_assert_eq!(window.refund(cost), cost);
        for later in 0..60 {
            let tight = Demand { limit: 20, ..generous };
            prop_assert_eq!(window.decide(now + later, &tight), counted.decide(now + later, &tight));
        }
    }

    #[test]
    fn codec_round_trip(
        resolution in 1..=MAX_WINDOW / 1_000,
        subintervals in 1..=1_000u64,
        first in 0..10_000u64,
        counts in vec((1..4u64, prop_oneof![1..100u64, 1..MAX_EXACT / 400]), 1..300),
    ) {
        let geometry = geometry(resolution * subintervals, resolution);
        let mut subinterval = first;
        let mut window = Window::new(geometry);
        for (distance, units) in counts {
            subinterval += distance;
            window.count(geometry.start_of(subinterval), units);
        }
        let decoded = decode(&encode(&window)).unwrap();
        prop_assert_eq!(decoded.geometry(), window.geometry());
        prop_assert!(decoded.counts().eq(window.counts()));
    }

    /// Whatever the bytes say, they make a window that keeps the rules, or none.
    #[test]
    fn decoding_makes_a_valid_window_or_none(bytes in hostile_bytes()) {
        if let Ok(mut window) = decode(&bytes) {
            let total: u64 = window.counts().map(|(_, units)| units).sum();
            prop_assert!(total <= MAX_EXACT && window.total() == total && !window.counts().any(|(_, units)| units == 0));
            prop_assert!(window.newest() <= MAX_EXACT);
            prop_assert!(window.newest() - window.counts().next().unwrap().0 <= window.geometry().window());
            prop_assert!(decode(&encode(&window)).unwrap().counts().eq(window.counts()));
            let demand = Demand { limit: MAX_EXACT, cost: 1, partial: true, strict: false };
            for now in [0, window.newest(), MAX_EXACT] {
                let _ = window.decide(now, &demand);
                let _ = Window::seen_at(Some(&window), geometry(1_000, 1), now).decide(now, &demand);
                let _ = allow(&mut window, now, &demand);
            }
            window.refund(MAX_EXACT);
        }
    }

    /// Counts against a map, past the 2^32 − 1 that eight bytes a slot can hold.
    #[test]
    fn counts_agree_with_a_map(
        steps in vec((prop_oneof![9 => 0..3u64, 1 => 0..40u64, 1 => 1u64 << 31..1 << 33],
                      prop_oneof![6 => 1..9u64, 1 => 1u64 << 30..1 << 34], 0..10u64), 1..80),
        span in prop_oneof![1..20u64, Just(1 << 34)],
    ) {
        let (mut counts, mut map) = (Counts::new(), BTreeMap::new());
        let mut newest: u64 = 5;
        for (elapsed, units, action) in steps {
            newest += elapsed;
            let oldest = newest.saturating_sub(span);
            if action == 0 && map.last_key_value().is_some_and(|(youngest, _)| *youngest >= oldest) {
                let held: u64 = map.range(oldest..).map(|(_, units)| units).sum();
                prop_assert_eq!(counts.take_newest(units, oldest), units.min(held));
                let mut left = units;
                map.retain(|subinterval, _| *subinterval >= oldest);
                for (_, held) in map.iter_mut().rev() {
                    let take = left.min(*held);
                    (*held, left) = (*held - take, left - take);
                }
                map.retain(|_, units| *units > 0);
            } else {
                let late = newest.saturating_sub(if action == 1 { 2 } else { 0 }).max(oldest);
                counts.add(late, units, oldest);
                *map.entry(late).or_insert(0) += units;
            }
            prop_assert!(counts.iter_since(oldest).eq(map.range(oldest..).map(|(subinterval, units)| (*subinterval, *units))));
            for subinterval in [oldest, newest.saturating_sub(1).max(oldest), newest] {
                let after = |total: u64| total - counts.through(subinterval).0;
                let expected: u64 = map.range(subinterval + 1..).map(|(_, units)| units).sum();
                prop_assert_eq!(after(counts.total()), expected);
                prop_assert_eq!(counts.through(subinterval).1, map.get(&subinterval).copied().unwrap_or(0));
            }
            // The youngest `units` of all: the oldest subinterval that has to go for only that many to be left.
            let mut left = map.range(oldest..).map(|(_, units)| units).sum::<u64>();
            for (subinterval, units) in map.range(oldest..) {
                left -= units;
                let (found, through, own) = counts.reaching(counts.total() - left).unwrap();
                prop_assert_eq!((found, counts.total() - through, own), (*subinterval, left, *units));
            }
        }
    }
}

/// Random bytes, and mutations of real encodings, which get further.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let mutated = (
        (1..=MAX_WINDOW / 10, 1..=10u64, vec((0..3u64, 1..MAX_EXACT), 0..12)),
        vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 0..4),
    )
        .prop_map(|((resolution, subintervals, counts), mutations)| {
            let mut bytes = vec![];
            for number in [resolution, subintervals, counts.len() as u64]
                .into_iter()
                .chain(counts.into_iter().flat_map(|(distance, units)| [distance, units]))
            {
                super::codec::put(&mut bytes, number);
            }
            for (place, byte, kind) in mutations {
                let place = place.index(bytes.len());
                match kind {
                    0 => bytes[place] = byte,
                    1 => bytes.insert(place, byte),
                    _ => drop(bytes.drain(place..)),
                }
                if bytes.is_empty() {
                    bytes.push(byte);
                }
            }
            bytes
        });
    prop_oneof![1 => vec(any::<u8>(), 0..40), 4 => mutated]
}

#[test]
fn counts_that_no_window_can_hold_are_refused() {
    let twelve = geometry(60_000, 5_000);
    let last = twelve.subinterval_at(MAX_EXACT);
    let with = |counts: &[Count]| Window::with_counts(twelve, counts.iter().copied()).map(|window| window.total());
    assert_eq!(with(&[(100, 1), (112, 2)]), Ok(3));
    assert_eq!(with(&[(last, MAX_EXACT)]), Ok(MAX_EXACT));
    for (counts, rule) in [
        (&[][..], "no counts"),
        (&[(100, 1), (113, 2)], "counts older than the window"),
        (&[(last + 1, 1)], "an instant out of range"),
        (&[(u64::MAX, 1)], "an instant out of range"),
        (&[(100, 1), (100, 1)], "subintervals out of order"),
        (&[(100, 1), (99, 1)], "subintervals out of order"),
        (&[(100, 0)], "units out of range"),
        (&[(100, MAX_EXACT + 1)], "units out of range"),
        (&[(100, MAX_EXACT), (101, 1)], "units out of range"),
        (&[(100, u64::MAX), (101, u64::MAX)], "units out of range"),
    ] {
        assert_eq!(with(counts), Err(Invalid(rule)), "{counts:?}");
    }
}

#[test]
fn a_window_takes_half_a_cache_line() {
    assert_eq!(mem::size_of::<Window>(), 32);
}

#[test]
fn a_full_ring_takes_eight_bytes_a_count_and_keeps_few_that_slid_out() {
    let mut window = Window::new(geometry(4_096, 1));
    for now in 1_000_000..1_020_000 {
        window.count(now, 3);
        assert!(window.bytes() <= 32 + 8 * (4_097 + 4_097 / 3 + 1), "{}", window.bytes());
    }
    assert_eq!((window.counts_held(), window.total()), (4_097, 3 * 4_097));
}

#[test]
fn memory_is_for_counts_not_for_subintervals() {
    let mut window = Window::new(geometry(MAX_SUBINTERVALS, 1));
    window.count(5_000_000, 1);
    assert_eq!(window.bytes(), 32);
    for now in 0..20 {
        window.count(5_000_001 + now * 1_000, 1);
    }
    assert_eq!(window.bytes(), 32 + 21 * 8);
}

#[test]
fn the_first_example_of_the_readme() {
    let mut window = Window::new(geometry(60_000, 5_000));
    let demand = Demand { limit: 100, cost: 1, partial: false, strict: false };
    let decision = allow(&mut window, 1_700_000_000_000, &demand).unwrap();
    assert_eq!(decision, Decision { granted: 1, limit: 100, remaining: 99, retry_after: Some(0), reset_after: 65_000 });
}

#[test]
fn never_is_said_of_costs_above_the_limit() {
    let window = Window::new(geometry(60_000, 5_000));
    let demand = Demand { limit: 5, cost: 6, partial: false, strict: false };
    assert_eq!(window.decide(0, &demand).unwrap().retry_after, None);
    assert_eq!(window.decide(0, &Demand { partial: true, ..demand }).unwrap().granted, 5);
    assert_eq!(window.decide(0, &Demand { partial: true, limit: 0, ..demand }).unwrap().retry_after, None);
}

#[test]
fn counts_beyond_what_clients_hold_exactly_are_refused() {
    let mut window = Window::new(geometry(1_000, 1_000));
    let demand = Demand { limit: MAX_EXACT, cost: MAX_EXACT, partial: false, strict: false };
    assert_eq!(allow(&mut window, 0, &demand).unwrap().granted, MAX_EXACT);
    assert_eq!(window.recording_instant(Instant::At(0), 1), Err(Overflow));
    // Nearly all of it has slid out by the end of the next subinterval, but is still held.
    let half = Demand { cost: MAX_EXACT / 2, ..demand };
    assert_eq!(allow(&mut window, 1_999, &half), Err(Overflow));
    assert_eq!(allow(&mut window, 2_000, &half).unwrap().granted, half.cost);
}
