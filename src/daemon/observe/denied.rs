//! The keys that this process denied most in this minute and the last one, from any source.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use ahash::RandomState;

/// Number of shards, each with its own lock.
const PARTS: usize = 16;

/// The most keys of a part counted in a minute. A further key takes the place of one with the least count, and goes on
/// from that (Space-Saving): counts may be too high, by at most 1/100 of the minute's denials.
const MAX_KEYS: usize = 100;

/// The longest key counted, in bytes; longer ones are cut.
const MAX_KEY: usize = 512;

type Counts = HashMap<Box<str>, u64, RandomState>;

/// Denied requests by key. Counting does not read the clock: a timer [turns](Self::turn) the minutes.
pub struct DeniedHere {
    /// The one that is counted, since the Unix epoch.
    minute: AtomicU64,
    parts: [Mutex<Part>; PARTS],
    hasher: RandomState,
}

#[derive(Default)]
struct Part {
    this: Counts,
    last: Counts,
}

/// A key, and its denied requests.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyDenials {
    pub key: Box<str>,
    pub this_minute: u64,
    pub last_minute: u64,
}

impl Default for DeniedHere {
    fn default() -> Self {
        Self { minute: AtomicU64::new(minute()), parts: Default::default(), hasher: RandomState::new() }
    }
}

impl DeniedHere {
    /// Counts a denied request.
    pub fn count(&self, key: &str) {
        let part = self.hasher.hash_one(key) as usize % PARTS;
        count(&mut lock(&self.parts[part]).this, key);
    }

    /// Begins another minute, if it is time. Call it every few seconds.
    pub fn turn(&self) {
        self.turn_to(minute());
    }

    /// The keys with the most denials.
    pub fn top(&self, count: usize) -> Vec<KeyDenials> {
        self.turn();
        self.most_denied(count)
    }

    fn turn_to(&self, minute: u64) {
        let before = self.minute.swap(minute, Ordering::Relaxed);
        if before == minute {
            return;
        }
        for part in &self.parts {
            let mut part = lock(part);
            let this = std::mem::take(&mut part.this);
            part.last = if minute == before + 1 { this } else { Counts::default() };
        }
    }

    fn most_denied(&self, count: usize) -> Vec<KeyDenials> {
        let mut all: Vec<_> = self.parts.iter().flat_map(|part| lock(part).keys()).collect();
        all.sort_by_cached_key(|denied| (Reverse(denied.this_minute + denied.last_minute), denied.key.clone()));
        all.truncate(count);
        all
    }
}

impl Part {
    fn keys(&self) -> Vec<KeyDenials> {
        let of = |counts: &Counts, key: &str| counts.get(key).copied().unwrap_or_default();
        let only_last = self.last.keys().filter(|key| !self.this.contains_key(*key));
        let keys = self.this.keys().chain(only_last).map(|key| KeyDenials {
            key: key.clone(),
            this_minute: of(&self.this, key),
            last_minute: of(&self.last, key),
        });
        keys.collect()
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().expect("no code panics while it holds this lock")
}

fn minute() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60
}

fn count(counts: &mut Counts, key: &str) {
    let end = (0..=MAX_KEY.min(key.len())).rev().find(|at| key.is_char_boundary(*at)).unwrap_or_default();
    let key = &key[..end];
    if let Some(count) = counts.get_mut(key) {
        *count += 1;
        return;
    }
    let mut from = 0;
    if counts.len() >= MAX_KEYS {
        let least = counts.iter().min_by_key(|(_, count)| **count).map(|(key, _)| key.clone());
        from = least.and_then(|key| counts.remove(&key)).unwrap_or_default();
    }
    counts.insert(key.into(), from + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minutes_are_shown() {
        let denied = DeniedHere::default();
        let top = || {
            let all = denied.most_denied(9);
            all.into_iter().map(|it| (it.key.to_string(), it.this_minute, it.last_minute)).collect::<Vec<_>>()
        };
        denied.turn_to(7);
        ["a", "b", "b"].into_iter().for_each(|key| denied.count(key));
        denied.turn_to(8);
        denied.count("a");
        denied.turn_to(8);
        assert_eq!(top(), [("a".into(), 1, 1), ("b".into(), 0, 2)]);
        denied.turn_to(9);
        assert_eq!(top(), [("a".into(), 0, 1)]);
        denied.turn_to(10);
        assert_eq!(top(), []);
        denied.count("c");
        denied.turn_to(20);
        denied.count("é".repeat(300).as_str());
        assert_eq!(top().iter().map(|(key, ..)| key.len()).collect::<Vec<_>>(), [MAX_KEY]);
    }

    #[test]
    fn frequent_keys_stay() {
        let denied = DeniedHere::default();
        for number in 0..10_000 {
            denied.count(&format!("rare{number}"));
            denied.count("often");
        }
        let all = denied.most_denied(PARTS * MAX_KEYS + 1);
        assert_eq!(all.len(), PARTS * MAX_KEYS);
        assert_eq!(&*all[0].key, "often");
        assert!((10_000..=10_200).contains(&all[0].this_minute), "{:?}", all[0]);
    }
}
