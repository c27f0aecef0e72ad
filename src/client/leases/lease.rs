//! The units of one key that were taken ahead of the requests. A function of what happens and when: no server.

use swlimit_window::Decision;
use tokio::time::{Duration, Instant};

use crate::clock::ms;
use crate::demand::Demand;

/// Units in hand, and what is known of the key.
#[derive(Debug)]
pub(super) struct Lease {
    units: u64,
    /// When they were asked for: their age counts from then on.
    sent: Instant,
    /// What the server said remains beside them, and when nothing counts any more.
    remaining: u64,
    reset_at: Instant,
    usage: Usage,
    denied: Option<Denied>,
}

/// What the server denied while others waited for their turn to ask.
#[derive(Debug)]
struct Denied {
    heard: Instant,
    least: u64,
    decision: Decision,
}

/// Units used lately: in the current span of the lease's length, and in the one before.
#[derive(Debug)]
struct Usage {
    span: Duration,
    begun: Instant,
    now: u64,
    before: u64,
}

impl Lease {
    /// No units yet, of leases of this length.
    pub fn new(length: Duration, now: Instant) -> Self {
        let usage = Usage { span: length, begun: now, now: 0, before: 0 };
        Self { units: 0, sent: now, remaining: 0, reset_at: now, usage, denied: None }
    }

    /// When the units in hand may not be used any more.
    pub fn until(&self) -> Instant {
        self.sent + self.usage.span
    }

    /// Give out the cost of a demand, if there is as much in hand.
    #[inline]
    pub fn take(&mut self, demand: &Demand, now: Instant) -> Option<Decision> {
        let cost = demand.exact.cost;
        if self.units < cost || now >= self.until() {
            return None;
        }
        self.units -= cost;
        self.usage.add(cost, now);
        Some(self.granted(demand, cost, now))
    }

    /// What somebody who arrived at that instant, and waited while others asked, is to be told: that the server denied
    /// as much meanwhile.
    pub fn denied_since(&self, arrived: Instant, demand: &Demand, now: Instant) -> Option<Decision> {
        let denied = self.denied.as_ref().filter(|denied| denied.heard >= arrived && demand.least() >= denied.least)?;
        let passed = ms(now.saturating_duration_since(denied.heard));
        let Decision { retry_after, reset_after, .. } = denied.decision;
        Some(Decision {
            retry_after: retry_after.map(|ms| ms.saturating_sub(passed).max(1)),
            reset_after: reset_after.saturating_sub(passed),
            ..denied.decision
        })
    }

    /// How many units to ask for: about what was used in the last length of a lease, at most so many, and enough for
    /// the demand. One for a quiet key.
    pub fn wanted(&mut self, demand: &Demand, most: u64, now: Instant) -> u64 {
        self.usage.last(now).clamp(1, most.max(1)).max(demand.exact.cost)
    }

    /// Take all units out of hand, to give them back; with how many, the instant they were asked for.
    pub fn surrender(&mut self) -> Option<(u64, Instant)> {
        (self.units > 0).then(|| (std::mem::take(&mut self.units), self.sent))
    }

    /// The server granted units that were asked for then, at least the demand's cost or what it takes of it: the rest
    /// is in hand now, and this is the demand's decision.
    pub fn granted_by_server(&mut self, demand: &Demand, server: &Decision, sent: Instant, now: Instant) -> Decision {
        let taken = server.granted.min(demand.exact.cost);
        self.units = server.granted - taken;
        self.sent = sent;
        self.remaining = server.remaining;
        self.reset_at = now + Duration::from_millis(server.reset_after);
        self.denied = None;
        self.usage.add(taken, now);
        self.granted(demand, taken, now)
    }

    /// The server denied a demand; those who wait to ask as much need not.
    pub fn denied_by_server(&mut self, demand: &Demand, decision: Decision, now: Instant) {
        self.denied = Some(Denied { heard: now, least: demand.least(), decision });
    }

    fn granted(&self, demand: &Demand, units: u64, now: Instant) -> Decision {
        Decision {
            granted: units,
            limit: demand.exact.quota.limit,
            remaining: self.remaining + self.units,
            retry_after: Some(0),
            reset_after: ms(self.reset_at.saturating_duration_since(now)),
        }
    }

    /// Whether nothing is in hand and nothing was used lately.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.units == 0 && now >= self.usage.begun + 2 * self.usage.span
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
