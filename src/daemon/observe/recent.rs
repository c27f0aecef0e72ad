//! Counters, and how they grew in the last minutes and in the last hour.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde::Deserialize;

/// The interval between calls of [`Recent::step`].
pub const STEP: Duration = Duration::from_secs(5);

/// The steps of each range, the current one included.
pub const STEPS: usize = 60;

/// The part of the past that is shown, in [`STEPS`] steps.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum TimeRange {
    #[default]
    FiveMinutes,
    Hour,
}

impl TimeRange {
    const ALL: [Self; 2] = [Self::FiveMinutes, Self::Hour];

    /// The length of a step.
    pub fn step(self) -> Duration {
        STEP * self.calls()
    }

    /// The calls of [`Recent::step`] in a step.
    fn calls(self) -> u32 {
        match self {
            Self::FiveMinutes => 1,
            Self::Hour => 12,
        }
    }
}

/// Counters of `N` kinds.
pub struct Recent<const N: usize> {
    counts: [AtomicU64; N],
    past: Mutex<[Past<N>; TimeRange::ALL.len()]>,
}

/// What is remembered of one range.
struct Past<const N: usize> {
    /// The counters at the end of the last step.
    counts: [u64; N],
    /// Their growth in each earlier step, the oldest first; empty if none grew.
    steps: VecDeque<[u32; N]>,
    /// The calls since the last step ended.
    calls: u32,
}

impl<const N: usize> Default for Recent<N> {
    fn default() -> Self {
        let past = || Past { counts: [0; N], steps: VecDeque::new(), calls: 0 };
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)), past: Mutex::new([past(), past()]) }
    }
}

impl<const N: usize> Recent<N> {
    /// Counts one of a kind.
    pub fn count(&self, kind: usize) {
        self.counts[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// Sets a counter that is counted elsewhere.
    pub fn set(&self, kind: usize, count: u64) {
        self.counts[kind].store(count, Ordering::Relaxed);
    }

    /// Ends a step of five minutes, and each twelfth time one of an hour.
    pub fn step(&self) {
        let counts = self.counts();
        for (past, range) in self.past().iter_mut().zip(TimeRange::ALL) {
            past.calls += 1;
            if past.calls == range.calls() {
                past.calls = 0;
                past.end_step(counts);
            }
        }
    }

    /// The growth in each of the last steps and the current one, the oldest first; `None` without growth.
    pub fn steps(&self, range: TimeRange) -> Option<Vec<[u32; N]>> {
        let past = &self.past()[range as usize];
        let grown = past.grown(&self.counts());
        if past.steps.is_empty() && grown == [0; N] {
            return None;
        }
        let before = std::iter::repeat_n([0; N], STEPS - 1 - past.steps.len());
        Some(before.chain(past.steps.iter().copied()).chain([grown]).collect())
    }

    /// The growth of all kinds together in the last minute.
    pub fn last_minute(&self) -> u64 {
        let calls = TimeRange::Hour.calls() as usize;
        let steps = self.steps(TimeRange::FiveMinutes).unwrap_or_default();
        steps.iter().rev().take(calls).flatten().map(|count| u64::from(*count)).sum()
    }

    fn counts(&self) -> [u64; N] {
        std::array::from_fn(|kind| self.counts[kind].load(Ordering::Relaxed))
    }

    fn past(&self) -> MutexGuard<'_, [Past<N>; TimeRange::ALL.len()]> {
        self.past.lock().expect("no code panics while it holds this lock")
    }
}

impl<const N: usize> Past<N> {
    fn end_step(&mut self, counts: [u64; N]) {
        let grown = self.grown(&counts);
        self.counts = counts;
        if self.steps.is_empty() && grown == [0; N] {
            return;
        }
        self.steps.push_back(grown);
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        if self.steps.iter().all(|grown| *grown == [0; N]) {
            self.steps = VecDeque::new();
        }
    }

    fn grown(&self, counts: &[u64; N]) -> [u32; N] {
        std::array::from_fn(|kind| u32::try_from(counts[kind].saturating_sub(self.counts[kind])).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_shown_while_it_is_recent() {
        let recent = Recent::<2>::default();
        assert_eq!(recent.steps(TimeRange::FiveMinutes), None);
        recent.count(1);
        let shown = recent.steps(TimeRange::FiveMinutes).unwrap();
        assert_eq!((shown.len(), shown[STEPS - 2], shown[STEPS - 1]), (STEPS, [0, 0], [0, 1]));
        recent.step();
        recent.set(0, 7);
        for ago in 2..=STEPS {
            let shown = recent.steps(TimeRange::FiveMinutes).unwrap();
            let all: Vec<_> = (0..STEPS).filter(|at| shown[*at] != [0, 0]).map(|at| (at, shown[at])).collect();
            let second = (STEPS + 1 - ago, [7, 0]);
            assert_eq!(all, [(STEPS - ago, [0, 1]), second], "{ago}");
            recent.step();
        }
        assert!(recent.steps(TimeRange::FiveMinutes).is_some());
        recent.step();
        assert_eq!(recent.steps(TimeRange::FiveMinutes), None);
        assert_eq!(recent.past()[0].steps.capacity(), 0);
    }

    #[test]
    fn an_hour_has_steps_of_a_minute() {
        let recent = Recent::<1>::default();
        let shown = || recent.steps(TimeRange::Hour).unwrap();
        for call in 0..12 * STEPS {
            recent.count(0);
            assert_eq!(shown()[STEPS - 1], [call as u32 % 12 + 1]);
            recent.step();
        }
        assert_eq!(shown()[..STEPS - 1], [[12]; STEPS - 1]);
        assert_eq!(recent.steps(TimeRange::FiveMinutes).unwrap()[..STEPS - 1], [[1]; STEPS - 1]);
        (0..12 * STEPS).for_each(|_| recent.step());
        assert_eq!(recent.steps(TimeRange::Hour), None);
    }

    #[test]
    fn a_falling_counter_did_not_grow() {
        let recent = Recent::<1>::default();
        recent.set(0, 5);
        recent.step();
        recent.set(0, 3);
        assert_eq!(recent.steps(TimeRange::FiveMinutes).unwrap()[STEPS - 1], [0]);
    }
}
