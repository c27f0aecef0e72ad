//! The value of one key: counts, a block, or both.
//!
//! Deciding changes nothing. It returns a [`Grant`] or a [`Record`] of the units to count, to be applied once to the same
//! entry.

use std::mem;

use crate::geometry::{Geometry, MAX_EXACT, MAX_WINDOW};
use crate::quota::{Decision, Overflow, Request};
use crate::view::View;
use crate::window::{Invalid, Window};

/// The value of a key. It takes half a cache line; a block is allocated separately, because most keys have none.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Counts only.
    Open(Window),
    /// A block, perhaps one that has passed, and perhaps counts.
    Blocked(Box<Blocked>),
}

/// A block, and what is counted beside it.
#[derive(Clone, Debug)]
pub struct Blocked {
    until: u64,
    window: Option<Window>,
}

/// The decision on a request, before it is counted.
#[derive(Debug)]
pub enum Verdict {
    /// It fits: count it.
    Granted(Grant),
    /// It does not fit, or the key is blocked.
    Denied(Decision),
}

/// Granted units that have to be counted.
#[derive(Debug)]
#[must_use = "a grant has to be counted"]
pub struct Grant {
    counting: Counting,
    limit: u64,
    remaining: u64,
}

/// Recorded units that have to be counted, whatever the limit.
#[derive(Debug)]
#[must_use = "a record has to be counted"]
pub struct Record {
    counting: Counting,
    request: Request,
    fits: bool,
}

/// The outcome of recording units.
#[derive(Debug)]
pub enum Recording {
    /// They count.
    Counted(Record),
    /// They are too old to matter any more; the decision without them.
    Dropped(Decision),
}

/// Units and where they are counted.
#[derive(Debug)]
struct Counting {
    geometry: Geometry,
    now: u64,
    instant: u64,
    units: u64,
}

impl Default for Entry {
    /// Nothing counted, and no block.
    fn default() -> Self {
        Entry::Open(Window::new(Geometry::SHORTEST))
    }
}

impl From<Window> for Entry {
    fn from(window: Window) -> Self {
        Entry::Open(window)
    }
}

impl Entry {
    /// An entry that is blocked until an instant, which is not 0, with what is counted beside it.
    pub(crate) fn blocked(until: u64, window: Option<Window>) -> Result<Self, Invalid> {
        match until {
            1..=MAX_BLOCK => Ok(Entry::Blocked(Box::new(Blocked { until, window }))),
            _ => Err(Invalid("a block out of range")),
        }
    }

    /// The counts, if there ever were any.
    #[inline(always)]
    pub fn window(&self) -> Option<&Window> {
        match self {
            Entry::Open(window) => Some(window),
            Entry::Blocked(blocked) => blocked.window.as_ref(),
        }
    }

    /// The instant of the block, in ms, which may have passed; 0 without one.
    #[inline(always)]
    pub fn blocked_until(&self) -> u64 {
        match self {
            Entry::Open(_) => 0,
            Entry::Blocked(blocked) => blocked.until,
        }
    }

    /// How many ms the block holds from `now` on; `None` when there is none, or it has passed.
    #[inline(always)]
    pub fn blocked_for(&self, now: u64) -> Option<u64> {
        match self {
            Entry::Open(_) => None,
            Entry::Blocked(blocked) => blocked.until.checked_sub(now).filter(|ms| *ms > 0),
        }
    }

