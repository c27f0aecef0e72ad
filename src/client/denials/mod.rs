//! Denials: what the server is known to deny is denied without asking it.
//!
//! After a denial, nothing as large as what was denied can be granted before the server said so, unless something is
//! given back. Where the server tells of changed keys, that is heard of: behind a denial the key is read on the
//! connection on which it tells, and that reading's own reply is what is remembered. Where it does not tell, a denial
//! is remembered for a short time only.

mod memory;
#[cfg(test)]
mod models;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use swlimit_window::Decision;
use tokio::time::Instant;

use self::memory::{Epoch, Memory, Ticket};
use crate::clock::{ms, ms_up};
use crate::demand::Demand;
use crate::keys::{Keep, Keys};
use crate::wire::Listener;

/// What all keys were denied.
pub(crate) struct Denials {
    keys: Keys<Memory<Denial>>,
    epoch: Epoch,
}

/// Something the server denied, and what it said.
#[derive(Clone, Debug)]
struct Denial {
    demand: Demand,
    remaining: u64,
    retry_at: Instant,
    reset_at: Instant,
}

/// The right to remember what the server says of a key, if it is asked from now on.
pub(crate) struct Asking {
    denials: Arc<Denials>,
    memory: Arc<Memory<Denial>>,
    ticket: Option<Ticket>,
}

/// How far the server's clock may be behind what it says: it has whole milliseconds.
const FLOOR: Duration = Duration::from_millis(1);
/// How much slower the server's clock may run than ours: one in so many.
const SLEW: u32 = 1000;

impl Denials {
    /// Of at most so many keys.
    pub fn new(most: usize) -> Self {
        Self { keys: Keys::new(most), epoch: Epoch::new() }
    }

    /// The decision of a demand that the server is known to deny.
    #[inline]
    pub fn find(&self, key: &[u8], demand: &Demand, now: Instant) -> Option<Decision> {
        let never = demand.never_fits();
        let known = || self.keys.see(key, |memory| memory.find(&self.epoch, now, |denial| denial.of(demand, now)))?;
        known().or_else(|| never.then(|| demand.never()))
    }

    /// Begin to ask the server about a key, unless somebody does.
    pub fn begin(self: &Arc<Self>, key: &[u8]) -> Option<Asking> {
        let memory = self.keys.get_or_make(key, Memory::new);
        let ticket = memory.begin(&self.epoch)?;
        Some(Asking { denials: Arc::clone(self), memory, ticket: Some(ticket) })
    }

    /// Begin to ask the server about a key that was denied until something changed, unless somebody does, or has.
    pub fn begin_again(self: &Arc<Self>, key: &[u8]) -> Option<Asking> {
        let memory = self.keys.see(key, Arc::clone)?;
        let ticket = memory.begin_again(&self.epoch)?;
        Some(Asking { denials: Arc::clone(self), memory, ticket: Some(ticket) })
    }

    /// Something was given back, or may have been.
    pub fn forget(&self, key: &[u8]) {
        self.keys.see(key, |memory| memory.forget());
    }

    /// How many keys are remembered.
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

impl Listener for Denials {
    fn changed(&self, key: &[u8]) {
        self.forget(key);
    }

    fn all_changed(&self) {
        self.epoch.forget();
    }
}

impl Asking {
    /// The server answered what was sent at an instant. If it denied, that is remembered for as long as it is certain,
    /// and no longer than `most`.
    pub fn answered(mut self, demand: &Demand, decision: &Decision, sent: Instant, most: Option<Duration>) {
        let Some(retry_after) = decision.retry_after else { return };
        let Some(ticket) = self.ticket.take() else { return };
        let (heard, wait) = (Instant::now(), Duration::from_millis(retry_after));
        let certain = wait.saturating_sub(FLOOR).saturating_sub(wait / SLEW);
        // Behind its own block, such a request begins another one.
        let certain = demand.block.map_or(certain, |block| certain.min(Duration::from_millis(block)));
        let until = sent + most.map_or(certain, |most| certain.min(most));
        let denial = Denial {
            demand: *demand,
            remaining: decision.remaining,
            retry_at: heard + wait,
            reset_at: heard + Duration::from_millis(decision.reset_after),
        };
        let denial = (decision.granted == 0 && heard < until).then_some((until, denial));
        self.memory.end(ticket, &self.denials.epoch, denial, |new, old| old.demand.is_denied_with(&new.demand));
    }
}

impl Drop for Asking {
    /// Nothing was answered.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.memory.end(ticket, &self.denials.epoch, None, |_, _| false);
        }
    }
}

impl Denial {
    /// What it says to a demand, if it is one that is denied with this.
    #[inline]
    fn of(&self, demand: &Demand, now: Instant) -> Option<Decision> {
        demand.is_denied_with(&self.demand).then(|| Decision {
            granted: 0,
            limit: demand.exact.quota.limit,
            remaining: self.remaining,
            retry_after: (!demand.never_fits()).then(|| ms_up(self.retry_at.saturating_duration_since(now))),
            reset_after: ms(self.reset_at.saturating_duration_since(now)),
        })
    }
}

impl Keep for Memory<Denial> {
    fn is_idle(&self, now: Instant) -> bool {
        Memory::is_idle(self, now)
    }
}
