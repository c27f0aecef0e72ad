//! Counters, and how they grew in the last minutes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The length of a step, and the number of steps, the current one included: five minutes.
pub const STEP: Duration = Duration::from_secs(5);
pub const STEPS: usize = 60;

/// Counters of `N` kinds.
pub struct Recent<const N: usize> {
    counts: [AtomicU64; N],
    past: Mutex<Past<N>>,
}

struct Past<const N: usize> {
    /// The counters at the end of the last step.
    counts: [u64; N],
    /// Their growth in each earlier step, the oldest first; empty if none grew.
    steps: VecDeque<[u32; N]>,
}

impl<const N: usize> Default for Recent<N> {
    fn default() -> Self {
        let past = Past { counts: [0; N], steps: VecDeque::new() };
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)), past: Mutex::new(past) }
    }
}

impl<const N: usize> Recent<N> {
    /// Counts one of a kind.
    pub fn count(&self, kind: usize) {
        self.counts[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// Sets a counter that somebody else counts.
    pub fn set(&self, kind: usize, count: u64) {
        self.counts[kind].store(count, Ordering::Relaxed);
    }

    /// Ends a step.
    pub fn step(&self) {
        let mut past = self.past();
        let counts = self.counts();
        let grown = past.grown(&counts);
        past.counts = counts;
        if past.steps.is_empty() && grown == [0; N] {
            return;
        }
        past.steps.push_back(grown);
        if past.steps.len() == STEPS {
            past.steps.pop_front();
        }
        if past.steps.iter().all(|grown| *grown == [0; N]) {
            past.steps = VecDeque::new();
        }
    }

    /// The growth in each of the last steps and the current one, the oldest first; `None` without growth.
    pub fn steps(&self) -> Option<Vec<[u32; N]>> {
        let past = self.past();
        let grown = past.grown(&self.counts());
        if past.steps.is_empty() && grown == [0; N] {
            return None;
        }
        let before = std::iter::repeat_n([0; N], STEPS - 1 - past.steps.len());
        Some(before.chain(past.steps.iter().copied()).chain([grown]).collect())
    }

    fn counts(&self) -> [u64; N] {
        std::array::from_fn(|kind| self.counts[kind].load(Ordering::Relaxed))
    }

    fn past(&self) -> MutexGuard<'_, Past<N>> {
        self.past.lock().expect("no code panics while it holds this lock")
    }
}

impl<const N: usize> Past<N> {
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
        assert_eq!(recent.steps(), None);
        recent.count(1);
        let shown = recent.steps().unwrap();
        assert_eq!((shown.len(), shown[STEPS - 2], shown[STEPS - 1]), (STEPS, [0, 0], [0, 1]));
        recent.step();
        recent.set(0, 7);
        for ago in 2..=STEPS {
            let shown = recent.steps().unwrap();
            let all: Vec<_> = (0..STEPS).filter(|at| shown[*at] != [0, 0]).map(|at| (at, shown[at])).collect();
            let second = (STEPS + 1 - ago, [7, 0]);
            assert_eq!(all, [(STEPS - ago, [0, 1]), second], "{ago}");
            recent.step();
        }
        assert!(recent.steps().is_some());
        recent.step();
        assert_eq!(recent.steps(), None);
        assert_eq!(recent.past().steps.capacity(), 0);
    }

    #[test]
    fn a_falling_counter_did_not_grow() {
        let recent = Recent::<1>::default();
        recent.set(0, 5);
        recent.step();
        recent.set(0, 3);
        assert_eq!(recent.steps().unwrap()[STEPS - 1], [0]);
    }
}
