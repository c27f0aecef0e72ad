//! Bounds the bytes of all requests and replies that are under way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

/// The bytes of all connections. Above the bound, the oldest transfer is dropped: those that end in time are young.
pub struct InFlight {
    max: usize,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    bytes: usize,
    next: u64,
    by_age: BTreeMap<u64, Entry>,
}

struct Entry {
    bytes: usize,
    given_up: Arc<Notify>,
}

/// The bytes of one request or reply, until they are dropped.
pub struct Bytes {
    in_flight: Arc<InFlight>,
    age: u64,
}

impl InFlight {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, all: Mutex::default() })
    }

    /// Counts the bytes of a transfer. `given_up` is notified if it is dropped.
    pub fn hold(self: &Arc<Self>, bytes: usize, given_up: Arc<Notify>) -> Bytes {
        let mut all = self.lock();
        let age = all.next;
        all.next += 1;
        all.by_age.insert(age, Entry { bytes: 0, given_up });
        drop(all);
        let held = Bytes { in_flight: self.clone(), age };
        held.grow(bytes);
        held
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().expect("no code panics while it holds this lock")
    }
}

impl Bytes {
    /// More of them.
    pub fn grow(&self, bytes: usize) {
        let mut all = self.in_flight.lock();
        let Some(own) = all.by_age.get_mut(&self.age) else { return }; // they are given up
        own.bytes += bytes;
        all.bytes += bytes;
        while all.bytes > self.in_flight.max {
            let Some((_, oldest)) = all.by_age.pop_first() else { return };
            all.bytes -= oldest.bytes;
            oldest.given_up.notify_one();
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        let mut all = self.in_flight.lock();
        if let Some(own) = all.by_age.remove(&self.age) {
            all.bytes -= own.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_is_given_up() {
        let in_flight = InFlight::new(100);
        let held: Vec<_> = [40, 30, 30]
            .map(|bytes| {
                let given_up = Arc::new(Notify::new());
                (in_flight.hold(bytes, given_up.clone()), given_up)
            })
            .into();
        let given_up =
            || held.iter().map(|(_, given_up)| given_up.notified().now_or_never().is_some()).collect::<Vec<_>>();
        assert_eq!(given_up(), [false; 3]);
        held[2].0.grow(1);
        assert_eq!(given_up(), [true, false, false]);
        held[0].0.grow(1000);
        assert_eq!(in_flight.lock().bytes, 61);
        held[1].0.grow(1000);
        assert_eq!(given_up(), [false, true, false]);
        drop(held);
        let all = in_flight.lock();
        assert_eq!((all.bytes, all.by_age.len()), (0, 0));
    }
}
