//! The answer to one question.

use std::time::Duration;

use swlimit_client::Decision;
pub use swlimit_client::Source;

/// A decision about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub granted: bool,
    /// Units granted.
    pub units: u64,
    pub limit: u64,
    /// `None` where it is unknown.
    pub remaining: Option<u64>,
    /// `None` if such a request is never granted.
    pub retry_after: Option<Duration>,
    /// `None` where it is unknown.
    pub reset_after: Option<Duration>,
    /// Since when the units count, in Unix ms of the server's clock, if that is known.
    pub since: Option<u64>,
    pub source: Source,
}

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        Self {
            granted: decision.granted(),
            units: decision.units(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            since: decision.since(),
            source: decision.source(),
        }
    }
}
