//! The units counted for one key.

use std::{iter, mem};

use crate::counts::{Count, Counts};
use crate::geometry::{Geometry, MAX_EXACT};

/// The counted units of one key.
///
/// Holds the subintervals from `newest − N` on that have a count; never more than [`MAX_EXACT`] units together.
#[derive(Clone, Debug)]
pub struct Window {
    pub(crate) geometry: Geometry,
    pub(crate) counts: Counts,
}

/// Counts that no window can hold, or bytes that are none; says which rule they break.
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
        let (Some(first), Some(last)) = (counts.clone().next(), counts.clone().next_back()) else {
            return Err(Invalid("no counts"));
        };
        let (oldest, newest) = (first.subinterval, last.subinterval);
        if newest > geometry.subinterval_at(MAX_EXACT) {
            return Err(Invalid("an instant out of range"));
        }
        let (mut len, mut total, mut next) = (0, 0, 0);
        for Count { subinterval, units } in counts.clone() {
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
    #[inline(always)]
    pub fn newest(&self) -> u64 {
        self.counts.newest().map_or(0, |newest| self.geometry.start_of(newest))
    }

    /// The first instant at which no count matters any more, in ms; 0 when nothing is counted.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.counts.newest().map_or(0, |newest| self.geometry.end_of(newest))
    }

    /// The counts held, oldest first.
    pub fn counts(&self) -> impl Iterator<Item = Count> + '_ {
        self.counts.iter_since(self.oldest())
    }

    /// How many subintervals hold a count.
    pub fn counts_held(&self) -> usize {
        self.counts.since(self.oldest()).0
    }

    /// Units held.
    pub fn total(&self) -> u64 {
        self.counts.since(self.oldest()).1
    }

    /// The instant at which a decision is made: time never runs backwards for a key.
    #[inline(always)]
    pub(crate) fn decision_instant(&self, now: u64) -> u64 {
        now.max(self.newest())
    }

    /// The oldest subinterval that is held.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> u64 {
        self.counts.newest().unwrap_or(0).saturating_sub(self.geometry.subintervals())
    }

    /// The oldest subinterval that still matters at `instant`, which is not before the newest count.
    pub(crate) fn oldest_at(&self, instant: u64) -> u64 {
        self.geometry.subinterval_at(instant).saturating_sub(self.geometry.subintervals())
    }

    /// A copy at another geometry of what matters at the decision instant `instant` in both.
    ///
    /// The units of an old subinterval `i` move to the new subinterval that contains `min((i + 1)·R − 1, instant)`: the
    /// latest instant they may have been counted at.
    pub(crate) fn regrouped(&self, geometry: Geometry, instant: u64) -> Self {
        let moved = |subinterval| geometry.subinterval_at((self.geometry.start_of(subinterval + 1) - 1).min(instant));
        let oldest = geometry.subinterval_at(instant).saturating_sub(geometry.subintervals());
        let oldest = self.oldest_at(instant).max(self.geometry.subinterval_at(geometry.start_of(oldest)));
        let mut counts = self
            .counts
            .iter_since(oldest)
            .map(|count| Count { subinterval: moved(count.subinterval), ..count })
            .peekable();
        let merged = iter::from_fn(|| {
            let mut count = counts.next()?;
            while let Some(more) = counts.next_if(|next| next.subinterval == count.subinterval) {
                count.units += more.units;
            }
            Some(count)
        });
        let (len, total) = self.counts.since(oldest);
        let newest = moved(self.counts.newest().unwrap_or(0));
        Self { geometry, counts: Counts::collect(merged, len, total, newest) }
    }

    /// Count units in the subinterval of an instant, and remove what no longer matters.
    ///
    /// The instant is not older than the oldest subinterval that is held; the units are such that they don't overflow.
    #[inline(always)]
    pub(crate) fn count(&mut self, instant: u64, units: u64) {
        let subinterval = self.geometry.subinterval_at(instant);
        let newest = self.counts.newest().map_or(subinterval, |newest| newest.max(subinterval));
        self.counts.add(subinterval, units, newest.saturating_sub(self.geometry.subintervals()));
    }

    /// How much of `units` can be given back at `now`; with an `age`, of those from `now − age` on.
    pub(crate) fn refundable(&self, units: u64, age: Option<u64>, now: u64) -> u64 {
        if self.end() <= now {
            return 0;
        }
        match age.map(|age| self.geometry.subinterval_at(now.saturating_sub(age))) {
            Some(from) if from < self.oldest_at(self.decision_instant(now)) => 0,
            from => units.min(self.counts.since(from.unwrap_or(0).max(self.oldest())).1),
        }
    }

    /// Give back units that [`Self::refundable`] says can be.
    pub(crate) fn refund(&mut self, units: u64, age: Option<u64>, now: u64) {
        match age {
            None => self.counts.take_newest(units, self.oldest()),
            Some(age) => {
                self.counts.take_since(self.geometry.subinterval_at(now.saturating_sub(age)), units, self.oldest())
            }
        };
    }

    /// Bytes this window takes, with what it has allocated.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        mem::size_of::<Self>() + self.counts.heap_bytes()
    }
}
