//! Budgets as bytes, for RDB files and DUMP payloads: as unsigned LEB128 the layout, which is 1, the units used, when the
//! first of them was counted, and the end of the period (ms each).

use swlimit_window::leb128::{put, take};
use swlimit_window::Invalid;

use crate::budget::Budget;

/// The data type's encoding version, which the server stores beside every value.
pub const VERSION: i32 = 1;

const LAYOUT: u64 = 1;

/// A budget's bytes.
pub fn encode(budget: &Budget) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24);
    for number in [LAYOUT, budget.used(), budget.since(), budget.until()] {
        put(&mut bytes, number);
    }
    bytes
}

/// The budget of these bytes, which were stored with an encoding version. They are not trusted: an error says what is
/// wrong with them.
pub fn decode(version: i32, mut bytes: &[u8]) -> Result<Budget, Invalid> {
    if version != VERSION {
        return Err(Invalid("an encoding version that this module does not know"));
    }
    if take(&mut bytes)? != LAYOUT {
        return Err(Invalid("a layout that this module does not know"));
    }
    let (used, since, until) = (take(&mut bytes)?, take(&mut bytes)?, take(&mut bytes)?);
    match bytes {
        [] => Budget::new(used, since, until),
        _ => Err(Invalid("bytes left over")),
    }
}
