//! Who is being limited: the keys with the most denied requests of this minute and of the last one, for `SWLIMIT.TOP`.
//!
//! They belong to this server and to nobody else: they are neither persisted nor replicated, and no command that changes
//! keys changes them. They are counted and read on the server's main thread, so that nobody ever waits for the lock.

mod sketch;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::configuration::TOP_KEYS;
use sketch::Sketch;

pub use sketch::Key;

const MINUTE: u64 = 60_000;

/// The denials of two minutes.
struct Denials {
    /// Since the Unix epoch.
    minute: u64,
    this: Sketch,
    last: Sketch,
}

/// A key, and how many of its requests were denied, at most.
#[derive(Debug, PartialEq, Eq)]
pub struct Denied<'a> {
    /// The key.
    pub key: Key<'a>,
    /// In this minute.
    pub this: u64,
    /// In the last minute.
    pub last: u64,
}

static DENIALS: LazyLock<Mutex<Denials>> = LazyLock::new(|| Mutex::new(Denials::new()));
/// Whether there is a sketch that holds or may hold something.
static HELD: AtomicBool = AtomicBool::new(false);

/// Whether denials are counted. A change of the setting takes effect with the next minute, which somebody has to notice.
#[inline(always)]
pub fn are_counted() -> bool {
    TOP_KEYS.get() > 0 || HELD.load(Ordering::Relaxed)
}

/// Count a denied request at this instant of the server's clock, in ms.
pub fn count(now: u64, key: Key) {
    at(now).this.count(key);
}

/// Let somebody look at the keys with denied requests, those with the most first, as of this instant of the server's
/// clock, in ms.
pub fn look<T>(now: u64, look: impl FnOnce(Vec<Denied>) -> T) -> T {
    look(at(now).most_first())
}

/// What holds at this instant.
fn at(now: u64) -> MutexGuard<'static, Denials> {
    let mut denials = DENIALS.lock().unwrap_or_else(PoisonError::into_inner);
    if denials.turn(now, TOP_KEYS.get() as usize) {
        HELD.store(denials.this.capacity() + denials.last.capacity() > 0, Ordering::Relaxed);
    }
    denials
}

impl Denials {
    fn new() -> Self {
        Self { minute: 0, this: Sketch::new(0), last: Sketch::new(0) }
    }

    /// Go on to the minute of this instant, if it is another one; whether it is. Its sketch has so many entries. A clock
    /// that has stepped back by less than a minute will soon be there again: the minute goes on. After any other step both
    /// minutes begin anew.
    fn turn(&mut self, now: u64, entries: usize) -> bool {
        let minute = now / MINUTE;
        if minute == self.minute || minute + 1 == self.minute {
            return false;
        }
        let before = std::mem::replace(&mut self.this, Sketch::new(entries));
        self.last = if minute == self.minute + 1 { before } else { Sketch::new(0) };
        self.minute = minute;
        true
    }

    /// By the sum of both minutes, most first; then by database and name.
    fn most_first(&self) -> Vec<Denied<'_>> {
        let this = self.this.counts().map(|(key, this)| Denied { key, this, last: self.last.count_of(key) });
        let last = self.last.counts().filter(|(key, _)| self.this.count_of(*key) == 0);
        let mut denied: Vec<_> = this.chain(last.map(|(key, last)| Denied { key, this: 0, last })).collect();
        denied.sort_unstable_by_key(|denied| (Reverse(denied.this + denied.last), denied.key));
        denied
    }
}
