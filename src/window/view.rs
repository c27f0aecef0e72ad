//! A stored window as a request sees it at an instant, and what it decides.
//!
//! A request brings its own geometry. Where the window is kept at another one, its units are seen as
//! [`Window::regrouped`] would move them, without moving them: only what counts changes what is stored. So a unit counts
//! until the shorter of both windows has passed it, and what is stored matters until its own end.

use std::ops::Range;

use crate::geometry::{Geometry, MAX_EXACT};
use crate::quota::{Decision, Demand, Overflow};
use crate::window::Window;

/// A stored window as a request with this geometry sees it at `now`.
pub(crate) struct View<'a> {
    seen: Seen<'a>,
    geometry: Geometry,
    now: u64,
}

enum Seen<'a> {
    /// Nothing is counted, or nothing any more.
    Nothing,
    /// Kept at the request's own geometry.
    Own(&'a Window),
    /// Kept at another geometry.
    Other(&'a Window),
}

/// What a demand comes to.
#[derive(Clone, Copy)]
pub(crate) struct Weighed {
    /// Units that fit and are asked for.
    pub granted: u64,
    /// Units that fit.
    pub remaining: u64,
    /// Units that are held, none of them weighted.
    pub held: u64,
}

impl Weighed {
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
struct Load {
    /// The estimate, rounded up to whole units.
    estimate: u64,
    /// `full + trailing`.
    held: u64,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub fn new(stored: Option<&'a Window>, geometry: Geometry, now: u64) -> Self {
        let seen = match stored {
            Some(window) if window.geometry == geometry => Seen::Own(window),
            Some(window) if window.end() > now => Seen::Other(window),
            _ => Seen::Nothing,
        };
        Self { seen, geometry, now }
    }

    /// The instant at which the decision is made: time never runs backwards for a key.
    #[inline(always)]
    pub fn decision_instant(&self) -> u64 {
        self.instant_at(self.now)
    }

    #[inline(always)]
    fn instant_at(&self, now: u64) -> u64 {
        match self.seen {
            Seen::Nothing => now,
            Seen::Own(window) => window.decision_instant(now),
            Seen::Other(window) => now.max(self.geometry.start_of(self.newest_moved(window, now))),
        }
    }

    /// What the window, and nothing else, has to say to a demand.
    #[inline(always)]
    pub fn weigh(&self, demand: &Demand) -> Weighed {
        let load = self.load(self.decision_instant(), demand.strict);
        let remaining = demand.quota.limit.saturating_sub(load.estimate);
        let granted = match demand.cost {
            cost if cost <= remaining => cost,
            _ if demand.partial => remaining,
            _ => 0,
        };
        Weighed { granted, remaining, held: load.held }
    }

    /// The whole decision that follows.
    #[inline(always)]
    pub fn decision(&self, demand: &Demand, Weighed { granted, remaining, .. }: Weighed) -> Decision {
        let retry_after = if granted > 0 { Some(0) } else { self.retry_after(demand) };
        Decision { granted, limit: demand.quota.limit, remaining, retry_after, reset_after: self.reset_after() }
    }

    /// Units that are still available.
    #[inline(always)]
    pub fn remaining(&self, demand: &Demand) -> u64 {
        demand.quota.limit.saturating_sub(self.load(self.decision_instant(), demand.strict).estimate)
    }

    /// The oldest subinterval, of the request's geometry, in which something may still be counted.
    #[inline(always)]
    pub fn oldest(&self) -> u64 {
        let newest = match self.seen {
            Seen::Nothing => return 0,
            Seen::Own(window) => return window.oldest(),
            Seen::Other(window) => self.newest_moved(window, self.now),
        };
        newest.saturating_sub(self.geometry.subintervals())
    }

    /// Units that are held at an instant that is not older than [`Self::oldest`].
    pub fn held_at(&self, instant: u64) -> u64 {
        self.load(self.instant_at(instant), true).held
    }

    /// What takes the stored window's place before something is counted, if anything.
    #[inline(always)]
    pub fn replacement(&self) -> Option<Window> {
        match self.seen {
            Seen::Own(_) => None,
            Seen::Nothing => Some(Window::new(self.geometry)),
            Seen::Other(window) => Some(window.regrouped(self.geometry, window.decision_instant(self.now))),
        }
    }

    /// ms until nothing that is counted now matters any more.
    #[inline(always)]
    pub fn reset_after(&self) -> u64 {
        let end = match self.seen {
            Seen::Nothing => 0,
            Seen::Own(window) => window.end(),
            Seen::Other(window) => window.end().min(self.geometry.end_of(self.newest_moved(window, self.now))),
        };
        end.saturating_sub(self.now)
    }

    /// ms until a demand that is denied now would be granted.
    pub fn retry_after(&self, demand: &Demand) -> Option<u64> {
        let room = demand.quota.limit.checked_sub(demand.least())?;
        match self.seen {
            Seen::Nothing => Some(0),
            Seen::Own(window) => Some(Self::fits_at(window, room, demand.strict).saturating_sub(self.now)),
            Seen::Other(window) => {
                // Units only ever slide out, so that what fits once fits from then on, at the latest at the end.
                let fits = |now| self.load(self.instant_at(now), demand.strict).estimate <= room;
                Some(first(self.now..window.end(), fits) - self.now)
            }
        }
    }

    /// The instant from which on the estimate is at most `room`; 0 when it always was.
    ///
    /// `full + trailing` sinks only as subintervals slide out, oldest first. So the subinterval `i` that matters is the
    /// first through which enough units are counted that all younger ones fit into `room`. While it is trailing, its
    /// units weigh `(R − e) / R`: they fit as soon as `(R − e) · units ≤ (room − younger) · R`.
    fn fits_at(window: &Window, room: u64, strict: bool) -> u64 {
        let total = window.counts.total();
        let Some(last) = window.counts.reaching(total.saturating_sub(room)) else { return 0 };
        let early = match strict {
            true => 0,
            false => scale(room - (total - last.through), window.geometry.resolution(), last.units),
        };
        window.geometry.end_of(last.subinterval) - early
    }

    #[inline(always)]
    fn load(&self, instant: u64, strict: bool) -> Load {
        let current = self.geometry.subinterval_at(instant);
        let (full, trailing) = match self.seen {
            Seen::Nothing => (0, 0),
            Seen::Own(window) => {
                let (slid_out, trailing) = match current.checked_sub(self.geometry.subintervals()) {
                    Some(trailing) => {
                        let place = window.counts.through(trailing);
                        (place.through, place.units)
                    }
                    None => (0, 0),
                };
                (window.counts.total() - slid_out, trailing)
            }
            Seen::Other(window) => self.full_and_trailing(window, instant),
        };
        let weighted = match trailing {
            trailing if strict || trailing == 0 => trailing,
            trailing => scale_up(trailing, self.geometry.start_of(current + 1) - instant, self.geometry.resolution()),
        };
        Load { estimate: full + weighted, held: full + trailing }
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

/// The first of these for which something is true that stays true, or their end.
fn first(range: Range<u64>, is_true: impl Fn(u64) -> bool) -> u64 {
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
fn scale(a: u64, b: u64, c: u64) -> u64 {
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
