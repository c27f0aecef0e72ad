//! What one key has used that the server does not know yet. A function of what happens and when: no server.

use std::collections::VecDeque;

use swlimit_window::Decision as Exact;
use tokio::time::{Duration, Instant};

use crate::clock::ms_up;
use crate::demand::Demand;
use crate::error::Error;
use crate::mode::Share;

/// The most batches of a key. Above, neighbours are merged.
const MOST_BATCHES: usize = 16;

/// Three counts, as the sliding-window limiters of large fleets keep them: granted since the last synchronization began
/// (`local`), being sent (`cached`), and what the server last said (`global`).
#[derive(Debug, Default)]
pub(super) struct Counted {
    local: u64,
    cached: VecDeque<UsedUnits>,
    /// Units of all batches.
    cached_units: u64,
    /// The first so many are being sent, and may have arrived.
    under_way: usize,
    global: Option<Global>,
    /// Waits for the next synchronization.
    pub is_queued: bool,
    /// The last synchronization that it was, or is, part of.
    round: u64,
    /// The server refuses the key, for this reason.
    pub refused: Option<Error>,
}

/// Units that were granted before an instant, the latest of them just before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedUnits {
    pub units: u64,
    pub at: Instant,
    /// It was sent, and nobody knows whether it was counted.
    pub in_doubt: bool,
}

/// What became of a batch that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Counted,
    /// The server refuses it for good.
    Refused,
    /// The server could not decide: nothing was counted.
    NotCounted,
    /// The connection closed without a reply.
    InDoubt,
}

/// Units that are given up, or may count twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Doubted {
    pub refused: u64,
    /// In doubt twice.
    pub lost: u64,
    /// Not given up, but in doubt for the first time.
    pub sent_again: u64,
}

#[derive(Debug)]
struct Global {
    /// The key was part of every synchronization since.
    is_recent: bool,
    limit: u64,
    remaining: u64,
    retry_at: Instant,
    reset_at: Instant,
}

/// What this process knows without the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The part of the limit that a key may use of which the server was not heard just now.
    pub share: Share,
    /// The last synchronization that began. What was heard in one before it is not recent: other clients may have used
    /// up what remained.
    pub round: u64,
}

impl Counted {
    /// Decides a request, and counts it if it is granted.
    #[inline]
    pub fn decide(&mut self, demand: &Demand, known: Known, now: Instant) -> Exact {
        let decision = self.peek(demand, known, now);
        self.local += decision.granted;
        Exact { remaining: decision.remaining - decision.granted, ..decision }
    }

