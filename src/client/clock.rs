//! What time it is: one clock that never jumps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Unix time in ms that goes on evenly, whatever happens to the machine's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    begun: Instant,
    unix_ms: u64,
}

impl Clock {
    /// Set by the machine's clock, once.
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { begun: Instant::now(), unix_ms: ms(since) }
    }

    /// The Unix time of an instant, in ms.
    pub fn unix_ms(&self, instant: Instant) -> u64 {
        self.unix_ms + ms(instant.saturating_duration_since(self.begun))
    }
}

/// Whole milliseconds, rounded down.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up.
pub(crate) fn ms_up(duration: Duration) -> u64 {
    ms(duration + Duration::from_nanos(999_999))
}
