//! The commands and what replies say, typed. Below are words, which `transport` carries; above, nobody writes one.

mod command;
mod key_info;
mod permissions;
mod reply;
mod script_fallback;
#[cfg(test)]
mod vectors;

pub(crate) use command::{BudgetClause, Bytes, Clause, Command, Counted, HoldClause, PREFIX};
pub(crate) use key_info::{held_of, unix, wrong_type, NO_SUCH_KEY};
pub use key_info::{DeniedKey, KeyInfo};
pub(crate) use permissions::{Trial, BOTH, HELD, MODULE, SCRIPTED};
pub(crate) use reply::HoldReply;
pub(crate) use script_fallback::{Encoded, Encoding, TOO_OLD};

/// Numbers of `tests/conformance/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] =
    &[("script_tries", 1 + script_fallback::ROUNDS as u64), ("script_subintervals", script_fallback::MAX_SUBINTERVALS)];
