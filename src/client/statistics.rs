//! What a client has done so far, as numbers.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::decision::{Decision, Way};

/// What a client has done since it was made. All are counts that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    granted: [u64; WAYS],
    denied: [u64; WAYS],
    /// Commands that were sent to the server, by whatever way.
    pub commands: u64,
    /// Commands that the server did not answer, or not in time, or that it could not decide.
    pub failures: u64,
    /// How often the circuit opened, because the server was away.
    pub opened: u64,
    /// How often the server told that a key was changed.
    pub changes: u64,
    /// How often everything remembered was forgotten: a connection was lost, or all keys were flushed.
    pub forgotten: u64,
    /// Units that were leased, and those of them that were given back.
    pub leased: u64,
    /// Units of leases that were given back unused.
    pub returned: u64,
    /// Synchronizations in the background, and those that failed.
    pub synchronized: u64,
    /// Synchronizations in the background that failed.
    pub unsynchronized: u64,
}

const WAYS: usize = Way::ALL.len();

impl Statistics {
    /// Decisions that granted, by who made them.
    pub fn granted(&self, way: Way) -> u64 {
        self.granted[way as usize]
    }

    /// Decisions that denied, by who made them.
    pub fn denied(&self, way: Way) -> u64 {
        self.denied[way as usize]
    }

    /// Hand these numbers to the recorder of the crate `metrics`: `swlimit_client_decisions_total` by `way` and
    /// `granted`, and `swlimit_client_<name>_total` for the others. To be called now and then, such as whenever metrics
    /// are asked for.
    #[cfg(feature = "metrics")]
    pub fn publish(&self) {
        for way in Way::ALL {
            for (granted, count) in [("yes", self.granted(way)), ("no", self.denied(way))] {
                let labels = [("way", way.name()), ("granted", granted)];
                metrics::counter!("swlimit_client_decisions_total", &labels).absolute(count);
            }
        }
        metrics::counter!("swlimit_client_commands_total").absolute(self.commands);
        metrics::counter!("swlimit_client_failures_total").absolute(self.failures);
        metrics::counter!("swlimit_client_opened_total").absolute(self.opened);
        metrics::counter!("swlimit_client_changes_total").absolute(self.changes);
        metrics::counter!("swlimit_client_forgotten_total").absolute(self.forgotten);
        metrics::counter!("swlimit_client_leased_total").absolute(self.leased);
        metrics::counter!("swlimit_client_returned_total").absolute(self.returned);
        metrics::counter!("swlimit_client_synchronized_total").absolute(self.synchronized);
        metrics::counter!("swlimit_client_unsynchronized_total").absolute(self.unsynchronized);
    }
}

/// What is counted beside decisions.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Commands,
    Failures,
    Opened,
    Changes,
    Forgotten,
    Leased,
    Returned,
    Synchronized,
    Unsynchronized,
}

const COUNTS: usize = Count::Unsynchronized as usize + 1;

/// The counters themselves, several of each: threads that count at the same time do not wait for each other.
pub(crate) struct Counters([CachePadded<Stripe>; STRIPES]);

#[derive(Default)]
struct Stripe {
    granted: [AtomicU64; WAYS],
    denied: [AtomicU64; WAYS],
    others: [AtomicU64; COUNTS],
}

const STRIPES: usize = 16;

impl Counters {
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| CachePadded::default()))
    }

    #[inline]
    pub fn decided(&self, decision: &Decision) {
        let stripe = self.stripe();
        let counts = if decision.granted() { &stripe.granted } else { &stripe.denied };
        counts[decision.way as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self, what: Count, by: u64) {
        self.stripe().others[what as usize].fetch_add(by, Ordering::Relaxed);
    }

    fn stripe(&self) -> &Stripe {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static OWN: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES));
        &self.0[OWN.get()]
    }

    pub fn sums(&self) -> Statistics {
        let sum =
            |of: &dyn Fn(&Stripe) -> &AtomicU64| self.0.iter().map(|stripe| of(stripe).load(Ordering::Relaxed)).sum();
        let other = |what: Count| sum(&|stripe| &stripe.others[what as usize]);
        Statistics {
            granted: std::array::from_fn(|way| sum(&|stripe| &stripe.granted[way])),
            denied: std::array::from_fn(|way| sum(&|stripe| &stripe.denied[way])),
            commands: other(Count::Commands),
            failures: other(Count::Failures),
            opened: other(Count::Opened),
            changes: other(Count::Changes),
            forgotten: other(Count::Forgotten),
            leased: other(Count::Leased),
            returned: other(Count::Returned),
            synchronized: other(Count::Synchronized),
            unsynchronized: other(Count::Unsynchronized),
        }
    }
}
