//! The statistics of `INFO swlimit`. Counters start at 0 with the process.
//!
//! Relaxed atomics, because the server frees keys on a background thread too.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// One number of `INFO swlimit`.
pub struct Statistic(AtomicU64);

/// Commands that were granted.
pub static GRANTED: Statistic = Statistic::new();
/// Commands that were denied.
pub static DENIED: Statistic = Statistic::new();
/// `SWLIMIT.RECORD` commands that counted; on a replica, those that came from its primary.
pub static RECORDED: Statistic = Statistic::new();
/// `SWLIMIT.REFUND` commands that gave something back.
pub static REFUNDED: Statistic = Statistic::new();
/// Units that were granted.
pub static GRANTED_UNITS: Statistic = Statistic::new();
/// Units that were asked for and denied.
pub static DENIED_UNITS: Statistic = Statistic::new();
/// Blocks begun.
pub static BLOCKED: Statistic = Statistic::new();
/// Clients blocked by ACQUIRE now.
pub static WAITING: Statistic = Statistic::new();
/// Commands that were granted after waiting.
pub static ACQUIRED: Statistic = Statistic::new();
/// Keys of the type `sw-window`, in all databases.
pub static KEYS: Statistic = Statistic::new();
/// Keys of the type `sw-holder`, in all databases.
pub static HOLD_KEYS: Statistic = Statistic::new();
/// Keys of the type `sw-budget`, in all databases.
pub static BUDGET_KEYS: Statistic = Statistic::new();
/// Holds granted; on a replica, those that came from its primary.
pub static HELD: Statistic = Statistic::new();
/// Holds released.
pub static RELEASED: Statistic = Statistic::new();
/// Holds renewed.
pub static RENEWED: Statistic = Statistic::new();
/// Holds settled.
pub static SETTLED: Statistic = Statistic::new();
/// Holds that ended unreleased, counted on a primary when they are swept.
pub static HOLDS_EXPIRED: Statistic = Statistic::new();
/// Bytes the values of all keys take.
pub static MEMORY: Statistic = Statistic::new();

/// Where counts of units stop.
const MOST: u64 = i64::MAX as u64;

impl Statistic {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Increase it.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Increase it by units, which clients choose: it stops at the largest number that signed readers hold.
    fn add_units(&self, units: u64) {
        let units = units.min(MOST);
        if self.0.fetch_add(units, Ordering::Relaxed) > MOST - units {
            self.0.store(MOST, Ordering::Relaxed);
        }
    }

    /// Decrease it.
    pub fn subtract(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }
}

/// A value of so many bytes has come into being, counted among these keys.
pub fn value_created(keys: &Statistic, bytes: usize) {
    keys.add(1);
    MEMORY.add(bytes as u64);
}

/// A value has changed its size.
pub fn value_resized(before: usize, after: usize) {
    if before != after {
        MEMORY.add((after as u64).wrapping_sub(before as u64));
    }
}

/// A value of so many bytes is gone, counted among these keys.
pub fn value_freed(keys: &Statistic, bytes: usize) {
    keys.subtract(1);
    MEMORY.subtract(bytes as u64);
}

/// A command granted these units.
pub fn granted(units: u64) {
    GRANTED.add(1);
    GRANTED_UNITS.add_units(units);
}

/// A command was denied these units.
pub fn denied(units: u64) {
    DENIED.add(1);
    DENIED_UNITS.add_units(units);
}

/// The fields of `INFO swlimit`, in order; the server puts the module's name before each.
pub fn fields() -> [(&'static CStr, u64); 18] {
    [
        (c"granted", GRANTED.get()),
        (c"denied", DENIED.get()),
        (c"recorded", RECORDED.get()),
        (c"refunded", REFUNDED.get()),
        (c"blocked", BLOCKED.get()),
        (c"waiting", WAITING.get()),
        (c"acquired", ACQUIRED.get()),
        (c"granted_units", GRANTED_UNITS.get()),
        (c"denied_units", DENIED_UNITS.get()),
        (c"held", HELD.get()),
        (c"released", RELEASED.get()),
        (c"renewed", RENEWED.get()),
        (c"settled", SETTLED.get()),
        (c"holds_expired", HOLDS_EXPIRED.get()),
        (c"keys", KEYS.get()),
        (c"hold_keys", HOLD_KEYS.get()),
        (c"budget_keys", BUDGET_KEYS.get()),
        (c"memory", MEMORY.get()),
    ]
}
