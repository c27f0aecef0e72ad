//! The holds of one key.
//!
//! A list in no order, every place of it filled, and two trees over it: by end, with the sums of units, and by id. A heap
//! by end was rejected, because it cannot say when enough units will have ended, nor how many have; a hash of ids,
//! because ids are strangers' bytes, and a table cannot be put elsewhere in memory.

use std::cmp::Ordering;
use std::mem;

use swlimit_window::{Invalid, Overflow, MAX_EXACT, MAX_WINDOW};

use crate::reservation::{Reservation, Reserved, MAX_RESERVATIONS};
use crate::tree::{Order, Tree};

/// The longest id, in bytes.
pub const MAX_ID: usize = 128;
/// The latest instant at which a hold is granted or renewed, in ms: that of the largest token.
pub const MAX_INSTANT: u64 = MAX_EXACT / 1000;
/// The latest end, in ms.
const MAX_END: u64 = MAX_INSTANT + MAX_WINDOW;

/// Units that a holder has until an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    id: Box<[u8]>,
    units: u64,
    end: u64,
    token: u64,
    reserved: Option<Box<[Reservation]>>,
}

impl Hold {
    /// A hold of so many units until an end, in ms, if there can be one.
    pub fn new(
        id: &[u8],
        units: u64,
        end: u64,
        token: u64,
        reserved: Option<Box<[Reservation]>>,
    ) -> Result<Self, Invalid> {
        if id.is_empty() || id.len() > MAX_ID {
            return Err(Invalid("an id that is empty or too long"));
        }
        if units == 0 || units > MAX_EXACT {
            return Err(Invalid("units out of range"));
        }
        if end == 0 || end > MAX_END {
            return Err(Invalid("an end out of range"));
        }
        if token == 0 || token > MAX_EXACT {
            return Err(Invalid("a token out of range"));
        }
        let reserved = reserved.filter(|reserved| !reserved.is_empty());
        if reserved.as_ref().is_some_and(|reserved| reserved.len() > MAX_RESERVATIONS) {
            return Err(Invalid("too many reservations"));
        }
        Ok(Self { id: id.into(), units, end, token, reserved })
    }

    /// By which its holder knows it.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    /// How many units, at least one.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The first instant at which it is not live, in ms.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The fencing token: larger than that of every hold granted before.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// What was taken together with it.
    pub fn reserved(&self) -> &[Reservation] {
        self.reserved.as_deref().unwrap_or_default()
    }

    /// By which holds are ordered.
    fn place(&self) -> (u64, u64, &[u8]) {
        (self.end, self.token, &self.id)
    }

    pub(crate) fn reserve(&mut self, reserved: Option<Box<[Reservation]>>) {
        self.reserved = reserved.filter(|reserved| !reserved.is_empty());
    }

    /// Bytes it has allocated.
    fn heap(&self) -> usize {
        let reserved = self.reserved();
        self.id.len() + mem::size_of_val(reserved) + reserved.iter().map(Reservation::heap).sum::<usize>()
    }

    /// Allocations behind it.
    fn allocations(&self) -> usize {
        let ids = self.reserved().iter().filter(|reservation| reservation.heap() > 0).count();
        1 + usize::from(self.reserved.is_some()) + ids
    }
}

/// How many holds are live, and their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// How many.
    pub count: u64,
    /// All their units together.
    pub units: u64,
}

/// Moves allocations to another place in memory (defragmentation).
pub trait Relocate {
    /// The same list, elsewhere or where it was.
    fn list<T>(&mut self, list: Vec<T>) -> Vec<T>;
    /// Whether to leave the rest for later.
    fn should_stop(&self) -> bool;
}

/// What one key holds; see the module's description. Never more than [`MAX_EXACT`] units together.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    /// The largest token of all grants.
    last_token: u64,
    holds: Vec<Hold>,
    by_end: Tree<u64>,
    by_id: Tree<()>,
    /// Bytes that the holds themselves have allocated.
    heap: usize,
    /// Allocations behind the holds.
    allocations: usize,
}

struct ByEnd<'a>(&'a [Hold]);

impl Order<u64> for ByEnd<'_> {
    fn compare(&self, one: u32, other: u32) -> Ordering {
        self.0[one as usize].place().cmp(&self.0[other as usize].place())
    }

    fn weight(&self, slot: u32) -> u64 {
        self.0[slot as usize].units
    }
}

struct ById<'a>(&'a [Hold]);

