//! What is known of each key: a concurrent map with a bound. The oldest key is forgotten first.

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// What has become idle is looked for when there are twice as many keys as the last time, at least so many, and not
/// more often than this: so it costs each new key little, however many come.
const SWEEP: Duration = Duration::from_secs(1);
const FEW: usize = 1024;

/// What is kept of a key until it is idle.
pub(crate) trait Keep {
    /// Whether nothing would be lost by forgetting it.
    fn is_idle(&self, now: Instant) -> bool;
}

/// Keys, each with what is kept of it. Looking one up takes no lock.
pub(crate) struct Keys<V> {
    map: papaya::HashMap<Arc<[u8]>, Arc<V>, RandomState>,
    /// The keys of the map, the oldest first. Whoever changes which keys there are holds this.
    order: Mutex<Order>,
    most: usize,
}

struct Order {
    keys: VecDeque<Arc<[u8]>>,
    swept: Instant,
    /// With how many keys it is worth while to look for idle ones again.
    crowded: usize,
}

impl<V: Keep> Keys<V> {
    /// At most so many keys.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        let order = Order { keys: VecDeque::new(), swept: Instant::now(), crowded: FEW.min(most) };
        Self { map: papaya::HashMap::with_hasher(RandomState::new()), order: Mutex::new(order), most }
    }

    /// What is kept of a key, seen by a function; `None` where nothing is.
    #[inline]
    pub fn see<R>(&self, key: &[u8], see: impl FnOnce(&Arc<V>) -> R) -> Option<R> {
        self.map.pin().get(key).map(see)
    }

    /// What is kept of a key, made if nothing is.
    pub fn get_or_make(&self, key: &[u8], make: impl FnOnce() -> V) -> Arc<V> {
        self.with(key, make, Arc::clone)
    }

    /// What is kept of a key, made if nothing is, seen by a function.
    #[inline]
    pub fn with<R>(&self, key: &[u8], make: impl FnOnce() -> V, see: impl FnOnce(&Arc<V>) -> R) -> R {
        if let Some(found) = self.map.pin().get(key) {
            return see(found);
        }
        see(&self.make(key, make))
    }

    /// What has become idle goes on this occasion, and the oldest for want of room.
    fn make(&self, key: &[u8], make: impl FnOnce() -> V) -> Arc<V> {
        let mut order = self.order.lock();
        let map = self.map.pin();
        if let Some(found) = map.get(key) {
            return Arc::clone(found);
        }
        let now = Instant::now();
        if order.keys.len() >= order.crowded && now > order.swept + SWEEP {
            order.keys.retain(|key| {
                let stays = map.get(key).is_some_and(|kept| !kept.is_idle(now));
                if !stays {
                    map.remove(key);
                }
                stays
            });
            order.swept = now;
            order.crowded = FEW.max(2 * order.keys.len()).min(self.most);
        }
        while order.keys.len() >= self.most {
            if let Some(oldest) = order.keys.pop_front() {
                map.remove(&oldest);
            }
        }
        let (key, made) = (Arc::<[u8]>::from(key), Arc::new(make()));
        order.keys.push_back(Arc::clone(&key));
        map.insert(key, Arc::clone(&made));
        made
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Kept(bool);

    impl Keep for Kept {
        fn is_idle(&self, _: Instant) -> bool {
            self.0
        }
    }

    fn fill(keys: &Keys<Kept>, names: std::ops::Range<usize>, idle: impl Fn(usize) -> bool) {
        for name in names {
            keys.get_or_make(name.to_string().as_bytes(), || Kept(idle(name)));
        }
    }

    fn has(keys: &Keys<Kept>, name: usize) -> bool {
        keys.see(name.to_string().as_bytes(), |_| ()).is_some()
    }

    #[test]
    fn the_oldest_go_for_want_of_room() {
        let keys = Keys::new(10);
        fill(&keys, 0..25, |_| false);
        assert_eq!(keys.len(), 10);
        assert!((0..25).all(|name| has(&keys, name) == (name >= 15)));
        fill(&keys, 15..25, |_| false); // they are there already
        assert!(has(&keys, 15));
    }

    #[tokio::test(start_paused = true)]
    async fn the_idle_go_in_time() {
        let keys = Keys::new(5_000);
        fill(&keys, 0..2_000, |name| name % 2 == 0);
        assert_eq!(keys.len(), 2_000, "nobody looked yet");
        tokio::time::sleep(2 * SWEEP).await;
        fill(&keys, 2_000..2_001, |_| false);
        assert_eq!(keys.len(), 1_001);
        assert!(has(&keys, 1) && !has(&keys, 2));
    }
}
