//! Limiters of limits that requests brought along. Anybody may bring any number of them.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use ahash::RandomState;
use lru::LruCache;

/// The most that are kept. The least recently used is forgotten first.
const MAX: NonZeroUsize = NonZeroUsize::new(10_000).expect("it is not zero");

/// Limiters by what they limit. Those in this process remember what is counted.
pub struct Brought<K, L>(Mutex<LruCache<K, L, RandomState>>);

impl<K: Hash + Eq, L> Default for Brought<K, L> {
    fn default() -> Self {
        Self(Mutex::new(LruCache::with_hasher(MAX, RandomState::new())))
    }
}

impl<K: Hash + Eq, L: Clone> Brought<K, L> {
    /// The limiter of this kind, new if it is not known.
    pub fn of<E>(&self, kind: K, new: impl FnOnce() -> Result<L, E>) -> Result<L, E> {
        let mut known = self.0.lock().expect("no code panics while it holds this lock");
        known.try_get_or_insert(kind, new).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_least_recently_used_are_forgotten() {
        let (brought, mut made) = (Brought::default(), Vec::new());
        let mut of = |kind| {
            let new = || {
                made.push(kind);
                Ok::<_, ()>(())
            };
            brought.of(kind, new).unwrap();
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
