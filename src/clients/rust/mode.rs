//! How limiters decide: the names and defaults that all clients share.

use std::time::Duration;

use crate::error::Error;

/// Where a limiter makes its decisions. The page `near-the-request.md` says what each mode promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Mode {
    /// The server decides every request.
    Direct,
    /// The server decides every request but those that it is known to deny. The default.
    #[default]
    Cached,
    /// Units are taken from the server ahead of the requests, and granted near them. Never more units are counted than
    /// the limit. Denials are remembered as in `Cached`.
    Leased,
    /// No request waits for the server: counts are synchronized. More than the limit may be granted, at most what other
    /// clients grant between two synchronizations.
    Eventual,
    /// A window in this process decides, as if there were no server.
    Local,
}

/// Whether the server's module decides, or a script that decides the same where the module is not loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Module {
    /// The module where the server knows its commands, else the script. Each connection finds out for itself. The default.
    #[default]
    Auto,
    /// The module; a server without it is an [`Error::ModuleMissing`](crate::Error::ModuleMissing).
    Always,
    /// The script, also where the module is loaded.
    Never,
}

/// Whether a client follows the slots of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Cluster {
    /// If the server at the URL turns out to be part of a cluster. Where none of the addresses that the cluster names is
    /// reached, only the one of the URL is asked. The default.
    #[default]
    Auto,
    /// From the beginning: the URL names one of the cluster's nodes.
    On,
    /// Never: a redirection is a failure.
    Off,
}

/// What decides when the server does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OnFailure {
    /// A window in this process, with a share of the limit. The default.
    #[default]
    Local,
    /// Every request is granted.
    Allow,
    /// Every request is denied.
    Deny,
    /// The caller: [`Error::Unavailable`](crate::Error::Unavailable).
    Error,
}

/// What a request gets that the server refuses to decide: its user lacks a right, the module is missing or too old, or
/// the key has another type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OnRefused {
    /// The error. The default.
    #[default]
    Error,
    /// What [`OnFailure`] says. The refusal is logged, once a minute at most.
    OnFailure,
}

/// The part of a limit for [`local_share`](crate::LimiterBuilder::local_share) and
/// [`lease_share`](crate::LimiterBuilder::lease_share), unless set.
pub(crate) const SHARE: f64 = 0.1;

/// How often [`Mode::Eventual`] synchronizes, unless set.
pub(crate) const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// A part of a limit, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u32);

const WHOLE: f64 = 1_000_000.0;

impl Share {
    /// A part of 0 … 1; `None` for anything else.
    pub fn of(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then(|| Self((part * WHOLE).round() as u32))
    }

    /// The part that an option gives.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is not within 0 … 1.
    pub fn named(option: &str, part: f64) -> Result<Self, Error> {
        Self::of(part).ok_or_else(|| Error::Invalid(format!("{option} must be a number between 0 and 1")))
    }

    /// That part of some units, rounded up.
    pub fn units(self, units: u64) -> u64 {
        swlimit_window::part(units, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_up_in_integers() {
        let share = |part: f64, units| Share::of(part).unwrap().units(units);
        assert_eq!((share(0.1, 100), share(0.1, 101), share(0.1, 1), share(0.1, 0)), (10, 11, 1, 0));
        assert_eq!((share(0.3, 10), share(0.7, 10), share(0.0, 10), share(1.0, 10)), (3, 7, 0, 10));
        assert_eq!(share(0.1, swlimit_window::MAX_EXACT), swlimit_window::MAX_EXACT.div_ceil(10));
        assert!([-0.1, 1.1, f64::NAN].into_iter().all(|part| Share::of(part).is_none()));
    }
}
