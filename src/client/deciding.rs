//! Who decides, and who decides when the server is away.

use std::time::Duration;

/// Who decides, and how often the server is asked. `docs/near-the-request.md` says what each promises.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Deciding {
    /// The server decides every request.
    Direct,
    /// The server decides every request but those that it is known to deny: the same decisions. The default.
    #[default]
    Denials,
    /// Units are taken from the server ahead of the requests, as many as the key used lately, and given out near them.
    /// Denials are remembered, too. Never more units are counted than the limit.
    Leases {
        /// At most this share of the limit is taken at a time: 0 … 1, and at least a unit.
        share: f64,
    },
    /// No request waits for the server: counts are synchronized in the background. More than the limit may be granted:
    /// at most what other clients grant unseen between two synchronizations.
    Background {
        /// How often they are.
        interval: Duration,
        /// What share of the limit a key may use before the server has been heard: 0 … 1.
        share: f64,
    },
    /// A window in this process decides, as if there were no server.
    OnlyLocal,
}

impl Deciding {
    /// Leases of at most a tenth of the limit.
    pub const LEASES: Self = Self::Leases { share: SHARE };

    /// Synchronized every 100 ms; a tenth of the limit for a key of which nothing is known.
    pub const BACKGROUND: Self = Self::Background { interval: Duration::from_millis(100), share: SHARE };
}

/// Who decides when the server is away, or too slow.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum WhenAway {
    /// Every request is granted.
    Allow,
    /// Every request is denied.
    Deny,
    /// A window in this process decides, with a share of the limit.
    Local {
        /// The share: 0 … 1; a limit of some units has a share of at least one.
        share: f64,
    },
}

impl Default for WhenAway {
    /// A tenth of the limit in this process.
    fn default() -> Self {
        Self::Local { share: SHARE }
    }
}

const SHARE: f64 = 0.1;
