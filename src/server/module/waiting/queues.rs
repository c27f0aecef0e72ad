//! The queues of ACQUIRE and of HOLD with WAIT: one for each key, first come, first served, with the instant at which each is checked next.
//!
//! This is pure data: it calls neither the server nor a clock. Due instants are Unix time in ms by the server's clock, as
//! decisions are; deadlines are in ms by a monotonic clock.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use foldhash::fast::RandomState;
use swlimit_window::Request;

/// Identifies a queue for as long as anybody waits in it; ascends in the order in which they begin.
pub type QueueId = u64;

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
    pub queue: QueueId,
    /// What to grant.
    pub wish: Wish,
    /// When the wait ends, in ms by the monotonic clock.
    pub deadline: u64,
}

/// The waiters of one key.
#[derive(Debug)]
struct Queue<N> {
    database: i32,
    name: N,
    ids: BTreeSet<WaiterId>,
    /// When to check the first waiter, in Unix ms; 0: at once, because the key may have changed.
    due: u64,
    /// The waiters for a hold, by its id: one each.
    holds: HashMap<Box<[u8]>, WaiterId>,
}

/// All waiters. `N` is the name of a key, of which there may be megabytes: a queue keeps it once, and its clone is a share.
#[derive(Debug)]
pub struct Queues<N> {
    waiters_begun: WaiterId,
    queues_begun: QueueId,
    waiters: HashMap<WaiterId, Waiter>,
    queues: HashMap<QueueId, Queue<N>>,
    /// By database and name.
    named: BTreeMap<i32, HashMap<N, QueueId, RandomState>>,
    due: BTreeSet<(u64, QueueId)>,
    deadlines: BTreeSet<(u64, WaiterId)>,
}

impl<N> Default for Queues<N> {
    fn default() -> Self {
        Self {
            waiters_begun: 0,
            queues_begun: 0,
            waiters: HashMap::new(),
            queues: HashMap::new(),
            named: BTreeMap::new(),
            due: BTreeSet::new(),
            deadlines: BTreeSet::new(),
        }
    }
}

impl<N: Clone + Eq + Hash + Borrow<[u8]>> Queues<N> {
    /// The number of waiters.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// The queue of a key; `None` when nobody waits there.
    pub fn find(&self, database: i32, name: &[u8]) -> Option<QueueId> {
        self.named.get(&database)?.get(name).copied()
    }

    /// The database and the name of a queue's key.
    pub fn key(&self, queue: QueueId) -> Option<(i32, N)> {
        self.queues.get(&queue).map(|queue| (queue.database, queue.name.clone()))
    }

    /// When the queue's first waiter is checked next.
    pub fn due(&self, queue: QueueId) -> Option<u64> {
        self.queues.get(&queue).map(|queue| queue.due)
    }

    /// Append a waiter to the queue of a key; `due` is when the request fits if nothing else is counted.
    pub fn push(&mut self, database: i32, name: &N, wish: Wish, deadline: u64, due: u64) -> WaiterId {
        let id = self.waiters_begun;
        self.waiters_begun += 1;
        let queue = self.find(database, name.borrow()).unwrap_or_else(|| self.begin(database, name, due));
        if let Some(Queue { ids, holds, .. }) = self.queues.get_mut(&queue) {
            ids.insert(id);
            holds.extend(wish.hold_id().map(|hold| (hold.into(), id)));
        }
        self.deadlines.insert((deadline, id));
        self.waiters.insert(id, Waiter { queue, wish, deadline });
        id
    }

    fn begin(&mut self, database: i32, name: &N, due: u64) -> QueueId {
        let id = self.queues_begun;
        self.queues_begun += 1;
        self.named.entry(database).or_default().insert(name.clone(), id);
        self.due.insert((due, id));
        let (name, ids, holds) = (name.clone(), BTreeSet::new(), HashMap::new());
        self.queues.insert(id, Queue { database, name, ids, due, holds });
        id
    }

    fn end(&mut self, id: QueueId) {
        let Some(Queue { database, name, due, .. }) = self.queues.remove(&id) else { return };
        self.due.remove(&(due, id));
        if let Some(named) = self.named.get_mut(&database) {
            named.remove(name.borrow());
            if named.is_empty() {
                self.named.remove(&database);
            }
        }
    }

    /// The waiter for the hold of this id.
    pub fn waiter_for(&self, queue: QueueId, hold: &[u8]) -> Option<WaiterId> {
        self.queues.get(&queue)?.holds.get(hold).copied()
    }

