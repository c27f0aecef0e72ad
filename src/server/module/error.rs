//! The errors of commands, in the words clients see.

use std::fmt;

use swlimit_hold::{Refusal, MAX_ID};
use swlimit_window::{Overflow, MAX_EXACT};

use crate::configuration::MOST_SHOWN;

/// Why a command was refused. Whatever it is, nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few or too many arguments; the server words this one itself.
    Arity,
    /// The key holds another type.
    WrongType,
    /// The key does not exist.
    NoSuchKey,
    /// Not a limit.
    Limit,
    /// The argument of this name is not a duration.
    Duration(&'static str),
    /// The resolution does not divide the window.
    Uneven,
    /// So many subintervals, above the most that are allowed.
    TooManySubintervals {
        /// What was asked for.
        subintervals: u64,
        /// `swlimit.max-subintervals`.
        max: u64,
    },
    /// The argument of this name is not a number of units.
    Units(&'static str),
    /// Not the parts of a limit of which a cold key has one.
    Cold,
    /// The option of this name has no instant.
    Instant(&'static str),
    /// An unknown or repeated option, or one without its value.
    Syntax(Vec<u8>),
    /// Not a number of lines for TOP.
    Count,
    /// `numkeys` doesn't fit.
    NumKeys,
    /// A key is named twice.
    KeyTwice,
    /// Keys of one command are in several slots of a cluster.
    CrossSlot,
    /// Some keys of one command have moved to another node of a cluster, and some have not.
    TryAgain,
    /// Not an id of a hold.
    Id,
    /// The id is live with so many units.
    OtherUnits(u64),
    /// The id is live with other reservations.
    OtherReservations,
    /// The keys are not those that a hold has reserved.
    OtherKeys,
    /// Not a number of units that were used.
    Used,
    /// `swlimit.max-holds` holds are live.
    TooManyHolds,
    /// The key has granted the largest token.
    NoToken,
    /// Not an effect; says what is wrong.
    Effect(&'static str),
    /// Not the end of a period.
    PeriodEnd,
    /// The server does not say whether it serves the keys' slot.
    SlotsUnknown,
    /// The server's own error, with its code.
    Server(String),
    /// The count would pass 2^53 − 1.
    Overflow,
    /// The ACL does not let a waiting user run the command of this name any more.
    NoCommandPermission(&'static str),
    /// The ACL does not let a waiting user access its key any more.
    NoKeyPermission,
    /// As many clients wait as `swlimit.max-waiting` allows.
    TooManyWaiting,
    /// The server refuses to open the key for writing now.
    NotOpened,
    /// The server refuses to create the key.
    NotCreated,
}

/// How many bytes of an unknown word an error quotes.
const QUOTED: usize = 64;

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Arity => to.write_str("ERR wrong number of arguments"),
            Error::WrongType => to.write_str("WRONGTYPE Operation against a key holding the wrong kind of value"),
            Error::NoSuchKey => to.write_str("ERR no such key"),
            Error::Limit => write!(to, "ERR limit must be an integer between 0 and {MAX_EXACT}"),
            Error::Duration(name) => write!(to, "ERR {name} must be a duration such as 60, 500ms, 5m, 1h or 7d"),
            Error::Uneven => to.write_str("ERR resolution must divide the window evenly"),
            Error::TooManySubintervals { subintervals, max } => {
                write!(
                    to,
                    "ERR window / resolution is {subintervals} subintervals, above swlimit.max-subintervals ({max})"
                )
            }
            Error::Units(name) => write!(to, "ERR {name} must be an integer between 1 and {MAX_EXACT}"),
            Error::Cold => to.write_str("ERR COLD must be an integer between 2 and 1000"),
            Error::Instant(name) => write!(to, "ERR {name} must be a Unix time in milliseconds"),
            // A client's bytes must not break the protocol's line.
            Error::Syntax(word) => {
                write!(to, "ERR syntax error near '{}'", word[..word.len().min(QUOTED)].escape_ascii())
            }
            Error::Count => write!(to, "ERR count must be an integer between 1 and {MOST_SHOWN}"),
            Error::NumKeys => to.write_str("ERR numkeys must be a positive integer that matches the keys given"),
            Error::KeyTwice => to.write_str("ERR key named twice"),
            Error::CrossSlot => to.write_str("CROSSSLOT Keys in request don't hash to the same slot"),
            Error::TryAgain => to.write_str("TRYAGAIN Multiple keys request during rehashing of slot"),
            Error::Id => write!(to, "ERR id must be 1 to {MAX_ID} bytes"),
            Error::OtherUnits(units) => write!(to, "ERR id holds {units} units"),
            Error::OtherReservations => to.write_str("ERR id holds other reservations"),
            Error::OtherKeys => to.write_str("ERR keys are not those of the reservation"),
            Error::Used => write!(to, "ERR used must be an integer between 0 and {MAX_EXACT}"),
            Error::TooManyHolds => to.write_str("ERR too many holds"),
            Error::NoToken => to.write_str("ERR the fencing token of this key is used up"),
            Error::Effect(fault) => write!(to, "ERR not an effect: {fault}"),
            Error::PeriodEnd => {
                to.write_str("ERR until must be a Unix time in milliseconds after now, at most 3650 days")
            }
            Error::SlotsUnknown => {
                to.write_str("ERR the server cannot check the keys' slot: EXISTS must not be renamed")
            }
            Error::Server(error) => to.write_str(error),
            Error::Overflow => to.write_str("ERR count would overflow"),
            Error::NoCommandPermission(name) => {
                write!(to, "NOPERM this user has no permissions to run the '{name}' command")
            }
            Error::NoKeyPermission => {
                to.write_str("NOPERM this user has no permissions to access one of the keys used as arguments")
            }
            Error::TooManyWaiting => to.write_str("ERR too many clients are waiting"),
            Error::NotOpened => to.write_str("TRYAGAIN the server refuses to open the key now"),
            Error::NotCreated => to.write_str("ERR the key cannot be created"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Overflow> for Error {
    fn from(_: Overflow) -> Self {
        Error::Overflow
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OtherUnits(units) => Error::OtherUnits(units),
            Refusal::TooMany => Error::TooManyHolds,
            Refusal::NoToken => Error::NoToken,
        }
    }
}
