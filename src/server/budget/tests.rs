//! Budgets against an independent model: a log of every unit counted, of which those since the period began are added up.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use swlimit_window::{Decision, MAX_EXACT};

use crate::*;

#[derive(Clone, Debug, Default)]
struct Log {
    until: u64,
    counted: Vec<(u64, u64)>,
}

impl Log {
    fn used(&self, now: u64) -> u64 {
        if now < self.until {
            self.counted.iter().map(|(_, units)| units).sum()
        } else {
            0
        }
    }

    fn count(&mut self, now: u64, until: u64, units: u64) {
        if self.used(now) == 0 {
            *self = Self { until, counted: vec![] };
        }
        self.counted.push((now, units));
    }

    fn answer(&self, now: u64, request: &Request, granted: u64) -> Decision {
        let remaining = request.limit.saturating_sub(self.used(now));
        let reset_after = if self.used(now) > 0 { self.until - now } else { 0 };
        let least = if request.partial { 1 } else { request.cost };
        let retry_after = match granted {
            0 if least > request.limit => None,
            0 if least <= remaining => Some(0),
            0 => Some(reset_after),
            _ => Some(0),
        };
        Decision { granted, limit: request.limit, remaining, retry_after, reset_after }
    }

    fn fits(&self, now: u64, request: &Request) -> u64 {
        let room = request.limit.saturating_sub(self.used(now));
        (1..=request.cost)
            .rev()
            .find(|units| *units <= room && (request.partial || *units == request.cost))
            .unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Budget(Request),
    Force(Request),
    Refund(u64, Option<u64>),
}

fn step() -> impl Strategy<Value = Step> {
    let request = || {
        (0..20u64, 1..200u64, 1..12u64, any::<bool>()).prop_map(|(limit, until, cost, partial)| Request {
            limit,
            until,
            cost,
            partial,
        })
    };
    prop_oneof![
        5 => request().prop_map(Step::Budget),
        2 => request().prop_map(|request| Step::Force(Request { partial: false, ..request })),
        2 => (1..12u64, prop::option::of(0..100u64)).prop_map(|(units, age)| Step::Refund(units, age)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Default::default()
    })]

    #[test]
    fn agrees_with_a_log(steps in vec((step(), prop_oneof![4 => 0..60i64, 1 => -60..0i64]), 0..80)) {
        let (mut budget, mut log, mut now): (Option<Budget>, _, u64) = (None, Log::default(), 100);
        for (step, passed) in steps {
            now = now.saturating_add_signed(passed);
            match step {
                Step::Budget(request) => {
                    let request = Request { until: now + request.until, ..request };
                    let (count, decision) = Budget::decide(budget.as_ref(), now, &request);
                    let units = log.fits(now, &request);
                    prop_assert_eq!(count.map_or(0, |count| count.units()), units);
                    if let Some(count) = count {
                        log.count(now, request.until, units);
                        prop_assert!(count.instant() >= now && count.instant() < count.budget().until());
                        budget = Some(count.budget());
                    }
                    prop_assert_eq!(decision, log.answer(now, &request, units));
                }
                Step::Force(request) => {
                    let request = Request { until: now + request.until, ..request };
                    let (count, decision) = Budget::force(budget.as_ref(), now, &request).unwrap();
                    let units = log.fits(now, &request);
                    log.count(now, request.until, request.cost);
                    budget = Some(count.budget());
                    prop_assert_eq!(decision, log.answer(now, &request, units));
                }
                Step::Refund(units, age) => {
                    let first = log.counted.first().map_or(0, |(instant, _)| *instant);
                    let too_old = age.is_some_and(|age| now.saturating_sub(age) < first);
                    let given = if too_old { 0 } else { units.min(log.used(now)) };
                    prop_assert_eq!(budget.map_or(0, |budget| budget.refundable(units, age, now)), given);
                    if let Some(budget) = budget.as_mut().filter(|_| given > 0) {
                        budget.refund(given);
                        let mut left = given;
                        for (_, units) in &mut log.counted {
                            let taken = left.min(*units);
                            (*units, left) = (*units - taken, left - taken);
                        }
                    }
                    budget = budget.filter(|budget| budget.end() > 0);
                }
            }
            if let Some(budget) = budget {
                prop_assert_eq!(decode(VERSION, &encode(&budget)), Ok(budget));
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_sound(bytes in vec(any::<u8>(), 0..30)) {
        if let Ok(budget) = decode(VERSION, &bytes) {
            prop_assert_eq!(decode(VERSION, &encode(&budget)), Ok(budget));
            prop_assert!(budget.used() > 0 && budget.since() < budget.until() && budget.until() <= MAX_EXACT);
        }
    }
}

#[test]
fn counting_beyond_exact_numbers_is_refused() {
    let request = Request { limit: 5, until: 1_000, cost: MAX_EXACT, partial: false };
    let (count, decision) = Budget::force(None, 1, &request).unwrap();
    assert_eq!((decision.granted, decision.remaining, decision.retry_after), (0, 0, None));
    let full = count.budget();
    assert!(Budget::force(Some(&full), 2, &Request { cost: 1, ..request }).is_err());
    assert!(Budget::force(Some(&full), 1_000, &Request { cost: 1, until: 2_000, ..request }).is_ok());
}