    /// Let a waiter for a hold want another one of the same id, at the same place in the queue, which is due at once.
    pub fn replace(&mut self, id: WaiterId, wish: Wish, deadline: u64) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            self.deadlines.remove(&(waiter.deadline, id));
            self.deadlines.insert((deadline, id));
            (waiter.wish, waiter.deadline) = (wish, deadline);
            let queue = waiter.queue;
            self.set_due(queue, 0);
        }
    }

    /// Release memory that is not needed any more.
    pub fn shrink(&mut self) {
        self.waiters.shrink_to_fit();
        self.queues.shrink_to_fit();
    }

    /// Remove a waiter. If it was the first, the queue is due at once for the next one.
    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        if let Some(queue) = self.queues.get_mut(&waiter.queue) {
            let was_first = queue.ids.first() == Some(&id);
            queue.ids.remove(&id);
            if let Some(hold) = waiter.wish.hold_id() {
                queue.holds.remove(hold);
            }
            if queue.ids.is_empty() {
                self.end(waiter.queue);
            } else if was_first {
                self.set_due(waiter.queue, 0);
            }
        }
        Some(waiter)
    }

    /// A waiter by its id.
    pub fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(&id)
    }

    /// The first waiter of a queue.
    pub fn first(&self, queue: QueueId) -> Option<(WaiterId, &Waiter)> {
        let id = self.queues.get(&queue)?.ids.first()?;
        Some((*id, self.waiters.get(id)?))
    }

    /// Check the queue's first waiter at this instant, not before; 0: at once.
    pub fn set_due(&mut self, id: QueueId, due: u64) {
        if let Some(queue) = self.queues.get_mut(&id) {
            self.due.remove(&(queue.due, id));
            queue.due = due;
            self.due.insert((due, id));
        }
    }

    /// Make the queue of a key due at once; whether there is one.
    pub fn wake(&mut self, database: i32, name: &[u8]) -> bool {
        let queue = self.find(database, name);
        queue.inspect(|queue| self.set_due(*queue, 0)).is_some()
    }

    /// Make every queue, or those of one database, due at once.
    pub fn wake_all(&mut self, database: Option<i32>) {
        let of = |queue: &Queue<N>| database.is_none_or(|database| database == queue.database);
        let queues: Vec<QueueId> = self.queues.iter().filter(|(_, queue)| of(queue)).map(|(id, _)| *id).collect();
        queues.into_iter().for_each(|queue| self.set_due(queue, 0));
    }

    /// When a queue is due first, and which.
    pub fn next_due(&self) -> Option<(u64, QueueId)> {
        self.due.first().copied()
    }

    /// The earliest deadline, and whose it is.
    pub fn next_deadline(&self) -> Option<(u64, WaiterId)> {
        self.deadlines.first().copied()
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

    type Names = Queues<Box<[u8]>>;

    fn push(queues: &mut Names, name: u8, deadline: u64, due: u64) -> WaiterId {
        let quota = Quota { limit: 1, geometry: Geometry::new(1_000, 100).unwrap() };
        let request = Request { quota, cost: 1, partial: false, strict: false, warm_up: None };
        queues.push(0, &[name].into(), Wish::Units(request), deadline, due)
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
        let name: Box<[u8]> = [1].into();
        let hold = |id: &[u8]| Wish::Hold { limit: 1, ttl: 1, id: id.into(), cost: 1 };
        let mut queues = Names::default();
        let (first, second) = (queues.push(0, &name, hold(b"a"), 5, 9), queues.push(0, &name, hold(b"b"), 6, 9));
        let key = queues.find(0, &name).unwrap();
        assert_eq!((queues.waiter_for(key, b"a"), queues.waiter_for(key, b"b")), (Some(first), Some(second)));
        queues.replace(first, hold(b"a"), 7);
        assert_eq!((queues.len(), queues.first(key).map(|(id, _)| id), queues.due(key)), (2, Some(first), Some(0)));
        assert_eq!(queues.next_deadline(), Some((6, second)));
        queues.remove(first);
        assert_eq!((queues.waiter_for(key, b"a"), queues.waiter_for(key, b"b")), (None, Some(second)));
        queues.remove(second);
        assert!(queues.queues.is_empty() && queues.named.is_empty() && queues.due.is_empty());
        assert!(queues.len() == 0 && queues.next_deadline().is_none());
    }

    proptest! {
        /// Against plain lists, one for each key.
        #[test]
        fn agrees_with_plain_lists(steps in steps()) {
            let mut queues = Names::default();
            let mut lists: HashMap<u8, (VecDeque<WaiterId>, u64)> = HashMap::new();
            let mut all: Vec<(WaiterId, u8, u64)> = vec![];
            for step in steps {
                match step {
                    Step::Join(name, deadline, due) => {
                        let id = push(&mut queues, name, deadline, due);
                        lists.entry(name).or_insert_with(|| (VecDeque::new(), due)).0.push_back(id);
                        all.push((id, name, deadline));
                    }
                    Step::Leave(_) if all.is_empty() => prop_assert!(queues.remove(99).is_none()),
                    Step::Leave(which) => {
                        let (id, name, deadline) = all.remove(which.index(all.len()));
                        let key = queues.waiter(id).and_then(|waiter| queues.key(waiter.queue));
                        prop_assert_eq!(key, Some((0, [name].into())));
                        prop_assert_eq!(queues.remove(id).unwrap().deadline, deadline);
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
                        prop_assert!(!queues.wake(1, &[name]));
                        if let Some(queue) = queues.find(0, &[name]) {
                            prop_assert!(queues.wake(0, &[name]));
                            queues.set_due(queue, at);
                        }
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
                    let (key, list) = (queues.find(0, &[name]), lists.get(&name));
                    prop_assert_eq!(key.and_then(|key| queues.due(key)), list.map(|(_, due)| *due));
                    let first = key.and_then(|key| queues.first(key)).map(|(id, _)| id);
                    prop_assert_eq!(first, list.map(|(list, _)| list[0]));
                }
                let due = lists.values().map(|(_, due)| *due).min();
                prop_assert_eq!(queues.next_due().map(|(due, _)| due), due);
                let of_next = queues.next_due().and_then(|(_, queue)| queues.due(queue));
                prop_assert_eq!(of_next, due);
                let deadline = all.iter().map(|(id, _, deadline)| (*deadline, *id)).min();
                prop_assert_eq!(queues.next_deadline(), deadline);
            }
        }
    }
}
