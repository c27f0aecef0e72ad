//! Requests that the server did not decide, and the last error.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use metrics::counter;

use super::process;
use super::throttle::Throttle;
use crate::core::Refusal;

/// Why the server decided nothing.
pub const SERVER_ERRORS: [&str; 2] = ["unavailable", "refused"];

/// The seconds that are remembered.
const SECONDS: u64 = 10;

static LAST: Mutex<Refusals> = Mutex::new(Refusals { seconds: [(0, 0); SECONDS as usize], error: String::new() });

struct Refusals {
    /// How many there were in a second since the start of the process. A later second takes its place.
    seconds: [(u64, u32); SECONDS as usize],
    error: String,
}

/// Counts and logs a request that the server did not decide.
pub fn refused(refusal: impl Into<Refusal>) -> Refusal {
    let refusal = refusal.into();
    static LOGGED: Throttle = Throttle::new();
    let [unavailable, refused] = SERVER_ERRORS;
    let why = match &refusal {
        Refusal::Unavailable => unavailable,
        Refusal::Refused(error) => {
            if let Some(count) = LOGGED.count(Instant::now()) {
                tracing::error!(%error, count, "the server refuses commands, counted since the last such line");
            }
            refused
        }
        Refusal::Invalid(_) | Refusal::NeedsServer => return refusal,
    };
    counter!("swlimitd_server_errors_total", "why" => why).increment(1);
    if why != unavailable {
        with(|refusals, now| refusals.count(refusal.message(), now));
    }
    refusal
}

/// How many commands are refused per second, and the last error; `None` without any.
pub fn recent() -> Option<(f64, String)> {
    with(|refusals, now| refusals.recent(now))
}

fn with<T>(run: impl FnOnce(&mut Refusals, u64) -> T) -> T {
    let now = Instant::now().duration_since(process::started()).as_secs();
    run(&mut LAST.lock().unwrap_or_else(PoisonError::into_inner), now)
}

impl Refusals {
    fn count(&mut self, error: &str, now: u64) {
        let (second, count) = &mut self.seconds[(now % SECONDS) as usize];
        *count = if *second == now { count.saturating_add(1) } else { 1 };
        *second = now;
        if self.error != error {
            self.error = error.into();
        }
    }

    fn recent(&self, now: u64) -> Option<(f64, String)> {
        let recent = self.seconds.iter().filter(|(second, _)| second + SECONDS > now);
        let sum: u64 = recent.map(|(_, count)| u64::from(*count)).sum();
        (sum > 0).then(|| (sum as f64 / SECONDS as f64, self.error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ten_seconds_count() {
        let mut refusals = Refusals { seconds: [(0, 0); SECONDS as usize], error: String::new() };
        assert_eq!(refusals.recent(3), None);
        (0..20).for_each(|_| refusals.count("one", 3));
        (0..10).for_each(|_| refusals.count("two", 4));
        assert_eq!(refusals.recent(12), Some((3.0, "two".into())));
        assert_eq!(refusals.recent(13), Some((1.0, "two".into())));
        assert_eq!(refusals.recent(14), None);
        refusals.count("three", 14);
        assert_eq!(refusals.recent(14), Some((0.1, "three".into())));
    }
}
