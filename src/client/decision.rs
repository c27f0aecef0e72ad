//! What is answered.

use std::time::Duration;

/// A decision: the five fields of the server's reply, and who made it.
///
/// Where it was made near the request, [`remaining`](Self::remaining) and the two durations are what is known at that
/// moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "whoever is denied is to be turned away"]
pub struct Decision {
    pub(crate) exact: swlimit_window::Decision,
    pub(crate) way: Way,
}

/// Who made a decision.
// A whole word, or decisions were copied by odd bytes, for which the processor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u64)]
pub enum Way {
    /// The server, asked for this request.
    Server,
    /// The memory of a denial that still holds.
    Denial,
    /// Units that were taken from the server ahead of the request.
    Lease,
    /// Counts that are synchronized in the background.
    Background,
    /// The failure policy, as the server did not answer.
    Away,
    /// A window in this process, as the limiter is one without a server.
    OnlyLocal,
}

impl Way {
    /// All there are.
    pub const ALL: [Self; 6] = [Self::Server, Self::Denial, Self::Lease, Self::Background, Self::Away, Self::OnlyLocal];

    /// A word for it, for labels of metrics: `server`, `denial`, `lease`, `background`, `away`, `only_local`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Denial => "denial",
            Self::Lease => "lease",
            Self::Background => "background",
            Self::Away => "away",
            Self::OnlyLocal => "only_local",
        }
    }
}

impl Decision {
    /// Whether any unit was granted.
    pub fn granted(&self) -> bool {
        self.exact.granted > 0
    }

    /// Units granted: the cost, with [`partial`](crate::Request::partial) possibly less, or 0.
    pub fn units(&self) -> u64 {
        self.exact.granted
    }

    /// Units admitted per window.
    pub fn limit(&self) -> u64 {
        self.exact.limit
    }

    /// Units still available.
    pub fn remaining(&self) -> u64 {
        self.exact.remaining
    }

    /// How long until such a request would be granted if nothing else is counted; zero when it was, `None` when it
    /// never can be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.exact.retry_after.map(Duration::from_millis)
    }

    /// How long until nothing counts any more.
    pub fn reset_after(&self) -> Duration {
        Duration::from_millis(self.exact.reset_after)
    }

    /// Whether it was made without asking the server.
    pub fn local(&self) -> bool {
        self.way != Way::Server
    }

    /// Who made it.
    pub fn way(&self) -> Way {
        self.way
    }
}

/// Several limits in one decision: granted only if each of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "whoever is denied is to be turned away"]
pub struct Decisions {
    pub(crate) granted: bool,
    pub(crate) each: Vec<Decision>,
}

impl Decisions {
    /// Whether all limits granted. Otherwise nothing is counted anywhere.
    pub fn granted(&self) -> bool {
        self.granted
    }

    /// What each limit said, in the order asked. Where the decision as a whole is denied, a limit that would grant says
    /// so.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The longest wait of those that denied; zero when granted, `None` when one can never be granted.
    pub fn retry_after(&self) -> Option<Duration> {
        let waits = self.each.iter().map(Decision::retry_after);
        waits.collect::<Option<Vec<_>>>().map(|waits| waits.into_iter().max().unwrap_or_default())
    }

    /// Whether it was made without asking the server.
    pub fn local(&self) -> bool {
        self.each.iter().any(Decision::local)
    }
}
