//! Units go back to the server that counted them: when their lease ends, and when the limiter does.

use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use tokio::time::{timeout, Duration, Instant};

use super::hand::GrantedUnits;
use super::Core;
use crate::clock::awake;
use crate::error::Error;
use crate::protocol::{Command, Counted};
use crate::statistics::Count;
use crate::transport::Reply;
use crate::upstream::{Batch, Identity};

/// How soon to try again to give back units, while the server is unavailable.
const AGAIN: Duration = Duration::from_millis(200);
/// The most refunds that go out together.
const TOGETHER: usize = 500;

/// Units that go back to the server that counted them.
pub(super) struct Return {
    key: Arc<[u8]>,
    batch: GrantedUnits,
    begun: Instant,
}

impl Return {
    pub fn new(key: &Arc<[u8]>, batch: GrantedUnits, begun: Instant) -> Self {
        Self { key: Arc::clone(key), batch, begun }
    }

    /// Whether this server counted them. Nobody knows that of one that did not say who it is.
    pub fn is_of(&self, server: Option<&Identity>) -> bool {
        server.is_some() && self.batch.server.as_ref() == server
    }

    /// What gives them back, and no units that were counted before.
    pub fn refund(&self) -> Command {
        Command::refund(&self.key, self.batch.units, Counted::Since(self.batch.since))
    }
}

impl Core {
    /// All units go back.
    pub(super) fn surrender(&self) {
        for leased in std::mem::take(&mut *self.ends.lock()).into_values() {
            let batches = leased.hand.lock().surrender();
            self.give_back(&leased.key, batches);
        }
    }

    pub(super) fn give_back(&self, key: &Arc<[u8]>, batches: Vec<GrantedUnits>) {
        let begun = Instant::now();
        let returns = batches.into_iter().map(|batch| Return::new(key, batch, begun));
        let mut returning = self.returning.lock();
        returning.extend(returns);
        if !returning.is_empty() {
            self.is_busy.store(true, Ordering::Release);
        }
    }

    pub(super) fn begin(self: &Arc<Self>) {
        if !self.is_running.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::clone(self)));
        }
    }

    /// Ends leases whose time has come, or renews them; when the next one ends.
    fn end(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        loop {
            let leased = {
                let mut ends = self.ends.lock();
                match ends.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    first => return first.map(|first| first.key().0),
                }
            };
            let (batches, flight) = {
                let mut hand = leased.hand.lock();
                (hand.ended(now), hand.renewal_unasked(now))
            };
            self.give_back(&leased.key, batches);
            if let Some(flight) = flight {
                self.send(&leased, flight);
            }
        }
    }

    /// Gives units back. What cannot be sent yet stays.
    async fn refund(&self) {
        let returning = std::mem::take(&mut *self.returning.lock());
        let is_in_time =
            |units: &Return| !self.is_given_up.load(Ordering::Acquire) && units.begun.elapsed() < self.patience;
        let (returning, late): (Vec<_>, Vec<_>) = returning.into_iter().partition(is_in_time);
        self.write_off(&late);
        let (groups, unknown) = self.upstream.by_server(returning, |units| &units.key).await;
        self.returning.lock().extend(unknown);
        for (server, returns) in groups {
            for returns in chunks(returns) {
                let connecting = async {
                    let connection = server.connection(&returns[0].key).await?;
                    server.health.identify(&connection).await;
                    Ok::<_, Error>(connection)
                };
                let Some(Ok(connection)) = self.unless_given_up(connecting).await else {
                    self.returning.lock().extend(returns);
                    continue;
                };
                let is_its = |units: &Return| units.is_of(connection.identity());
                let (its, others): (Vec<_>, Vec<_>) = returns.into_iter().partition(is_its);
                self.write_off(&others);
                if its.is_empty() {
                    continue;
                }
                let batch = Batch::Several(its.iter().map(Return::refund).collect());
                // Sent once, whatever becomes of it.
                let settled = self.unless_given_up(self.upstream.see_through_on(&server, connection, batch)).await;
                let replies = match settled.map(|settled| settled.reply) {
                    Some(Ok(Reply::Array(replies))) => replies,
                    _ => Vec::new(),
                };
                let mut replies = replies.into_iter();
                let is_refunded = |_: &Return| replies.next().is_some_and(|reply| reply.integer().is_some());
                let (refunded, others): (Vec<_>, Vec<_>) = its.into_iter().partition(is_refunded);
                self.upstream.count(Count::Returned, refunded.iter().map(|units| units.batch.units).sum());
                self.write_off(&others);
            }
        }
    }

    async fn unless_given_up<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = future => Some(done),
            () = self.given_up.notified() => None,
        }
    }

    fn write_off(&self, returns: &[Return]) {
        let units: u64 = returns.iter().map(|units| units.batch.units).sum();
        if units > 0 {
            self.upstream.count(Count::WrittenOff, units);
            let keys = returns.iter().map(|units| &units.key).collect::<HashSet<_>>().len();
            tracing::warn!(units, keys, "leased units cannot be given back: they stay counted for a window");
        }
    }
}

fn chunks(mut returns: Vec<Return>) -> impl Iterator<Item = Vec<Return>> {
    std::iter::from_fn(move || {
        let rest = returns.split_off(returns.len().min(TOGETHER));
        let chunk = std::mem::replace(&mut returns, rest);
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// Ends leases when they end, and gives back what is left, until the limiter is gone and nothing is left.
async fn run(core: Arc<Core>) {
    loop {
        let next = core.end(awake());
        if !core.returning.lock().is_empty() {
            core.refund().await;
        }
        let is_left = {
            let returning = core.returning.lock();
            core.is_busy.store(!returning.is_empty(), Ordering::Release);
            !returning.is_empty()
        };
        if !is_left {
            core.is_idle.notify_waiters();
            if core.is_dropped.load(Ordering::Acquire) && core.ends.lock().is_empty() {
                core.is_running.store(false, Ordering::Release);
                // A lease that came late begins the task again, or goes on with this one.
                let is_over = core.ends.lock().is_empty() && core.returning.lock().is_empty();
                if is_over || core.is_running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        }
        let next = next.map(|next| next.saturating_duration_since(awake()));
        let again = is_left.then_some(AGAIN);
        let wake = core.wake.notified();
        match [next, again].into_iter().flatten().min() {
            Some(pause) => drop(timeout(pause, wake).await),
            None => wake.await,
        }
    }
}
