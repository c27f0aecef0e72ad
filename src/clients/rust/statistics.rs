//! What a client counts.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::decision::{Decision, Source};

/// What a client has counted since it was made. The numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    granted: [u64; SOURCES],
    denied: [u64; SOURCES],
    /// Commands that were sent to the server.
    pub commands: u64,
    /// Exchanges that the server did not answer in time, or that it could not decide, and connections that were not
    /// made.
    pub failures: u64,
    /// Replies that came late.
    pub slow: u64,
    /// How often a breaker opened, because a server was unavailable.
    pub opened: u64,
    /// How often sentinels named another primary, which was followed.
    pub failovers: u64,
    /// How often the server told that a key had changed.
    pub changes: u64,
    /// How often all remembered denials were forgotten: a connection was lost, or all keys were flushed.
    pub forgotten: u64,
    /// Units that were leased.
    pub leased: u64,
    /// Units of leases that were given back unused.
    pub returned: u64,
    /// Units of leases that could not be given back, and units that were being leased when the client closed: they may
    /// stay counted for a window.
    pub written_off: u64,
    /// Units that the server granted, beside leases, when nobody waited any more. Where the request had been decided
    /// without the server, what it was granted beyond that goes back. Where it was dropped, the units stay counted for a
    /// window; those of `acquire`, budgets and admissions go back.
    pub unclaimed: u64,
    /// Requests for leases whose reply never came, and all requests that had none when the client closed: nobody knows
    /// whether the server counted them.
    pub in_doubt: u64,
    /// Synchronizations that succeeded.
    pub synchronized: u64,
    /// Synchronizations that failed.
    pub unsynchronized: u64,
    /// Units that could not be synchronized, because the server refused them for good.
    pub refused: u64,
    /// Units that were sent once more, because nobody knows whether they were counted: they may count twice.
    pub sent_again: u64,
    /// Units that were given up, because two synchronizations of them were in doubt.
    pub lost: u64,
    /// Holds that ended before they were released: the server could not be asked in time, or had them no more.
    pub holds_lost: u64,
    /// Keys that this process forgot while they were of use, because there were more than
    /// [`max_keys`](crate::ClientBuilder::max_keys).
    pub evicted: u64,
    /// Keys of the script that were given to the module, which the server had loaded meanwhile.
    pub taken_over: u64,
}

const SOURCES: usize = Source::ALL.len();

impl Statistics {
    /// Decisions that granted, by source.
    pub fn granted(&self, source: Source) -> u64 {
        self.granted[source as usize]
    }

    /// Decisions that denied, by source.
    pub fn denied(&self, source: Source) -> u64 {
        self.denied[source as usize]
    }

    /// Adds what was counted since an earlier moment to the process's metrics.
    #[cfg(feature = "metrics")]
    pub(crate) fn publish_since(&self, before: &Self) {
        for source in Source::ALL {
            let now_and_before = [
                ("yes", self.granted(source), before.granted(source)),
                ("no", self.denied(source), before.denied(source)),
            ];
            for (granted, now, before) in now_and_before {
                let labels = [("source", source.as_str()), ("granted", granted)];
                metrics::counter!("swlimit_client_decisions_total", &labels).increment(now - before);
            }
        }
        for ((name, now), (_, before)) in self.others().into_iter().zip(before.others()) {
            metrics::counter!(format!("swlimit_client_{name}_total")).increment(now - before);
        }
    }

    #[cfg(feature = "metrics")]
    fn others(&self) -> [(&'static str, u64); COUNTS] {
        [
            ("commands", self.commands),
            ("failures", self.failures),
            ("slow", self.slow),
            ("opened", self.opened),
            ("failovers", self.failovers),
            ("changes", self.changes),
            ("forgotten", self.forgotten),
            ("leased", self.leased),
            ("returned", self.returned),
            ("written_off", self.written_off),
            ("unclaimed", self.unclaimed),
            ("in_doubt", self.in_doubt),
            ("synchronized", self.synchronized),
            ("unsynchronized", self.unsynchronized),
            ("refused", self.refused),
            ("sent_again", self.sent_again),
            ("lost", self.lost),
            ("holds_lost", self.holds_lost),
            ("evicted", self.evicted),
            ("taken_over", self.taken_over),
        ]
    }
}

/// The counters beside decisions.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Commands,
    Failures,
    Slow,
    Opened,
    Failovers,
    Changes,
    Forgotten,
    Leased,
    Returned,
    WrittenOff,
    Unclaimed,
    InDoubt,
    Synchronized,
    Unsynchronized,
    Refused,
    SentAgain,
    Lost,
    HoldsLost,
    Evicted,
    TakenOver,
}

const COUNTS: usize = Count::TakenOver as usize + 1;

/// The counters themselves, several of each: threads that count at the same time do not wait for each other.
pub(crate) struct Counters([CachePadded<Stripe>; STRIPES]);

#[derive(Default)]
struct Stripe {
    granted: [AtomicU64; SOURCES],
    denied: [AtomicU64; SOURCES],
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
        counts[decision.source as usize].fetch_add(1, Ordering::Relaxed);
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
            granted: std::array::from_fn(|source| sum(&|stripe| &stripe.granted[source])),
            denied: std::array::from_fn(|source| sum(&|stripe| &stripe.denied[source])),
            commands: other(Count::Commands),
            failures: other(Count::Failures),
            slow: other(Count::Slow),
            opened: other(Count::Opened),
            failovers: other(Count::Failovers),
            changes: other(Count::Changes),
            forgotten: other(Count::Forgotten),
            leased: other(Count::Leased),
            returned: other(Count::Returned),
            written_off: other(Count::WrittenOff),
            unclaimed: other(Count::Unclaimed),
            in_doubt: other(Count::InDoubt),
            synchronized: other(Count::Synchronized),
            unsynchronized: other(Count::Unsynchronized),
            refused: other(Count::Refused),
            sent_again: other(Count::SentAgain),
            lost: other(Count::Lost),
            holds_lost: other(Count::HoldsLost),
            evicted: other(Count::Evicted),
            taken_over: other(Count::TakenOver),
        }
    }
}
