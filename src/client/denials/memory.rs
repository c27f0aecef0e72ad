//! The memory of one key's denials, which whoever hears of changes makes forget.
//!
//! A denial may be remembered only if nothing was given back since the server was asked. That may be heard before the
//! reply is seen, whose place was before it. So whoever asks first takes a [`Ticket`], which holds the number of
//! changes heard so far, and remembers only if that number has not moved. Comparing and remembering are one step under
//! the lock that whoever hears of a change takes.

use tokio::time::Instant;

use super::sync::{AtomicU64, Mutex, Ordering};

/// How often everything had to be forgotten.
#[derive(Debug)]
pub(super) struct Epoch(AtomicU64);

/// What one key was denied.
#[derive(Debug)]
pub(super) struct Memory<D>(Mutex<Held<D>>);

#[derive(Debug)]
struct Held<D> {
    /// Changes of the key that were heard of.
    changes: u64,
    /// Whether somebody asks the server, to remember.
    is_asked: bool,
    denied: Vec<Denied<D>>,
    /// A change made it forget what it was denied, and nobody has asked since whether it still is.
    is_suspect: bool,
}

#[derive(Debug)]
struct Denied<D> {
    epoch: u64,
    until: Instant,
    what: D,
}

/// The right to remember what the server answers to a question that is sent after this was taken.
#[derive(Debug)]
#[must_use = "it is to be given back"]
pub(super) struct Ticket {
    changes: u64,
    epoch: u64,
}

/// The most denials of one key that are remembered: as many as different quotas and costs are asked of it, which are
/// few.
const MOST: usize = 8;

impl Epoch {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Forget everything of every key.
    pub fn forget(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl<D> Memory<D> {
    pub fn new() -> Self {
        Self(Mutex::new(Held { changes: 0, is_asked: false, denied: Vec::new(), is_suspect: false }))
    }

    /// What a denial that still holds comes to, if there is one of which something comes.
    #[inline]
    pub fn find<R>(&self, epoch: &Epoch, now: Instant, matching: impl Fn(&D) -> Option<R>) -> Option<R> {
        let held = self.0.lock();
        let epoch = epoch.now();
        held.denied
            .iter()
            .filter(|denied| denied.epoch == epoch && now < denied.until)
            .find_map(|denied| matching(&denied.what))
    }

    /// Begin to ask the server, unless somebody does.
    pub fn begin(&self, epoch: &Epoch) -> Option<Ticket> {
        let mut held = self.0.lock();
        if std::mem::replace(&mut held.is_asked, true) {
            return None;
        }
        Some(Ticket { changes: held.changes, epoch: epoch.now() })
    }

    /// What the server answered: a denial until an instant, in the place of those that it includes, or nothing to
    /// remember. Nor is it remembered when something has changed meanwhile.
    pub fn end(&self, ticket: Ticket, epoch: &Epoch, denial: Option<(Instant, D)>, includes: impl Fn(&D, &D) -> bool) {
        let mut held = self.0.lock();
        held.is_asked = false;
        let Some((until, what)) = denial else { return };
        if held.changes != ticket.changes || epoch.now() != ticket.epoch {
            return;
        }
        held.denied.retain(|denied| denied.epoch == ticket.epoch && !includes(&what, &denied.what));
        if held.denied.len() == MOST {
            held.denied.remove(0);
        }
        held.denied.push(Denied { epoch: ticket.epoch, until, what });
    }

    /// The key was changed: forget what it was denied.
    pub fn forget(&self) {
        let mut held = self.0.lock();
        held.changes += 1;
        held.is_suspect |= !held.denied.is_empty();
        held.denied.clear();
    }

    /// Begin to ask the server whether it denies still what was forgotten, unless somebody does, or has.
    pub fn begin_again(&self, epoch: &Epoch) -> Option<Ticket> {
        let is_suspect = std::mem::take(&mut self.0.lock().is_suspect);
        is_suspect.then(|| self.begin(epoch))?
    }

    /// Whether nothing would be lost by forgetting the key itself.
    pub fn is_idle(&self, now: Instant) -> bool {
        let held = self.0.lock();
        !held.is_asked && held.denied.iter().all(|denied| denied.until <= now)
    }
}
