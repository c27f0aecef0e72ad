//! Effects: what a command has changed at one key, as replicas, append-only files and who takes a key over get it.
//!
//! An effect is one word that people can read: a letter, which is its kind and version, and then its parts, each with a
//! mark before it. It has results and absolute instants only, so that applying it gives the same value whatever the
//! applying server's clock and settings are. Instants are Unix time in milliseconds.
//!
//! | word | what happened |
//! |---|---|
//! | `c1000*60@1795529158556+3` | 3 units were counted then, in a window of 60 subintervals of 1000 ms |
//! | `c1000*60@1795529158556:1795529150000` | one unit of an earlier instant was counted then |
//! | `c1000*60@1795529158556^1795529158556` | one unit was counted then, and the key is in use since that instant |
//! | `r3@1795529158556` | 3 units were given back then, the newest first |
//! | `r3@1795529158556:1795529150000` | 3 units were given back then, the oldest first of those since that instant |
//! | `b1795532758556` | the key is blocked until then |
//! | `u@1795529158556` | its block was lifted then |
//! | `p1798761600000@1795529158556+5` | 5 units were counted then, in the period that ends at the first instant |
//! | `hjob-1>1795529188556#1795529158556000@1795529158556+2` | the hold `job-1` of 2 units: its end, and its token |
//! | `njob-1,job-2>1795529188556@1795529158556` | the live holds of these ids were renewed then, until that end |
//! | `ejob-1,job-2@1795529158556` | the holds of these ids were released then |
//!
//! `+1` is left out. Of holds, what has ended by `@` is removed first. Bytes of ids other than letters, digits, `-`, `_`
//! and `.` are `%` and two hexadecimal digits. What a hold reserves follows its units, one after the other, each with 32
//! hexadecimal digits of its key's digest, or with the key's name:
//!
//! | part | what is reserved |
//! |---|---|
//! | `;c1000*60@1795529158556+3$0123456789abcdef0123456789abcdef` | units of a window, and when they were counted |
//! | `;c1000*60@1795529158556^+3=burst` | the same, with a limit that rises after idleness |
//! | `;p1798761600000+5=tokens` | units of a period |
//! | `;hjob-2#1795529158556000=models` | another hold, and its token |
//!
//! At the end of a word `!` says that the key expires at the value's own end, `~1795529218556` that it expires then, and
//! `~0` that it never does. Without either the expiry stays, and a new key expires at the value's own end.

#![forbid(unsafe_code)]

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::borrow::Cow;
use std::num::NonZeroU64;

use smallvec::SmallVec;
use swlimit_hold::Reservation;
use swlimit_window::Geometry;

/// The longest word, in bytes.
pub const MAX_WORD: usize = 64 * 1024;
/// The most ids of one word: however they are escaped, it is not too long.
pub const MAX_IDS: usize = 128;

/// A word that was written.
pub type Bytes = SmallVec<[u8; 128]>;

/// An id of a hold.
pub type Id<'a> = Cow<'a, [u8]>;

/// What happened at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<'a> {
    /// Units were counted in a sliding window.
    Count {
        /// The window.
        geometry: Geometry,
        /// How many, at least one.
        units: u64,
        /// When.
        instant: u64,
        /// The earlier instant that they count at, where the window was replaced at `instant`.
        dated: Option<u64>,
        /// Since when the key is in use, where it came into use and remembers that.
        since: Option<NonZeroU64>,
    },
    /// Units were given back, of a window or a period.
    Refund {
        /// How many, at least one.
        units: u64,
        /// When.
        instant: u64,
        /// Those counted from this instant on; without it the newest first.
        since: Option<u64>,
    },
    /// The key was blocked.
    Block {
        /// Until when.
        until: u64,
    },
    /// The block was lifted.
    Unblock {
        /// When.
        instant: u64,
    },
    /// Units were counted in a period.
    Period {
        /// Its end, unless another period is in force.
        until: u64,
        /// How many, at least one.
        units: u64,
        /// When.
        instant: u64,
    },
    /// A hold is there now, instead of the one that had its id.
    Hold {
        /// Its id.
        id: Id<'a>,
        /// Its end.
        end: u64,
        /// Its token.
        token: u64,
        /// Its units, at least one.
        units: u64,
        /// What it reserves.
        reserved: Cow<'a, [Reservation]>,
        /// When: what has ended by then is removed first.
        instant: u64,
    },
    /// Holds were renewed.
    Renew {
        /// Their ids.
        ids: Vec<Id<'a>>,
        /// Their end.
        end: u64,
        /// When: what has ended by then is removed first.
        instant: u64,
    },
    /// Holds were released.
    Release {
        /// Their ids.
        ids: Vec<Id<'a>>,
        /// When: what has ended by then is removed first.
        instant: u64,
    },
}

/// What an effect says of the key's expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Nothing: it stays, and a new key expires at the value's own end.
    Kept,
    /// The value's own end.
    OwnEnd,
    /// This instant; 0 for never.
    At(u64),
}

/// An effect, and the key's expiry after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// The effect.
    pub effect: Effect<'a>,
    /// The expiry.
    pub expiry: Expiry,
}

impl Effect<'_> {
    /// When it happened; 0 where nothing can have ended by then.
    pub fn instant(&self) -> u64 {
        match *self {
            Effect::Count { instant, .. }
            | Effect::Refund { instant, .. }
            | Effect::Unblock { instant }
            | Effect::Period { instant, .. }
            | Effect::Hold { instant, .. }
            | Effect::Renew { instant, .. }
            | Effect::Release { instant, .. } => instant,
            Effect::Block { .. } => 0,
        }
    }

    /// The units that it adds.
    pub fn added(&self) -> u64 {
        match *self {
            Effect::Count { units, .. } | Effect::Period { units, .. } | Effect::Hold { units, .. } => units,
            _ => 0,
        }
    }
}
