//! The sliding window: what is counted, and what may still be granted.
//!
//! Time is cut into subintervals of the resolution `R`, aligned to the Unix epoch; a window is `N` of them. At an
//! instant in subinterval `c`, `e` ms after its start, the estimate of the units in the window is
//!
//! ```text
//! full     = units of subintervals c−N+1 … c
//! trailing = units of subinterval c−N, the one that is sliding out
//! estimate = full + trailing · (R − e) / R        or, strictly, full + trailing
//! ```
//!
//! This is the sliding-window counter known from Cloudflare's two counters (N = 1), with any number of subintervals.
//! A cost `k` is granted while `estimate + k ≤ limit`. As limits and costs are whole units, that is the same as
//! `⌈estimate⌉ + k ≤ limit`, so everything here is integer arithmetic and exact.
//!
//! Everything is a function of the state and an instant: no clock, no I/O, no `unsafe`. Instants are Unix time in
//! milliseconds, at most [`MAX_EXACT`].

#![forbid(unsafe_code)]

mod codec;
mod counts;
mod geometry;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::{iter, mem};

use counts::{Count, Counts};

pub use codec::{decode, encode, VERSION};
pub use geometry::{Geometry, GeometryError, MAX_EXACT, MAX_SUBINTERVALS, MAX_WINDOW};

/// The counted units of one key.
///
/// Holds the subintervals from `newest − N` on that have a count; never more than [`MAX_EXACT`] units together.
#[derive(Clone, Debug)]
pub struct Window {
    geometry: Geometry,
    counts: Counts,
}

/// What is asked of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Units admitted per window: 0 … [`MAX_EXACT`].
    pub limit: u64,
    /// Units this request takes: 1 … [`MAX_EXACT`].
    pub cost: u64,
    /// Grant as much of the cost as fits.
    pub partial: bool,
    /// Count the trailing subinterval whole, so that no span of `W` ever sees more than the limit.
    pub strict: bool,
}

/// What a window answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Units granted; 0 = denied.
    pub granted: u64,
    /// The demand's limit.
    pub limit: u64,
    /// Units still available.
    pub remaining: u64,
    /// ms until the cost (with `partial`: one unit) is granted if nothing else is counted; 0 when granted, `None` when
    /// it never can be.
    pub retry_after: Option<u64>,
    /// ms until the estimate is 0 again.
    pub reset_after: u64,
}

/// A stored window as a command with a certain geometry sees it.
pub enum View<'a> {
    /// The stored window itself.
    Stored(&'a Window),
    /// Nothing is stored: a window in which nothing is counted yet.
    New(Window),
    /// A copy at another geometry, and what is stored.
    Regrouped(Window, &'a Window),
}

impl View<'_> {
    /// Decide a demand at `now`, without counting it. An error when granting it would overflow the count.
    #[inline(always)]
    pub fn decide(&self, now: u64, demand: &Demand) -> Result<Decision, Overflow> {
        let mut decision = Window::decide(self, now, demand)?;
        if let (View::Regrouped(window, stored), 0) = (self, decision.granted) {
            // A denial stores no change: until the newest subinterval of the stored window ends, each later command will
            // move its units to its own present, and only from there on they slide out.
            let decided = stored.decision_instant(now);
            let settled = stored.regrouped(window.geometry, decided, decided.max(stored.newest_end() - 1));
            decision.retry_after = settled.retry_after(now, demand);
        }
        Ok(decision)
    }

    /// What has to take the stored window's place before something is counted, if anything.
    pub fn into_replacement(self) -> Option<Window> {
        match self {
            View::Stored(_) => None,
            View::New(window) | View::Regrouped(window, _) => Some(window),
        }
    }
}

impl Deref for View<'_> {
    type Target = Window;

    fn deref(&self) -> &Window {
        match self {
            View::Stored(window) => window,
            View::New(window) | View::Regrouped(window, _) => window,
        }
    }
}

/// When a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instant {
    /// The server's clock, which may have been set back since the newest count: never before that.
    Clock(u64),
    /// What the caller says.
    At(u64),
}

impl Instant {
    /// Unix time in ms.
    pub fn ms(self) -> u64 {
        match self {
            Instant::Clock(ms) | Instant::At(ms) => ms,
        }
    }
}

/// Counting would hold more than [`MAX_EXACT`] units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// Counts that no window can hold; says which rule they break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

