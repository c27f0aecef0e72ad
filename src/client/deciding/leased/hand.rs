//! The leased units of one key. A function of what happens and when: no server.

use std::collections::VecDeque;

use swlimit_window::Decision as Exact;
use tokio::time::{Duration, Instant};

use crate::clock::ms;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::upstream::Identity;

/// Units in hand, and what is known of the key.
#[derive(Debug)]
pub(super) struct Hand {
    batches: VecDeque<GrantedUnits>,
    /// What the server said remains beside them, and when nothing counts any more.
    remaining: u64,
    reset_at: Instant,
    usage: Usage,
    denied: Option<KnownDenial>,
}

/// Units of one grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrantedUnits {
    pub units: u64,
    /// An instant of the server's clock, in Unix ms, no later than the grant.
    pub since: u64,
    /// When the units may not be used any more.
    pub until: Instant,
    /// The server that counted them, if it said who it is.
    pub server: Option<Identity>,
}

/// What the server denied while others waited for their turn to ask.
#[derive(Debug)]
struct KnownDenial {
    heard: Instant,
    least: u64,
    decision: Exact,
}

/// Units used lately: in the current span of the lease's length, and in the one before.
#[derive(Debug)]
struct Usage {
    span: Duration,
    begun: Instant,
    now: u64,
    before: u64,
}

impl Hand {
    /// No units yet, of leases of this length.
    pub fn new(length: Duration, now: Instant) -> Self {
        let usage = Usage { span: length, begun: now, now: 0, before: 0 };
        Self { batches: VecDeque::new(), remaining: 0, reset_at: now, usage, denied: None }
    }

    /// Grants a request, if there are as many units in hand.
    #[inline]
    pub fn take(&mut self, demand: &Demand, now: Instant) -> Option<Decision> {
        let cost = demand.exact.cost;
        let live = |batch: &&GrantedUnits| now < batch.until;
        let units: u64 = self.batches.iter().filter(live).map(|batch| batch.units).sum();
        if units < cost {
            return None;
        }
        let mut left = cost;
        let mut since = u64::MAX;
        for batch in self.batches.iter_mut().filter(|batch| now < batch.until && batch.units > 0) {
            let taken = left.min(batch.units);
            batch.units -= taken;
            left -= taken;
            // No later than any of them was counted.
            since = since.min(batch.since);
            if left == 0 {
                break;
            }
        }
        self.usage.add(cost, now);
        Some(Decision { since: Some(since), ..Source::Lease.decided(self.granted(demand, units - cost, now)) })
    }

    /// Puts back units that `take` gave out just now, and that nobody used.
    pub fn put_back(&mut self, decision: &Decision) {
        if let Some(batch) = self.batches.iter_mut().find(|batch| Some(batch.since) == decision.since) {
            batch.units += decision.granted;
        }
    }

    fn granted(&self, demand: &Demand, in_hand: u64, now: Instant) -> Exact {
        Exact {
            granted: demand.exact.cost,
            limit: demand.exact.quota.limit,
            remaining: self.remaining + in_hand,
            retry_after: Some(0),
            reset_after: ms(self.reset_at.saturating_duration_since(now)),
        }
    }

    /// The denial of a request that arrived at that instant and waited while another one asked: as much was denied
    /// meanwhile. What was heard just when it arrived was answered before, and units may have come free since.
    pub fn denied_since(&self, arrived: Instant, demand: &Demand, now: Instant) -> Option<Decision> {
        let denied = self.denied.as_ref().filter(|denied| denied.heard > arrived && demand.least() >= denied.least)?;
        let passed = ms(now.saturating_duration_since(denied.heard));
        let Exact { retry_after, reset_after, .. } = denied.decision;
        Some(Source::Cache.decided(Exact {
            retry_after: retry_after.map(|ms| ms.saturating_sub(passed).max(1)),
            reset_after: reset_after.saturating_sub(passed),
            ..denied.decision
        }))
    }

    /// How many units to lease beside a request: about what was used in the last length of a lease, at most so many.
    /// None for a quiet key: its own unit is asked for already.
    pub fn wanted(&mut self, most: u64, now: Instant) -> u64 {
        self.usage.last(now).min(most)
    }

    /// The server granted a request its units.
    pub fn used(&mut self, units: u64, now: Instant) {
        self.usage.add(units, now);
        self.denied = None;
    }

    /// The server granted units ahead.
    pub fn add(&mut self, batch: GrantedUnits) {
        self.batches.push_back(batch);
    }

    /// What the server said of the key.
    pub fn heard(&mut self, decision: &Exact, now: Instant) {
        self.remaining = decision.remaining;
        self.reset_at = now + Duration::from_millis(decision.reset_after);
    }

    /// The server denied a request; those who wait to ask as much need not.
    pub fn denied(&mut self, demand: &Demand, decision: Exact, now: Instant) {
        self.denied = Some(KnownDenial { heard: now, least: demand.least(), decision });
    }

    /// The batches that end by an instant.
    pub fn ended(&mut self, by: Instant) -> Vec<GrantedUnits> {
        let (ended, live): (VecDeque<_>, _) = self.batches.drain(..).partition(|batch| batch.until <= by);
        self.batches = live;
        ended.into_iter().filter(|batch| batch.units > 0).collect()
    }

    /// All batches.
    pub fn surrender(&mut self) -> Vec<GrantedUnits> {
        self.batches.drain(..).filter(|batch| batch.units > 0).collect()
    }

    /// Units in hand.
    pub fn units(&self) -> u64 {
        self.batches.iter().map(|batch| batch.units).sum()
    }

    /// Whether nothing is in hand and nothing was used lately.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.batches.is_empty() && now >= self.usage.begun + 2 * self.usage.span
    }
}

impl Usage {
    fn add(&mut self, units: u64, now: Instant) {
        self.turn(now);
        self.now += units;
    }

    /// Units used in the last span, about: of the span before, the part that is not over yet counts.
    fn last(&mut self, now: Instant) -> u64 {
        self.turn(now);
        let passed = now.saturating_duration_since(self.begun).as_secs_f64() / self.span.as_secs_f64();
        self.now + (self.before as f64 * (1.0 - passed).max(0.0)) as u64
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.begun);
        if passed < self.span {
            return;
        }
        self.before = if passed < 2 * self.span { self.now } else { 0 };
        self.now = 0;
        self.begun = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    #[test]
    fn who_waited_shares_a_denial() {
        let (second, now) = (Duration::from_secs(1), Instant::now() + Duration::from_secs(1));
        let demand = Demand::of(&Quota::of(5, second, None).unwrap());
        let mut hand = Hand::new(second, now - second);
        hand.denied(&demand, Exact { granted: 0, limit: 5, remaining: 0, retry_after: Some(9), reset_after: 9 }, now);
        let shared = |arrived: Instant| hand.denied_since(arrived, &demand, now).is_some();
        assert!(shared(now - Duration::from_millis(1)));
        assert!(!shared(now), "it did not wait: the server answered before it arrived");
    }
}
