//! The window against independent models: a log that keeps every unit's instant and adds them up again each time, and a
//! plain map for the counts.

use std::collections::BTreeMap;
use std::mem;
use std::num::NonZeroU64;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::counts::{Count, Counts, RunningTotal};
use crate::*;

/// Every counted unit with its instant, and the block. Nothing is clever here: sums are taken over all events, and retries
/// are found by asking millisecond after millisecond.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    window: u64,
    resolution: u64,
    events: Vec<(u64, u64)>,
    blocked_until: u64,
    since: Option<u64>,
}

impl Log {
    /// Nothing is blocked.
    pub(super) fn of(window: u64, resolution: u64, events: Vec<(u64, u64)>) -> Self {
        Self { window, resolution, events, blocked_until: 0, since: None }
    }

    fn newest(&self) -> u64 {
        self.events.iter().map(|(instant, _)| instant / self.resolution * self.resolution).max().unwrap_or(0)
    }

    fn end(&self) -> u64 {
        if self.events.is_empty() {
            0
        } else {
            self.newest() + self.window + self.resolution
        }
    }

    /// The log that a request at another window and resolution sees, and the instant it decides at.
    fn seen(&self, window: u64, resolution: u64, now: u64) -> (Self, u64) {
        let decided = now.max(self.newest());
        let mut seen = Self { window, resolution, events: vec![], ..*self };
        if now >= self.end() {
            return (seen, now);
        }
        if (self.window, self.resolution) == (window, resolution) {
            return (self.clone(), decided);
        }
        for (instant, units) in &self.events {
            let ends = (instant / self.resolution + 1) * self.resolution;
            let moved = (ends - 1).min(decided);
            let moved_ends = (moved / resolution + 1) * resolution;
            if ends + self.window > decided && moved_ends + window > decided {
                seen.events.push((moved, *units));
            }
        }
        let decided = now.max(seen.newest());
        (seen, decided)
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

    /// Whether nothing counts, nor will.
    fn is_idle(&self, now: u64, request: &Request) -> bool {
        Log { blocked_until: 0, ..self.clone() }.reset_after(now, request) == 0
    }

    /// What is in force of the limit: the largest whole number that is at most L·(p + (n − 1)·t) / (n·p).
    fn limit(&self, now: u64, request: &Request) -> u64 {
        let limit = request.quota.limit;
        let Some(warm_up) = request.warm_up else { return limit };
        let (duration, cold) = (warm_up.duration(), warm_up.cold());
        let part = |used_for: u64| {
            let is_at_most = |whole: &u64| whole * cold * duration <= limit * (duration + (cold - 1) * used_for);
            (1..=limit).rev().find(is_at_most).unwrap_or(limit.min(1))
        };
        let geometry = request.quota.geometry;
        let (_, decided) = self.seen(geometry.window(), geometry.resolution(), now);
        let is_idle = self.is_idle(now, request);
        let risen = match self.since.filter(|_| self.is_in_use(now)).map(|since| decided.saturating_sub(since)) {
            Some(used_for) if used_for < duration => part(used_for),
            None if is_idle => part(0),
            _ => limit,
        };
        match is_idle && !request.partial && request.cost <= limit {
            true => risen.max(request.cost),
            false => risen,
        }
    }

    /// Whether it is remembered since when the key is in use, and something has counted within a window.
    fn is_in_use(&self, now: u64) -> bool {
        self.since.is_some() && now < self.end() + self.window
    }

    /// Whether the key comes into use, if a unit is counted.
    fn comes_into_use(&self, now: u64, request: &Request) -> bool {
        self.is_idle(now, request) && !self.is_in_use(now)
    }

    /// Whether so many units fit, in the eyes of the window alone.
    fn fits(&self, now: u64, units: u64, request: &Request) -> bool {
        self.fits_into(self.limit(now, request), now, units, request)
    }

    fn fits_into(&self, limit: u64, now: u64, units: u64, request: &Request) -> bool {
        let geometry = request.quota.geometry;
        let (seen, decided) = self.seen(geometry.window(), geometry.resolution(), now);
        let resolution = u128::from(geometry.resolution());
        seen.scaled_estimate(decided, request.strict) + u128::from(units) * resolution <= u128::from(limit) * resolution
    }

    fn blocked(&self, now: u64) -> bool {
        now < self.blocked_until
    }

    /// What remains of a limit.
    fn remaining(&self, limit: u64, now: u64, request: &Request) -> u64 {
        let fits = |units: &u64| !self.blocked(now) && self.fits_into(limit, now, *units, request);
        (0..=limit).rev().find(fits).unwrap_or(0)
    }

    pub(super) fn decide(&self, now: u64, request: &Request) -> Decision {
        let limit = self.limit(now, request);
        let remaining = self.remaining(limit, now, request);
        let granted = match request.partial {
            true => remaining.min(request.cost),
            false if !self.blocked(now) && self.fits(now, request.cost, request) => request.cost,
            false => 0,
        };
        Decision {
            granted,
            limit,
            remaining,
            retry_after: if granted > 0 { Some(0) } else { self.retry_after(now, request) },
            reset_after: self.reset_after(now, request),
        }
    }

    /// When this log, kept as it is, would let a request through.
    fn retry_after(&self, now: u64, request: &Request) -> Option<u64> {
        let units = if request.partial { 1 } else { request.cost };
        let granted = |ms: &u64| !self.blocked(now + ms) && self.fits(now + ms, units, request);
        (units <= request.quota.limit).then(|| (0..).find(granted).unwrap())
    }

    /// The first ms from which on nothing counts, for a request at that time.
    fn reset_after(&self, now: u64, request: &Request) -> u64 {
        let geometry = request.quota.geometry;
        if (self.window, self.resolution) == (geometry.window(), geometry.resolution()) {
            return self.end().max(self.blocked_until).saturating_sub(now);
        }
        let counts = |ms: &u64| {
            let (seen, decided) = self.seen(geometry.window(), geometry.resolution(), now + ms);
            self.blocked(now + ms) || seen.scaled_estimate(decided, false) > 0
        };
        let end = self.end().max(self.blocked_until).saturating_sub(now);
        (0..end).rev().find(counts).map_or(0, |last| last + 1)
    }

    fn count(&mut self, instant: u64, units: u64) {
        self.events.push((instant, units));
        let oldest = self.newest().saturating_sub(self.window);
        self.events.retain(|(event, _)| event / self.resolution * self.resolution >= oldest);
    }

    fn refund(&mut self, units: u64, age: Option<u64>, now: u64) -> u64 {
        if now >= self.end() {
            return 0;
        }
        let subinterval = |instant: u64| instant / self.resolution;
        let from = age.map_or(0, |age| subinterval(now.saturating_sub(age)));
        if age.is_some() && (from + 1) * self.resolution + self.window <= now.max(self.newest()) {
            return 0;
        }
        let mut events = mem::take(&mut self.events);
        events.sort_by_key(|(instant, _)| subinterval(*instant));
        if age.is_none() {
            events.reverse();
        }
        let mut left = units;
        for (instant, held) in &mut events {
            if subinterval(*instant) >= from {
                let take = left.min(*held);
                (*held, left) = (*held - take, left - take);
            }
        }
        events.retain(|(_, held)| *held > 0);
        if events.is_empty() {
            self.since = None;
        }
        self.events = events;
        units - left
    }

    fn counts(&self) -> Vec<(u64, u64)> {
        let mut counts = BTreeMap::new();
        for (instant, units) in &self.events {
            *counts.entry(instant / self.resolution * self.resolution).or_insert(0) += units;
        }
        counts.into_iter().collect()
    }
}

/// Whether the window itself would grant a request.
fn before_unblocked(log: &Log, now: u64, request: &Request) -> bool {
    Log { blocked_until: 0, ..log.clone() }.decide(now, request).granted > 0
}

/// The counts of an entry: the starts of their subintervals, and units.
fn counts_of(entry: &Entry) -> Vec<(u64, u64)> {
    let Some(window) = entry.window() else { return vec![] };
    window.counts().map(|count| (window.geometry().start_of(count.subinterval), count.units)).collect()
}

/// Decide a request and count what is granted.
fn allow(entry: &mut Entry, now: u64, request: &Request) -> Result<Decision, Overflow> {
    Ok(match Entry::decide(Some(entry), now, request)? {
        Verdict::Granted(grant) => grant.apply(entry),
        Verdict::Denied(decision) => decision,
    })
}

/// Decide a request without counting.
fn peek(entry: &Entry, now: u64, request: &Request) -> Result<Decision, Overflow> {
    Entry::peek(Some(entry), now, request)
}

/// Count units whatever the limit says.
fn count(entry: &mut Entry, now: u64, geometry: Geometry, cost: u64) {
    let request = request_of(MAX_EXACT, geometry, cost);
    match Entry::record(Some(entry), now, None, &request) {
        Ok(Recording::Counted(record)) => drop(record.apply(entry)),
        other => panic!("{other:?}"),
    }
}

fn request_of(limit: u64, geometry: Geometry, cost: u64) -> Request {
    Request { quota: Quota { limit, geometry }, cost, partial: false, strict: false, warm_up: None }
}

fn geometry(window: u64, resolution: u64) -> Geometry {
    Geometry::new(window, resolution).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Allow(Request),
    Record(Request, Dated),
    Refund(u64, Option<u64>),
    Block(u64),
    Unblock,
}

#[derive(Clone, Copy, Debug)]
enum Dated {
    /// By the clock.
    No,
    /// `AT` this very instant.
    Now,
    /// `AGE`, in ms.
    Ago(u64),
}

/// Mostly one, so that the limit rises from request to request.
fn warm_ups() -> impl Strategy<Value = Option<WarmUp>> + Clone {
    prop_oneof![
        3 => Just((0, 3)),
        6 => Just((100, 3)),
        1 => Just((300, 2)),
        1 => Just((1, 5)),
        1 => Just((37, 1000)),
        1 => Just((20, 7)),
    ]
    .prop_map(|(duration, cold)| WarmUp::new(duration, cold))
}

/// Something to do, at how many ms after the step before it, with one of a few geometries.
fn steps() -> impl Strategy<Value = Vec<(Step, i64)>> {
    // Mostly one geometry, so that its window fills.
    let geometries = prop_oneof![
        12 => Just((24, 4)),
        1 => Just((24, 8)),
        1 => Just((30, 5)),
        1 => Just((7, 1)),
        1 => Just((12, 12)),
        1 => Just((40, 20)),
    ];
    let requests = (0..30u64, geometries, 1..12u64, any::<bool>(), any::<bool>(), warm_ups()).prop_map(
        |(limit, (window, resolution), cost, partial, strict, warm_up)| {
            let quota = Quota { limit, geometry: geometry(window, resolution) };
            Request { quota, cost, partial, strict, warm_up }
        },
    );
    let dated = prop_oneof![2 => Just(Dated::No), 2 => Just(Dated::Now), 1 => (0..70u64).prop_map(Dated::Ago)];
    let step = prop_oneof![
        24 => requests.clone().prop_map(Step::Allow),
        8 => (requests, dated).prop_map(|(request, dated)| Step::Record(Request { partial: false, ..request }, dated)),
        4 => (1..20u64, prop::option::of(0..50u64)).prop_map(|(units, age)| Step::Refund(units, age)),
        1 => (1..40u64).prop_map(Step::Block),
        1 => Just(Step::Unblock),
    ];
    let elapsed = prop_oneof![6 => 0..8i64, 2 => 0..60i64, 1 => -40..0i64];
    vec((step, elapsed), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Default::default()
    })]

    /// Whatever is done, in any order, with clocks that jump, geometries that change and blocks.
    #[test]
    fn agrees_with_the_log(steps in steps(), start in prop_oneof![0..50u64, 1_000_000..1_000_100u64]) {
        let mut now = start;
        let mut entry = Entry::default();
        let mut log = Log { window: 1, resolution: 1, ..Log::default() };
        for (step, elapsed) in steps {
            now = now.saturating_add_signed(elapsed);
            match step {
                Step::Allow(request) => {
                    let (mut seen, decided) = log.seen(request.quota.geometry.window(), request.quota.geometry.resolution(), now);
                    let expected = log.decide(now, &request);
                    prop_assert_eq!(peek(&entry, now, &request).unwrap(), expected);
                    match Entry::decide(Some(&entry), now, &request).unwrap() {
                        Verdict::Denied(_) => prop_assert_eq!(expected.granted, 0),
                        Verdict::Granted(grant) => {
                            prop_assert_eq!((grant.units(), grant.instant()), (expected.granted, decided));
                            if log.comes_into_use(now, &request) {
                                seen.since = request.warm_up.map(|_| decided.max(1));
                                prop_assert_eq!(grant.since().map(NonZeroU64::get), seen.since);
                            }
                            seen.count(decided, grant.units());
                            log = seen;
                            let after = grant.apply(&mut entry);
                            let remaining = log.remaining(expected.limit, now, &request);
                            let reset_after = log.reset_after(now, &request);
                            prop_assert_eq!(after, Decision { remaining, reset_after, ..expected });
                        }
                    }
                }
                Step::Record(request, dated) => {
                    let geometry = request.quota.geometry;
                    let (mut seen, decided) = log.seen(geometry.window(), geometry.resolution(), now);
                    let before = log.decide(now, &request);
                    let (instant, dated) = match dated {
                        Dated::No => (decided, None),
                        Dated::Now => (now, Some(now)),
                        Dated::Ago(age) => (now.saturating_sub(age), Some(now.saturating_sub(age))),
                    };
                    let subinterval = geometry.start_of(geometry.subinterval_at(instant));
                    let held = subinterval + geometry.window() >= seen.newest();
                    let matters = held && subinterval + geometry.window() + geometry.resolution() > now;
                    match Entry::record(Some(&entry), now, dated, &request).unwrap() {
                        Recording::Dropped(decision) => prop_assert_eq!((decision, matters), (before, false)),
                        Recording::Counted(record) => {
                            prop_assert!(matters);
                            let denied = !before_unblocked(&log, now, &request);
                            prop_assert_eq!((record.instant(), record.is_denied()), (instant, denied));
                            if log.comes_into_use(now, &request) {
                                seen.since = request.warm_up.map(|_| instant.max(1));
                                prop_assert_eq!(record.since().map(NonZeroU64::get), seen.since);
                            }
                            seen.count(instant, request.cost);
                            log = seen;
                            let Decision { granted, limit, .. } = before;
                            let retry_after = if granted > 0 { Some(0) } else { log.retry_after(now, &request) };
                            let remaining = log.remaining(limit, now, &request);
                            let reset_after = log.reset_after(now, &request);
                            let expected = Decision { granted, limit, remaining, retry_after, reset_after };
                            prop_assert_eq!(record.apply(&mut entry), expected);
                        }
                    }
                }
                Step::Refund(units, age) => {
                    prop_assert_eq!(entry.refund(units, age, now), log.refund(units, age, now));
                }
                Step::Block(ms) => {
                    entry.block(now + ms);
                    log.blocked_until = now + ms;
                }
                Step::Unblock => {
                    entry.unblock();
                    log.blocked_until = 0;
                }
            }
            prop_assert_eq!(counts_of(&entry), log.counts());
            prop_assert_eq!((entry.blocked_until(), entry.since().map(NonZeroU64::get)), (log.blocked_until, log.since));
            prop_assert_eq!(entry.blocked_for(now), log.blocked_until.checked_sub(now).filter(|ms| *ms > 0));
            let end_of_use = log.end() + if log.since.is_some() { log.window } else { 0 };
            prop_assert_eq!(entry.end(), end_of_use.max(log.blocked_until));
            if let Some(window) = entry.window().filter(|window| window.end() > 0) {
                prop_assert_eq!(window.newest(), log.newest());
                prop_assert_eq!(window.total(), log.events.iter().map(|(_, units)| units).sum::<u64>());
                prop_assert!(window.counts_held() as u64 <= window.geometry().subintervals() + 1);
            }
            if entry.end() > 0 {
                let decoded = decode(VERSION, &encode(&entry)).unwrap();
                let all = |entry: &Entry| (counts_of(entry), entry.blocked_until(), entry.since());
                prop_assert_eq!(all(&decoded), all(&entry));
                prop_assert_eq!(encode(&decoded), encode(&entry));
            } else {
                entry = Entry::default();
                log = Log { window: 1, resolution: 1, ..Log::default() };
            }
        }
    }

    /// Whatever is given back with an age that is not understated, at no instant fewer units are held that are as young
    /// as that, or younger, than there truly are: no capacity comes back early.
    #[test]
    fn units_given_back_with_their_age_leave_none_older_than_it_truly_is(
        steps in vec((0..7u64, 1..6u64, prop::option::of((any::<prop::sample::Index>(), 0..9u64))), 1..60),
    ) {
        let geometry = geometry(24, 4);
        let mut entry = Entry::default();
        let mut truly: Vec<(u64, u64)> = vec![];
        let mut now = 1_000;
        for (elapsed, units, back) in steps {
            now += elapsed;
            match back {
                Some((which, overstated)) if !truly.is_empty() => {
                    let which = which.index(truly.len());
                    let (instant, held) = &mut truly[which];
                    let units = units.min(*held);
                    let age = now - *instant + overstated;
                    let given = entry.refund(units, Some(age), now);
                    prop_assert!(given <= units);
                    *held -= given;
                }
                _ => {
                    count(&mut entry, now, geometry, units);
                    truly.push((now, units));
                }
            }
            for subinterval in 0..=geometry.subinterval_at(now) {
                let start = geometry.start_of(subinterval);
                if geometry.end_of(subinterval) > now {
                    let held: u64 = counts_of(&entry).iter().filter(|(at, _)| *at >= start).map(|(_, units)| units).sum();
                    let true_units: u64 = truly.iter().filter(|(at, _)| *at >= start).map(|(_, units)| units).sum();
                    prop_assert!(held >= true_units, "{held} of {true_units} since {start}");
                }
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
        let quota = Quota { limit, geometry: geometry(length, resolution) };
        let (mut entry, mut now, mut grants) = (Entry::default(), 1_000, vec![]);
        for (elapsed, cost, partial) in requests {
            now += elapsed;
            let decision = allow(&mut entry, now, &Request { quota, cost, partial, strict, warm_up: None }).unwrap();
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
        blocked_for in prop::option::weighted(0.2, 1..MAX_WINDOW),
        other in prop::option::weighted(0.3, (1..1_000_000u64, 1..64u64).prop_map(|(ms, n)| geometry(ms * n, ms))),
    ) {
        let geometry = geometry(resolution * subintervals, resolution);
        let (mut entry, mut now) = (Entry::default(), 1_700_000_000_000);
        for (units, tenths) in units {
            now += resolution * tenths / 100;
            count(&mut entry, now, geometry, units);
        }
        now += resolution * elapsed / 100;
        if let Some(ms) = blocked_for {
            entry.block(now + ms);
        }
        let request = Request { partial, strict, ..request_of(cost + spare, other.unwrap_or(geometry), cost) };
        let Ok(decision) = peek(&entry, now, &request) else { return Ok(()) };
        let retry_after = decision.retry_after.unwrap();
        prop_assert_eq!(retry_after == 0, decision.granted > 0);
        if let Ok(then) = peek(&entry, now + retry_after, &request) {
            prop_assert!(then.granted > 0);
        }
        if retry_after > 0 {
            prop_assert_eq!(peek(&entry, now + retry_after - 1, &request).unwrap().granted, 0);
        }
    }

    #[test]
    fn refund_undoes_allow(
        before in vec((0..30u64, 1..9u64), 0..40),
        cost in 1..9u64,
        elapsed in 0..4u64,
    ) {
        let geometry = geometry(24, 4);
        let (mut entry, mut now) = (Entry::default(), 1_000);
        for (elapsed, units) in before {
            now += elapsed;
            count(&mut entry, now, geometry, units);
        }
        now += elapsed;
        let counted = entry.clone();
        prop_assert_eq!(allow(&mut entry, now, &request_of(MAX_EXACT, geometry, cost)).unwrap().granted, cost);
        prop_assert_eq!(entry.refund(cost, None, now), cost);
        for later in 0..60 {
            let tight = request_of(20, geometry, cost);
            prop_assert_eq!(peek(&entry, now + later, &tight), peek(&counted, now + later, &tight));
        }
    }

    #[test]
    fn codec_round_trip(
        resolution in 1..=MAX_WINDOW / 1_000,
        subintervals in 1..=1_000u64,
        first in 0..10_000u64,
        counts in vec((1..4u64, prop_oneof![1..100u64, 1..MAX_EXACT / 400]), 1..300),
        until in prop::option::of(1..=MAX_EXACT),
    ) {
        let geometry = geometry(resolution * subintervals, resolution);
        let mut subinterval = first;
        let mut entry = Entry::default();
        for (distance, units) in counts {
            subinterval += distance;
            count(&mut entry, geometry.start_of(subinterval), geometry, units);
        }
        if let Some(until) = until {
            entry.block(until);
        }
        let decoded = decode(VERSION, &encode(&entry)).unwrap();
        prop_assert_eq!(decoded.window().unwrap().geometry(), geometry);
        prop_assert_eq!(counts_of(&decoded), counts_of(&entry));
        prop_assert_eq!(decoded.blocked_until(), until.unwrap_or(0));
    }

    /// Whatever the bytes say, they make an entry that keeps the rules, or none.
    #[test]
    fn decoding_makes_a_valid_entry_or_none(bytes in hostile_bytes()) {
        if let Ok(mut entry) = decode(VERSION, &bytes) {
            if let Some(window) = entry.window() {
                let total: u64 = window.counts().map(|count| count.units).sum();
                prop_assert!(total <= MAX_EXACT && window.total() == total);
                prop_assert!(!window.counts().any(|count| count.units == 0));
                prop_assert!(window.newest() <= MAX_EXACT);
                let oldest = window.counts().next().unwrap().subinterval;
                prop_assert!(window.newest() - window.geometry().start_of(oldest) <= window.geometry().window());
            }
            prop_assert!(entry.end() > 0 && entry.blocked_until() <= MAX_EXACT + MAX_WINDOW);
            prop_assert_eq!(encode(&decode(VERSION, &encode(&entry)).unwrap()), encode(&entry));
            let (own, newest) = entry.window().map_or((geometry(1, 1), 0), |window| (window.geometry(), window.newest()));
            for geometry in [own, geometry(1_000, 1)] {
                let request = Request { partial: true, ..request_of(MAX_EXACT, geometry, 1) };
                for now in [0, newest, entry.blocked_until().min(MAX_EXACT), MAX_EXACT] {
                    let _ = allow(&mut entry.clone(), now, &request);
                    let _ = Entry::record(Some(&entry), now, Some(now / 2), &request);
                    let _ = entry.clone().refund(MAX_EXACT, Some(now / 2), now);
                }
            }
            entry.refund(MAX_EXACT, None, newest);
            entry.unblock();
            prop_assert_eq!(entry.end(), 0);
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
            if action == 2 && map.last_key_value().is_some_and(|(youngest, _)| *youngest >= oldest) {
                let from = newest.saturating_sub(units % 7);
                let held: u64 = map.range(from.max(oldest)..).map(|(_, units)| units).sum();
                prop_assert_eq!(counts.take_since(from, units, oldest), units.min(held));
                let mut left = units;
                map.retain(|subinterval, _| *subinterval >= oldest);
                for (_, held) in map.range_mut(from..) {
                    let take = left.min(*held);
                    (*held, left) = (*held - take, left - take);
                }
                map.retain(|_, units| *units > 0);
            } else if action == 0 && map.last_key_value().is_some_and(|(youngest, _)| *youngest >= oldest) {
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
                let late = newest.saturating_sub(if action == 1 { units % 45 } else { 0 }).max(oldest);
                counts.add(late, units, oldest);
                *map.entry(late).or_insert(0) += units;
            }
            let of_map = map.range(oldest..).map(|(subinterval, units)| Count { subinterval: *subinterval, units: *units });
            prop_assert!(counts.iter_since(oldest).eq(of_map));
            for subinterval in [oldest, newest.saturating_sub(1).max(oldest), newest] {
                let after = |total: u64| total - counts.through(subinterval).through;
                let expected: u64 = map.range(subinterval + 1..).map(|(_, units)| units).sum();
                prop_assert_eq!(after(counts.total()), expected);
                prop_assert_eq!(counts.through(subinterval).units, map.get(&subinterval).copied().unwrap_or(0));
            }
            // The youngest `units` of all: the oldest subinterval that has to go for only that many to be left.
            let mut left = map.range(oldest..).map(|(_, units)| units).sum::<u64>();
            for (subinterval, units) in map.range(oldest..) {
                left -= units;
                let place = counts.reaching(counts.total() - left).unwrap();
                let through = counts.total() - left;
                prop_assert_eq!(place, RunningTotal { subinterval: *subinterval, through, units: *units });
            }
        }
    }
}

/// Random bytes, and mutations of real encodings, which get further.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let mutated = (
        (1..=MAX_WINDOW / 10, 1..=10u64, vec((0..3u64, 1..MAX_EXACT), 0..12)),
        prop::option::of(prop_oneof![1..=MAX_EXACT, any::<u64>()]),
        vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 0..4),
    )
        .prop_map(|((resolution, subintervals, counts), until, mutations)| {
            let mut bytes = vec![];
            let block = until.map_or(vec![], |until| vec![0, 2, until]);
            for number in block
                .into_iter()
                .chain([resolution, subintervals, counts.len() as u64])
                .chain(counts.into_iter().flat_map(|(distance, units)| [distance, units]))
            {
                crate::leb128::put(&mut bytes, number);
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
    let with = |counts: &[(u64, u64)]| {
        let counts = counts.iter().map(|(subinterval, units)| Count { subinterval: *subinterval, units: *units });
        Window::with_counts(twelve, counts).map(|window| window.total())
    };
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
fn an_entry_takes_half_a_cache_line() {
    assert_eq!((mem::size_of::<Entry>(), mem::size_of::<Window>()), (32, 32));
}

#[test]
fn a_full_ring_takes_eight_bytes_a_count_and_keeps_few_that_slid_out() {
    let (mut entry, ring) = (Entry::default(), geometry(4_096, 1));
    for now in 1_000_000..1_020_000 {
        count(&mut entry, now, ring, 3);
        assert!(entry.bytes() <= 32 + 8 * (4_097 + 4_097 / 3 + 1), "{}", entry.bytes());
    }
    let window = entry.window().unwrap();
    assert_eq!((window.counts_held(), window.total()), (4_097, 3 * 4_097));
}

#[test]
fn memory_is_for_counts_not_for_subintervals() {
    let (mut entry, long) = (Entry::default(), geometry(MAX_SUBINTERVALS, 1));
    count(&mut entry, 5_000_000, long, 1);
    assert_eq!((entry.bytes(), entry.allocations()), (32, 1));
    for now in 0..20 {
        count(&mut entry, 5_000_001 + now * 1_000, long, 1);
    }
    assert_eq!((entry.bytes(), entry.allocations()), (32 + 21 * 8, 2));
    entry.block(6_000_000);
    assert_eq!((entry.bytes(), entry.allocations()), (32 + 48 + 21 * 8, 3));
    entry.unblock();
    assert_eq!((entry.bytes(), entry.allocations()), (32 + 21 * 8, 2));
}

/// What was written once is read for ever, and what older modules can read is written as they write it.
#[test]
fn values_of_each_layout() {
    let bytes = [0x88, 0x27, 12, 2, 0x80, 0xcc, 0xd0, 0xa2, 1, 3, 12, 9];
    let entry = decode(1, &bytes).unwrap();
    let first = 341_059_072 * 5_000;
    assert_eq!(counts_of(&entry), [(first, 3), (first + 60_000, 9)]);
    assert_eq!(encode(&entry), bytes);

    let block = [0, 2, 0x80, 0xd0, 0x95, 0xff, 0xbc, 0x31];
    let blocked = decode(1, &block).unwrap();
    assert_eq!((blocked.blocked_until(), counts_of(&blocked)), (1_700_000_000_000, vec![]));
    assert_eq!(encode(&blocked), block);
    let both = [&block[..], &bytes].concat();
    let blocked = decode(1, &both).unwrap();
    assert_eq!((blocked.blocked_until(), counts_of(&blocked)), (1_700_000_000_000, counts_of(&entry)));
    assert_eq!(encode(&blocked), both);

    let used = [&[0, 3, 0x80, 0xd0, 0x95, 0xff, 0xbc, 0x31, 0][..], &bytes].concat();
    let in_use = decode(1, &used).unwrap();
    assert_eq!(
        (in_use.since().map(NonZeroU64::get), in_use.blocked_until(), counts_of(&in_use)),
        (Some(1_700_000_000_000), 0, counts_of(&entry))
    );
    assert_eq!(encode(&in_use), used);
    assert_eq!((in_use.bytes(), entry.bytes()), (48 + entry.bytes(), 32 + 16));

    let refused = |version, bytes: &[u8]| decode(version, bytes).unwrap_err().0;
    assert_eq!(refused(2, &bytes), "an encoding version that this module does not know");
    assert_eq!(refused(1, &[0, 4, 1]), "a layout that this module does not know");
    assert_eq!(refused(1, &[&[0, 3, 0, 0][..], &bytes].concat()), "an instant out of range");
    assert_eq!(refused(1, &[0, 3, 1, 0]), "bytes missing");
    assert_eq!(refused(1, &[0, 2, 0]), "a block out of range");
    assert_eq!(refused(1, &[0, 2]), "bytes missing");
    assert_eq!(refused(1, &[0]), "bytes missing");
    assert_eq!(refused(1, &[]), "bytes missing");
}

#[test]
fn the_first_example_of_the_readme() {
    let request = request_of(100, geometry(60_000, 5_000), 1);
    let decision = allow(&mut Entry::default(), 1_700_000_000_000, &request).unwrap();
    assert_eq!(decision, Decision { granted: 1, limit: 100, remaining: 99, retry_after: Some(0), reset_after: 65_000 });
}

#[test]
fn never_is_said_of_costs_above_the_limit() {
    let mut entry = Entry::default();
    let request = request_of(5, geometry(60_000, 5_000), 6);
    assert_eq!(peek(&entry, 0, &request).unwrap().retry_after, None);
    assert_eq!(peek(&entry, 0, &Request { partial: true, ..request }).unwrap().granted, 5);
    let nothing = Request { partial: true, ..request_of(0, request.quota.geometry, 6) };
    assert_eq!(peek(&entry, 0, &nothing).unwrap().retry_after, None);
    entry.block(1_000);
    assert_eq!(peek(&entry, 0, &request).unwrap().retry_after, None);
}

#[test]
fn counts_beyond_what_clients_hold_exactly_are_refused() {
    let mut entry = Entry::default();
    let request = request_of(MAX_EXACT, geometry(1_000, 1_000), MAX_EXACT);
    assert_eq!(allow(&mut entry, 0, &request).unwrap().granted, MAX_EXACT);
    assert!(Entry::record(Some(&entry), 0, Some(0), &Request { cost: 1, ..request }).is_err());
    // Nearly all of it has slid out by the end of the next subinterval, but is still held.
    let half = Request { cost: MAX_EXACT / 2, ..request };
    assert_eq!(allow(&mut entry, 1_999, &half), Err(Overflow));
    let mut blocked = entry.clone();
    blocked.block(2_500);
    assert_eq!(allow(&mut blocked, 1_999, &half).unwrap().retry_after, Some(501));
    assert_eq!(allow(&mut entry, 2_000, &half).unwrap().granted, half.cost);
}

/// A longer window asked of a key that a shorter one filled: denied no longer than what is stored lasts.
#[test]
fn what_is_stored_matters_until_its_own_end() {
    let mut entry = Entry::default();
    for _ in 0..5 {
        assert_eq!(allow(&mut entry, 10_000, &request_of(5, geometry(1_000, 100), 1)).unwrap().granted, 1);
    }
    let minute = request_of(5, geometry(60_000, 1_000), 1);
    let denied = peek(&entry, 10_040, &minute).unwrap();
    assert_eq!((denied.granted, denied.retry_after, denied.reset_after), (0, Some(1_060), 1_060));
    assert_eq!(entry.clone().refund(5, None, 11_099), 5);
    assert_eq!(entry.refund(5, None, 11_100), 0);
    assert_eq!(peek(&entry, 11_100, &minute).unwrap().remaining, 5);
}