    /// The decision without counting.
    #[inline]
    pub fn peek(&self, demand: &Demand, known: Known, now: Instant) -> Exact {
        let cost = demand.exact.cost;
        let (limit, available) = self.limits(demand, known, now);
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
        Exact {
            granted,
            limit,
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

    /// The limit in force, as the server said it last, and what is left of it.
    fn limits(&self, demand: &Demand, known: Known, now: Instant) -> (u64, u64) {
        let exact = &demand.exact;
        let may_be_first = exact.warm_up.is_some() && !exact.partial && exact.cost <= exact.quota.limit;
        let (limit, all) = match &self.global {
            None => (demand.cold_limit(), known.share.units(demand.cold_limit())),
            // Others may have used up what remained.
            Some(global) if !global.is_recent || self.round != known.round => {
                (global.limit, global.remaining.min(known.share.units(global.limit)))
            }
            // After idleness the first request is granted whatever it costs.
            Some(global) if may_be_first && global.reset_at <= now && self.unsent() == 0 => {
                (global.limit.max(exact.cost), global.remaining.max(exact.cost))
            }
            Some(global) => (global.limit, global.remaining),
        };
        (limit, all.saturating_sub(self.unsent()))
    }

    /// Counts units whatever is available, as used at an instant. Batches are `apart` from each other.
    pub fn record(&mut self, units: u64, at: Instant, apart: Duration) {
        self.cached_units = self.cached_units.saturating_add(units);
        let unsent = self.cached.iter_mut().skip(self.under_way).filter(|batch| !batch.in_doubt);
        let near = unsent.rev().find(|batch| near(batch.at, at, apart));
        match near {
            Some(batch) => {
                batch.units = batch.units.saturating_add(units);
                batch.at = batch.at.max(at);
            }
            None => {
                self.cached.push_back(UsedUnits { units, at, in_doubt: false });
                self.merge();
            }
        }
    }

    /// Merges neighbours in time towards the younger, those that are closest, until there are few enough.
    fn merge(&mut self) {
        while self.cached.len() - self.under_way > MOST_BATCHES {
            let unsent = &mut self.cached.make_contiguous()[self.under_way..];
            unsent.sort_by_key(|batch| (batch.in_doubt, batch.at));
            let pairs = unsent.windows(2).enumerate().filter(|(_, pair)| pair[0].in_doubt == pair[1].in_doubt);
            let closest = pairs.min_by_key(|(_, pair)| pair[1].at - pair[0].at).map(|(first, _)| first);
            let Some(first) = closest.map(|first| first + self.under_way) else { return };
            if let Some(older) = self.cached.remove(first) {
                self.cached[first].units = self.cached[first].units.saturating_add(older.units);
            }
        }
    }

    /// Takes back units that were not sent yet, the youngest first; how many.
    pub fn take_back(&mut self, units: u64) -> u64 {
        let own = units.min(self.local);
        self.local -= own;
        let mut left = units - own;
        while left > 0 && self.cached.len() > self.under_way {
            let Some(youngest) = self.cached.back_mut().filter(|batch| !batch.in_doubt) else { break };
            let own = left.min(youngest.units);
            youngest.units -= own;
            self.cached_units -= own;
            left -= own;
            if youngest.units == 0 {
                self.cached.pop_back();
            }
        }
        units - left
    }

    /// A synchronization begins: what it sends. What is older than a window does not matter any more.
    pub fn begin(&mut self, round: u64, window: Duration, apart: Duration, now: Instant) -> Vec<UsedUnits> {
        self.is_queued = false;
        if let Some(global) = &mut self.global {
            global.is_recent &= self.round + 1 == round;
        }
        self.round = round;
        if self.local > 0 {
            let local = std::mem::take(&mut self.local);
            self.record(local, now, apart);
        }
        self.cached.retain(|batch| now < batch.at + window);
        self.cached_units = self.cached.iter().map(|batch| batch.units).sum();
        self.under_way = self.cached.len();
        self.cached.iter().copied().collect()
    }

    /// What became of the batches that were sent, in their order, and what the server says of the key now. The
    /// synchronization is over.
    pub fn end(&mut self, outcomes: &[Outcome], global: Option<&Exact>, now: Instant) -> Doubted {
        let mut doubted = Doubted::default();
        let rest = self.cached.split_off(self.under_way.min(self.cached.len()));
        let sent = std::mem::replace(&mut self.cached, rest);
        let outcomes = outcomes.iter().copied().chain(std::iter::repeat(Outcome::NotCounted));
        for (batch, outcome) in sent.into_iter().zip(outcomes).collect::<Vec<_>>().into_iter().rev() {
            match outcome {
                Outcome::Counted => {}
                Outcome::Refused => doubted.refused += batch.units,
                Outcome::InDoubt if batch.in_doubt => doubted.lost += batch.units,
                Outcome::InDoubt => {
                    doubted.sent_again += batch.units;
                    self.cached.push_front(UsedUnits { in_doubt: true, ..batch });
                }
                Outcome::NotCounted => self.cached.push_front(batch),
            }
        }
        self.under_way = 0;
        self.cached_units = self.cached.iter().map(|batch| batch.units).sum();
        self.merge();
        if let Some(global) = global {
            self.heard(global, now);
        }
        doubted
    }

    /// The server said this of the key.
    pub fn heard(&mut self, global: &Exact, now: Instant) {
        let at = |ms: Option<u64>| now + Duration::from_millis(ms.unwrap_or_default());
        self.refused = None;
        self.global = Some(Global {
            is_recent: true,
            limit: global.limit,
            remaining: global.remaining,
            retry_at: at(global.retry_after),
            reset_at: at(Some(global.reset_after)),
        });
    }

    /// The server was asked beside the synchronizations, and counted the request.
    pub fn heard_directly(&mut self, global: &Exact, known: Known, now: Instant) {
        self.round = known.round;
        self.heard(global, now);
    }

    /// Forgets what is unsent; how many units that was.
    pub fn give_up(&mut self) -> u64 {
        let units = self.unsent();
        self.is_queued = false;
        self.cached.drain(self.under_way..);
        self.local = 0;
        self.cached_units = self.cached.iter().map(|batch| batch.units).sum();
        units - self.cached_units
    }

    /// Units that the server does not know, or may not.
    pub fn unsent(&self) -> u64 {
        self.local + self.cached_units
    }

    /// Whether there is nothing to send, and nothing is known that matters.
    pub fn is_idle(&self, now: Instant) -> bool {
        !self.is_pinned() && self.global.as_ref().is_none_or(|global| global.reset_at <= now)
    }

    pub fn is_pinned(&self) -> bool {
        self.is_queued || self.unsent() > 0 || self.under_way > 0
    }
}

fn near(one: Instant, other: Instant, apart: Duration) -> bool {
    one.max(other) - one.min(other) < apart
}
