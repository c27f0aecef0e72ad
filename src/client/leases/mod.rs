//! Leases: units are taken from the server ahead of the requests, and given out near them.
//!
//! `ALLOW key … COST b PARTIAL` takes up to `b` units, which are given out for at most the lease's length, counted from
//! before it was sent. What is left then goes back, dated by its age, which is overstated by the time the way there may
//! take. One request for a key is under way at a time; the others wait for it, not beside it.

mod lease;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use swlimit_window::Decision;
use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout_at, Duration, Instant};

use self::lease::Lease;
use crate::clock::ms_up;
use crate::commands;
use crate::decision::Way;
use crate::demand::Demand;
use crate::error::Error;
use crate::keys::{Keep, Keys};
use crate::quota::{share_of, Quota};
use crate::server::Server;
use crate::statistics::Count;
use crate::wire::Command;

/// The longest that units are kept in hand, whatever the resolution.
const LONGEST: Duration = Duration::from_secs(1);

/// The leases of one limiter.
pub(crate) struct Leases {
    server: Arc<Server>,
    keys: Keys<Leased>,
    length: Duration,
    /// The most units that are asked for ahead.
    most: u64,
    /// What ends when, in order, because all leases are of the same length.
    ends: Mutex<VecDeque<End>>,
    has_ends: Arc<Notify>,
    is_ending: AtomicBool,
}

/// When the lease of a key ends.
type End = (Instant, Arc<[u8]>, Arc<Leased>);

struct Leased {
    lease: Mutex<Lease>,
    /// Held by the one who asks the server.
    turn: tokio::sync::Mutex<()>,
}

