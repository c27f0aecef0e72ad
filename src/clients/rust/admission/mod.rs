//! Rates, budgets and holds in one decision, and its settlement afterwards.

mod decide;
mod member;
mod settle;

use std::sync::Arc;

#[cfg(test)]
pub(crate) use self::member::beside;
pub use self::member::Member;
use self::settle::Reserved;
use crate::decision::Decisions;
use crate::hold::Hold;
use crate::shared::Shared;
use crate::upstream::Moment;

/// One decision of several limits. It is granted only if each of them is.
///
/// Its [holds](Self::holds) last until this is settled, released or dropped, each of them unless it is lost. With holds,
/// the server reserves the other units under a key beside that of the first member, such as `{ann}:streams:reserved`: so
/// [`settle`](Self::settle) corrects them exactly once, also after the holds have ended. Dropped without being settled,
/// the holds end and the units stay counted as they were reserved.
#[must_use = "refuse what is denied, and settle what is granted"]
pub struct Admission {
    decisions: Decisions,
    granted: Granted,
    /// When the decision was sent.
    sent: Moment,
    client: Arc<Shared>,
    by_server: bool,
    is_settled: bool,
}

/// What was granted: nothing where the whole was denied.
#[derive(Default)]
struct Granted {
    holds: Vec<Hold>,
    /// Of each member.
    reserved: Vec<Reserved>,
    /// Under which the server remembers what the members have taken.
    reservation: Option<Hold>,
}

/// Numbers of `tests/conformance/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] = &[("max_admitted", member::MOST as u64)];
