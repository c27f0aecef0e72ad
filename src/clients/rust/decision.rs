//! Decisions.

use std::time::Duration;

/// A decision: the five fields of the server's reply, and its source. What is not known is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "refuse what is denied"]
pub struct Decision {
    pub(crate) granted: u64,
    pub(crate) limit: u64,
    pub(crate) remaining: Option<u64>,
    /// In ms; `None`: never.
    pub(crate) retry_after: Option<u64>,
    /// In ms.
    pub(crate) reset_after: Option<u64>,
    pub(crate) since: Option<u64>,
    pub(crate) source: Source,
}

/// What made a decision.
// A whole word, or decisions were copied by odd bytes, for which the processor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u64)]
pub enum Source {
    /// The server, asked for this request.
    Server,
    /// A denial that was remembered, or a cost above the limit.
    Cache,
    /// Units that were leased ahead of the request.
    Lease,
    /// Counts that are synchronized.
    Eventual,
    /// The failure policy, as the server did not answer.
    Failure,
    /// A window in this process, of mode [`Local`](crate::Mode::Local).
    Local,
}

impl Source {
    /// All there are.
    pub const ALL: [Self; 6] = [Self::Server, Self::Cache, Self::Lease, Self::Eventual, Self::Failure, Self::Local];

    /// Its name in labels of metrics: `server`, `cache`, `lease`, `eventual`, `failure`, `local`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Cache => "cache",
            Self::Lease => "lease",
            Self::Eventual => "eventual",
            Self::Failure => "failure",
            Self::Local => "local",
        }
    }

    /// A decision of this source, of which everything is known.
    pub(crate) fn decided(self, exact: swlimit_window::Decision) -> Decision {
        let swlimit_window::Decision { granted, limit, remaining, retry_after, reset_after } = exact;
        let (remaining, reset_after) = (Some(remaining), Some(reset_after));
        Decision { granted, limit, remaining, retry_after, reset_after, since: None, source: self }
    }

    /// A decision of this source, of which nothing is known but whether it granted.
    pub(crate) fn unknown(self, granted: u64, limit: u64, retry_after: Option<u64>) -> Decision {
        Decision { granted, limit, remaining: None, retry_after, reset_after: None, since: None, source: self }
    }
}

impl Decision {
    /// The same of units that count since an instant of the server's clock.
    pub(crate) fn counted_since(self, since: Option<u64>) -> Self {
        Self { since: since.filter(|_| self.granted > 0), ..self }
    }

    /// Whether any unit was granted.
    pub fn granted(&self) -> bool {
        self.granted > 0
    }

    /// Units granted: the cost, with [`partial`](crate::Request::partial) possibly less, or 0.
    pub fn units(&self) -> u64 {
        self.granted
    }

    /// Units admitted per window.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Units still available; `None` where nobody knows.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// How long until such a request would be granted if nothing else is counted; zero when it was, `None` when it
    /// never can be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from_millis)
    }

    /// How long until nothing counts any more; `None` where nobody knows.
    pub fn reset_after(&self) -> Option<Duration> {
        self.reset_after.map(Duration::from_millis)
    }

    /// Since when the units count, in Unix ms of the server's clock, where that is known: of units from a lease. With
    /// it, [`Request::since`](crate::Request::since) gives exactly these units back.
    pub fn since(&self) -> Option<u64> {
        self.since
    }

    /// What made it.
    pub fn source(&self) -> Source {
        self.source
    }
}

/// Several limits in one decision: granted only if each of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "refuse what is denied"]
pub struct Decisions {
    pub(crate) granted: bool,
    pub(crate) each: Vec<Decision>,
}

impl Decisions {
    /// Of limits that were asked one by one.
    pub(crate) fn of(each: Vec<Decision>) -> Self {
        Self { granted: each.iter().all(Decision::granted), each }
    }

    /// Whether all limits granted. Otherwise nothing is counted anywhere.
    pub fn granted(&self) -> bool {
        self.granted
    }

    /// The decision of each limit, in the order of the requests. Where the decision as a whole is denied, a limit that
    /// did not deny shows as granted.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The longest wait of those that denied; zero when granted, `None` when one can never be granted.
    pub fn retry_after(&self) -> Option<Duration> {
        let waits = self.each.iter().map(Decision::retry_after);
        waits.collect::<Option<Vec<_>>>().map(|waits| waits.into_iter().max().unwrap_or_default())
    }
}

impl IntoIterator for Decisions {
    type Item = Decision;
    type IntoIter = std::vec::IntoIter<Decision>;

    fn into_iter(self) -> Self::IntoIter {
        self.each.into_iter()
    }
}

impl<'a> IntoIterator for &'a Decisions {
    type Item = &'a Decision;
    type IntoIter = std::slice::Iter<'a, Decision>;

    fn into_iter(self) -> Self::IntoIter {
        self.each.iter()
    }
}
