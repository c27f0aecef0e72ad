//! Units by subinterval: the state behind a window.
//!
//! A sorted list with one slot for each subinterval that holds a count. A slot stores the *running total* through its
//! subinterval instead of the count itself, so that the units of any span are a difference of two slots, found by
//! bisection: nothing ever scans the list. Slots store subinterval and total relative to the first slot, which makes
//! eight bytes enough until more than 2^32 − 1 units are held; then every slot takes sixteen. A single count needs no
//! list at all.
//!
//! A ring indexed by subinterval was rejected because it costs memory for every subinterval of the window, used or not;
//! plain counts, because a decision would have to add them up.
//!
//! The list is exactly as long as its content: what grows it is one reallocation a subinterval, which the allocator's
//! size classes amortise. Slots that slid out stay until they are a quarter of the list, for the same reason.

use std::ops::Range;
use std::{iter, mem};

/// The units of one subinterval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The subinterval's number: it begins at this many resolutions.
    pub subinterval: u64,
    /// Units counted in it, at least one.
    pub units: u64,
}

/// The running total at a subinterval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningTotal {
    /// The subinterval's number.
    pub subinterval: u64,
    /// Units up to and including this subinterval.
    pub through: u64,
    /// Units of this subinterval alone.
    pub units: u64,
}

/// Units by subinterval, see the module's description.
#[derive(Clone, Debug)]
pub struct Counts {
    /// The first slot's subinterval, shifted left by one; the low bit says that slots are wide.
    origin_and_width: u64,
    slots: Slots,
}

#[derive(Clone, Debug)]
enum Slots {
    /// One subinterval, at the origin, with this many units.
    One(u64),
    /// Any number of slots. Narrow: one word, the subinterval's offset from the origin in the high half, the running
    /// total in the low half. Wide: two words, offset and running total.
    Many(Box<[u64]>),
}

const HALF: u32 = 32;
const NARROW_MAX: u64 = u32::MAX as u64;

/// A list that is at least one part in this many dead is rebuilt when it grows.
const DEAD_SHARE: usize = 4;

impl Counts {
    /// No counts.
    pub fn new() -> Self {
        Self { origin_and_width: 0, slots: Slots::Many(Box::default()) }
    }

    /// These counts: at least one unit each, in strictly ascending order of subinterval, the last one `newest`; at most
    /// `len` of them, with `total` units.
    pub fn collect(counts: impl IntoIterator<Item = Count>, len: usize, total: u64, newest: u64) -> Self {
        let mut counts = counts.into_iter();
        let Some(Count { subinterval: origin, units: mut running }) = counts.next() else { return Self::new() };
        if origin == newest {
            return Self { origin_and_width: origin << 1, slots: Slots::One(total) };
        }
        let wide = total.max(newest - origin) > NARROW_MAX;
        let mut words = Vec::with_capacity(len * stride(wide));
        words.extend(slot(wide, 0, running));
        for Count { subinterval, units } in counts {
            running += units;
            words.extend(slot(wide, subinterval - origin, running));
        }
        Self { origin_and_width: (origin << 1) | u64::from(wide), slots: Slots::Many(words.into_boxed_slice()) }
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        match &self.slots {
            Slots::One(_) => 1,
            Slots::Many(words) if self.wide() => words.len() / 2,
            Slots::Many(words) => words.len(),
        }
    }

    /// All units together.
    #[inline(always)]
    pub fn total(&self) -> u64 {
        self.running_before(self.len())
    }

    /// The youngest subinterval that holds a count.
    #[inline(always)]
    pub fn newest(&self) -> Option<u64> {
        self.newest_offset().map(|offset| self.origin() + offset)
    }

