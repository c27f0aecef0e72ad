//! Whether the round trip to a server is above a limiter's timeout: it is slow then, and not unavailable.
//!
//! Requests of such a limiter are decided by its policy at once, and one probe at a time says when the link fits again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// How often the log says that a server is slow.
const LOGGED: Duration = Duration::from_secs(60);

/// What is known of a link's round trip. Nothing here waits.
#[derive(Debug, Default)]
pub(super) struct Slow {
    is_slow: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The moving mean of trips of requests that did not wait behind many others.
    round_trip: Duration,
    /// The last reply that was measured was late.
    was_late: bool,
    /// The longest timeout that replies were late for, and since when; `None` while they are in time.
    late: Option<(Duration, SystemTime)>,
    logged: Option<Instant>,
}

impl Slow {
    /// The round trip, if it is above a timeout.
    #[inline]
    pub fn above(&self, timeout: Duration) -> Option<Duration> {
        if !self.is_slow.load(Ordering::Acquire) {
            return None;
        }
        let known = self.known.lock();
        let is_late = known.late.is_some_and(|(longest, _)| longest >= timeout) && known.round_trip > timeout;
        is_late.then_some(known.round_trip)
    }

    /// Since when replies are late.
    pub fn since(&self) -> Option<SystemTime> {
        self.known.lock().late.map(|(_, since)| since)
    }

    /// A reply came in time. Whether that ends being slow.
    pub fn in_time(&self, trip: Duration, is_measured: bool) -> bool {
        let mut known = self.known.lock();
        if known.late.is_some_and(|(longest, _)| trip <= longest) {
            (known.round_trip, known.late, known.was_late) = (trip, None, false);
            self.is_slow.store(false, Ordering::Release);
            return true;
        }
        if is_measured {
            known.took(trip);
            known.was_late = false;
        }
        false
    }

    /// A reply came later than a timeout, and had not waited behind many others. Whether that begins being slow.
    pub fn late(&self, trip: Duration, timeout: Duration) -> bool {
        let mut known = self.known.lock();
        match std::mem::replace(&mut known.was_late, true) {
            // Two in a row are no outlier.
            true => known.round_trip = known.round_trip.max(trip),
            false => known.took(trip),
        }
        if known.round_trip <= timeout {
            return false;
        }
        let (longest, since) = known.late.unwrap_or_else(|| (timeout, SystemTime::now()));
        known.late = Some((longest.max(timeout), since));
        !self.is_slow.swap(true, Ordering::AcqRel)
    }

    /// Whether the log should say it now. Then it is true once.
    pub fn is_log_due(&self) -> bool {
        let (mut known, now) = (self.known.lock(), Instant::now());
        let is_due = known.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOGGED);
        if is_due {
            known.logged = Some(now);
        }
        is_due
    }
}

impl Known {
    fn took(&mut self, trip: Duration) {
        let (mean, trip) = (self.round_trip, trip.max(Duration::from_micros(1)));
        self.round_trip = if mean.is_zero() { trip } else { mean - mean / 8 + trip / 8 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn it_is_a_limiters_own() {
        let slow = Slow::default();
        assert!(!slow.in_time(ms(1), true) && slow.above(ms(50)).is_none());
        assert!(!slow.late(ms(60), ms(50)) && slow.above(ms(50)).is_none(), "one may be an outlier");
        assert!(!slow.in_time(ms(40), true) && !slow.late(ms(60), ms(50)));
        assert!(slow.late(ms(60), ms(50)) && !slow.late(ms(60), ms(50)), "it begins once");
        assert_eq!((slow.above(ms(50)), slow.above(ms(20)), slow.above(ms(1000))), (Some(ms(60)), Some(ms(60)), None));
        assert!(!slow.in_time(ms(70), true), "for another limiter");
        assert!(slow.above(ms(50)).is_some() && slow.since().is_some());
        assert!(slow.in_time(ms(40), false));
        assert!(slow.above(ms(20)).is_none() && slow.since().is_none());
    }
}
