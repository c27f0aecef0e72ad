//! A stored window as a request sees it at an instant, and the decision.
//!
//! A request brings its own geometry. Where the window is kept at another one, its units are seen as
//! [`Window::regrouped`] would move them, without moving them: only what counts changes what is stored. So a unit counts
//! until the shorter of both windows has passed it, and what is stored matters until its own end.

use std::ops::Range;

use crate::geometry::{Geometry, MAX_EXACT};
use crate::quota::{Overflow, Request};
use crate::window::Window;

/// A stored window as a request with this geometry sees it at `now`.
pub(crate) struct View<'a> {
    seen: Stored<'a>,
    geometry: Geometry,
    now: u64,
}

enum Stored<'a> {
    /// Nothing is counted, or nothing any more.
    Nothing,
    /// Kept at the request's own geometry.
    Own(&'a Window),
    /// Kept at another geometry.
    Other(&'a Window),
}

/// How much of a request fits.
#[derive(Clone, Copy)]
pub(crate) struct Evaluation {
    /// Requested units that fit.
    pub granted: u64,
    /// Units that fit.
    pub remaining: u64,
    /// Units that are held, none of them weighted.
    pub held: u64,
}

impl Evaluation {
    /// An error when granting would overflow the count.
    #[inline(always)]
    pub fn check(self) -> Result<Self, Overflow> {
        match self.granted > MAX_EXACT - self.held {
            true => Err(Overflow),
            false => Ok(self),
        }
    }
}

/// The units in a window at an instant.
struct Usage {
    /// The estimate, rounded up to whole units.
    estimate: u64,
    /// `full + trailing`.
    held: u64,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub fn new(stored: Option<&'a Window>, geometry: Geometry, now: u64) -> Self {
        let seen = match stored {
            Some(window) if window.end() <= now => Stored::Nothing,
            Some(window) if window.geometry == geometry => Stored::Own(window),
            Some(window) => Stored::Other(window),
            None => Stored::Nothing,
        };
        Self { seen, geometry, now }
    }

    /// The instant of the request.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The instant at which the decision is made: time never runs backwards for a key.
    #[inline(always)]
    pub fn decision_instant(&self) -> u64 {
        self.instant_at(self.now)
    }

    #[inline(always)]
    fn instant_at(&self, now: u64) -> u64 {
        match self.seen {
            Stored::Nothing => now,
            Stored::Own(window) => window.decision_instant(now),
            Stored::Other(window) => now.max(self.geometry.start_of(self.newest_moved(window, now))),
        }
    }

    /// How much of a request fits into a limit, by the window alone (a block may deny it still).
    #[inline(always)]
    pub fn evaluate(&self, request: &Request, limit: u64) -> Evaluation {
        let usage = self.usage(self.decision_instant(), request.strict);
        let remaining = limit.saturating_sub(usage.estimate);
        let granted = match request.cost {
            cost if cost <= remaining => cost,
            _ if request.partial => remaining,
            _ => 0,
        };
        Evaluation { granted, remaining, held: usage.held }
    }

    /// Units of a limit that are still available.
    #[inline(always)]
    pub fn remaining(&self, limit: u64, strict: bool) -> u64 {
        limit.saturating_sub(self.usage(self.decision_instant(), strict).estimate)
    }

    /// The oldest subinterval, of the request's geometry, in which something may still be counted.
    #[inline(always)]
    pub fn oldest(&self) -> u64 {
        let newest = match self.seen {
            Stored::Nothing => return 0,
            Stored::Own(window) => return window.oldest(),
            Stored::Other(window) => self.newest_moved(window, self.now),
        };
        newest.saturating_sub(self.geometry.subintervals())
    }

    /// Units that are held at an instant that is not older than [`Self::oldest`].
    pub fn held_at(&self, instant: u64) -> u64 {
        self.usage(self.instant_at(instant), true).held
    }

    /// The window that replaces the stored one before something is counted, if it has to.
    #[inline(always)]
    pub fn replacement(&self) -> Option<Window> {
        match self.seen {
            Stored::Own(_) => None,
            Stored::Nothing => Some(Window::new(self.geometry)),
            Stored::Other(window) => Some(window.regrouped(self.geometry, window.decision_instant(self.now))),
        }
    }

    /// ms until the estimate is 0, and stays 0 if nothing else is counted.
    #[inline(always)]
    pub fn reset_after(&self) -> u64 {
        let end = match self.seen {
            Stored::Nothing => 0,
            Stored::Own(window) => window.end(),
            // The newest units may be seen later, the later a request comes: at last where their subinterval ends.
            Stored::Other(window) => window.end().min(self.geometry.end_of(self.newest_moved(window, u64::MAX))),
        };
        end.saturating_sub(self.now)
    }

    /// ms until a cost that is denied now would be granted by a limit.
    pub fn retry_after(&self, limit: u64, cost: u64, strict: bool) -> Option<u64> {
        let headroom = limit.checked_sub(cost)?;
        match self.seen {
            Stored::Nothing => Some(0),
            Stored::Own(window) => Some(Self::fits_at(window, headroom, strict).saturating_sub(self.now)),
            Stored::Other(window) => {
                // Units only ever slide out, so that what fits once fits from then on, at the latest at the end.
                let fits = |now| self.usage(self.instant_at(now), strict).estimate <= headroom;
                Some(first(self.now..window.end(), fits) - self.now)
            }
        }
    }

    /// The instant from which on the estimate is at most `headroom`; 0 when it always was.
    ///
    /// `full + trailing` sinks only as subintervals slide out, oldest first. So the subinterval `i` that matters is the
    /// first through which enough units are counted that all younger ones fit into `headroom`. While it is trailing, its
    /// units weigh `(R − e) / R`: they fit as soon as `(R − e) · units ≤ (headroom − younger) · R`.
    fn fits_at(window: &Window, headroom: u64, strict: bool) -> u64 {
        let total = window.counts.total();
        let Some(last) = window.counts.reaching(total.saturating_sub(headroom)) else { return 0 };
        let early = match strict {
            true => 0,
            false => scale(headroom - (total - last.through), window.geometry.resolution(), last.units),
        };
        window.geometry.end_of(last.subinterval) - early
    }

    #[inline(always)]
    fn usage(&self, instant: u64, strict: bool) -> Usage {
        let current = self.geometry.subinterval_at(instant);
        let (full, trailing) = match self.seen {
            Stored::Nothing => (0, 0),
            Stored::Own(window) => {
                let (slid_out, trailing) = match current.checked_sub(self.geometry.subintervals()) {
                    Some(trailing) => {
                        let place = window.counts.through(trailing);
                        (place.through, place.units)
                    }
                    None => (0, 0),
                };
                (window.counts.total() - slid_out, trailing)
            }
            Stored::Other(window) => self.full_and_trailing(window, instant),
        };
        let weighted = match trailing {
            trailing if strict || trailing == 0 => trailing,
            trailing => scale_up(trailing, self.geometry.start_of(current + 1) - instant, self.geometry.resolution()),
        };
        Usage { estimate: full + weighted, held: full + trailing }
    }

    /// `full` and `trailing` of a window kept at another geometry.
    ///
    /// With `oldest` the first subinterval of the request's that counts, the units of a stored subinterval `i` are seen
    /// there or later when `(i + 1)·R − 1 ≥ oldest·R'`, that is from `⌊oldest·R' / R⌋` on.
    fn full_and_trailing(&self, window: &Window, instant: u64) -> (u64, u64) {
        if instant >= window.end() {
            return (0, 0);
        }
        let held_from = window.oldest_at(window.decision_instant(instant));
        let before = |oldest: u64| {
            window.counts.before(window.geometry.subinterval_at(self.geometry.start_of(oldest)).max(held_from))
        };
        let current = self.geometry.subinterval_at(instant);
        let subintervals = self.geometry.subintervals();
        let slid_out = before((current + 1).saturating_sub(subintervals));
        let trailing = current.checked_sub(subintervals).map_or(0, |trailing| slid_out - before(trailing));
        (window.counts.total() - slid_out, trailing)
    }

    /// The subinterval, of the request's geometry, of the newest units of a window kept at another one: that of the latest
    /// instant at which they may have been counted.
    fn newest_moved(&self, window: &Window, now: u64) -> u64 {
        let latest = window.newest() + window.geometry.resolution() - 1;
        self.geometry.subinterval_at(latest.min(window.decision_instant(now)))
    }
}

/// The first of a range for which `is_true` holds, which then holds for the rest; or the range's end.
pub(crate) fn first(range: Range<u64>, is_true: impl Fn(u64) -> bool) -> u64 {
    let Range { start: mut low, end: mut high } = range;
    while low < high {
        let middle = low + (high - low) / 2;
        if is_true(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// `⌊a·b / c⌋`, where that is at most 2^64 − 1.
pub(crate) fn scale(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => (u128::from(a) * u128::from(b) / u128::from(c)) as u64,
    }
}

/// `⌈a·b / c⌉`, where that is at most 2^64 − 1.
fn scale_up(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product.div_ceil(c),
        None => (u128::from(a) * u128::from(b)).div_ceil(u128::from(c)) as u64,
    }
}
