//! A concurrent map with a bound. What was not used since it was looked at last is forgotten first, and what is pinned
//! last.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ahash::RandomState;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::statistics::{Count, Counters};

/// Idle keys are looked for when there are twice as many as the last time, at least so many, and not more often than
/// this: so it costs each new key little, however many come.
const SWEEP: Duration = Duration::from_secs(1);
const FEW: usize = 1024;
/// The names of all keys may take so many bytes for each key that there may be.
const BYTES_PER_KEY: usize = 128;
/// How many of the oldest are looked at for one that was not used, and of those that were pinned, for one that no longer
/// is.
const LOOK_AT: usize = 32;

/// The value of a key, kept until it is idle.
pub(crate) trait Keep {
    /// Whether nothing would be lost by forgetting it.
    fn is_idle(&self, now: Instant) -> bool;

    /// The most keys that may be pinned, of all that are kept.
    fn most_pinned(max_keys: usize) -> usize {
        max_keys
    }

    /// Whether it must not be forgotten, even when the map is full.
    fn is_pinned(&self) -> bool {
        false
    }
}

/// Keys, each with what is kept of it. Looking one up takes no lock.
pub(crate) struct Bounded<V> {
    /// Made with the first key: an empty one takes kilobytes, and most limits of a large configuration have no key.
    map: OnceLock<Map<V>>,
    /// The keys of the map, the oldest first. Keys are added and removed under this lock.
    order: Box<Mutex<Order>>,
    max_keys: usize,
    /// Counts keys that are forgotten and were not idle.
    counters: Option<Arc<Counters>>,
}

type Map<V> = papaya::HashMap<Arc<[u8]>, Kept<V>, RandomState>;
type Pinned<'map, V> = papaya::HashMapRef<'map, Arc<[u8]>, Kept<V>, RandomState, papaya::LocalGuard<'map>>;

struct Kept<V> {
    value: V,
    /// Since it was made, or looked at because room was needed.
    was_used: AtomicBool,
}

impl<V> Kept<V> {
    #[inline]
    fn used(&self) -> &V {
        if !self.was_used.load(Ordering::Relaxed) {
            self.was_used.store(true, Ordering::Relaxed);
        }
        &self.value
    }
}

struct Order {
    keys: VecDeque<Arc<[u8]>>,
    /// Those that were pinned when room was needed.
    pinned: VecDeque<Arc<[u8]>>,
    /// Of the keys' names.
    bytes: usize,
    swept: Instant,
    /// With how many keys it is worth while to look for idle ones again.
    crowded: usize,
    /// When something was forgotten last that was not idle.
    forgot: Option<Instant>,
}

impl<V: Keep> Bounded<V> {
    /// At most so many keys.
    pub fn new(max_keys: usize) -> Self {
        let max_keys = max_keys.max(1);
        let crowded = FEW.min(max_keys);
        let (keys, pinned) = Default::default();
        let order = Order { keys, pinned, bytes: 0, swept: Instant::now(), crowded, forgot: None };
        Self { map: OnceLock::new(), order: Box::new(Mutex::new(order)), max_keys, counters: None }
    }

    /// Counts what is forgotten and was not idle.
    pub fn counting(self, counters: &Arc<Counters>) -> Self {
        Self { counters: Some(Arc::clone(counters)), ..self }
    }

    fn map(&self) -> &Map<V> {
        self.map.get_or_init(|| Map::with_hasher(RandomState::new()))
    }

    /// Applies a function to what is kept of a key; `None` where nothing is.
    #[inline]
    pub fn see<R>(&self, key: &[u8], see: impl FnOnce(&V) -> R) -> Option<R> {
        self.map.get()?.pin().get(key).map(|kept| see(kept.used()))
    }

    /// Applies a function to what is kept of a key, made if nothing is. If the map is full, it is made, and not kept.
    #[inline]
    pub fn with<R>(&self, key: &[u8], make: impl FnOnce() -> V, see: impl FnOnce(&V) -> R) -> R {
        let map = self.map().pin();
        match map.get(key) {
            Some(found) => see(found.used()),
            None => match self.keep(&map, key, make) {
                Ok(kept) => see(kept),
                Err(made) => see(&made),
            },
        }
    }

