//! The memory of denials, which changes of keys clear.
//!
//! A denial may be remembered only if nothing was given back since the server was asked. The news of a change may
//! overtake a reply that was sent before it. So a request first takes a [`Ticket`], which holds the number of changes so
//! far, and remembers only if that number has not moved. Comparing and remembering are one step under the lock that
//! each change takes.

use tokio::time::Instant;

use super::sync::{AtomicU64, Mutex, Ordering};

/// How often everything had to be forgotten.
#[derive(Debug)]
pub(super) struct Epoch(AtomicU64);

/// Changes so far of the keys that share this.
#[derive(Debug)]
pub(super) struct Generation(Mutex<u64>);

/// The right to remember the reply to what is sent after this was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    changes: u64,
    epoch: u64,
}

/// The denials of one key.
#[derive(Debug)]
pub(super) struct Memory<D>(Mutex<Remembered<D>>);

#[derive(Debug)]
struct Remembered<D> {
    /// Whether a read of the key is under way, which registers it for invalidations.
    is_read: bool,
    denials: Vec<Entry<D>>,
}

#[derive(Debug)]
struct Entry<D> {
    epoch: u64,
    until: Instant,
    what: D,
}

/// The most denials of one key that are remembered: as many as different quotas and costs are asked of it, which are
/// few.
const MOST: usize = 8;

impl Epoch {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Forgets everything of every key.
    pub fn forget(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Generation {
    pub fn new() -> Self {
        Self(Mutex::new(0))
    }

    pub fn ticket(&self, epoch: &Epoch) -> Ticket {
        let epoch = epoch.now();
        Ticket { changes: *self.0.lock(), epoch }
    }

    /// A key has changed: forget its denials.
    pub fn changed(&self, forget: impl FnOnce()) {
        let mut changes = self.0.lock();
        *changes += 1;
        forget();
    }

    /// Remembers, unless something has changed since the ticket was taken.
    pub fn unless_changed(&self, ticket: Ticket, epoch: &Epoch, remember: impl FnOnce()) {
        let changes = self.0.lock();
        if *changes == ticket.changes && epoch.now() == ticket.epoch {
            remember();
        }
    }
}

impl<D> Memory<D> {
    pub fn new() -> Self {
        Self(Mutex::new(Remembered { is_read: false, denials: Vec::new() }))
    }

    /// First result of `matching` over the denials that still hold.
    #[inline]
    pub fn find<R>(&self, epoch: &Epoch, now: Instant, matching: impl Fn(&D) -> Option<R>) -> Option<R> {
        let held = self.0.lock();
        let epoch = epoch.now();
        held.denials
            .iter()
            .filter(|denial| denial.epoch == epoch && now < denial.until)
            .find_map(|denial| matching(&denial.what))
    }

    /// Remembers a denial until an instant, in the place of those that it includes.
    pub fn remember(&self, ticket: Ticket, until: Instant, what: D, includes: impl Fn(&D, &D) -> bool) {
        let mut held = self.0.lock();
        held.denials.retain(|denial| denial.epoch == ticket.epoch && !includes(&what, &denial.what));
        if held.denials.len() == MOST {
            held.denials.remove(0);
        }
        held.denials.push(Entry { epoch: ticket.epoch, until, what });
    }

    pub fn forget(&self) {
        self.0.lock().denials.clear();
    }

    /// Whether the caller is to read the key: nobody else does.
    pub fn begin_reading(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().is_read, true)
    }

    pub fn end_reading(&self) {
        self.0.lock().is_read = false;
    }

    /// Whether nothing would be lost by forgetting the key itself.
    pub fn is_idle(&self, now: Instant) -> bool {
        let held = self.0.lock();
        !held.is_read && held.denials.iter().all(|denial| denial.until <= now)
    }
}
