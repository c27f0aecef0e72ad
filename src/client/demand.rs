//! A request upon a limiter: what it asks of the window, wherever that is.

use swlimit_window::Decision;

use crate::quota::Quota;

/// How soon to ask again somebody who denies without knowing, in ms.
const UNSEEN: u64 = 1000;

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
        let exact = swlimit_window::Request { quota: quota.exact(), cost: 1, partial: false, strict: false };
        Self { exact, block: None }
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
            && self.least() >= other.least()
            // Denied without asking, it would not begin the block that it is to begin.
            && (self.block.is_none() || self.block == other.block)
    }

    /// Whether no window would ever grant it, so that nobody has to be asked. Where it is to begin a block, it has to
    /// be.
    #[inline]
    pub fn never_fits(&self) -> bool {
        self.least() > self.exact.quota.limit && self.block.is_none()
    }

    /// The decision of one that never fits. How much remains for others is not known; it is at most this.
    pub fn never(&self) -> Decision {
        let limit = self.exact.quota.limit;
        Decision { granted: 0, limit, remaining: limit, retry_after: None, reset_after: 0 }
    }

    /// The decision of somebody who grants without knowing what was used.
    pub fn granted_unseen(&self) -> Decision {
        Decision { granted: self.exact.cost, retry_after: Some(0), ..self.never() }
    }

    /// The decision of somebody who denies without knowing what was used: it may be another one at any time.
    pub fn denied_unseen(&self) -> Decision {
        Decision { granted: 0, limit: self.exact.quota.limit, remaining: 0, retry_after: Some(UNSEEN), reset_after: 0 }
    }

    /// The same demand of so many units, or as many of them as there are.
    pub fn of_up_to(&self, units: u64) -> Self {
        Self { exact: swlimit_window::Request { cost: units, partial: true, ..self.exact }, ..*self }
    }
}