    /// What is kept of a key now, if nothing was before; an error where there is no room for it.
    #[cold]
    fn keep<'map>(&self, map: &'map Pinned<'_, V>, key: &[u8], make: impl FnOnce() -> V) -> Result<&'map V, V> {
        let mut order = self.order.lock();
        if let Some(found) = map.get(key) {
            return Ok(found.used());
        }
        let now = Instant::now();
        if order.len() >= order.crowded && now > order.swept + SWEEP {
            self.sweep(&mut order, now);
        }
        if !self.make_room(&mut order, key.len(), now) {
            return Err(make());
        }
        let key = Arc::<[u8]>::from(key);
        order.keys.push_back(Arc::clone(&key));
        order.bytes += key.len();
        Ok(&map.get_or_insert(key, Kept { value: make(), was_used: AtomicBool::new(false) }).value)
    }

    fn sweep(&self, order: &mut Order, now: Instant) {
        let map = self.map().pin();
        let mut bytes = 0;
        let mut stays = |key: &Arc<[u8]>| {
            let stays = map.get(key).is_some_and(|kept| !kept.value.is_idle(now) || kept.value.is_pinned());
            if stays {
                bytes += key.len();
            } else {
                map.remove(key);
            }
            stays
        };
        order.keys.retain(&mut stays);
        order.pinned.retain(&mut stays);
        order.bytes = bytes;
        order.swept = now;
        order.crowded = FEW.max(2 * order.len()).min(self.max_keys);
    }

    /// Forgets the oldest keys until there is room for one more. Whether there is.
    fn make_room(&self, order: &mut Order, bytes: usize, now: Instant) -> bool {
        let map = self.map().pin();
        let most_bytes = self.max_keys.saturating_mul(BYTES_PER_KEY);
        let mut looked_at = 0;
        while order.len() >= self.max_keys || (order.bytes + bytes > most_bytes && order.len() > 0) {
            if looked_at == 0 {
                for _ in 0..order.pinned.len().min(LOOK_AT) {
                    let Some(key) = order.pinned.pop_front() else { break };
                    match map.get(&key).is_some_and(|kept| kept.value.is_pinned()) {
                        true => order.pinned.push_back(key),
                        false => order.keys.push_back(key),
                    }
                }
            }
            let Some(oldest) = order.keys.pop_front() else {
                order.forgot = Some(now);
                return false;
            };
            let kept = map.get(&oldest);
            let may_be_pinned = order.pinned.len() < V::most_pinned(self.max_keys);
            if may_be_pinned && kept.is_some_and(|kept| kept.value.is_pinned()) {
                order.pinned.push_back(oldest);
                continue;
            }
            looked_at += 1;
            if looked_at <= LOOK_AT && kept.is_some_and(|kept| kept.was_used.swap(false, Ordering::Relaxed)) {
                order.keys.push_back(oldest);
                continue;
            }
            if kept.is_some_and(|kept| !kept.value.is_idle(now)) {
                order.forgot = Some(now);
                self.counters.iter().for_each(|counters| counters.count(Count::Evicted, 1));
            }
            order.bytes -= oldest.len();
            map.remove(&oldest);
        }
        true
    }

    /// Whether anything was forgotten since an instant that was not idle.
    pub fn has_forgotten_since(&self, instant: Instant) -> bool {
        self.order.lock().forgot.is_some_and(|forgot| forgot >= instant)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.map.get().map_or(0, Map::len)
    }
}

impl Order {
    fn len(&self) -> usize {
        self.keys.len() + self.pinned.len()
    }
}

/// What is shared may outlive its place in the map.
impl<V: Keep> Bounded<Arc<V>> {
    /// The value of a key, made if there is none. If the map is full, it is made, and not kept.
    pub fn get_or_make(&self, key: &[u8], make: impl FnOnce() -> V) -> Arc<V> {
        self.with(key, || Arc::new(make()), Arc::clone)
    }

    /// The same; an error where it is not kept.
    pub fn get_or_keep(&self, key: &[u8], make: impl FnOnce() -> V) -> Result<Arc<V>, Arc<V>> {
        let map = self.map().pin();
        let found = map.get(key).map(Kept::used).map_or_else(|| self.keep(&map, key, || Arc::new(make())), Ok);
        found.map(Arc::clone)
    }
}

impl<V: Keep> Keep for Arc<V> {
    fn is_idle(&self, now: Instant) -> bool {
        (**self).is_idle(now)
    }

    fn most_pinned(max_keys: usize) -> usize {
        V::most_pinned(max_keys)
    }

