//! Limits that rise after idleness.
//!
//! A key is in use from the instant at which a unit is counted while nothing counts. The instant is remembered where the
//! command that counts asks for a warm-up: the limit then rises from there, until nothing has counted for a window. A key in
//! use of which it is not known has the whole limit, so that nobody is starved by callers who ask for no warm-up.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use crate::entry::Entry;
use crate::geometry::{Geometry, MAX_WINDOW};
use crate::quota::Quota;
use crate::view::{first, scale, View};

/// How a limit rises once a key is in use: from one part of `cold` to the whole, linearly within `duration`.
///
/// One word, since every request has room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarmUp(NonZeroU64);

impl WarmUp {
    /// The parts of a limit of which a cold key has one, unless something else is asked for.
    pub const COLD: u64 = 3;
    /// The fewest and the most of them.
    pub const COLD_RANGE: RangeInclusive<u64> = 2..=1000;

    const COLD_BITS: u32 = 10;

    /// A duration in ms, 1 … [`MAX_WINDOW`], and the parts of the limit of which a cold key has one, in
    /// [`COLD_RANGE`](Self::COLD_RANGE). `None` out of range.
    pub const fn new(duration: u64, cold: u64) -> Option<Self> {
        match duration {
            1..=MAX_WINDOW if *Self::COLD_RANGE.start() <= cold && cold <= *Self::COLD_RANGE.end() => {
                match NonZeroU64::new(duration << Self::COLD_BITS | cold) {
                    Some(packed) => Some(Self(packed)),
                    None => None,
                }
            }
            _ => None,
        }
    }

    /// How long the limit rises, in ms.
    pub const fn duration(self) -> u64 {
        self.0.get() >> Self::COLD_BITS
    }

    /// The parts of the limit of which a cold key has one.
    pub const fn cold(self) -> u64 {
        self.0.get() & ((1 << Self::COLD_BITS) - 1)
    }

    /// What is in force at `now` of a quota's limit. Where nothing counts it is at least `whole`, the request's units that fit
    /// together or not at all, or a cost above the cold limit would never be granted: a denial begins no use.
    ///
    /// What only a limit that rises needs is never inlined, and gets no request: the other decisions keep theirs in registers.
    #[cold]
    #[inline(never)]
    pub(crate) fn limit_at(self, entry: Option<&Entry>, now: u64, quota: Quota, whole: u64) -> u64 {
        let view = View::new(entry.and_then(Entry::window), quota.geometry, now);
        let (limit, counts_nothing) = (quota.limit, view.reset_after() == 0);
        let in_force = match entry.and_then(|entry| entry.in_use_since(now)) {
            Some(since) => self.in_force(limit, view.decision_instant().saturating_sub(since)),
            None if counts_nothing => self.in_force(limit, 0),
            None => limit,
        };
        match counts_nothing && whole <= limit {
            true => in_force.max(whole),
            false => in_force,
        }
    }

    /// ms until a request would be granted if nothing else is counted. The estimate only sinks, the limit only rises, and
    /// where nothing counts every cost up to it fits; so what fits once fits from then on.
    #[cold]
    #[inline(never)]
    pub(crate) fn retry_after(
        self,
        entry: Option<&Entry>,
        now: u64,
        quota: Quota,
        whole: u64,
        strict: bool,
    ) -> Option<u64> {
        let (least, limit) = (whole.max(1), quota.limit);
        let view = |now| View::new(entry.and_then(Entry::window), quota.geometry, now);
        let fits = |view: &View, limit| view.remaining(limit, strict) >= least;
        let seen = view(now);
        let within_limit = if fits(&seen, limit) { 0 } else { seen.retry_after(limit, least, strict)? };
        let Some(since) = entry.and_then(|entry| entry.in_use_since(now)) else { return Some(within_limit) };
        let risen = |view: &View| self.in_force(limit, view.decision_instant().saturating_sub(since));
        // What is in force now is the least that ever will be, while anything counts.
        let within_risen = seen.retry_after(risen(&seen), least, strict).unwrap_or(seen.reset_after());
        let fits_at = |now| {
            let view = view(now);
            fits(&view, risen(&view))
        };
        Some(first(now + within_limit..now + within_risen, fits_at) - now)
    }

    /// Since when a key is in use, if it comes into use with units that are counted at `instant`, decided at `now`.
    #[cold]
    #[inline(never)]
    pub(crate) fn since(entry: Option<&Entry>, now: u64, geometry: Geometry, instant: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(instant.max(1)).filter(|_| Entry::comes_into_use(entry, geometry, now))
    }

    /// What is in force of a limit `L` when the key has been in use for `t` ms: `⌊L·(p + (n − 1)·t) / (n·p)⌋` with the
    /// duration `p` and `n` parts, at least 1, and `L` from `p` on.
    fn in_force(self, limit: u64, used_for: u64) -> u64 {
        let (duration, cold) = (self.duration(), self.cold());
        if used_for >= duration {
            return limit;
        }
        scale(limit, duration + (cold - 1) * used_for, cold * duration).max(1).min(limit)
    }
}
