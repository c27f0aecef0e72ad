//! The queues of ACQUIRE and of HOLD with WAIT: one for each key, first come, first served, with the instant at which each is checked next.
//!
//! This is pure data: it calls neither the server nor a clock. Due instants are Unix time in ms by the server's clock, as
//! decisions are; deadlines are in ms by a monotonic clock.

use std::collections::{BTreeSet, HashMap};

use swlimit_window::Request;

/// The queue of a key: its database and name.
pub type QueueKey = (i32, Box<[u8]>);

/// Identifies a waiter; ascends in the order of arrival.
pub type WaiterId = u64;

/// What a waiter wants to be granted.
#[derive(Clone, Debug)]
pub enum Wish {
    /// Units of a window.
    Units(Request),
    /// A hold.
    Hold {
        /// Units of all holds together.
        limit: u64,
        /// Time to live, in ms.
        ttl: u64,
        /// The hold's id.
        id: Box<[u8]>,
        /// The hold's units.
        cost: u64,
    },
}

impl Wish {
    /// The units it is about.
    pub fn cost(&self) -> u64 {
        match self {
            Wish::Units(request) => request.cost,
            Wish::Hold { cost, .. } => *cost,
        }
    }

    fn hold_id(&self) -> Option<&[u8]> {
        match self {
            Wish::Units(_) => None,
            Wish::Hold { id, .. } => Some(id),
        }
    }
}

/// A request that waits to be granted.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The queue it waits in.
    pub key: QueueKey,
    /// What to grant.
    pub wish: Wish,
    /// When the wait ends, in ms by the monotonic clock.
    pub deadline: u64,
}

/// The waiters of one key.
#[derive(Debug)]
struct Queue {
    ids: BTreeSet<WaiterId>,
    /// When to check the first waiter, in Unix ms; 0: at once, because the key may have changed.
    due: u64,
}

/// All waiters.
#[derive(Debug, Default)]
pub struct Queues {
    arrivals: WaiterId,
    waiters: HashMap<WaiterId, Waiter>,
    queues: HashMap<QueueKey, Queue>,
    due: BTreeSet<(u64, QueueKey)>,
    deadlines: BTreeSet<(u64, WaiterId)>,
    /// The waiters for a hold, by its id: one each.
    holds: HashMap<QueueKey, HashMap<Box<[u8]>, WaiterId>>,
}

impl Queues {
    /// The number of waiters.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// When the queue's first waiter is checked next; `None` when nobody waits there.
    pub fn due(&self, key: &QueueKey) -> Option<u64> {
        self.queues.get(key).map(|queue| queue.due)
    }

    /// Append a waiter; `due` is when the request fits if nothing else is counted.
    pub fn push(&mut self, waiter: Waiter, due: u64) -> WaiterId {
        let id = self.arrivals;
        self.arrivals += 1;
        self.deadlines.insert((waiter.deadline, id));
        match self.queues.get_mut(&waiter.key) {
            Some(queue) => drop(queue.ids.insert(id)),
            None => {
                self.due.insert((due, waiter.key.clone()));
                self.queues.insert(waiter.key.clone(), Queue { ids: BTreeSet::from([id]), due });
            }
        }
        if let Some(hold) = waiter.wish.hold_id() {
            self.holds.entry(waiter.key.clone()).or_default().insert(hold.into(), id);
        }
        self.waiters.insert(id, waiter);
        id
    }

    /// The waiter for the hold of this id.
    pub fn waiter_for(&self, key: &QueueKey, hold: &[u8]) -> Option<WaiterId> {
        self.holds.get(key)?.get(hold).copied()
    }

    /// Let a waiter for a hold want another one of the same id, at the same place in the queue, which is due at once.
    pub fn replace(&mut self, id: WaiterId, waiter: Waiter) {
        if let Some(before) = self.waiters.get_mut(&id) {
            self.deadlines.remove(&(before.deadline, id));
            self.deadlines.insert((waiter.deadline, id));
            let key = waiter.key.clone();
            *before = waiter;
            self.set_due(&key, 0);
        }
    }

    /// Release memory that is not needed any more.
    pub fn shrink(&mut self) {
        self.waiters.shrink_to_fit();
        self.queues.shrink_to_fit();
        self.holds.shrink_to_fit();
    }