impl Window {
    /// A window in which nothing is counted.
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry, counts: Counts::new() }
    }

    /// A window with these counts, oldest first, if it is one that counting could have led to.
    pub fn with_counts(
        geometry: Geometry,
        counts: impl DoubleEndedIterator<Item = Count> + Clone,
    ) -> Result<Self, Invalid> {
        let (Some((oldest, _)), Some((newest, _))) = (counts.clone().next(), counts.clone().next_back()) else {
            return Err(Invalid("no counts"));
        };
        if newest > geometry.subinterval_at(MAX_EXACT) {
            return Err(Invalid("an instant out of range"));
        }
        let (mut len, mut total, mut next) = (0, 0, 0);
        for (subinterval, units) in counts.clone() {
            if subinterval < next {
                return Err(Invalid("subintervals out of order"));
            }
            if units == 0 || units > MAX_EXACT - total {
                return Err(Invalid("units out of range"));
            }
            next = subinterval.saturating_add(1);
            len += 1;
            total += units;
        }
        if newest - oldest > geometry.subintervals() {
            return Err(Invalid("counts older than the window"));
        }
        Ok(Self { geometry, counts: Counts::collect(counts, len, total, newest) })
    }

    /// The geometry the counts are kept at.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The start of the youngest subinterval that holds a count, in ms; 0 when nothing is counted.
    pub fn newest(&self) -> u64 {
        self.counts.newest().map_or(0, |newest| self.geometry.start_of(newest))
    }

    /// The end of that subinterval, in ms.
    fn newest_end(&self) -> u64 {
        self.newest() + self.geometry.resolution()
    }

    /// The counts held, oldest first: `(start of the subinterval in ms, units)`.
    pub fn counts(&self) -> impl Iterator<Item = Count> + '_ {
        self.held().map(|(subinterval, units)| (self.geometry.start_of(subinterval), units))
    }

    /// How many subintervals hold a count.
    pub fn counts_held(&self) -> usize {
        self.counts.since(self.oldest()).0
    }

    /// Units held.
    pub fn total(&self) -> u64 {
        self.counts.since(self.oldest()).1
    }

    /// Bytes this window takes, with what it has allocated.
    pub fn bytes(&self) -> usize {
        mem::size_of::<Self>() + self.counts.heap_bytes()
    }

    /// How many allocations there are to free.
    pub fn allocations(&self) -> usize {
        if self.counts.heap_bytes() == 0 {
            1
        } else {
            2
        }
    }

    /// Let somebody put what is allocated elsewhere in memory (defragmentation).
    pub fn relocate(&mut self, relocate: impl FnOnce(Box<[u64]>) -> Box<[u64]>) {
        self.counts.relocate(relocate);
    }

    /// The instant at which a decision is made: time never runs backwards for a key.
    pub fn decision_instant(&self, now: u64) -> u64 {
        now.max(self.newest())
    }

    /// The first instant at which no count matters any more, in ms; 0 when nothing is counted.
    pub fn end(&self) -> u64 {
        self.counts.newest().map_or(0, |newest| self.geometry.start_of(newest + self.geometry.subintervals() + 1))
    }

    /// The stored window as a command with this geometry sees it at `now`: itself, or a copy at the other geometry, or
    /// nothing counted.
    ///
    /// With another geometry, the units of an old subinterval `i` move to the new subinterval that contains
    /// `min((i + 1)·R − 1, decision instant)`: the latest instant they may have been counted at, so that no change
    /// frees quota early.
    #[inline(always)]
    pub fn seen_at(stored: Option<&Self>, geometry: Geometry, now: u64) -> View<'_> {
        match stored {
            None => View::New(Self::new(geometry)),
            Some(stored) if stored.geometry == geometry => View::Stored(stored),
            Some(stored) => {
                let decided = stored.decision_instant(now);
                View::Regrouped(stored.regrouped(geometry, decided, decided), stored)
            }
        }
    }

    /// A copy at another geometry with what matters at the instant `decided` and later, nothing being counted later than
    /// `latest`.
    fn regrouped(&self, geometry: Geometry, decided: u64, latest: u64) -> Self {
        let moved = |subinterval| geometry.subinterval_at((self.geometry.start_of(subinterval + 1) - 1).min(latest));
        let oldest = geometry.subinterval_at(decided).saturating_sub(geometry.subintervals());
        let oldest = self.oldest().max(self.geometry.subinterval_at(geometry.start_of(oldest)));
        let mut counts =
            self.counts.iter_since(oldest).map(|(subinterval, units)| (moved(subinterval), units)).peekable();
        let merged = iter::from_fn(|| {
            let (subinterval, mut units) = counts.next()?;
            while let Some((_, more)) = counts.next_if(|(next, _)| *next == subinterval) {
                units += more;
            }
            Some((subinterval, units))
        });
        let (len, total) = self.counts.since(oldest);
        let newest = moved(self.counts.newest().unwrap_or(0));
        Self { geometry, counts: Counts::collect(merged, len, total, newest) }
    }

    /// Decide a demand at `now`, without counting it. An error when granting it would overflow the count.
    #[inline(always)]
    pub fn decide(&self, now: u64, demand: &Demand) -> Result<Decision, Overflow> {
        let load = self.load(self.decision_instant(now), demand.strict);
        let remaining = demand.limit.saturating_sub(load.estimate);
        let granted = match demand.cost {
            cost if cost <= remaining => cost,
            _ if demand.partial => remaining,
            _ => 0,
        };
        if granted > MAX_EXACT - load.held {
            return Err(Overflow);
        }
        Ok(Decision {
            granted,
            limit: demand.limit,
            remaining,
            retry_after: if granted > 0 { Some(0) } else { self.retry_after(now, demand) },
            reset_after: self.reset_after(now),
        })
    }

    /// A decision to grant as it reads once the grant has been counted.
    pub fn after_grant(&self, now: u64, decision: Decision) -> Decision {
        Decision { remaining: decision.remaining - decision.granted, reset_after: self.reset_after(now), ..decision }
    }

    /// The instant at which units recorded at `now` count, whatever the limit says.
    ///
    /// What the caller dates before the newest count belongs to its own subinterval, as long as that one still matters;
    /// `None` when it doesn't. An error when counting would overflow.
    pub fn recording_instant(&self, now: Instant, cost: u64) -> Result<Option<u64>, Overflow> {
        let at = match now {
            Instant::Clock(ms) => self.decision_instant(ms),
            Instant::At(ms) => ms,
        };
        if self.geometry.subinterval_at(at) < self.oldest() {
            return Ok(None);
        }
        let held = self.load(self.decision_instant(at), true).held;
        if cost > MAX_EXACT - held {
            Err(Overflow)
        } else {
            Ok(Some(at))
        }
    }

    /// The decision on a demand that has been counted whatever the limit says, `before` being the one before counting.
    pub fn after_recording(&self, now: u64, demand: &Demand, before: Decision) -> Decision {
        let load = self.load(self.decision_instant(now), demand.strict);
        Decision {
            remaining: demand.limit.saturating_sub(load.estimate),
            retry_after: if before.granted > 0 { Some(0) } else { self.retry_after(now, demand) },
            reset_after: self.reset_after(now),
            ..before
        }
    }

    /// Count units in the subinterval of an instant, and let go of what no longer matters.
    ///
    /// The instant is a decision instant or one of [`Self::recording_instant`]: not older than the oldest subinterval
    /// that matters; the units are such that they don't overflow.
    #[inline(always)]
    pub fn count(&mut self, instant: u64, units: u64) {
        let subinterval = self.geometry.subinterval_at(instant);
        let newest = self.counts.newest().map_or(subinterval, |newest| newest.max(subinterval));
        self.counts.add(subinterval, units, newest.saturating_sub(self.geometry.subintervals()));
    }

    /// Give back up to `units` counted units, newest subinterval first; how many were given back.
    pub fn refund(&mut self, units: u64) -> u64 {
        self.counts.take_newest(units, self.oldest())
    }

    /// ms until the estimate is 0 again; 0 when nothing is counted.
    pub fn reset_after(&self, now: u64) -> u64 {
        self.end().saturating_sub(now)
    }

    /// ms until a demand that is denied at `now` would be granted.
    ///
    /// `full + trailing` sinks only as subintervals slide out, oldest first. So the subinterval `i` that matters is the
    /// first through which enough units are counted that all younger ones fit into `room = limit − cost`. While it is
    /// trailing, its units weigh `(R − e) / R`: they fit as soon as `(R − e) · units ≤ (room − younger) · R`.
    fn retry_after(&self, now: u64, demand: &Demand) -> Option<u64> {
        let room = demand.limit.checked_sub(if demand.partial { 1 } else { demand.cost })?;
        let total = self.counts.total();
        let Some((subinterval, through, units)) = self.counts.reaching(total.saturating_sub(room)) else {
            return Some(0);
        };
        let gone = self.geometry.start_of(subinterval + self.geometry.subintervals() + 1);
        let early = match demand.strict {
            true => 0,
            false => scale(room - (total - through), self.geometry.resolution(), units),
        };
        Some((gone - early).saturating_sub(now))
    }

    #[inline(always)]
    fn load(&self, instant: u64, strict: bool) -> Load {
        let resolution = self.geometry.resolution();
        let current = self.geometry.subinterval_at(instant);
        let (slid_out, trailing) = match current.checked_sub(self.geometry.subintervals()) {
            Some(trailing) => self.counts.through(trailing),
            None => (0, 0),
        };
        let full = self.counts.total() - slid_out;
        let weighted = match trailing {
            trailing if strict || trailing == 0 => trailing,
            trailing => scale_up(trailing, self.geometry.start_of(current + 1) - instant, resolution),
        };
        Load { estimate: full + weighted, held: full + trailing }
    }

    /// The oldest subinterval that still matters.
    fn oldest(&self) -> u64 {
        self.counts.newest().unwrap_or(0).saturating_sub(self.geometry.subintervals())
    }

    fn held(&self) -> impl Iterator<Item = Count> + '_ {
        self.counts.iter_since(self.oldest())
    }
}

/// The units in a window at an instant.
struct Load {
    /// The estimate, rounded up to whole units.
    estimate: u64,
    /// `full + trailing`.
    held: u64,
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
