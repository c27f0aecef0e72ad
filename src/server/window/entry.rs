//! The value of one key: counts, a block, or both, and since when it is in use.
//!
//! Deciding changes nothing. It returns a [`Grant`] or a [`Record`] of the units to count, to be applied once to the same
//! entry.

use std::mem;
use std::num::NonZeroU64;

use crate::geometry::{Geometry, MAX_EXACT, MAX_WINDOW};
use crate::quota::{Decision, Overflow, Request};
use crate::view::{Evaluation, View};
use crate::warm_up::WarmUp;
use crate::window::{Invalid, Window};

/// The value of a key. It takes half a cache line; marks are allocated separately, because most keys have none.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Counts only.
    Plain(Window),
    /// At least one mark, and perhaps counts.
    Marked(Box<Marked>),
}

/// What few keys have, and what is counted beside it.
#[derive(Clone, Debug)]
pub struct Marked {
    /// The instant of the block, which may have passed; 0 without one.
    until: u64,
    /// Since when the key is in use, where a limit that rises has to know it.
    since: Option<NonZeroU64>,
    /// There, where the key is in use.
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
    /// What is in force of the limit.
    limit: u64,
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
    /// Since when the key is in use, if it comes into use and remembers it.
    since: Option<NonZeroU64>,
}

impl Default for Entry {
    /// Nothing counted, and no block.
    fn default() -> Self {
        Entry::Plain(Window::new(Geometry::SHORTEST))
    }
}

impl From<Window> for Entry {
    fn from(window: Window) -> Self {
        Entry::Plain(window)
    }
}

impl Entry {
    /// An entry that is blocked until an instant, which is not 0, with what is counted beside it.
    pub(crate) fn blocked(until: u64, window: Option<Window>) -> Result<Self, Invalid> {
        match until {
            1..=MAX_BLOCK => Ok(Entry::Marked(Box::new(Marked { until, since: None, window }))),
            _ => Err(Invalid("a block out of range")),
        }
    }

    /// An entry that is in use since an instant, which is not 0, and blocked until another, or not at all (0).
    pub(crate) fn in_use(since: NonZeroU64, until: u64, window: Window) -> Result<Self, Invalid> {
        match (since.get(), until) {
            (1..=MAX_EXACT, 0..=MAX_BLOCK) => {
                Ok(Entry::Marked(Box::new(Marked { until, since: Some(since), window: Some(window) })))
            }
            _ => Err(Invalid("an instant out of range")),
        }
    }

    /// The counts, if there ever were any.
    #[inline(always)]
    pub fn window(&self) -> Option<&Window> {
        match self {
            Entry::Plain(window) => Some(window),
            Entry::Marked(marked) => marked.window.as_ref(),
        }
    }

    /// The instant of the block, in ms, which may have passed; 0 without one.
    #[inline(always)]
    pub fn blocked_until(&self) -> u64 {
        match self {
            Entry::Plain(_) => 0,
            Entry::Marked(marked) => marked.until,
        }
    }

    /// Since when the key is in use, in ms, where a limit that rises has to know it.
    #[inline(always)]
    pub fn since(&self) -> Option<NonZeroU64> {
        match self {
            Entry::Plain(_) => None,
            Entry::Marked(marked) => marked.since,
        }
    }

    /// How many ms the block holds from `now` on; `None` when there is none, or it has passed.
    #[inline(always)]
    pub fn blocked_for(&self, now: u64) -> Option<u64> {
        match self {
            Entry::Plain(_) => None,
            Entry::Marked(marked) => marked.until.checked_sub(now).filter(|ms| *ms > 0),
        }
    }

