//! The keys with the most denied requests of this minute and the last one, for `SWLIMIT.TOP`.
//!
//! They belong to this server only: they are neither persisted nor replicated, and commands that change keys do not change
//! them.

mod sketch;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sketch::Sketch;

pub use sketch::Key;

const MINUTE: u64 = 60_000;

/// The denials of two minutes.
pub struct Denials {
    /// Since the Unix epoch.
    minute: u64,
    this: Sketch,
    last: Sketch,
}

/// A key, and upper bounds of how many of its requests were denied.
#[derive(Debug, PartialEq, Eq)]
pub struct Denied<'a> {
    /// The key.
    pub key: Key<'a>,
    /// In this minute.
    pub this: u64,
    /// In the last minute.
    pub last: u64,
}

impl Default for Denials {
    fn default() -> Self {
        Self { minute: 0, this: Sketch::new(0), last: Sketch::new(0) }
    }
}

impl Denials {
    /// Count a denied request.
    pub fn count(&mut self, key: Key) {
        self.this.count(key);
    }

    /// Whether either minute can hold a key.
    pub fn are_held(&self) -> bool {
        self.this.capacity() + self.last.capacity() > 0
    }

    /// Go on to the minute of this instant (Unix time in ms), if it is another one; whether it is. Its sketch has so many
    /// entries, 0 to count nothing. A clock that has stepped back by less than a minute will soon be there again: the minute goes on. After any other step both
    /// minutes begin again.
    pub fn turn(&mut self, now: u64, entries: usize) -> bool {
        let minute = now / MINUTE;
        if minute == self.minute || minute + 1 == self.minute {
            return false;
        }
        let before = std::mem::replace(&mut self.this, Sketch::new(entries));
        self.last = if minute == self.minute + 1 { before } else { Sketch::new(0) };
        self.minute = minute;
        true
    }

    /// By the sum of both minutes, most first; then by database and name. Only those that are taken are put in order.
    pub fn most_first(&self) -> impl Iterator<Item = Denied<'_>> {
        let this = self.this.counts().map(|(key, this)| Denied { key, this, last: self.last.count_of(key) });
        let last = self.last.counts().filter(|(key, _)| self.this.count_of(*key) == 0);
        let denied = this.chain(last.map(|(key, last)| Denied { key, this: 0, last }));
        let mut heap: BinaryHeap<_> =
            denied.map(|Denied { key, this, last }| (this + last, Reverse(key), this)).collect();
        std::iter::from_fn(move || heap.pop()).map(|(sum, Reverse(key), this)| Denied { key, this, last: sum - this })
    }
}
