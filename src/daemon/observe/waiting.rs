//! The requests of this process that wait for their turn.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The requests that wait now, each with its key and when it began.
#[derive(Default)]
pub struct Waiting {
    requests: Mutex<HashMap<u64, (Box<str>, Instant)>>,
    last: AtomicU64,
}

/// A request that waits until this is dropped.
pub struct Wait<'a> {
    waiting: &'a Waiting,
    id: u64,
}

/// A key that requests wait for.
#[derive(Debug, PartialEq, Eq)]
pub struct AwaitedKey {
    pub key: Box<str>,
    pub requests: usize,
    /// How long the first of them has been waiting.
    pub longest: Duration,
}

impl Waiting {
    /// A request for this key begins to wait.
    pub fn begin(&self, key: &str) -> Wait<'_> {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(id, (key.into(), Instant::now()));
        Wait { waiting: self, id }
    }

    /// The number of requests that wait.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// The keys that most requests wait for.
    pub fn top(&self, count: usize) -> Vec<AwaitedKey> {
        let mut keys: HashMap<Box<str>, AwaitedKey> = HashMap::new();
        for (key, began) in self.lock().values() {
            let new = || AwaitedKey { key: key.clone(), requests: 0, longest: Duration::ZERO };
            let awaited = keys.entry(key.clone()).or_insert_with(new);
            awaited.requests += 1;
            awaited.longest = awaited.longest.max(began.elapsed());
        }
        let mut all: Vec<_> = keys.into_values().collect();
        all.sort_by_cached_key(|awaited| (Reverse(awaited.requests), awaited.key.clone()));
        all.truncate(count);
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (Box<str>, Instant)>> {
        self.requests.lock().expect("no code panics while it holds this lock")
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_while_somebody_waits() {
        let waiting = Waiting::default();
        let shown = || waiting.top(2).into_iter().map(|it| (it.key.to_string(), it.requests)).collect::<Vec<_>>();
        let (a, b) = (waiting.begin("a"), ["b", "b", "c"].map(|key| waiting.begin(key)));
        assert_eq!(shown(), [("b".into(), 2), ("a".into(), 1)]);
        drop(b);
        assert_eq!((shown(), waiting.count()), (vec![("a".into(), 1)], 1));
        drop(a);
        assert_eq!((shown(), waiting.count()), (vec![], 0));
    }
}
