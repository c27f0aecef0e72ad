//! Quotas, requests and decisions.

use crate::geometry::Geometry;
use crate::warm_up::WarmUp;

/// `limit window resolution`: units admitted per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Units admitted per window: 0 … [`MAX_EXACT`](crate::MAX_EXACT).
    pub limit: u64,
    /// The window and its resolution.
    pub geometry: Geometry,
}

/// A part of some units, in millionths, rounded up to whole units.
pub fn part(units: u64, millionths: u32) -> u64 {
    let product = u128::from(units) * u128::from(millionths);
    u64::try_from(product.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A request for units of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The limit, and the window it holds for.
    pub quota: Quota,
    /// Units this request takes: 1 … [`MAX_EXACT`](crate::MAX_EXACT).
    pub cost: u64,
    /// Grant as much of the cost as fits.
    pub partial: bool,
    /// Count the trailing subinterval whole, so that no span of the window ever sees more than the limit.
    pub strict: bool,
    /// How the limit rises after idleness.
    pub warm_up: Option<WarmUp>,
}

impl Request {
    /// The units that fit together or not at all; 0 with `partial`.
    #[inline(always)]
    pub(crate) fn whole(&self) -> u64 {
        match self.partial {
            true => 0,
            false => self.cost,
        }
    }

    /// The fewest units that would be a grant.
    #[inline(always)]
    pub(crate) fn least(&self) -> u64 {
        self.whole().max(1)
    }
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Units granted; 0 = denied.
    pub granted: u64,
    /// The quota's limit; with a warm-up what is in force of it.
    pub limit: u64,
    /// Units still available.
    pub remaining: u64,
    /// ms until the cost (with `partial`: one unit) is granted if nothing else is counted; 0 when granted, `None` when
    /// it never can be.
    pub retry_after: Option<u64>,
    /// ms until nothing counts any more, and no block holds.
    pub reset_after: u64,
}

impl Decision {
    /// The same decision for a key that is blocked for so many ms more, if it is: denied, whatever the window says.
    #[inline(always)]
    pub fn blocked_for(self, ms: Option<u64>) -> Self {
        let Some(ms) = ms else { return self };
        Self {
            granted: 0,
            remaining: 0,
            retry_after: self.retry_after.map(|window| window.max(ms)),
            reset_after: self.reset_after.max(ms),
            ..self
        }
    }

    /// The same decision for a request that others wait before, the first of which is due in `ms`: denied even if it fits.
    pub fn behind(self, ms: u64) -> Self {
        Self { granted: 0, retry_after: self.retry_after.map(|own| own.max(ms)), ..self }
    }
}

/// Counting would hold more than [`MAX_EXACT`](crate::MAX_EXACT) units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;
