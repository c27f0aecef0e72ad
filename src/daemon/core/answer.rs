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
    /// 0 if nobody knows.
    pub remaining: u64,
    /// `None` if such a request is never granted.
    pub retry_after: Option<Duration>,
    /// Zero if nobody knows.
    pub reset_after: Duration,
    pub source: Source,
}

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        Self {
            granted: decision.granted(),
            units: decision.units(),
            limit: decision.limit(),
            remaining: decision.remaining().unwrap_or_default(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after().unwrap_or_default(),
            source: decision.source(),
        }
    }
}