    fn is_pinned(&self) -> bool {
        (**self).is_pinned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item(bool, bool);

    impl Keep for Item {
        fn is_idle(&self, _: Instant) -> bool {
            self.0
        }

        fn is_pinned(&self) -> bool {
            self.1
        }
    }

    fn fill(keys: &Bounded<Item>, names: std::ops::Range<usize>, idle: impl Fn(usize) -> bool) {
        for name in names {
            keys.with(name.to_string().as_bytes(), || Item(idle(name), false), |_| ());
        }
    }

    fn has(keys: &Bounded<Item>, name: usize) -> bool {
        keys.see(name.to_string().as_bytes(), |_| ()).is_some()
    }

    #[test]
    fn the_oldest_go_for_want_of_room() {
        let keys = Bounded::new(10);
        fill(&keys, 0..25, |_| false);
        assert_eq!(keys.len(), 10);
        assert!((0..25).all(|name| has(&keys, name) == (name >= 15)));
        fill(&keys, 15..25, |_| false); // they are there already
        assert!(has(&keys, 15));
    }

    #[test]
    fn what_is_used_is_forgotten_last() {
        let keys = Bounded::new(4);
        fill(&keys, 0..1, |_| false);
        for name in 1..100 {
            fill(&keys, name..name + 1, |_| false);
            assert!(has(&keys, 0), "forgotten at {name}");
        }
        assert_eq!(keys.len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_idle_go_in_time() {
        let keys = Bounded::new(5_000);
        fill(&keys, 0..2_000, |name| name % 2 == 0);
        assert_eq!(keys.len(), 2_000, "nobody looked yet");
        tokio::time::sleep(2 * SWEEP).await;
        fill(&keys, 2_000..2_001, |_| false);
        assert_eq!(keys.len(), 1_001);
        assert!(has(&keys, 1) && !has(&keys, 2));
    }

    #[test]
    fn what_is_pinned_stays_and_what_is_forgotten_is_known() {
        let (keys, begun) = (Bounded::new(3), Instant::now());
        keys.with(b"pinned", || Item(false, true), |_| ());
        fill(&keys, 0..2, |_| true);
        assert!(!keys.has_forgotten_since(begun));
        fill(&keys, 2..4, |_| false);
        assert!(!keys.has_forgotten_since(begun), "they were idle");
        fill(&keys, 4..5, |_| false);
        assert!(keys.has_forgotten_since(begun));
        assert!(keys.see(b"pinned", |_| ()).is_some());
        let full = Bounded::new(2);
        for key in [b"a", b"b", b"c"] {
            full.with(key, || Item(false, true), |_| ());
        }
        assert!(full.len() == 2 && full.see(b"c", |_| ()).is_none() && full.has_forgotten_since(begun));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_pinned_may_be_forgotten_later() {
        struct Until(Instant);
        impl Keep for Until {
            fn is_idle(&self, _: Instant) -> bool {
                false
            }

            fn most_pinned(max_keys: usize) -> usize {
                max_keys / 2
            }

            fn is_pinned(&self) -> bool {
                Instant::now() < self.0
            }
        }
        let (counters, until) = (Arc::new(Counters::new()), Instant::now() + SWEEP);
        let keys = Bounded::new(100).counting(&counters);
        let add = |name: usize, until| keys.with(name.to_string().as_bytes(), || Until(until), |_| ());
        let there = |names: std::ops::Range<usize>| {
            names.filter(|name| keys.see(name.to_string().as_bytes(), |_| ()).is_some()).count()
        };
        (0..80).for_each(|name| add(name, until));
        (80..1_000).for_each(|name| add(name, Instant::now()));
        assert_eq!((keys.len(), there(0..80), counters.sums().evicted), (100, 50, 900));
        tokio::time::sleep(SWEEP).await;
        (1_000..1_200).for_each(|name| add(name, Instant::now()));
        assert_eq!((keys.len(), there(0..80)), (100, 0));
    }

    #[test]
    fn names_are_bounded_in_bytes() {
        let keys = Bounded::new(1000);
        for number in 0..100 {
            let name = format!("{number}{}", "x".repeat(60_000));
            keys.with(name.as_bytes(), || Item(false, false), |_| ());
        }
        assert!(keys.len() <= 1000 * BYTES_PER_KEY / 60_000, "{}", keys.len());
    }
}