    /// The first instant at which nothing here matters any more, in ms; 0 when there is nothing.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        match self {
            Entry::Plain(window) => window.end(),
            Entry::Marked(marked) => {
                marked.until.max(marked.end_of_use().unwrap_or(marked.window.as_ref().map_or(0, Window::end)))
            }
        }
    }

    /// Since when the key is in use at `now`, if that is remembered.
    pub(crate) fn in_use_since(&self, now: u64) -> Option<u64> {
        match self {
            Entry::Plain(_) => None,
            Entry::Marked(marked) => {
                marked.end_of_use().filter(|end| now < *end).and(marked.since).map(NonZeroU64::get)
            }
        }
    }

    /// Whether a key comes into use with units that are counted at `now`.
    pub(crate) fn comes_into_use(entry: Option<&Self>, geometry: Geometry, now: u64) -> bool {
        let counts_nothing = View::new(entry.and_then(Self::window), geometry, now).reset_after() == 0;
        counts_nothing && entry.and_then(|entry| entry.in_use_since(now)).is_none()
    }

    /// Whether counting with a geometry at `now` replaces the window, because it has another geometry or has ended.
    pub fn replaces_window(&self, geometry: Geometry, now: u64) -> bool {
        self.window().is_some_and(|window| window.geometry() != geometry || window.end() <= now)
    }

    /// Decide a request at `now` on what a key holds, if anything. An error when granting would overflow the count.
    #[inline(always)]
    pub fn decide(entry: Option<&Self>, now: u64, request: &Request) -> Result<Verdict, Overflow> {
        let (view, limit) = Self::seen(entry, now, request);
        let evaluation = view.evaluate(request, limit);
        let blocked = entry.and_then(|entry| entry.blocked_for(now));
        if evaluation.granted == 0 || blocked.is_some() {
            return Ok(Verdict::Denied(Self::decision(entry, &view, request, limit, evaluation).blocked_for(blocked)));
        }
        evaluation.check()?;
        let geometry = request.quota.geometry;
        let (instant, units) = (view.decision_instant(), evaluation.granted);
        let since = request.warm_up.and_then(|_| WarmUp::since(entry, now, geometry, instant));
        let counting = Counting { geometry, now, instant, units, since };
        Ok(Verdict::Granted(Grant { counting, limit, remaining: evaluation.remaining }))
    }

    /// The same decision as it reads while nothing is counted.
    #[inline(always)]
    pub fn peek(entry: Option<&Self>, now: u64, request: &Request) -> Result<Decision, Overflow> {
        let (view, limit) = Self::seen(entry, now, request);
        let evaluation = view.evaluate(request, limit);
        match entry.and_then(|entry| entry.blocked_for(now)) {
            None => Ok(Self::decision(entry, &view, request, limit, evaluation.check()?)),
            blocked => Ok(Self::decision(entry, &view, request, limit, evaluation).blocked_for(blocked)),
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
        let (view, limit) = Self::seen(entry, now, request);
        let evaluation = view.evaluate(request, limit);
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
        let since = request.warm_up.and_then(|_| WarmUp::since(entry, now, geometry, instant));
        let counting = Counting { geometry, now, instant, units: request.cost, since };
        Ok(Recording::Counted(Record { counting, request: *request, limit, fits: evaluation.granted > 0 }))
    }

    /// What a request sees of a key, and what is in force of its limit.
    #[inline(always)]
    fn seen<'a>(entry: Option<&'a Self>, now: u64, request: &Request) -> (View<'a>, u64) {
        let Request { quota, warm_up, .. } = *request;
        let limit = warm_up.map_or(quota.limit, |warm_up| warm_up.limit_at(entry, now, quota, request.whole()));
        (View::new(entry.and_then(Self::window), quota.geometry, now), limit)
    }

    /// The decision for this evaluation, if there is no block.
    #[inline(always)]
    fn decision(
        entry: Option<&Self>,
        view: &View,
        request: &Request,
        limit: u64,
        Evaluation { granted, remaining, .. }: Evaluation,
    ) -> Decision {
        let Request { quota, strict, warm_up, .. } = *request;
        let retry_after = match warm_up {
            _ if granted > 0 => Some(0),
            None => view.retry_after(limit, request.least(), strict),
            Some(warm_up) => warm_up.retry_after(entry, view.now(), quota, request.whole(), strict),
        };
        Decision { granted, limit, remaining, retry_after, reset_after: view.reset_after() }
    }

    /// Count units as they were counted elsewhere: at `now`, in the subinterval of `dated`; `since` is there where that is
    /// since when the key is in use. Whether they still matter.
    #[inline(always)]
    pub fn count(
        &mut self,
        geometry: Geometry,
        now: u64,
        dated: u64,
        units: u64,
        since: Option<NonZeroU64>,
    ) -> Result<bool, Overflow> {
        let view = View::new(self.window(), geometry, now);
        if geometry.subinterval_at(dated) < view.oldest() {
            return Ok(false);
        }
        // Running totals also have what is no longer held.
        let total = self.window().map_or(0, |window| window.counts.total());
        if units > MAX_EXACT.saturating_sub(total) && units > MAX_EXACT - view.held_at(dated) {
            return Err(Overflow);
        }
        Counting { geometry, now, instant: dated, units, since }.apply(self);
        Ok(true)
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
        if let Entry::Marked(_) = self {
            self.change_marks(|marked| {
                if marked.window.take_if(|window| window.end() == 0).is_some() {
                    marked.since = None;
                }
            });
        }
        given
    }

    /// Block until an instant, in ms, whatever the block was before.
    pub fn block(&mut self, until: u64) {
        self.change_marks(|marked| marked.until = until);
    }

    /// Lift the block, if there is one.
    pub fn unblock(&mut self) {
        if let Entry::Marked(_) = self {
            self.change_marks(|marked| marked.until = 0);
        }
    }

    fn change_marks(&mut self, change: impl FnOnce(&mut Marked)) {
        let mut marked = match mem::take(self) {
            Entry::Plain(window) => {
                Box::new(Marked { until: 0, since: None, window: Some(window).filter(|window| window.end() > 0) })
            }
            Entry::Marked(marked) => marked,
        };
        change(&mut marked);
        *self = match marked.until == 0 && marked.since.is_none() {
            true => marked.window.map_or_else(Self::default, Entry::Plain),
            false => Entry::Marked(marked),
        };
    }

    /// Remember `since`, or that it is not known since when the key is in use, if it comes into use.
    #[inline(never)]
    fn mark_use(&mut self, geometry: Geometry, now: u64, since: Option<NonZeroU64>) {
        if since.is_some() || Self::comes_into_use(Some(self), geometry, now) {
            self.change_marks(|marked| marked.since = since);
        }
    }

    /// Bytes this takes, with what it has allocated.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        let own = mem::size_of::<Self>();
        match self {
            Entry::Plain(window) => window.bytes() - mem::size_of::<Window>() + own,
            Entry::Marked(marked) => {
                let heap = marked.window.as_ref().map_or(0, |window| window.bytes() - mem::size_of::<Window>());
                own + mem::size_of::<Marked>() + heap
            }
        }
    }

    /// How many allocations there are to free, with this one.
    pub fn allocations(&self) -> usize {
        let lists = self.window().is_some_and(|window| window.counts.heap_bytes() > 0);
        1 + usize::from(matches!(self, Entry::Marked(_))) + usize::from(lists)
    }

    /// Move the allocations (defragmentation).
    pub fn relocate(
        &mut self,
        marks: impl FnOnce(Box<Marked>) -> Box<Marked>,
        counts: impl FnOnce(Box<[u64]>) -> Box<[u64]>,
    ) {
        if let Entry::Marked(_) = self {
            if let Entry::Marked(marked) = mem::take(self) {
                *self = Entry::Marked(marks(marked));
            }
        }
        if let Some(window) = self.window_mut() {
            window.counts.relocate(counts);
        }
    }

    fn window_mut(&mut self) -> Option<&mut Window> {
        match self {
            Entry::Plain(window) => Some(window),
            Entry::Marked(marked) => marked.window.as_mut(),
        }
    }
}

