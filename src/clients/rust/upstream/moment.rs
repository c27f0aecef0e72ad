//! Moments on a clock that goes on while the machine sleeps.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::since_boot;

/// A moment by two clocks: the runtime's, which stands still while the machine sleeps, and one that does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub instant: Instant,
    /// Since the machine was started.
    booted: Duration,
}

impl Moment {
    pub fn now() -> Self {
        Self { instant: Instant::now(), booted: since_boot() }
    }

    /// So much later.
    pub fn after(self, time: Duration) -> Self {
        Self { instant: self.instant + time, booted: self.booted + time }
    }

    /// Whether it has come, by either clock.
    pub fn has_come(&self) -> bool {
        Instant::now() >= self.instant || since_boot() >= self.booted
    }
}