impl Order<()> for ById<'_> {
    fn compare(&self, one: u32, other: u32) -> Ordering {
        self.0[one as usize].id.cmp(&self.0[other as usize].id)
    }

    fn weight(&self, _slot: u32) {}
}

impl Holds {
    /// These holds, by end, then token, then id, if they are such as granting could have led to.
    pub(crate) fn with_holds(last_token: u64, holds: Vec<Hold>) -> Result<Self, Invalid> {
        if last_token == 0 || last_token > MAX_EXACT {
            return Err(Invalid("a token out of range"));
        }
        let mut units = 0;
        for hold in &holds {
            if hold.token > last_token {
                return Err(Invalid("a token beyond the last one"));
            }
            if hold.units > MAX_EXACT - units {
                return Err(Invalid("units out of range"));
            }
            units += hold.units;
        }
        if !holds.is_sorted_by(|one, other| one.place() < other.place()) {
            return Err(Invalid("holds out of order"));
        }
        let by_end: Vec<u32> = (0..holds.len() as u32).collect();
        let mut by_id = by_end.clone();
        by_id.sort_unstable_by(|one, other| ById(&holds).compare(*one, *other));
        if by_id.windows(2).any(|pair| holds[pair[0] as usize].id == holds[pair[1] as usize].id) {
            return Err(Invalid("an id twice"));
        }
        let (heap, allocations) = holds
            .iter()
            .fold((0, 0), |(heap, allocations), hold| (heap + hold.heap(), allocations + hold.allocations()));
        let mut all = Self { last_token, holds, heap, allocations, ..Self::default() };
        all.index(&by_end, &by_id);
        Ok(all)
    }

    /// The first instant at which nothing here matters any more, in ms: no hold is live, and the clock alone makes every
    /// token larger than those before. 0 when there never was a hold.
    pub fn end(&self) -> u64 {
        match self.last_token {
            0 => 0,
            last => self.last_end().max(last / 1000 + 1),
        }
    }

    /// The end of the hold that ends last, in ms; 0 without one.
    pub fn last_end(&self) -> u64 {
        self.by_end.last().map_or(0, |slot| self.holds[slot as usize].end)
    }

    /// The largest token of all grants; 0 before the first one.
    pub fn last_token(&self) -> u64 {
        self.last_token
    }

    /// What is live at `now`.
    pub fn live(&self, now: u64) -> Live {
        let (ended, units) = self.ended(now);
        Live { count: self.holds.len() as u64 - u64::from(ended), units: self.by_end.total() - units }
    }

    /// The hold of this id, if it is live at `now`.
    pub fn get(&self, id: &[u8], now: u64) -> Option<&Hold> {
        self.find(id).map(|slot| &self.holds[slot as usize]).filter(|hold| now < hold.end)
    }

    /// At most so many holds that are live at `now`, those granted first before others. Looks at all of them.
    pub fn oldest(&self, now: u64, most: usize) -> Vec<&Hold> {
        let key = |hold: &&Hold| (hold.token, hold.end);
        let mut live: Vec<&Hold> = self.holds.iter().filter(|hold| now < hold.end).collect();
        if most < live.len() {
            live.select_nth_unstable_by_key(most, key);
            live.truncate(most);
        }
        live.sort_unstable_by_key(key);
        live
    }

