//! What the server lets this user do beside the module's commands. Each lack has a remedy, and is said once.

use std::sync::atomic::{AtomicU8, Ordering};

use super::health::is_failure;
use crate::transport::Reply;

/// A right that can be missing.
#[derive(Clone, Copy)]
pub(crate) enum Right {
    Tracking,
    Pttl,
    Time,
    Info,
    ClusterSlots,
}

/// Which rights are missing, as far as is known.
#[derive(Default)]
pub(crate) struct Rights(AtomicU8);

impl Right {
    const ALL: [Self; 5] = [Self::Tracking, Self::Pttl, Self::Time, Self::Info, Self::ClusterSlots];

    /// As ACLs name it.
    const fn name(self) -> &'static str {
        match self {
            Self::Tracking => "client|tracking",
            Self::Pttl => "pttl",
            Self::Time => "time",
            Self::Info => "info",
            Self::ClusterSlots => "cluster|slots",
        }
    }

    /// The consequence of its absence, for the log.
    const fn without(self) -> &'static str {
        match self {
            Self::Tracking | Self::Pttl => "denials are remembered for a short time only",
            Self::Time | Self::Info => "limiters of mode leased decide as those of mode cached",
            Self::ClusterSlots => "the cluster's nodes cannot be found",
        }
    }
}

impl Rights {
    /// The server's reply to what needs a right.
    pub fn heard(&self, right: Right, reply: &Reply) {
        match reply {
            Reply::Error(text) if is_failure(text) => {}
            Reply::Error(text) => self.is_missing(right, text),
            _ => self.is_there(right),
        }
    }

    /// The server refuses it.
    pub fn is_missing(&self, right: Right, error: &str) {
        let bit = 1 << right as u8;
        if self.0.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            tracing::warn!(right = right.name(), error, "the rate limit server refuses a right: {}", right.without());
        }
    }

    /// The server grants it.
    pub fn is_there(&self, right: Right) {
        let bit = 1 << right as u8;
        if self.0.load(Ordering::Relaxed) & bit != 0 {
            self.0.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Sets a gauge for each that is missing, or was.
    #[cfg(feature = "metrics")]
    pub fn publish(&self) {
        for right in Right::ALL {
            let is_missing = self.0.load(Ordering::Relaxed) & 1 << right as u8 != 0;
            metrics::gauge!("swlimit_client_lacks", "right" => right.name()).set(u8::from(is_missing));
        }
    }

    /// The names of those that are missing.
    pub fn missing(&self) -> Vec<&'static str> {
        let missing = self.0.load(Ordering::Relaxed);
        let all = Right::ALL.into_iter().filter(|right| missing & 1 << *right as u8 != 0).map(Right::name);
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }
}
