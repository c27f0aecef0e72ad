//! What a hold remembers of the limits that were taken together with it, so that they can be settled.

use sha2::{Digest, Sha256};
use swlimit_window::Geometry;

/// The most reservations of one hold: one decision has at most 64 keys, and the hold's own is one of them.
pub const MAX_RESERVATIONS: usize = 63;

/// 16 bytes of the SHA-256 of a key's name: names may be long, and a hold may reserve many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDigest(pub [u8; 16]);

impl KeyDigest {
    /// The digest of a name.
    pub fn of(name: &[u8]) -> Self {
        let mut first = [0; 16];
        first.copy_from_slice(&Sha256::digest(name)[..16]);
        Self(first)
    }
}

/// Units of another key that were taken together with a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The key.
    pub key: KeyDigest,
    /// How many, at least one.
    pub units: u64,
    /// Where they count.
    pub of: Reserved,
}

/// Where reserved units count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// In a sliding window.
    Rate {
        /// When they were counted, in ms.
        instant: u64,
        /// The window they were counted in.
        geometry: Geometry,
        /// Whether their limit rises after idleness.
        warms_up: bool,
    },
    /// In a budget.
    Budget {
        /// The end of the period they count in, in ms.
        until: u64,
    },
    /// As another hold.
    Hold {
        /// Its id.
        id: Box<[u8]>,
        /// Its token.
        token: u64,
    },
}

impl Reservation {
    /// Bytes it has allocated.
    pub(crate) fn heap(&self) -> usize {
        match &self.of {
            Reserved::Hold { id, .. } => id.len(),
            Reserved::Rate { .. } | Reserved::Budget { .. } => 0,
        }
    }

    /// Whether the same is reserved: this many units of that key, in the same kind of limit.
    pub fn is_alike(&self, other: &Self) -> bool {
        let same_kind = std::mem::discriminant(&self.of) == std::mem::discriminant(&other.of);
        self.key == other.key && self.units == other.units && same_kind
    }
}
