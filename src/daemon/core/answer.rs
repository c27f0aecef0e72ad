//! The answer to one question.

use std::time::Duration;

use swlimit_client::{Decision, Statistics, Way};

/// A decision about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub granted: bool,
    /// Units granted.
    pub units: u64,
    pub limit: u64,
    pub remaining: u64,
    /// `None` if such a request is never granted.
    pub retry_after: Option<Duration>,
    pub reset_after: Duration,
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
            source: decision.way().into(),
        }
    }
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Server,
    Cache,
    Lease,
    Eventual,
    Failure,
    Local,
}

impl Source {
    pub const ALL: [Self; 6] = [Self::Server, Self::Cache, Self::Lease, Self::Eventual, Self::Failure, Self::Local];

    /// The client's decisions from this source.
    pub fn count(self, client: &Statistics) -> u64 {
        let way = Way::ALL.into_iter().find(|way| Self::from(*way) == self);
        way.map_or(0, |way| client.granted(way) + client.denied(way))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Cache => "cache",
            Self::Lease => "lease",
            Self::Eventual => "eventual",
            Self::Failure => "failure",
            Self::Local => "local",
        }
    }
}

impl From<Way> for Source {
    fn from(way: Way) -> Self {
        match way {
            Way::Denial => Self::Cache,
            Way::Lease => Self::Lease,
            Way::Background => Self::Eventual,
            Way::Away => Self::Failure,
            Way::OnlyLocal => Self::Local,
            Way::Server | _ => Self::Server,
        }
    }
}
