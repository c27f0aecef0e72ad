//! Limits that rise after idleness.
//!
//! A key is in use from the instant at which a unit is counted while nothing counts. The instant is remembered where the
//! command that counts asks for a warm-up: the limit then rises from there, until nothing has counted for a window. A key in
//! use of which it is not known has the whole limit, so that nobody is starved by callers who ask for no warm-up.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use crate::entry::Entry;
use crate::geometry::MAX_WINDOW;
use crate::quota::{Decision, Quota, Request};
use crate::view::{first, scale, View};

/// How a limit rises once a key is in use: from one part of `cold` to the whole, linearly within `duration`.
///
/// One word, since every request has room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A request for a limit that rises, and what a key holds.
pub(crate) struct Warming<'a> {
    entry: Option<&'a Entry>,
    /// For the whole limit.
    request: &'a Request,
    warm_up: WarmUp,
}

impl<'a> Warming<'a> {
    pub fn new(entry: Option<&'a Entry>, request: &'a Request, warm_up: WarmUp) -> Self {
        Self { entry, request, warm_up }
    }

    pub fn entry(&self) -> Option<&'a Entry> {
        self.entry
    }

    /// The whole limit.
    pub fn limit(&self) -> u64 {
        self.request.quota.limit
    }

    /// The request for what is in force of the limit at `now`.
    pub fn request_at(&self, now: u64) -> Request {
        let limit = self.in_force(&self.view(now), now);
        Request { quota: Quota { limit, ..self.request.quota }, ..*self.request }
    }

    /// The instant that is remembered where units are counted at `instant`, decided at `now`; 0 for a key in use.
    pub fn since(&self, now: u64, instant: u64) -> u64 {
        match self.view(now).reset_after() {
            0 if self.in_use_since(now).is_none() => instant.max(1),
            _ => 0,
        }
    }

    /// A decision at `now` by what is in force of the limit, with the `retry_after` of a limit that goes on rising.
    pub fn completed(&self, now: u64, decision: Decision) -> Decision {
        if decision.granted > 0 {
            return decision;
        }
        let blocked = self.entry.and_then(|entry| entry.blocked_for(now)).unwrap_or(0);
        Decision { retry_after: self.retry_after(now).map(|ms| ms.max(blocked)), ..decision }
    }

    fn view(&self, now: u64) -> View<'a> {
        View::new(self.entry.and_then(Entry::window), self.request.quota.geometry, now)
    }

    fn in_use_since(&self, now: u64) -> Option<u64> {
        self.entry.and_then(|entry| entry.in_use_since(now))
    }

    /// What is in force of the limit at `now`. Where nothing counts it is at least the request's cost, or a cost above the
    /// cold limit would never be granted: a denial begins no use.
    fn in_force(&self, view: &View, now: u64) -> u64 {
        let Request { quota: Quota { limit, .. }, cost, partial, .. } = *self.request;
        let counts_nothing = view.reset_after() == 0;
        let risen = match self.in_use_since(now) {
            Some(since) => self.warm_up.in_force(limit, view.decision_instant().saturating_sub(since)),
            None if counts_nothing => self.warm_up.in_force(limit, 0),
            None => limit,
        };
        match counts_nothing && !partial && cost <= limit {
            true => risen.max(cost),
            false => risen,
        }
    }

    /// ms until the request would be granted if nothing else is counted. The estimate only sinks, the limit only rises, and
    /// where nothing counts every cost up to it fits; so what fits once fits from then on.
    fn retry_after(&self, now: u64) -> Option<u64> {
        let least = self.request.least();
        if least > self.request.quota.limit {
            return None;
        }
        let fits = |now| {
            let view = self.view(now);
            view.remaining(self.in_force(&view, now), self.request.strict) >= least
        };
        let end = self.view(now).reset_after();
        Some(first(now..now + end, fits) - now)
    }
}
