//! Moments on a clock that goes on while the machine sleeps.

#[cfg(not(test))]
use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

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

/// Now, by a clock that goes on while the machine sleeps.
#[cfg(not(test))]
#[inline]
pub(crate) fn awake() -> Instant {
    static BEGUN: LazyLock<Moment> = LazyLock::new(Moment::now);
    BEGUN.instant + since_boot().saturating_sub(BEGUN.booted)
}

/// Simulated machines do not sleep.
#[cfg(test)]
pub(crate) fn awake() -> Instant {
    Instant::now()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Elsewhere, the runtime's clock alone counts.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn since_boot() -> Duration {
    static STARTED: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    STARTED.get_or_init(std::time::Instant::now).elapsed()
}
