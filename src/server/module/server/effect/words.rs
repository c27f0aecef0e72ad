//! Words that several effects have.

use crate::server::text::{FixedText, NumberText, OwnText};

/// The expiry in effects that the append-only file is rewritten with: none.
pub const NEVER: Option<u64> = Some(0);

pub(super) static ZERO: FixedText = FixedText::new(c"0");
pub(super) static FORCE: FixedText = FixedText::new(c"FORCE");
pub(super) static COST: FixedText = FixedText::new(c"COST");
pub(super) static AGE: FixedText = FixedText::new(c"AGE");
pub(super) static SINCE: FixedText = FixedText::new(c"SINCE");
pub(super) static AT: FixedText = FixedText::new(c"AT");
pub(super) static UNTIL: FixedText = FixedText::new(c"UNTIL");
pub(super) static UNITS: NumberText = NumberText::new();
pub(super) static INSTANT: NumberText = NumberText::new();
pub(super) static END: NumberText = NumberText::new();
pub(super) static SINCE_INSTANT: NumberText = NumberText::new();
pub(super) static EXPIRY: NumberText = NumberText::new();

/// A duration as commands take it.
pub fn milliseconds(ms: u64) -> OwnText {
    OwnText::new(format!("{ms}ms").as_bytes())
}
