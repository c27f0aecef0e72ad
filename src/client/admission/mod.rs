//! Rates, budgets and a hold in one decision, and its settlement afterwards.

mod decide;
mod member;
mod settle;

use std::sync::Arc;

pub use self::member::Member;
use self::settle::Reserved;
use crate::decision::Decisions;
use crate::hold::Hold;
use crate::shared::Shared;
use crate::upstream::Moment;

/// One decision of several limits. It is granted only if each of them is.
///
/// Where one of them is a hold, it is held until this is settled or dropped, and the other units are reserved under
/// it. Dropped without being settled, the hold ends and the units stay counted as they were reserved.
#[must_use = "turn away what is denied, and settle what is granted"]
pub struct Admission {
    pub(super) decisions: Decisions,
    hold: Option<Hold>,
    reserved: Vec<Reserved>,
    /// When the decision was sent.
    sent: Moment,
    client: Arc<Shared>,
    by_server: bool,
    is_settled: bool,
}

/// Numbers of `tests/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] = &[("max_admitted", member::MOST as u64)];