impl Marked {
    /// Where it is remembered since when the key is in use, it is in use until nothing has counted for a window: who waits
    /// with a high cost until nothing counts would find it cold again and again.
    fn end_of_use(&self) -> Option<u64> {
        let window = self.window.as_ref().filter(|_| self.since.is_some())?;
        Some(window.end() + window.geometry().window())
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

    /// Since when the key is in use, if it comes into use with them and remembers it.
    #[inline(always)]
    pub fn since(&self) -> Option<NonZeroU64> {
        self.counting.since
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

    /// Since when the key is in use, if it comes into use with them and remembers it.
    #[inline(always)]
    pub fn since(&self) -> Option<NonZeroU64> {
        self.counting.since
    }

    /// Whether the window denies them.
    pub fn is_denied(&self) -> bool {
        !self.fits
    }

    /// Count them; the decision as it reads once they are.
    #[inline(always)]
    pub fn apply(self, entry: &mut Entry) -> Decision {
        let Self { counting, request, limit, fits } = self;
        let (now, units) = (counting.now, counting.units);
        let blocked = entry.blocked_for(now);
        let window = counting.apply(entry);
        let view = View::new(Some(window), window.geometry(), now);
        let remaining = view.remaining(limit, request.strict);
        // Behind a block there may be headroom for as much again.
        let granted = if fits && blocked.is_none() { units } else { 0 };
        let reset_after = view.reset_after();
        let retry_after = match request.warm_up {
            _ if granted > 0 || remaining >= units => Some(0),
            None => view.retry_after(limit, units, request.strict),
            Some(warm_up) => warm_up.retry_after(Some(entry), now, request.quota, units, request.strict),
        };
        Decision { granted, limit, remaining, retry_after, reset_after }.blocked_for(blocked)
    }
}

impl Counting {
    #[inline(always)]
    fn apply(self, entry: &mut Entry) -> &Window {
        if self.since.is_some() || matches!(entry, Entry::Marked(_)) {
            entry.mark_use(self.geometry, self.now, self.since);
        }
        let window = match entry {
            Entry::Plain(window) => window,
            Entry::Marked(marked) => marked.window.get_or_insert_with(|| Window::new(self.geometry)),
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
