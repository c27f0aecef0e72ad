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

/// Which rights are missing, as far as is known, and which are needed.
pub(crate) struct Rights {
    /// Whose they are, for the log.
    server: String,
    missing: AtomicU8,
    needed: AtomicU8,
}

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

    const fn bit(self) -> u8 {
        1 << self as u8
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
    /// Those of the server, or of the cluster, at this address.
    pub fn new(server: String) -> Self {
        let used = [Right::Tracking, Right::Pttl, Right::ClusterSlots];
        let needed = used.into_iter().fold(0, |needed, right| needed | right.bit());
        Self { server, missing: AtomicU8::new(0), needed: AtomicU8::new(needed) }
    }

    /// Something needs a right that each connection asks for: its absence is said from now on.
    pub fn need(&self, right: Right) {
        let was_needed = self.needed.fetch_or(right.bit(), Ordering::Relaxed) & right.bit() != 0;
        if !was_needed && self.missing.load(Ordering::Relaxed) & right.bit() != 0 {
            self.report(right, "NOPERM");
        }
    }

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
        let was_missing = self.missing.fetch_or(right.bit(), Ordering::Relaxed) & right.bit() != 0;
        if !was_missing && self.needed.load(Ordering::Relaxed) & right.bit() != 0 {
            self.report(right, error);
        }
    }

    /// The server grants it.
    pub fn is_there(&self, right: Right) {
        if self.missing.load(Ordering::Relaxed) & right.bit() != 0 {
            self.missing.fetch_and(!right.bit(), Ordering::Relaxed);
        }
    }

    /// Sets a gauge for each: 1 where it is needed and missing.
    #[cfg(feature = "metrics")]
    pub fn publish(&self) {
        for right in Right::ALL {
            let is_missing = self.lacking() & right.bit() != 0;
            metrics::gauge!("swlimit_client_lacks", "right" => right.name()).set(u8::from(is_missing));
        }
    }

    fn lacking(&self) -> u8 {
        self.missing.load(Ordering::Relaxed) & self.needed.load(Ordering::Relaxed)
    }

    /// The names of those that are needed and missing.
    pub fn missing(&self) -> Vec<&'static str> {
        let lacking = self.lacking();
        let all = Right::ALL.into_iter().filter(|right| lacking & right.bit() != 0).map(Right::name);
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }

    fn report(&self, right: Right, error: &str) {
        let (server, lost) = (&self.server, format!("{} ({error})", right.without()));
        tracing::warn!("server {server} refuses {}, and swlimit does without: {lost}", right.name());
    }
}
