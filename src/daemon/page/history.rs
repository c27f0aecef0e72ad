//! The last minutes, in steps.

use std::collections::VecDeque;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::metrics::{RuleMetrics, SECONDS};

/// How long a step is.
pub const STEP: Duration = Duration::from_secs(5);

/// So many steps are remembered: five minutes.
const STEPS: usize = 60;

/// Of so many rules, those that decided most.
const MOST_RULES: usize = 1000;

/// Decisions of a rule since the start.
#[derive(Debug, Default)]
pub struct Tally {
    granted: AtomicU64,
    denied: AtomicU64,
    local: AtomicU64,
}

/// The same at one moment, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub granted: u64,
    pub denied: u64,
    pub local: u64,
}

impl Tally {
    pub fn count(&self, granted: bool, local: bool) {
        if granted { &self.granted } else { &self.denied }.fetch_add(1, Relaxed);
        if local {
            self.local.fetch_add(1, Relaxed);
        }
    }

    fn now(&self) -> Counts {
        let [granted, denied, local] = [&self.granted, &self.denied, &self.local].map(|count| count.load(Relaxed));
        Counts { granted, denied, local }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            granted: self.granted.saturating_sub(before.granted),
            denied: self.denied.saturating_sub(before.denied),
            local: self.local.saturating_sub(before.local),
        }
    }
}

/// How many requests took how long: as many as each of `SECONDS`, or longer than all.
type Took = [u64; SECONDS.len() + 1];

#[derive(Debug, Default)]
pub struct History {
    took: [AtomicU64; SECONDS.len() + 1],
    samples: Mutex<VecDeque<Sample>>,
}

#[derive(Debug)]
struct Sample {
    rules: Vec<(Weak<RuleMetrics>, Counts)>,
    took: Took,
}

impl History {
    /// A request took so long.
    pub fn took(&self, took: Duration) {
        let at = SECONDS.partition_point(|bound| *bound < took.as_secs_f64());
        self.took[at].fetch_add(1, Relaxed);
    }

    fn took_now(&self) -> Took {
        self.took.each_ref().map(|count| count.load(Relaxed))
    }

    /// A step is over.
    pub fn sample(&self, rules: Vec<Arc<RuleMetrics>>) {
        let mut rules: Vec<_> = rules.iter().map(|rule| (Arc::downgrade(rule), rule.tally.now())).collect();
        rules.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.granted + counts.denied));
        rules.truncate(MOST_RULES);
        let mut samples = self.samples.lock().expect("nobody panics with it");
        if samples.len() == STEPS {
            samples.pop_front();
        }
        samples.push_back(Sample { rules, took: self.took_now() });
    }

    /// What a rule has decided since the start, and in each step, the oldest first. The last one is not over.
    pub fn of(&self, rule: &Arc<RuleMetrics>) -> (Counts, Vec<Counts>) {
        let now = rule.tally.now();
        let samples = self.samples.lock().expect("nobody panics with it");
        let at = |sample: &Sample| {
            let found = sample.rules.iter().find(|(other, _)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(rule)));
            found.map_or(Counts::default(), |(_, counts)| *counts)
        };
        let mut known: Vec<Counts> = samples.iter().map(at).collect();
        known.push(now);
        (now, known.windows(2).map(|two| two[1] - two[0]).collect())
    }

    /// The seconds that these shares of the last minutes' requests took at most; none without requests, or where it was
    /// longer than anything that is told apart.
    pub fn took_at_most<const N: usize>(&self, shares: [f64; N]) -> [Option<f64>; N] {
        let samples = self.samples.lock().expect("nobody panics with it");
        let (now, before) = (self.took_now(), samples.front().map_or(Took::default(), |sample| sample.took));
        let took: Vec<u64> = now.iter().zip(before).map(|(now, before)| now - before).collect();
        let all: u64 = took.iter().sum();
        shares.map(|share| {
            let mut sum = 0;
            let reached = |count: &u64| {
                sum += count;
                sum as f64 >= share * all as f64
            };
            let at = took.iter().position(reached).filter(|_| all > 0)?;
            SECONDS.get(at).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(granted: u64, denied: u64, local: u64) -> Counts {
        Counts { granted, denied, local }
    }

    #[test]
    fn steps_are_what_was_decided_in_them() {
        let history = History::default();
        let rule = Arc::new(RuleMetrics::new("d", "r"));
        assert_eq!(history.of(&rule), (Counts::default(), Vec::new()));
        rule.tally.count(true, false);
        history.sample(vec![rule.clone()]);
        rule.tally.count(true, true);
        rule.tally.count(false, true);
        history.sample(vec![rule.clone(), Arc::new(RuleMetrics::new("d", "other"))]);
        rule.tally.count(false, false);
        assert_eq!(history.of(&rule), (counts(2, 2, 2), vec![counts(1, 1, 2), counts(0, 1, 0)]));
        for _ in 0..2 * STEPS {
            history.sample(vec![rule.clone()]);
        }
        assert_eq!(history.of(&rule), (counts(2, 2, 2), vec![Counts::default(); STEPS]));
    }

    #[test]
    fn times_are_those_that_shares_of_the_requests_took_at_most() {
        let history = History::default();
        assert_eq!(history.took_at_most([0.5]), [None]);
        for _ in 0..98 {
            history.took(Duration::from_micros(60));
        }
        history.took(Duration::from_millis(2));
        history.took(Duration::from_secs(9));
        assert_eq!(history.took_at_most([0.5, 0.98, 0.99, 1.0]), [Some(0.000_1), Some(0.000_1), Some(0.002), None]);
        history.sample(Vec::new());
        assert_eq!(history.took_at_most([0.5]), [None]); // those were before
    }
}
