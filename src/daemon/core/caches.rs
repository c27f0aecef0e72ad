//! Caches of limiters: configured limits by id, and limits from requests, of which callers may send any number.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use ahash::RandomState;
use lru::LruCache;
use swlimit_client::{Client, Error};

use super::limiter::AnyLimiter;
use crate::config::limits::{Limit, Limits};

/// Maximum limiters from requests. The least recently used is forgotten first.
const MAX: NonZeroUsize = NonZeroUsize::new(10_000).expect("it is not zero");

/// All limiters. Equal limits share one, whatever their names are.
#[derive(Default)]
pub struct Caches {
    by_id: Vec<AnyLimiter>,
    configured: HashMap<Limit, AnyLimiter>,
    from_requests: Arc<Recent<Limit, AnyLimiter>>,
}

impl Caches {
    /// The limiters of other limits. Unchanged limits keep theirs.
    pub fn renewed(&self, client: &Client, limits: &Limits) -> Self {
        let mut configured: HashMap<Limit, AnyLimiter> = HashMap::new();
        let limiter = |limit: &&Limit| {
            let limit = limit.unnamed();
            let new = || AnyLimiter::new(client, &limit).expect("the configuration is valid");
            let known_or_new = || self.configured.get(&limit).cloned().unwrap_or_else(new);
            configured.entry(limit.clone()).or_insert_with(known_or_new).clone()
        };
        let by_id = limits.by_id().iter().map(limiter).collect();
        Self { by_id, configured, from_requests: Arc::clone(&self.from_requests) }
    }

    /// The limiter of a limit.
    ///
    /// # Errors
    /// A limit from a request is invalid.
    pub fn of(&self, client: &Client, limit: &Limit) -> Result<Cow<'_, AnyLimiter>, Error> {
        match limit.id {
            Some(id) => Ok(Cow::Borrowed(&self.by_id[id])),
            None => self.from_requests.of(limit, || AnyLimiter::new(client, limit)).map(Cow::Owned),
        }
    }
}

/// The most recently used values. A limiter of this process is kept, because it holds its counts.
struct Recent<K: Hash + Eq, L>(Mutex<LruCache<K, L, RandomState>>);

impl<K: Hash + Eq, L> Default for Recent<K, L> {
    fn default() -> Self {
        Self(Mutex::new(LruCache::with_hasher(MAX, RandomState::new())))
    }
}

impl<K: Hash + Eq + Clone, L: Clone> Recent<K, L> {
    /// The value of this key; a missing one is created.
    fn of<E>(&self, key: &K, new: impl FnOnce() -> Result<L, E>) -> Result<L, E> {
        let mut known = self.0.lock().expect("no code panics while it holds this lock");
        known.try_get_or_insert_ref(key, new).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_least_recently_used_are_forgotten() {
        let (recent, mut made) = (Recent::default(), Vec::new());
        let mut of = |kind| {
            let new = || {
                made.push(kind);
                Ok::<_, ()>(())
            };
            recent.of(&kind, new).unwrap();
        };
        for kind in 0..2 * MAX.get() {
            of(kind);
            of(0);
        }
        of(MAX.get() + 1);
        of(1);
        let all = (0..2 * MAX.get()).chain([1]);
        assert!(made.into_iter().eq(all));
    }
}
