//! What is known of each key: a concurrent map with a bound. The oldest key is forgotten first.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// How often what has become idle is looked for, at most.
const SWEEP: Duration = Duration::from_secs(1);

/// What is kept of a key until it is idle.
pub(crate) trait Keep {
    /// Whether nothing would be lost by forgetting it.
    fn is_idle(&self, now: Instant) -> bool;
}

/// Keys, each with what is kept of it. Looking one up takes no lock.
pub(crate) struct Keys<V> {
    map: papaya::HashMap<Arc<[u8]>, Arc<V>>,
    /// The keys of the map, the oldest first. Whoever changes which keys there are holds this.
    order: Mutex<Order>,
    most: usize,
}

struct Order {
    keys: VecDeque<Arc<[u8]>>,
    swept: Instant,
}

impl<V: Keep> Keys<V> {
    /// At most so many keys.
    pub fn new(most: usize) -> Self {
        let order = Order { keys: VecDeque::new(), swept: Instant::now() };
        Self { map: papaya::HashMap::new(), order: Mutex::new(order), most: most.max(1) }
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
        if order.keys.len() >= self.most || now > order.swept + SWEEP {
            order.keys.retain(|key| {
                let stays = map.get(key).is_some_and(|kept| !kept.is_idle(now));
                if !stays {
                    map.remove(key);
                }
                stays
            });
            order.swept = now;
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
