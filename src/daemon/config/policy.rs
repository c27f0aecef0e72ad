//! How a limit is decided: its mode, and its policy while the server is unavailable.

use serde::{de, Deserialize, Deserializer};
pub use swlimit_client::{Mode, Module, OnFailure, OnRefused};
use swlimit_window::WarmUp;

use super::duration::Duration;

/// A part of a limit, in millionths: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share(u32);

impl Share {
    pub const TENTH: Self = Self(100_000);
    pub const WHOLE: Self = Self(1_000_000);

    /// This part of some units, rounded up.
    pub fn units(self, units: u64) -> u64 {
        swlimit_window::part(units, self.0)
    }

    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(deserializer)?;
        let millionths = (share * 1e6).round();
        match millionths >= 1.0 && share <= 1.0 {
            true => Ok(Self(millionths as u32)),
            false => Err(de::Error::custom(format!("a share is above 0 and at most 1, not {share}"))),
        }
    }
}

/// By how many a limit is divided after idleness.
#[derive(Clone, Copy, Debug)]
pub struct Cold(pub u64);

impl<'de> Deserialize<'de> for Cold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = f64::deserialize(deserializer)?;
        let parts = written as u64;
        match parts as f64 == written && WarmUp::COLD_RANGE.contains(&parts) {
            true => Ok(Self(parts)),
            false => Err(de::Error::custom("cold must be an integer between 2 and 1000")),
        }
    }
}

/// The keys of a policy as written. The top of the file and each limit have them; the nearest one wins.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyKeys {
    pub mode: Option<Mode>,
    pub on_failure: Option<OnFailure>,
    pub local_share: Option<Share>,
    pub lease_share: Option<Share>,
    pub lease_length: Option<Duration>,
    pub sync_interval: Option<Duration>,
}

impl PolicyKeys {
    /// These keys, and those of `other` where they are missing here.
    pub fn or(self, other: Self) -> Self {
        Self {
            mode: self.mode.or(other.mode),
            on_failure: self.on_failure.or(other.on_failure),
            local_share: self.local_share.or(other.local_share),
            lease_share: self.lease_share.or(other.lease_share),
            lease_length: self.lease_length.or(other.lease_length),
            sync_interval: self.sync_interval.or(other.sync_interval),
        }
    }

    /// The policy, with a default for every missing key.
    ///
    /// # Errors
    /// Without a server the only mode is `local`.
    pub fn policy(self, defaults: Defaults) -> Result<DecisionPolicy, &'static str> {
        let mode = match (self.mode, defaults.has_server) {
            (None, true) => Mode::Cached,
            (None | Some(Mode::Local), false) => Mode::Local,
            (Some(mode), true) => mode,
            (Some(_), false) => return Err("without a server the only mode is local"),
        };
        Ok(DecisionPolicy {
            mode,
            on_failure: self.on_failure.unwrap_or(defaults.on_failure),
            local_share: self.local_share.unwrap_or(Share::TENTH),
            lease_share: self.lease_share.unwrap_or(Share::TENTH),
            lease_length: self.lease_length.map(|Duration(ms)| ms),
            sync_interval: self.sync_interval.map_or(100, |Duration(ms)| ms),
        })
    }
}

/// What the defaults of a policy depend on.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    pub has_server: bool,
    pub on_failure: OnFailure,
}

/// How a limit is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecisionPolicy {
    pub mode: Mode,
    pub on_failure: OnFailure,
    /// This process's share of the limit in mode `local`, and while the server is unavailable.
    pub local_share: Share,
    /// The largest part of the limit that one lease takes.
    pub lease_share: Share,
    /// How long leased units are kept, in ms, but no longer than the resolution; `None`: a second at most.
    pub lease_length: Option<u64>,
    /// How often mode `eventual` synchronizes, in ms.
    pub sync_interval: u64,
}
