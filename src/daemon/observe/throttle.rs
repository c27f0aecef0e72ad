//! Log lines at most once a minute, with a count.

use std::sync::Mutex;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(60);

/// Counts events between two log lines.
pub struct Throttle(Mutex<Option<(Instant, u64)>>);

impl Throttle {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The number of events since the last log line, this one included, if it is time for another.
    pub fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().expect("no code panics while it holds this lock");
        match &mut *state {
            Some((last, silent)) if now.duration_since(*last) < INTERVAL => {
                *silent += 1;
                None
            }
            state => {
                let silent = state.map_or(0, |(_, silent)| silent);
                *state = Some((now, 0));
                Some(silent + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_one_line() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        let found = [0, 1, 59, 60, 61, 300].map(|at| throttle.count(start + Duration::from_secs(at)));
        assert_eq!(found, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