    /// Remove a waiter. If it was the first, the queue is due at once for the next one.
    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        if let (Some(hold), Some(holds)) = (waiter.wish.hold_id(), self.holds.get_mut(&waiter.key)) {
            holds.remove(hold);
            if holds.is_empty() {
                self.holds.remove(&waiter.key);
            }
        }
        if let Some(queue) = self.queues.get_mut(&waiter.key) {
            let was_first = queue.ids.first() == Some(&id);
            queue.ids.remove(&id);
            if queue.ids.is_empty() {
                self.due.remove(&(queue.due, waiter.key.clone()));
                self.queues.remove(&waiter.key);
            } else if was_first {
                self.set_due(&waiter.key, 0);
            }
        }
        Some(waiter)
    }

    /// A waiter by its id.
    pub fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(&id)
    }

    /// The first waiter of a queue.
    pub fn first(&self, key: &QueueKey) -> Option<(WaiterId, &Waiter)> {
        let id = self.queues.get(key)?.ids.first()?;
        Some((*id, self.waiters.get(id)?))
    }

    /// Check the queue's first waiter at this instant, not before; 0: at once.
    pub fn set_due(&mut self, key: &QueueKey, due: u64) {
        if let Some(queue) = self.queues.get_mut(key) {
            self.due.remove(&(queue.due, key.clone()));
            queue.due = due;
            self.due.insert((due, key.clone()));
        }
    }

    /// Make every queue, or those of one database, due at once.
    pub fn wake_all(&mut self, database: Option<i32>) {
        let keys: Vec<QueueKey> =
            self.queues.keys().filter(|(of, _)| database.is_none_or(|db| db == *of)).cloned().collect();
        keys.iter().for_each(|key| self.set_due(key, 0));
    }

    /// The queue that is due first, and when.
    pub fn next_due(&self) -> Option<&(u64, QueueKey)> {
        self.due.first()
    }

    /// The earliest deadline, and whose it is.
    pub fn next_deadline(&self) -> Option<&(u64, WaiterId)> {
        self.deadlines.first()
    }

    /// All waiters, in the order of arrival.
    pub fn ids(&self) -> Vec<WaiterId> {
        let mut ids: Vec<WaiterId> = self.waiters.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use swlimit_window::{Geometry, Quota, Request};

    use super::*;

    fn waiter(name: u8, deadline: u64) -> Waiter {
        let quota = Quota { limit: 1, geometry: Geometry::new(1_000, 100).unwrap() };
        let request = Request { quota, cost: 1, partial: false, strict: false };
        Waiter { key: (0, [name].into()), wish: Wish::Units(request), deadline }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join(u8, u64, u64),
        Leave(prop::sample::Index),
        Postpone(u8, u64),
        Wake(Option<i32>),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..4u8, 0..50u64, 0..50u64).prop_map(|(name, deadline, due)| Step::Join(name, deadline, due)),
            3 => any::<prop::sample::Index>().prop_map(Step::Leave),
            2 => (0..4u8, 0..50u64).prop_map(|(name, due)| Step::Postpone(name, due)),
            1 => prop_oneof![Just(None), Just(Some(0)), Just(Some(1))].prop_map(Step::Wake),
        ];
        vec(step, 0..60)
    }

    #[test]
    fn an_id_waits_once_for_a_hold() {
        let key: QueueKey = (0, [1].into());
        let hold = |id: &[u8], deadline| {
            let wish = Wish::Hold { limit: 1, ttl: 1, id: id.into(), cost: 1 };
            Waiter { key: key.clone(), wish, deadline }
        };
        let mut queues = Queues::default();
        let (first, second) = (queues.push(hold(b"a", 5), 9), queues.push(hold(b"b", 6), 9));
        assert_eq!((queues.waiter_for(&key, b"a"), queues.waiter_for(&key, b"b")), (Some(first), Some(second)));
        queues.replace(first, hold(b"a", 7));
        assert_eq!((queues.len(), queues.first(&key).map(|(id, _)| id), queues.due(&key)), (2, Some(first), Some(0)));
        assert_eq!(queues.next_deadline(), Some(&(6, second)));
        queues.remove(first);
        assert_eq!((queues.waiter_for(&key, b"a"), queues.waiter_for(&key, b"b")), (None, Some(second)));
        queues.remove(second);
        assert!(queues.holds.is_empty() && queues.len() == 0 && queues.next_deadline().is_none());
    }

    proptest! {
        /// Against plain lists, one for each key.
        #[test]
        fn agrees_with_plain_lists(steps in steps()) {
            let mut queues = Queues::default();
            let mut lists: HashMap<u8, (VecDeque<WaiterId>, u64)> = HashMap::new();
            let mut all: Vec<(WaiterId, u8, u64)> = vec![];
            for step in steps {
                match step {
                    Step::Join(name, deadline, due) => {
                        let id = queues.push(waiter(name, deadline), due);
                        lists.entry(name).or_insert_with(|| (VecDeque::new(), due)).0.push_back(id);
                        all.push((id, name, deadline));
                    }
                    Step::Leave(_) if all.is_empty() => prop_assert!(queues.remove(99).is_none()),
                    Step::Leave(which) => {
                        let (id, name, deadline) = all.remove(which.index(all.len()));
                        let left = queues.remove(id).unwrap();
                        prop_assert_eq!((&*left.key.1, left.deadline), (&[name][..], deadline));
                        let (list, due) = lists.get_mut(&name).unwrap();
                        if list.front() == Some(&id) {
                            *due = 0;
                        }
                        list.retain(|other| *other != id);
                        if list.is_empty() {
                            lists.remove(&name);
                        }
                    }
                    Step::Postpone(name, at) => {
                        queues.set_due(&(0, [name].into()), at);
                        if let Some((_, due)) = lists.get_mut(&name) {
                            *due = at;
                        }
                    }
                    Step::Wake(database) => {
                        queues.wake_all(database);
                        if database != Some(1) {
                            lists.values_mut().for_each(|(_, due)| *due = 0);
                        }
                    }
                }
                prop_assert_eq!(queues.len(), all.len());
                prop_assert_eq!(queues.ids(), all.iter().map(|(id, ..)| *id).collect::<Vec<_>>());
                for name in 0..4 {
                    let key: QueueKey = (0, [name].into());
                    let list = lists.get(&name);
                    prop_assert_eq!(queues.due(&key), list.map(|(_, due)| *due));
                    prop_assert_eq!(queues.first(&key).map(|(id, _)| id), list.map(|(list, _)| list[0]));
                }
                let due = lists.iter().map(|(name, (_, due))| (*due, *name)).min();
                prop_assert_eq!(queues.next_due().map(|(due, key)| (*due, key.1[0])), due);
                let deadline = all.iter().map(|(id, _, deadline)| (*deadline, *id)).min();
                prop_assert_eq!(queues.next_deadline().copied(), deadline);
            }
        }
    }
}
