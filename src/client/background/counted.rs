//! What one key has used that the server does not know yet. A function of what happens and when: no server.

use std::collections::VecDeque;

use swlimit_window::Decision;
use tokio::time::{Duration, Instant};

use crate::clock::ms_up;
use crate::demand::Demand;

/// Three counts, as the sliding-window limiters of large fleets keep them: decided here since the last synchronization
/// began (`local`), being sent (`cached`), and what the server last said (`global`).
#[derive(Debug, Default)]
pub(super) struct Counted {
    local: u64,
    cached: VecDeque<Batch>,
    /// The oldest of those are on their way, and may have arrived.
    under_way: usize,
    global: Option<Global>,
    /// Waits for the next synchronization.
    pub is_queued: bool,
    /// The last synchronization that it was, or is, part of.
    round: u64,
}

/// Units that were decided before an instant, the latest of them just before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub units: u64,
    pub at: Instant,
}

#[derive(Debug)]
struct Global {
    /// The key was part of every synchronization since.
    is_recent: bool,
    remaining: u64,
    retry_at: Instant,
    reset_at: Instant,
}

/// What is known without the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Units that a key may use of which the server was not heard just now.
    pub share: u64,
    /// The last synchronization that began. What was heard in one before it is not recent: other clients may have used
    /// up what remained.
    pub round: u64,
}

impl Counted {
    /// Decide a demand, and count it if it is granted.
    #[inline]
    pub fn decide(&mut self, demand: &Demand, known: Known, now: Instant) -> Decision {
        let decision = self.peek(demand, known, now);
        self.local += decision.granted;
        Decision { remaining: decision.remaining - decision.granted, ..decision }
    }

    /// The decision without counting.
    #[inline]
    pub fn peek(&self, demand: &Demand, known: Known, now: Instant) -> Decision {
        let cost = demand.exact.cost;
        let available = self.available(known);
        let granted = match available {
            _ if cost <= available => cost,
            _ if demand.exact.partial => available,
            _ => 0,
        };
        let (retry_at, reset_at) = match &self.global {
            Some(global) => (global.retry_at, global.reset_at),
            None => (now, now),
        };
        let wait = |at: Instant| ms_up(at.saturating_duration_since(now));
        Decision {
            granted,
            limit: demand.exact.quota.limit,
            remaining: available,
            retry_after: match granted {
                0 if demand.never_fits() => None,
                // The server is asked again by then, at the earliest.
                0 => Some(wait(retry_at).max(1)),
                _ => Some(0),
            },
            reset_after: wait(reset_at),
        }
    }

    fn available(&self, known: Known) -> u64 {
        let all = match &self.global {
            Some(global) if global.is_recent && self.round == known.round => global.remaining,
            Some(global) => global.remaining.min(known.share),
            None => known.share,
        };
        all.saturating_sub(self.local + self.unsent())
    }

    /// Count units whatever is available, as used at an instant.
    pub fn record(&mut self, units: u64, at: Instant) {
        self.cached.push_back(Batch { units, at });
    }

    fn unsent(&self) -> u64 {
        self.cached.iter().map(|batch| batch.units).sum()
    }

    /// Take back units that nobody was told of, the youngest first; how many.
    pub fn take_back(&mut self, units: u64) -> u64 {
        let own = units.min(self.local);
        self.local -= own;
        let mut left = units - own;
        while left > 0 && self.cached.len() > self.under_way {
            let Some(youngest) = self.cached.back_mut() else { break };
            let own = left.min(youngest.units);
            youngest.units -= own;
            left -= own;
            if youngest.units == 0 {
                self.cached.pop_back();
            }
        }
        units - left
    }

    /// A synchronization begins: what is to be sent. What is older than a window does not matter any more.
    pub fn begin(&mut self, round: u64, window: Duration, now: Instant) -> Vec<Batch> {
        self.is_queued = false;
        if let Some(global) = &mut self.global {
            global.is_recent &= self.round + 1 == round;
        }
        self.round = round;
        if self.local > 0 {
            self.cached.push_back(Batch { units: std::mem::take(&mut self.local), at: now });
        }
        self.cached.retain(|batch| now < batch.at + window);
        self.under_way = self.cached.len();
        self.cached.iter().copied().collect()
    }

    /// The server counted the oldest so many of what was to be sent, and what it says of the key is this.
    pub fn synchronized(&mut self, batches: usize, global: &Decision, now: Instant) {
        self.cached.drain(..batches.min(self.cached.len()));
        let at = |ms: Option<u64>| now + Duration::from_millis(ms.unwrap_or_default());
        self.global = Some(Global {
            is_recent: true,
            remaining: global.remaining,
            retry_at: at(global.retry_after),
            reset_at: at(Some(global.reset_after)),
        });
    }

    /// The synchronization is over; whether something is still to be sent.
    pub fn end(&mut self) -> bool {
        self.under_way = 0;
        self.is_behind()
    }

    fn is_behind(&self) -> bool {
        self.local > 0 || !self.cached.is_empty()
    }

    /// Whether nothing is to be sent, and what is known is of no use any more.
    pub fn is_idle(&self, round: u64) -> bool {
        !self.is_queued && !self.is_behind() && self.round < round
    }
}
