//! What a request asks of a window, in this process or on the server.

use crate::decision::{Decision, Source};
use crate::quota::Quota;

/// How soon a request that a failure policy denied may try again, in ms.
const RETRY: u64 = 1000;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub exact: swlimit_window::Request,
    /// Begin a block of so many ms when it is denied.
    pub block: Option<u64>,
}

impl Demand {
    /// A unit of a quota.
    pub fn of(quota: &Quota) -> Self {
        let exact =
            swlimit_window::Request { quota: quota.exact(), cost: 1, partial: false, strict: false, warm_up: None };
        Self { exact, block: None }
    }

    /// A unit of a limit that grants nothing.
    pub fn nothing() -> Self {
        let geometry = swlimit_window::Geometry::new(1, 1).expect("1 ms is a window");
        let quota = swlimit_window::Quota { limit: 0, geometry };
        Self {
            exact: swlimit_window::Request { quota, cost: 1, partial: false, strict: false, warm_up: None },
            block: None,
        }
    }

    /// The fewest units that would be a grant.
    pub fn least(&self) -> u64 {
        if self.exact.partial {
            1
        } else {
            self.exact.cost
        }
    }

    /// Whether it is denied for as long as the other one is, which was: the same window, and no fewer units.
    #[inline]
    pub fn is_denied_with(&self, other: &Self) -> bool {
        self.exact.quota == other.exact.quota
            && self.exact.strict == other.exact.strict
            && self.exact.warm_up == other.exact.warm_up
            && self.least() >= other.least()
            // Denied without asking, it would not begin the block that it is to begin.
            && (self.block.is_none() || self.block == other.block)
    }

    /// The limit in force of a key that is not in use.
    pub fn cold_limit(&self) -> u64 {
        let limit = self.exact.quota.limit;
        self.exact.warm_up.map_or(limit, |warm_up| (limit / warm_up.cold()).max(1).min(limit))
    }

    /// Whether no window would ever grant it, so that nobody has to be asked. Where it is to begin a block, it has to
    /// be.
    #[inline]
    pub fn never_fits(&self) -> bool {
        self.least() > self.exact.quota.limit && self.block.is_none()
    }

    /// The decision of one that never fits. How much remains for others is not known.
    pub fn never(&self) -> Decision {
        Source::Cache.unknown(0, self.exact.quota.limit, None)
    }

    /// The decision of a failure policy that grants, whatever was used.
    pub fn allowed(&self) -> Decision {
        Source::Failure.unknown(self.exact.cost, self.exact.quota.limit, Some(0))
    }

    /// The decision of a failure policy that denies, whatever was used: it may be another one at any time.
    pub fn denied(&self) -> Decision {
        Source::Failure.unknown(0, self.exact.quota.limit, Some(RETRY))
    }

    /// The decision of a member of several, of which another one is known to be denied: nobody asked about this one.
    pub fn not_asked(&self) -> Decision {
        Source::Cache.unknown(self.exact.cost, self.exact.quota.limit, Some(0))
    }

    /// The same demand of so many units, or as many of them as there are.
    pub fn of_up_to(&self, units: u64) -> Self {
        Self { exact: swlimit_window::Request { cost: units, partial: true, ..self.exact }, ..*self }
    }
}
