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
    /// Requests that were denied before this instant, and in the same way the last time.
    until: Option<Instant>,
    denied: u32,
    denied_last: u32,
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
/// A read is two commands. It pays where so many requests are denied before one can be granted; in simulations fewer
/// do not predict more.
pub(crate) const MANY: u32 = 4;

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
        let (denials, until) = (Vec::new(), None);
        Self(Mutex::new(Remembered { is_read: false, denials, until, denied: 0, denied_last: 0 }))
    }

    /// First result of `matching` over the denials that still hold.
    #[inline]
    pub fn find<R>(&self, epoch: &Epoch, now: Instant, matching: impl Fn(&D) -> Option<R>) -> Option<R> {
        let mut held = self.0.lock();
        let epoch = epoch.now();
        let mut live = held.denials.iter().filter(|denial| denial.epoch == epoch && now < denial.until);
        let found = live.find_map(|denial| matching(&denial.what))?;
        held.denied = held.denied.saturating_add(1);
        Some(found)
    }

    /// The server denied a request, and will until an instant: whether so many are denied that a read pays.
    pub fn denied(&self, now: Instant, until: Instant) -> bool {
        let mut held = self.0.lock();
        if held.until.is_none_or(|until| until <= now) {
            (held.until, held.denied_last, held.denied) = (Some(until), held.denied, 0);
        }
        held.denied = held.denied.saturating_add(1);
        held.denied.max(held.denied_last) >= MANY
    }

    /// Many requests are denied, also by others.
    pub fn denied_often(&self) {
        let mut held = self.0.lock();
        held.denied = held.denied.max(MANY);
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
        !held.is_read
            && held.until.is_none_or(|until| until <= now)
            && held.denials.iter().all(|denial| denial.until <= now)
    }
}
