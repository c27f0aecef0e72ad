//! The keys that are counted most often, in bounded memory: the Space-Saving algorithm (Metwally, Agrawal and El Abbadi,
//! 2005). A key that is not in a full sketch takes the place of one with the least count, and goes on from that count.
//! The counts therefore add up to all that was counted, and the least of them is at most its share of `1 / capacity`: no
//! count overstates by more, and each key that has more is in.
//!
//! The least count is found by sweeping over the counts, instead of the usual linked lists of entries with equal counts:
//! counts only grow, so that a sweep which starts with the least count meets each entry that has it once, wherever it
//! stopped meanwhile. A sweep ends when none is left; every count is then above it by at least 1, which took as many
//! denials as there are entries. Sweeping therefore takes a constant number of steps a denial, in the long run. A key that
//! is in already costs looking it up and adding 1, and allocates nothing. Keys are looked up in chains of entries, because
//! one that takes the place of another is then moved from one chain to another, and nothing ever has to be cleared away.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

/// Longer names are cut here, in bytes.
pub const NAME: usize = 512;

/// A key: its database and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key<'a> {
    pub database: i32,
    pub name: &'a [u8],
}

impl<'a> Key<'a> {
    /// A key with its name cut.
    pub fn new(database: i32, name: &'a [u8]) -> Self {
        Self { database, name: &name[..name.len().min(NAME)] }
    }
}

/// At most `capacity` keys and their counts. An entry takes 48 bytes, at most 32 for where chains begin, and its name.
pub struct Sketch {
    capacity: usize,
    entries: Vec<Entry>,
    /// Those of the entries, in the same order, side by side because they are swept over.
    counts: Vec<u64>,
    /// The first entry of each chain: those whose hashes have the same lowest bits.
    chains: Vec<u32>,
    hasher: RandomState,
    /// No count is less.
    least: u64,
    /// All counts before this place are more than the least.
    swept: usize,
}

struct Entry {
    hash: u64,
    database: i32,
    /// The next entry of the chain.
    next: u32,
    name: Vec<u8>,
}

/// At least so many chains for each entry: most are then empty, which a processor can foresee.
const CHAINS: usize = 4;

/// The end of a chain.
const END: u32 = u32::MAX;

impl Entry {
    fn key(&self) -> Key<'_> {
        Key { database: self.database, name: &self.name }
    }
}

impl Sketch {
    /// An empty sketch of at most so many keys.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Vec::with_capacity(capacity),
            counts: Vec::with_capacity(capacity),
            chains: vec![END; if capacity > 0 { (CHAINS * capacity).next_power_of_two() } else { 0 }],
            hasher: RandomState::default(),
            least: 0,
            swept: 0,
        }
    }

    /// The most keys it holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Count a key once.
    pub fn count(&mut self, key: Key) {
        if self.capacity == 0 {
            return;
        }
        let hash = self.hasher.hash_one(key);
        let place = self.find(hash, key).unwrap_or_else(|| self.admit(hash, key));
        self.counts[place] += 1;
    }

    /// How often a key was counted, at most; 0 for a key that is not in.
    pub fn count_of(&self, key: Key) -> u64 {
        if self.capacity == 0 {
            return 0;
        }
        self.find(self.hasher.hash_one(key), key).map_or(0, |place| self.counts[place])
    }

    /// The keys that are in, with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (Key<'_>, u64)> {
        self.entries.iter().map(Entry::key).zip(self.counts.iter().copied())
    }

    fn chain(&self, hash: u64) -> usize {
        hash as usize & (self.chains.len() - 1)
    }

    fn find(&self, hash: u64, key: Key) -> Option<usize> {
        let mut place = self.chains[self.chain(hash)];
        while place != END {
            let entry = &self.entries[place as usize];
            if entry.hash == hash && entry.key() == key {
                return Some(place as usize);
            }
            place = entry.next;
        }
        None
    }

    /// Take a key in, with a count that it goes on from: in place of one with the least, if there is no other. Its place.
    fn admit(&mut self, hash: u64, key: Key) -> usize {
        let chain = self.chain(hash);
        let place = if self.entries.len() < self.capacity {
            let entry = Entry { hash, database: key.database, next: self.chains[chain], name: key.name.to_vec() };
            self.entries.push(entry);
            self.counts.push(0);
            self.entries.len() - 1
        } else {
            let place = self.with_least();
            self.unchain(place);
            let entry = &mut self.entries[place];
            (entry.hash, entry.database, entry.next) = (hash, key.database, self.chains[chain]);
            entry.name.clear();
            entry.name.reserve_exact(key.name.len());
            entry.name.extend_from_slice(key.name);
            place
        };
        self.chains[chain] = place as u32;
        place
    }

    /// Take an entry out of its chain.
    fn unchain(&mut self, place: usize) {
        let Entry { hash, next, .. } = self.entries[place];
        let chain = self.chain(hash);
        let mut link = &mut self.chains[chain];
        while *link as usize != place {
            let before = *link as usize;
            link = &mut self.entries[before].next;
        }
        *link = next;
    }

    /// The place of an entry with the least count, which is about to grow.
    fn with_least(&mut self) -> usize {
        loop {
            let unswept = &self.counts[self.swept..];
            if let Some(steps) = unswept.iter().position(|count| *count == self.least) {
                self.swept += steps + 1;
                return self.swept - 1;
            }
            self.least = self.counts.iter().copied().min().expect("a full sketch has entries");
            self.swept = 0;
        }
    }
}