impl Leases {
    /// Leases of at most a share of the limit, of at most so many keys.
    pub fn new(server: Arc<Server>, quota: &Quota, share: f64, most_keys: usize) -> Self {
        Self {
            server,
            keys: Keys::new(most_keys),
            length: LONGEST.min(quota.resolution()),
            most: share_of(quota.limit(), share),
            ends: Mutex::default(),
            has_ends: Arc::default(),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Grant a demand from the units in hand, if they suffice.
    #[inline]
    pub fn take(&self, key: &[u8], demand: &Demand) -> Option<Decision> {
        self.keys.see(key, |leased| leased.lease.lock().take(demand, Instant::now()))?
    }

    /// Ask the server for units, when it is one's turn, unless whoever was before brought enough or was denied. With
    /// the decision, who made it.
    pub async fn ask(self: &Arc<Self>, key: &[u8], demand: &Demand) -> Result<(Decision, Way), Error> {
        let (arrived, deadline) = (Instant::now(), self.server.deadline());
        let leased = self.keys.get_or_make(key, || Leased::new(self.length));
        let late = |_| Error::Away("others wait for it, too".into());
        let _turn = timeout_at(deadline, leased.turn.lock()).await.map_err(late)?;
        let (returned, wanted) = {
            let (mut lease, now) = (leased.lease.lock(), Instant::now());
            let done = lease.take(demand, now).or_else(|| lease.denied_since(arrived, demand, now));
            if let Some(decision) = done {
                return Ok((decision, Way::Lease));
            }
            let wanted = lease.wanted(demand, self.most, now);
            (lease.surrender(), wanted)
        };
        let sent = Instant::now();
        let asked = commands::allow(key, &demand.of_up_to(wanted));
        let returned = returned.map(|units| self.refund(key, units));
        let decision = self.last_of(returned, asked, deadline).await?.decision()?;
        self.server.count(Count::Leased, decision.granted);
        if decision.granted >= demand.exact.cost || (demand.exact.partial && decision.granted > 0) {
            let granted = leased.lease.lock().granted_by_server(demand, &decision, sent, Instant::now());
            self.end_later(key, &leased);
            return Ok((granted, Way::Server));
        }
        let decision = match decision.granted {
            0 => decision,
            // Less than the cost: it goes back, and the server says when the cost would fit.
            units => {
                let returned = self.refund(key, (units, sent));
                self.last_of(Some(returned), commands::peek(key, demand), deadline).await?.decision()?
            }
        };
        // In the meantime it may have become enough; it was denied all the same.
        let decision = decision.behind(u64::from(decision.granted > 0));
        leased.lease.lock().denied_by_server(demand, decision, Instant::now());
        Ok((decision, Way::Server))
    }

    /// Send something back first, if there is something, in one go with a question; the question's reply. What was sent
    /// back is not sent again, whatever becomes of it.
    async fn last_of(
        &self,
        first: Option<Command>,
        last: Command,
        deadline: Instant,
    ) -> Result<crate::wire::Reply, Error> {
        let Some(first) = first else { return self.server.ask(last, deadline).await };
        let mut replies = self.server.ask_all(vec![first, last], deadline).await?;
        replies.pop().unwrap_or_else(|| Err(Error::Answer("too few replies".into())))
    }

    /// Units that were asked for then go back. Their age includes the way there, which is no longer than a request
    /// waits.
    fn refund(&self, key: &[u8], (units, sent): (u64, Instant)) -> Command {
        self.server.count(Count::Returned, units);
        commands::refund(key, units, Some(ms_up(sent.elapsed() + self.server.timeout())))
    }

    fn end_later(self: &Arc<Self>, key: &[u8], leased: &Arc<Leased>) {
        let until = leased.lease.lock().until();
        self.ends.lock().push_back((until, key.into(), Arc::clone(leased)));
        if !self.is_ending.swap(true, Ordering::AcqRel) {
            tokio::spawn(end(Arc::downgrade(self), Arc::clone(&self.has_ends)));
        }
        self.has_ends.notify_one();
    }

    /// The refunds of what has ended by now; and when the next one ends.
    fn ended(&self, now: Instant) -> (Vec<Command>, Option<Instant>) {
        let mut ends = self.ends.lock();
        let mut refunds = Vec::new();
        while ends.front().is_some_and(|(until, ..)| *until <= now) {
            let Some((_, key, leased)) = ends.pop_front() else { break };
            let mut lease = leased.lease.lock();
            // Units that were asked for since then end later.
            if lease.until() <= now {
                refunds.extend(lease.surrender().map(|units| self.refund(&key, units)));
            }
        }
        (refunds, ends.front().map(|(until, ..)| *until))
    }

    /// Give back all that is in hand.
    pub async fn close(&self) {
        let ends = std::mem::take(&mut *self.ends.lock());
        let refunds: Vec<_> = ends
            .iter()
            .filter_map(|(_, key, leased)| leased.lease.lock().surrender().map(|units| self.refund(key, units)))
            .collect();
        self.send(refunds).await;
    }

    /// What is lost here stays counted until the window has passed it: the safe side.
    async fn send(&self, refunds: Vec<Command>) {
        if !refunds.is_empty() {
            if let Err(error) = self.server.ask_all(refunds, self.server.deadline()).await {
                tracing::debug!(%error, "units of leases could not be given back");
            }
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.has_ends.notify_one();
    }
}

/// End leases when they end, until there is no limiter any more.
async fn end(leases: Weak<Leases>, has_ends: Arc<Notify>) {
    loop {
        let next = {
            let Some(leases) = leases.upgrade() else { return };
            let (refunds, next) = leases.ended(Instant::now());
            leases.send(refunds).await;
            next
        };
        match next {
            Some(next) => sleep_until(next).await,
            None => has_ends.notified().await,
        }
    }
}

impl Leased {
    fn new(length: Duration) -> Self {
        Self { lease: Mutex::new(Lease::new(length, Instant::now())), turn: tokio::sync::Mutex::new(()) }
    }
}

impl Keep for Leased {
    fn is_idle(&self, now: Instant) -> bool {
        self.turn.try_lock().is_ok() && self.lease.try_lock().is_some_and(|lease| lease.is_idle(now))
    }
}
