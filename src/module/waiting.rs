//! Who waits for what: a queue for each key, first come, first served, and when each has to be looked at again.
//!
//! Nothing here knows the server, nor what time it is. When somebody may be granted is Unix time in ms by the server's
//! clock, as decisions are; until when somebody waits is in ms by a clock that nobody sets.

use std::collections::{BTreeSet, HashMap};

use swlimit_window::Demand;

/// A key's name in a database.
pub type Place = (i32, Box<[u8]>);

/// A place in the order of arrival, by which a waiter is known.
pub type Ticket = u64;

/// Somebody who waits for a demand to be granted.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The key waited for.
    pub place: Place,
    /// What is to be granted.
    pub demand: Demand,
    /// Until when, in ms by the steady clock.
    pub deadline: u64,
}

/// The waiters of one key.
#[derive(Debug)]
struct Queue {
    tickets: BTreeSet<Ticket>,
    /// When the first of them may be granted, in ms; at once when something has changed.
    due: u64,
}

/// Everybody who waits.
#[derive(Debug, Default)]
pub struct Waiting {
    arrivals: Ticket,
    waiters: HashMap<Ticket, Waiter>,
    queues: HashMap<Place, Queue>,
    due: BTreeSet<(u64, Place)>,
    deadlines: BTreeSet<(u64, Ticket)>,
}

impl Waiting {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// When the first in the queue of a key may be granted; `None` when nobody waits there.
    pub fn due(&self, place: &Place) -> Option<u64> {
        self.queues.get(place).map(|queue| queue.due)
    }

    /// Wait behind all others; `due` is when the demand would fit if nothing else is counted.
    pub fn join(&mut self, waiter: Waiter, due: u64) -> Ticket {
        let ticket = self.arrivals;
        self.arrivals += 1;
        self.deadlines.insert((waiter.deadline, ticket));
        match self.queues.get_mut(&waiter.place) {
            Some(queue) => drop(queue.tickets.insert(ticket)),
            None => {
                self.due.insert((due, waiter.place.clone()));
                self.queues.insert(waiter.place.clone(), Queue { tickets: BTreeSet::from([ticket]), due });
            }
        }
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Give back memory that was for others.
    pub fn shrink(&mut self) {
        self.waiters.shrink_to_fit();
        self.queues.shrink_to_fit();
    }

    /// Wait no longer. Who was behind the first in a queue has to be looked at.
    pub fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.deadlines.remove(&(waiter.deadline, ticket));
        if let Some(queue) = self.queues.get_mut(&waiter.place) {
            let was_first = queue.tickets.first() == Some(&ticket);
            queue.tickets.remove(&ticket);
            if queue.tickets.is_empty() {
                self.due.remove(&(queue.due, waiter.place.clone()));
                self.queues.remove(&waiter.place);
            } else if was_first {
                self.postpone(&waiter.place, 0);
            }
        }
        Some(waiter)
    }

    /// Somebody who waits.
    pub fn waiter(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(&ticket)
    }

    /// The first in a key's queue.
    pub fn first(&self, place: &Place) -> Option<(Ticket, &Waiter)> {
        let ticket = self.queues.get(place)?.tickets.first()?;
        Some((*ticket, self.waiters.get(ticket)?))
    }

    /// Look at the first in a key's queue at this instant, and not before; at 0: at once.
    pub fn postpone(&mut self, place: &Place, due: u64) {
        if let Some(queue) = self.queues.get_mut(place) {
            self.due.remove(&(queue.due, place.clone()));
            queue.due = due;
            self.due.insert((due, place.clone()));
        }
    }

    /// Look at once at the first of every queue, or of those in one database.
    pub fn wake(&mut self, database: Option<i32>) {
        let places: Vec<Place> =
            self.queues.keys().filter(|(of, _)| database.is_none_or(|db| db == *of)).cloned().collect();
        places.iter().for_each(|place| self.postpone(place, 0));
    }

    /// The queue that has to be looked at first, and when.
    pub fn next_due(&self) -> Option<&(u64, Place)> {
        self.due.first()
    }

    /// Until when somebody waits who waits least, and who that is.
    pub fn next_deadline(&self) -> Option<&(u64, Ticket)> {
        self.deadlines.first()
    }

    /// Everybody, in the order of arrival.
    pub fn tickets(&self) -> Vec<Ticket> {
        let mut tickets: Vec<Ticket> = self.waiters.keys().copied().collect();
        tickets.sort_unstable();
        tickets
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use swlimit_window::{Demand, Geometry, Quota};

    use super::*;

    fn waiter(name: u8, deadline: u64) -> Waiter {
        let quota = Quota { limit: 1, geometry: Geometry::new(1_000, 100).unwrap() };
        let demand = Demand { quota, cost: 1, partial: false, strict: false };
        Waiter { place: (0, [name].into()), demand, deadline }
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

    proptest! {
        /// Against plain lists, one for each key.
        #[test]
        fn agrees_with_plain_lists(steps in steps()) {
            let mut waiting = Waiting::default();
            let mut lists: HashMap<u8, (VecDeque<Ticket>, u64)> = HashMap::new();
            let mut all: Vec<(Ticket, u8, u64)> = vec![];
            for step in steps {
                match step {
                    Step::Join(name, deadline, due) => {
                        let ticket = waiting.join(waiter(name, deadline), due);
                        lists.entry(name).or_insert_with(|| (VecDeque::new(), due)).0.push_back(ticket);
                        all.push((ticket, name, deadline));
                    }
                    Step::Leave(_) if all.is_empty() => prop_assert!(waiting.leave(99).is_none()),
                    Step::Leave(which) => {
                        let (ticket, name, deadline) = all.remove(which.index(all.len()));
                        let left = waiting.leave(ticket).unwrap();
                        prop_assert_eq!((&*left.place.1, left.deadline), (&[name][..], deadline));
                        let (list, due) = lists.get_mut(&name).unwrap();
                        if list.front() == Some(&ticket) {
                            *due = 0;
                        }
                        list.retain(|other| *other != ticket);
                        if list.is_empty() {
                            lists.remove(&name);
                        }
                    }
                    Step::Postpone(name, at) => {
                        waiting.postpone(&(0, [name].into()), at);
                        if let Some((_, due)) = lists.get_mut(&name) {
                            *due = at;
                        }
                    }
                    Step::Wake(database) => {
                        waiting.wake(database);
                        if database != Some(1) {
                            lists.values_mut().for_each(|(_, due)| *due = 0);
                        }
                    }
                }
                prop_assert_eq!(waiting.len(), all.len());
                prop_assert_eq!(waiting.tickets(), all.iter().map(|(ticket, ..)| *ticket).collect::<Vec<_>>());
                for name in 0..4 {
                    let place: Place = (0, [name].into());
                    let list = lists.get(&name);
                    prop_assert_eq!(waiting.due(&place), list.map(|(_, due)| *due));
                    prop_assert_eq!(waiting.first(&place).map(|(ticket, _)| ticket), list.map(|(list, _)| list[0]));
                }
                let due = lists.iter().map(|(name, (_, due))| (*due, *name)).min();
                prop_assert_eq!(waiting.next_due().map(|(due, place)| (*due, place.1[0])), due);
                let deadline = all.iter().map(|(ticket, _, deadline)| (*deadline, *ticket)).min();
                prop_assert_eq!(waiting.next_deadline().copied(), deadline);
            }
        }
    }
}