    /// The counts of this subinterval and younger ones, oldest first.
    pub fn iter_since(&self, subinterval: u64) -> impl Iterator<Item = Count> + '_ {
        self.iter_from(self.position(subinterval))
    }

    /// Units of all subintervals before this one.
    pub fn before(&self, subinterval: u64) -> u64 {
        self.running_before(self.position(subinterval))
    }

    /// The running total at a subinterval, which may hold no count.
    #[inline(always)]
    pub fn through(&self, subinterval: u64) -> RunningTotal {
        let slot = self.position(subinterval);
        let before = self.running_before(slot);
        if slot < self.len() && self.subinterval(slot) == subinterval {
            let through = self.running_before(slot + 1);
            RunningTotal { subinterval, through, units: through - before }
        } else {
            RunningTotal { subinterval, through: before, units: 0 }
        }
    }

    /// How many counts there are from a subinterval on, and their units.
    pub fn since(&self, subinterval: u64) -> (usize, u64) {
        let slot = self.position(subinterval);
        (self.len() - slot, self.total() - self.running_before(slot))
    }

    /// The oldest subinterval through which at least `units`, at least 1, are counted; `None` when all together are fewer.
    pub fn reaching(&self, units: u64) -> Option<RunningTotal> {
        let slot = bisect(0..self.len(), |slot| self.running_before(slot + 1) < units);
        (slot < self.len()).then(|| {
            let Count { subinterval, units } = self.count(slot);
            RunningTotal { subinterval, through: self.running_before(slot + 1), units }
        })
    }

    /// Add units to a subinterval. Counts of subintervals older than `oldest` are no longer needed and may be dropped.
    #[inline(always)]
    pub fn add(&mut self, subinterval: u64, units: u64, oldest: u64) {
        match self.newest() {
            Some(newest) if subinterval == newest && self.add_to_newest(units) => {}
            Some(newest) if subinterval <= newest => self.insert(subinterval, units, oldest),
            _ => self.push(subinterval, units, oldest),
        }
    }

    /// Take back up to `units`, newest subinterval first; how many were taken back. Counts older than `oldest`, which
    /// the newest is not, take no part and may be dropped.
    pub fn take_newest(&mut self, units: u64, oldest: u64) -> u64 {
        let (len, held) = self.since(oldest);
        if units >= held {
            *self = Self::new();
            return held;
        }
        let kept = self.total() - units;
        let last = bisect(0..self.len(), |slot| self.running_before(slot + 1) < kept);
        if len < self.len() && last + 1 < self.len() {
            // With an earlier newest, what is dead would matter again.
            let newest = self.newest().unwrap_or(oldest);
            *self = Self::collect(self.iter_since(oldest), len, held, newest);
            return self.take_newest(units, oldest);
        }
        let wide = self.wide();
        match &mut self.slots {
            Slots::One(held) => *held = kept,
            Slots::Many(words) => {
                let mut shorter = mem::take(words).into_vec();
                shorter.truncate((last + 1) * stride(wide));
                if let Some(word) = shorter.last_mut() {
                    *word = if wide { kept } else { *word & !NARROW_MAX | kept };
                }
                *words = shorter.into_boxed_slice();
            }
        }
        units
    }

    /// Take back up to `units` from this subinterval on, the oldest first; how many were taken back. Counts older than
    /// `oldest` take no part and may be dropped.
    pub fn take_since(&mut self, subinterval: u64, units: u64, oldest: u64) -> u64 {
        let (len, held) = self.since(oldest);
        let (_, from_there) = self.since(subinterval.max(oldest));
        let taken = units.min(from_there);
        if taken == 0 {
            return 0;
        }
        let mut left = taken;
        let kept = self.iter_since(oldest).filter_map(|count| {
            let take = if count.subinterval < subinterval { 0 } else { left.min(count.units) };
            left -= take;
            (take < count.units).then_some(Count { units: count.units - take, ..count })
        });
        // All of the suffix went, and with it the newest: then it is the youngest of what stays.
        let newest = match taken == from_there {
            true => self.position(subinterval.max(oldest)).checked_sub(1).map(|slot| self.subinterval(slot)),
            false => self.newest(),
        };
        *self = Self::collect(kept, len, held - taken, newest.unwrap_or(0));
        taken
    }

    /// Bytes allocated beside the value itself.
    #[inline(always)]
    pub fn heap_bytes(&self) -> usize {
        match &self.slots {
            Slots::One(_) => 0,
            Slots::Many(words) => mem::size_of_val(&**words),
        }
    }

    /// Move the list (defragmentation).
    pub fn relocate(&mut self, relocate: impl FnOnce(Box<[u64]>) -> Box<[u64]>) {
        if let Slots::Many(words) = &mut self.slots {
            *words = relocate(mem::take(words));
        }
    }

    /// Whether there was room for that: a narrow slot may be full.
    #[inline(always)]
    fn add_to_newest(&mut self, units: u64) -> bool {
        let wide = self.wide();
        match &mut self.slots {
            Slots::One(held) => *held += units,
            Slots::Many(words) => {
                let Some(last) = words.last_mut() else { return false };
                let most = if wide { u64::MAX } else { *last | NARROW_MAX };
                match last.checked_add(units) {
                    Some(sum) if sum <= most => *last = sum,
                    _ => return false,
                }
            }
        }
        true
    }

    fn push(&mut self, subinterval: u64, units: u64, oldest: u64) {
        let dead = self.position(oldest);
        let (wide, origin, total) = (self.wide(), self.origin(), self.total());
        let fits = self.fits(subinterval, units);
        match &mut self.slots {
            Slots::Many(words) if fits && dead * stride(wide) * DEAD_SHARE < words.len() => {
                let mut longer = mem::take(words).into_vec();
                longer.reserve_exact(stride(wide));
                longer.extend(slot(wide, subinterval - origin, total + units));
                *words = longer.into_boxed_slice();
            }
            _ => self.rebuild(dead, subinterval, units),
        }
    }

    /// Add units to a subinterval that is not younger than the newest: as many steps as there are slots after it.
    fn insert(&mut self, subinterval: u64, units: u64, oldest: u64) {
        let wide = self.wide();
        let most = if wide { u64::MAX } else { NARROW_MAX };
        // Before the first slot, it becomes the origin, and all offsets grow.
        let origin = self.origin().min(subinterval);
        let shift = self.origin() - origin;
        let newest = self.newest_offset().and_then(|offset| offset.checked_add(shift));
        let total = self.total().checked_add(units);
        let fits = newest.is_some_and(|offset| offset <= most) && total.is_some_and(|total| total <= most);
        let place = self.position(subinterval);
        let (missing, before) = (self.subinterval(place) != subinterval, self.running_before(place));
        match &mut self.slots {
            Slots::Many(words) if fits => {
                let first = place * stride(wide);
                if missing {
                    let mut longer = mem::take(words).into_vec();
                    longer.reserve_exact(stride(wide));
                    longer.splice(first..first, slot(wide, subinterval - origin, before));
                    *words = longer.into_boxed_slice();
                }
                let (own, younger) = words[first..].split_at_mut(stride(wide));
                own[stride(wide) - 1] += units;
                if wide {
                    for slot in younger.chunks_exact_mut(2) {
                        slot[0] += shift;
                        slot[1] += units;
                    }
                } else {
                    younger.iter_mut().for_each(|word| *word += (shift << HALF) | units);
                }
                self.origin_and_width = (origin << 1) | u64::from(wide);
            }
            _ => self.rebuild(self.position(oldest), subinterval, units),
        }
    }

    /// Whether a slot for this subinterval, and so many units more, can be written relative to the first slot.
    fn fits(&self, subinterval: u64, units: u64) -> bool {
        let most = if self.wide() { u64::MAX } else { NARROW_MAX };
        let offset = subinterval.checked_sub(self.origin());
        let total = self.total().checked_add(units);
        offset.is_some_and(|offset| offset <= most) && total.is_some_and(|total| total <= most)
    }

    /// Make a new list of the slots from `dead` on, with units added to a subinterval.
    fn rebuild(&mut self, dead: usize, subinterval: u64, units: u64) {
        let place = self.position(subinterval).max(dead);
        let own = self.through(subinterval).units;
        let older = (dead..place).map(|slot| self.count(slot));
        let younger = self.iter_from(if own > 0 { place + 1 } else { place });
        *self = Self::collect(
            older.chain([Count { subinterval, units: own + units }]).chain(younger),
            self.len() - dead + 1,
            self.total() - self.running_before(dead) + units,
            self.newest().map_or(subinterval, |newest| newest.max(subinterval)),
        );
    }

    fn iter_from(&self, slot: usize) -> impl Iterator<Item = Count> + '_ {
        (slot..self.len()).map(|slot| self.count(slot))
    }

    fn count(&self, slot: usize) -> Count {
        Count { subinterval: self.subinterval(slot), units: self.running_before(slot + 1) - self.running_before(slot) }
    }

    /// The first slot whose subinterval is this one or younger.
    ///
    /// Slots' offsets ascend by at least one, which says how near the ends the place must lie: in a list without gaps, at
    /// one slot, so that a full ring is not searched.
    #[inline(always)]
    fn position(&self, subinterval: u64) -> usize {
        let Some(offset @ 1..) = subinterval.checked_sub(self.origin()) else { return 0 };
        let len = self.len() as u64;
        match self.newest_offset() {
            Some(newest) if offset <= newest => {
                let (low, high) = (len.saturating_sub(newest - offset + 1), len.min(offset));
                bisect(low as usize..high as usize, |slot| self.offset(slot) < offset)
            }
            _ => self.len(),
        }
    }

    fn origin(&self) -> u64 {
        self.origin_and_width >> 1
    }

    fn wide(&self) -> bool {
        self.origin_and_width & 1 == 1
    }

    #[inline(always)]
    fn newest_offset(&self) -> Option<u64> {
        match &self.slots {
            Slots::One(_) => Some(0),
            Slots::Many(words) if self.wide() => words.len().checked_sub(2).map(|last| words[last]),
            Slots::Many(words) => words.last().map(|word| word >> HALF),
        }
    }

    #[inline(always)]
    fn subinterval(&self, slot: usize) -> u64 {
        self.origin() + self.offset(slot)
    }

    #[inline(always)]
    fn offset(&self, slot: usize) -> u64 {
        match &self.slots {
            Slots::One(_) => 0,
            Slots::Many(words) if self.wide() => words[2 * slot],
            Slots::Many(words) => words[slot] >> HALF,
        }
    }

    /// Units of all slots before this one.
    fn running_before(&self, slot: usize) -> u64 {
        let Some(last) = slot.checked_sub(1) else { return 0 };
        match &self.slots {
            Slots::One(units) => *units,
            Slots::Many(words) if self.wide() => words[2 * last + 1],
            Slots::Many(words) => words[last] & NARROW_MAX,
        }
    }
}

/// Words a slot.
fn stride(wide: bool) -> usize {
    if wide {
        2
    } else {
        1
    }
}

/// The words of a slot.
fn slot(wide: bool, offset: u64, running: u64) -> impl Iterator<Item = u64> {
    let (first, second) = if wide { (offset, Some(running)) } else { ((offset << HALF) | running, None) };
    iter::once(first).chain(second)
}

/// The first slot of a range for which `before` no longer holds, or the range's end.
#[inline(always)]
fn bisect(slots: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let Range { start: mut low, end: mut high } = slots;
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