    /// All that is stored, by end, then token, then id.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.by_end.iter().map(|slot| &self.holds[slot as usize])
    }

    /// How many are stored, live or not.
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Whether none is stored.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Remove what has ended at `now`; the number of holds removed.
    pub fn sweep(&mut self, now: u64) -> u64 {
        let swept = self.ended(now).0 as usize;
        if self.are_many(swept) {
            self.retain(|_, hold| now < hold.end);
            return swept as u64;
        }
        for _ in 0..swept {
            self.by_end.first().map(|slot| self.remove_slot(slot));
        }
        swept as u64
    }

    /// End the hold of this id. What has ended has been swept.
    pub fn release(&mut self, id: &[u8]) -> Option<Hold> {
        self.find(id).map(|slot| self.remove_slot(slot))
    }

    /// End the holds of these ids; the units of each, and 0 for one that is not held, or was named before. What has ended
    /// has been swept.
    pub fn release_all<'i>(&mut self, ids: impl ExactSizeIterator<Item = &'i [u8]>) -> Vec<u64> {
        if !self.are_many(ids.len()) {
            return ids.map(|id| self.release(id).map_or(0, |hold| hold.units)).collect();
        }
        let mut is_released = vec![false; self.holds.len()];
        let mut release = |slot: u32| match std::mem::replace(&mut is_released[slot as usize], true) {
            true => 0,
            false => self.holds[slot as usize].units,
        };
        let units = ids.map(|id| self.find(id).map_or(0, &mut release)).collect();
        self.retain(|slot, _| !is_released[slot]);
        units
    }

    /// Let the holds of these ids end then, in ms; of each whether that is another end than before. What has ended has
    /// been swept.
    pub fn renew_all<'i>(&mut self, ids: impl ExactSizeIterator<Item = &'i [u8]>, end: u64) -> Vec<bool> {
        if !self.are_many(ids.len()) {
            return ids.map(|id| self.renew(id, end)).collect();
        }
        let end = end.min(MAX_END);
        let mut by_end: Vec<u32> = self.by_end.iter().collect();
        let renew = |id| {
            let hold = self.find(id).map(|slot| &mut self.holds[slot as usize]);
            hold.is_some_and(|hold| mem::replace(&mut hold.end, end) != end)
        };
        let renewed = ids.map(renew).collect();
        by_end.sort_by(|one, other| ByEnd(&self.holds).compare(*one, *other));
        self.by_end.rebuild(&by_end, &ByEnd(&self.holds));
        renewed
    }

    /// Let the hold of this id end then, in ms; whether that is another end than before. What has ended has been swept.
    pub fn renew(&mut self, id: &[u8], end: u64) -> bool {
        let end = end.min(MAX_END);
        let Some(slot) = self.find(id).filter(|slot| self.holds[*slot as usize].end != end) else { return false };
        self.by_end.take(slot, &ByEnd(&self.holds));
        self.holds[slot as usize].end = end;
        self.by_end.put(slot, &ByEnd(&self.holds));
        true
    }

    /// Remember what was taken together with the live hold of this id.
    pub fn reserve(&mut self, id: &[u8], reserved: Box<[Reservation]>) {
        if let Some(slot) = self.find(id) {
            let hold = &mut self.holds[slot as usize];
            self.heap -= hold.heap();
            self.allocations -= hold.allocations();
            hold.reserve(Some(reserved));
            self.heap += hold.heap();
            self.allocations += hold.allocations();
        }
    }

    /// An error when a hold, put beside what is live at `now`, instead of what has its id, would be too many units.
    pub fn check_put(holds: Option<&Self>, now: u64, hold: &Hold) -> Result<(), Overflow> {
        let Some(holds) = holds else { return Ok(()) };
        let same = holds.get(&hold.id, now).map_or(0, Hold::units);
        match hold.units > MAX_EXACT - (holds.live(now).units - same) {
            true => Err(Overflow),
            false => Ok(()),
        }
    }

    /// Put a hold here as it is, instead of the one that has its id. It has been checked, and what has ended swept.
    pub fn put(&mut self, hold: Hold) {
        self.release(&hold.id);
        self.insert(hold);
    }

    /// Bytes this takes, with what it has allocated.
    pub fn bytes(&self) -> usize {
        let each = mem::size_of::<Hold>() + Tree::<u64>::node_bytes() + Tree::<()>::node_bytes();
        mem::size_of::<Self>() + self.holds.capacity() * each + self.heap
    }

    /// How many allocations there are to free, with this one.
    pub fn allocations(&self) -> usize {
        let lists = if self.holds.capacity() > 0 { 3 } else { 0 };
        1 + lists + self.allocations
    }

    /// Move allocations to another place in memory: the lists, and the holds from this one on, until `relocate` stops.
    /// Where to go on; `None` when that was all.
    pub fn relocate(&mut self, from: usize, relocate: &mut impl Relocate) -> Option<usize> {
        /// So many at a time.
        const PART: usize = 64;
        if from == 0 {
            self.holds = relocate.list(mem::take(&mut self.holds));
            self.by_end.relocate(relocate);
            self.by_id.relocate(relocate);
        }
        for (place, hold) in self.holds.iter_mut().enumerate().skip(from) {
            if place > from && place % PART == 0 && relocate.should_stop() {
                return Some(place);
            }
            hold.id = relocate.list(mem::take(&mut hold.id).into_vec()).into_boxed_slice();
            if let Some(reserved) = hold.reserved.take() {
                let mut reserved = relocate.list(reserved.into_vec());
                for reservation in &mut reserved {
                    if let Reserved::Hold { id, .. } = &mut reservation.of {
                        *id = relocate.list(mem::take(id).into_vec()).into_boxed_slice();
                    }
                }
                hold.reserved = Some(reserved.into_boxed_slice());
            }
        }
        None
    }

    /// When so many live units will have ended, in ms: at least 1 unit, and at most all.
    pub(crate) fn freed_at(&self, now: u64, units: u64) -> u64 {
        let (_, ended) = self.ended(now);
        let slot = self.by_end.reaching(|through| through >= ended + units, &ByEnd(&self.holds));
        slot.map_or(0, |slot| self.holds[slot as usize].end)
    }

    /// Add a hold. Its id is new, and all units together are not too many.
    pub(crate) fn insert(&mut self, hold: Hold) {
        self.last_token = self.last_token.max(hold.token);
        self.heap += hold.heap();
        self.allocations += hold.allocations();
        if self.holds.len() == self.holds.capacity() {
            self.resize(roomy(self.holds.len() + 1));
        }
        self.holds.push(hold);
        self.by_end.push(&ByEnd(&self.holds));
        self.by_id.push(&ById(&self.holds));
    }

    /// Whether there are so many changes that indexing all holds again is cheaper than changing the indexes one by one.
    fn are_many(&self, changes: usize) -> bool {
        changes > self.holds.len() / 4
    }

    /// Keep only the holds for which a function of slot and hold is true, and index them again.
    fn retain(&mut self, mut is_kept: impl FnMut(usize, &Hold) -> bool) {
        const GONE: u32 = u32::MAX;
        const FEW: usize = 16;
        let (mut moved, mut kept) = (Vec::with_capacity(self.holds.len()), 0);
        self.holds.retain(|hold| {
            let stays = is_kept(moved.len(), hold);
            moved.push(if stays { kept } else { GONE });
            if stays {
                kept += 1;
            } else {
                self.heap -= hold.heap();
                self.allocations -= hold.allocations();
            }
            stays
        });
        let (mut by_end, mut by_id): (Vec<u32>, Vec<u32>);
        if self.holds.len() < moved.len() / FEW {
            // To sort these is cheaper than to go through all that there were.
            (by_end, by_id) = ((0..kept).collect(), (0..kept).collect());
            by_end.sort_unstable_by(|one, other| ByEnd(&self.holds).compare(*one, *other));
            by_id.sort_unstable_by(|one, other| ById(&self.holds).compare(*one, *other));
        } else {
            let slot = |before: u32| Some(moved[before as usize]).filter(|slot| *slot != GONE);
            by_end = self.by_end.iter().filter_map(slot).collect();
            by_id = self.by_id.iter().filter_map(slot).collect();
        }
        self.index(&by_end, &by_id);
        self.shrink();
    }

    /// Build both trees again, of all slots by end, and by id.
    fn index(&mut self, by_end: &[u32], by_id: &[u32]) {
        self.by_end.rebuild(by_end, &ByEnd(&self.holds));
        self.by_id.rebuild(by_id, &ById(&self.holds));
    }

    /// Give memory back where half of it is empty: then it has been emptied by as many removals as it takes to copy the rest.
    fn shrink(&mut self) {
        if self.holds.capacity() > 2 * roomy(self.holds.len()) {
            self.resize(roomy(self.holds.len()));
        }
    }

    fn remove_slot(&mut self, slot: u32) -> Hold {
        self.by_end.swap_remove(slot, &ByEnd(&self.holds));
        self.by_id.swap_remove(slot, &ById(&self.holds));
        let hold = self.holds.swap_remove(slot as usize);
        self.heap -= hold.heap();
        self.allocations -= hold.allocations();
        self.shrink();
        hold
    }

    fn resize(&mut self, capacity: usize) {
        if capacity > self.holds.capacity() {
            self.holds.reserve_exact(capacity - self.holds.len());
        } else {
            self.holds.shrink_to(capacity);
        }
        self.by_end.resize(capacity);
        self.by_id.resize(capacity);
    }

    fn ended(&self, now: u64) -> (u32, u64) {
        self.by_end.before(|slot| self.holds[slot as usize].end <= now, &ByEnd(&self.holds))
    }

    fn find(&self, id: &[u8]) -> Option<u32> {
        self.by_id.find(|slot| id.cmp(&self.holds[slot as usize].id))
    }
}

/// Room for so many, and a few more.
fn roomy(len: usize) -> usize {
    len + len / 4
}