    /// The first instant at which nothing here matters any more, in ms; 0 when there is nothing.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        match self {
            Entry::Open(window) => window.end(),
            Entry::Blocked(blocked) => blocked.until.max(blocked.window.as_ref().map_or(0, Window::end)),
        }
    }

    /// Whether counting with a geometry at `now` replaces the window, because it has another geometry or has ended.
    pub fn replaces_window(&self, geometry: Geometry, now: u64) -> bool {
        self.window().is_some_and(|window| window.geometry() != geometry || window.end() <= now)
    }

    /// Decide a request at `now` on what a key holds, if anything. An error when granting would overflow the count.
    #[inline(always)]
    pub fn decide(entry: Option<&Self>, now: u64, request: &Request) -> Result<Verdict, Overflow> {
        let view = Self::seen(entry, now, request);
        let evaluation = view.evaluate(request);
        let blocked = entry.and_then(|entry| entry.blocked_for(now));
        if evaluation.granted == 0 || blocked.is_some() {
            return Ok(Verdict::Denied(view.decision(request, evaluation).blocked_for(blocked)));
        }
        evaluation.check()?;
        let (instant, units) = (view.decision_instant(), evaluation.granted);
        let counting = Counting { geometry: request.quota.geometry, now, instant, units };
        Ok(Verdict::Granted(Grant { counting, limit: request.quota.limit, remaining: evaluation.remaining }))
    }

    /// The same decision as it reads while nothing is counted.
    #[inline(always)]
    pub fn peek(entry: Option<&Self>, now: u64, request: &Request) -> Result<Decision, Overflow> {
        let view = Self::seen(entry, now, request);
        let evaluation = view.evaluate(request);
        match entry.and_then(|entry| entry.blocked_for(now)) {
            None => Ok(view.decision(request, evaluation.check()?)),
            blocked => Ok(view.decision(request, evaluation).blocked_for(blocked)),
        }
    }

    /// Decide a request at `now` that is counted whatever the limit says: at `dated`, an instant that the caller gives, in
    /// the subinterval of its own, as long as that one still matters; else at the decision instant. An error when
    /// counting would overflow.
    #[inline(always)]
    pub fn record(
        entry: Option<&Self>,
        now: u64,
        dated: Option<u64>,
        request: &Request,
    ) -> Result<Recording, Overflow> {
        let geometry = request.quota.geometry;
        let view = Self::seen(entry, now, request);
        let evaluation = view.evaluate(request);
        let (instant, held) = match dated {
            None => (view.decision_instant(), evaluation.held),
            Some(instant) => {
                let subinterval = geometry.subinterval_at(instant);
                if subinterval < view.oldest() || geometry.end_of(subinterval) <= now {
                    return Self::peek(entry, now, request).map(Recording::Dropped);
                }
                (instant, view.held_at(instant))
            }
        };
        if request.cost > MAX_EXACT - held {
            return Err(Overflow);
        }
        let counting = Counting { geometry, now, instant, units: request.cost };
        Ok(Recording::Counted(Record { counting, request: *request, fits: evaluation.granted > 0 }))
    }

    /// Count units as they were counted elsewhere: at `now`, in the subinterval of `dated`. Whether they still matter.
    #[inline(always)]
    pub fn count(&mut self, geometry: Geometry, now: u64, dated: u64, units: u64) -> Result<bool, Overflow> {
        let view = View::new(self.window(), geometry, now);
        if geometry.subinterval_at(dated) < view.oldest() {
            return Ok(false);
        }
        // Running totals also have what is no longer held.
        let total = self.window().map_or(0, |window| window.counts.total());
        if units > MAX_EXACT.saturating_sub(total) && units > MAX_EXACT - view.held_at(dated) {
            return Err(Overflow);
        }
        Counting { geometry, now, instant: dated, units }.apply(self);
        Ok(true)
    }

    #[inline(always)]
    fn seen<'a>(entry: Option<&'a Self>, now: u64, request: &Request) -> View<'a> {
        View::new(entry.and_then(Self::window), request.quota.geometry, now)
    }

    /// How much of `units` can be given back at `now`.
    pub fn refundable(&self, units: u64, age: Option<u64>, now: u64) -> u64 {
        self.window().map_or(0, |window| window.refundable(units, age, now))
    }

    /// Give back up to `units` counted units at `now`; how many were given back.
    ///
    /// Newest subinterval first. With an `age` in ms, from the subinterval on that contains `now − age`, towards younger
    /// ones: an age that is not understated then leaves no unit older than it truly is.
    pub fn refund(&mut self, units: u64, age: Option<u64>, now: u64) -> u64 {
        let given = self.refundable(units, age, now);
        if let Some(window) = self.window_mut().filter(|_| given > 0) {
            window.refund(given, age, now);
        }
        if let Entry::Blocked(blocked) = self {
            blocked.window.take_if(|window| window.end() == 0);
        }
        given
    }

    /// Block until an instant, in ms, whatever the block was before.
    pub fn block(&mut self, until: u64) {
        match self {
            Entry::Open(_) => {
                if let Entry::Open(window) = mem::take(self) {
                    let window = Some(window).filter(|window| window.end() > 0);
                    *self = Entry::Blocked(Box::new(Blocked { until, window }));
                }
            }
            Entry::Blocked(blocked) => blocked.until = until,
        }
    }

    /// Lift the block, if there is one.
    pub fn unblock(&mut self) {
        if let Entry::Blocked(blocked) = self {
            *self = blocked.window.take().map_or_else(Self::default, Entry::Open);
        }
    }

    /// Bytes this takes, with what it has allocated.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        let own = mem::size_of::<Self>();
        match self {
            Entry::Open(window) => window.bytes() - mem::size_of::<Window>() + own,
            Entry::Blocked(blocked) => {
                let heap = blocked.window.as_ref().map_or(0, |window| window.bytes() - mem::size_of::<Window>());
                own + mem::size_of::<Blocked>() + heap
            }
        }
    }

    /// How many allocations there are to free, with this one.
    pub fn allocations(&self) -> usize {
        let lists = self.window().is_some_and(|window| window.counts.heap_bytes() > 0);
        1 + usize::from(matches!(self, Entry::Blocked(_))) + usize::from(lists)
    }

    /// Move the allocations (defragmentation).
    pub fn relocate(
        &mut self,
        block: impl FnOnce(Box<Blocked>) -> Box<Blocked>,
        counts: impl FnOnce(Box<[u64]>) -> Box<[u64]>,
    ) {
        if let Entry::Blocked(_) = self {
            if let Entry::Blocked(blocked) = mem::take(self) {
                *self = Entry::Blocked(block(blocked));
            }
        }
        if let Some(window) = self.window_mut() {
            window.counts.relocate(counts);
        }
    }

    fn window_mut(&mut self) -> Option<&mut Window> {
        match self {
            Entry::Open(window) => Some(window),
            Entry::Blocked(blocked) => blocked.window.as_mut(),
        }
    }
}

