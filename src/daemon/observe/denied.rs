//! The keys that this process denied most, by itself or by the server's word, in this minute and the last one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// The most keys counted in a minute. A further key takes the place of one with the least count, and goes on from that
/// (Space-Saving): counts may be too high, by at most 1/100 of the minute's denials.
const MAX_KEYS: usize = 100;

/// The longest key counted, in bytes; longer ones are cut.
const MAX_KEY: usize = 512;

type Counts = HashMap<Box<str>, u64>;

/// Denied requests by key.
#[derive(Default)]
pub struct DeniedHere(Mutex<Minutes>);

#[derive(Default)]
struct Minutes {
    /// Since the Unix epoch.
    minute: u64,
    this: Counts,
    last: Counts,
}

/// A key, and its denied requests.
#[derive(Debug, PartialEq, Eq)]
pub struct DeniedKey {
    pub key: Box<str>,
    pub this_minute: u64,
    pub last_minute: u64,
}

impl DeniedHere {
    /// Counts a denied request.
    pub fn count(&self, key: &str) {
        self.at(minute(), |minutes| count(&mut minutes.this, key));
    }

    /// The keys with the most denials.
    pub fn top(&self, count: usize) -> Vec<DeniedKey> {
        self.at(minute(), |minutes| minutes.top(count))
    }

    fn at<T>(&self, minute: u64, act: impl FnOnce(&mut Minutes) -> T) -> T {
        let mut minutes = self.0.lock().expect("no code panics while it holds this lock");
        if minute != minutes.minute {
            let this = std::mem::take(&mut minutes.this);
            minutes.last = if minute == minutes.minute + 1 { this } else { Counts::new() };
            minutes.minute = minute;
        }
        act(&mut minutes)
    }
}

impl Minutes {
    fn top(&self, count: usize) -> Vec<DeniedKey> {
        let of = |counts: &Counts, key: &str| counts.get(key).copied().unwrap_or_default();
        let only_last = self.last.keys().filter(|key| !self.this.contains_key(*key));
        let keys = self.this.keys().chain(only_last);
        let mut all: Vec<_> = keys
            .map(|key| DeniedKey {
                key: key.clone(),
                this_minute: of(&self.this, key),
                last_minute: of(&self.last, key),
            })
            .collect();
        all.sort_by_cached_key(|denied| (Reverse(denied.this_minute + denied.last_minute), denied.key.clone()));
        all.truncate(count);
        all
    }
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
        let count = |minute, key| denied.at(minute, |minutes| count(&mut minutes.this, key));
        let top = |minute| {
            let all = denied.at(minute, |minutes| minutes.top(9));
            all.into_iter().map(|it| (it.key.to_string(), it.this_minute, it.last_minute)).collect::<Vec<_>>()
        };
        [count(7, "a"), count(7, "b"), count(7, "b"), count(8, "a")].into_iter().for_each(drop);
        assert_eq!(top(8), [("a".into(), 1, 1), ("b".into(), 0, 2)]);
        assert_eq!(top(9), [("a".into(), 0, 1)]);
        assert_eq!(top(10), []);
        count(20, "é".repeat(300).as_str());
        assert_eq!(top(20)[0].0.len(), MAX_KEY);
    }

    #[test]
    fn frequent_keys_stay() {
        let denied = DeniedHere::default();
        for number in 0..10_000 {
            denied.at(1, |minutes| count(&mut minutes.this, &format!("rare{number}")));
            denied.at(1, |minutes| count(&mut minutes.this, "often"));
        }
        let all = denied.at(1, |minutes| minutes.top(MAX_KEYS + 1));
        assert_eq!(all.len(), MAX_KEYS);
        let often = all.iter().find(|it| &*it.key == "often").expect("it is the most frequent");
        assert!((10_000..=10_200).contains(&often.this_minute), "{often:?}");
    }
}
