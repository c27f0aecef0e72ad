//! How long somebody waits for units: until an instant, or until the client is closed.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep_until, timeout_at, Instant};

/// A caller that waits, and has no place in the server's queue, asks again after so long, at most.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// A wait. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Wait {
    until: Instant,
    closed: watch::Receiver<bool>,
}

impl Wait {
    pub fn new(until: Instant, closed: &watch::Sender<bool>) -> Self {
        Self { until, closed: closed.subscribe() }
    }

    /// The same, until an instant at the latest.
    pub fn by(&self, instant: Instant) -> Self {
        Self { until: self.until.min(instant), closed: self.closed.clone() }
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Whether the client was closed.
    pub fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// How long it goes on, at most.
    pub fn left(&self) -> Duration {
        match self.is_closed() {
            true => Duration::ZERO,
            false => self.until.saturating_duration_since(Instant::now()),
        }
    }

    /// What comes of a future while the wait goes on.
    pub async fn during<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.with(Duration::ZERO, future).await
    }

    /// The same, where the answer may be so much later than the wait.
    pub async fn with<T>(&self, late: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut closed = self.closed.clone();
        tokio::select! {
            biased;
            done = timeout_at(self.until + late, future) => done.ok(),
            Ok(_) = closed.wait_for(|closed| *closed) => None,
        }
    }

    /// Sleeps until an instant, or the end of the wait.
    pub async fn sleep_until(&self, instant: Instant) {
        self.during(sleep_until(instant.min(self.until))).await;
    }
}