impl Grant {
    /// Units granted, at least one.
    pub fn units(&self) -> u64 {
        self.counting.units
    }

    /// The window they count in.
    pub fn geometry(&self) -> Geometry {
        self.counting.geometry
    }

    /// The instant at which they count: the decision instant, in ms.
    pub fn instant(&self) -> u64 {
        self.counting.instant
    }

    /// Count them; the decision as it reads once they are.
    #[inline(always)]
    pub fn apply(self, entry: &mut Entry) -> Decision {
        let (now, granted) = (self.counting.now, self.counting.units);
        let window = self.counting.apply(entry);
        Decision {
            granted,
            limit: self.limit,
            remaining: self.remaining - granted,
            retry_after: Some(0),
            reset_after: window.end().saturating_sub(now),
        }
    }
}

impl Record {
    /// The window they count in.
    pub fn geometry(&self) -> Geometry {
        self.counting.geometry
    }

    /// The instant at which the units count, in ms.
    pub fn instant(&self) -> u64 {
        self.counting.instant
    }

    /// Whether the window denies them.
    pub fn is_denied(&self) -> bool {
        !self.fits
    }

    /// Count them; the decision as it reads once they are.
    #[inline(always)]
    pub fn apply(self, entry: &mut Entry) -> Decision {
        let Self { counting, request, fits } = self;
        let (now, units) = (counting.now, counting.units);
        let blocked = entry.blocked_for(now);
        let window = counting.apply(entry);
        let view = View::new(Some(window), window.geometry(), now);
        let remaining = view.remaining(&request);
        // Behind a block there may be headroom for as much again.
        let granted = if fits && blocked.is_none() { units } else { 0 };
        let retry_after = if granted > 0 || remaining >= units { Some(0) } else { view.retry_after(&request) };
        let (limit, reset_after) = (request.quota.limit, view.reset_after());
        Decision { granted, limit, remaining, retry_after, reset_after }.blocked_for(blocked)
    }
}

impl Counting {
    #[inline(always)]
    fn apply(self, entry: &mut Entry) -> &Window {
        let window = match entry {
            Entry::Open(window) => window,
            Entry::Blocked(blocked) => blocked.window.get_or_insert_with(|| Window::new(self.geometry)),
        };
        if let Some(replacement) = View::new(Some(window), self.geometry, self.now).replacement() {
            *window = replacement;
        }
        window.count(self.instant, self.units);
        window
    }
}

/// The latest instant of a block, in ms: the longest one, begun at the last instant.
pub const MAX_BLOCK: u64 = MAX_EXACT + MAX_WINDOW;
