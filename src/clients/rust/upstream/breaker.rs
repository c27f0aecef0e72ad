//! The breaker: open while a server is unavailable, so that no request waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::time::Duration;

use crate::error::Cause;
use crate::reason::Reason;
use crate::servers::{ServerState, State};

/// So many failures in a row open it.
pub(super) const FAILURES: u32 = 3;
/// A connection that owes something and has been silent for so many timeouts, or trips where they are longer, is down.
pub(super) const SILENT_TIMEOUTS: u32 = 3;
/// The pause before the first probe; it doubles up to the longest. Each varies by a fifth, so that the clients of a
/// server do not probe it together.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(500);
pub(super) const JITTER: f64 = 0.2;

/// The health of a server. Nothing here waits or has tasks: [`super::server`] probes.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    is_open: AtomicBool,
    state: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    failures: u32,
    /// One of them was that writes are refused.
    refuses_writes: bool,
    cause: Option<Cause>,
    /// Since when the server's health is what it is.
    since: SystemTime,
}

impl Default for Known {
    fn default() -> Self {
        Self { failures: 0, refuses_writes: false, cause: None, since: SystemTime::now() }
    }
}

impl Breaker {
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// The server answered in time. Where it refused writes, only a write is a success.
    #[inline]
    pub fn succeeded(&self, is_write: bool) {
        let mut state = self.state.lock();
        if is_write || !state.refuses_writes {
            state.failures = 0;
            state.refuses_writes = false;
        }
    }

    /// A failure was none: the server is slow.
    pub fn excuse(&self) {
        let mut state = self.state.lock();
        state.failures = state.failures.saturating_sub(1);
    }

    /// The server did not answer in time, or cannot decide. Whether that opened the breaker.
    pub fn failed(&self, cause: &Cause) -> bool {
        let is_enough = {
            let mut state = self.state.lock();
            state.failures = state.failures.saturating_add(1);
            state.refuses_writes |= cause.reason().refuses_writes();
            state.failures >= FAILURES
        };
        is_enough && self.open(cause)
    }

    /// Opens it, whatever was before. Whether it was closed.
    pub fn open(&self, cause: &Cause) -> bool {
        let mut state = self.state.lock();
        state.cause = Some(cause.clone());
        let was_closed = !self.is_open.swap(true, Ordering::AcqRel);
        if was_closed {
            state.since = SystemTime::now();
        }
        was_closed
    }

    /// A probe succeeded.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.failures = 0;
        state.refuses_writes = false;
        if self.is_open.swap(false, Ordering::AcqRel) {
            state.since = SystemTime::now();
        }
    }

    /// The server's state, for callers, with its address, the rights it lacks, and its last round trip.
    pub fn state(&self, address: String, lacks: Vec<&'static str>, round_trip: Option<Duration>) -> ServerState {
        let known = self.state.lock();
        let is_open = self.is_open();
        let cause = known.cause.as_ref().filter(|_| is_open);
        ServerState {
            address,
            state: if is_open { State::Unavailable } else { State::Up },
            reason: cause.map(Cause::reason),
            message: cause.map(Cause::to_string).unwrap_or_default(),
            since: known.since,
            lacks,
            round_trip,
            backend: None,
            eviction: None,
        }
    }

    /// Why it is open.
    pub fn cause(&self) -> Cause {
        let cause = self.state.lock().cause.clone();
        cause.unwrap_or_else(|| Reason::Other.because("the breaker is open"))
    }
}

/// The pauses between probes.
pub(super) fn pauses() -> impl Iterator<Item = Duration> {
    let doubled = |pause: &Duration| Some((*pause * 2).min(LONGEST_PAUSE));
    std::iter::successors(Some(FIRST_PAUSE), doubled)
        .map(|pause| pause.mul_f64(1.0 - JITTER + 2.0 * JITTER * fastrand::f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_in_a_row_open_it() {
        let (breaker, late) = (Breaker::default(), Reason::NoAnswer.because("late"));
        for _ in 0..10 {
            assert!(!breaker.failed(&late) && !breaker.failed(&late));
            breaker.succeeded(true);
        }
        assert!(!breaker.failed(&late) && !breaker.failed(&late) && breaker.failed(&late));
        assert!(breaker.is_open() && !breaker.failed(&late), "it opens once");
        breaker.succeeded(true);
        assert!(breaker.is_open(), "a late reply closes nothing");
        breaker.close();
        assert!(!breaker.is_open() && !breaker.failed(&late));
    }

    #[test]
    fn pauses_double_and_vary() {
        let pauses: Vec<_> = pauses().take(6).collect();
        for (pause, middle) in pauses.iter().zip([100, 200, 400, 500, 500, 500]) {
            let middle = Duration::from_millis(middle);
            assert!((middle * 4 / 5..=middle * 6 / 5).contains(pause), "{pauses:?}");
        }
    }
}
