//! Leases: units are taken from the server ahead of the requests, and granted near them.
//!
//! A request that no lease covers goes out with `TIME` before it and `ALLOW … COST b PARTIAL` behind it, in one
//! pipeline. The units of the latter are granted near the requests for at most the lease's length, counted from before
//! the pipeline was sent. What is left goes back by `REFUND … SINCE`, dated by that TIME: no delay on the way makes it
//! wrong. One request for a key is under way at a time; others wait for it, not beside it.

mod hand;

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use swlimit_window::Decision as Exact;
use tokio::sync::Notify;
use tokio::time::{timeout_at, Duration, Instant};

use self::hand::{GrantedUnits, Hand};
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::keyed::{Bounded, Keep};
use crate::protocol::{Command, Counted};
use crate::quota::Quota;
use crate::statistics::Count;
use crate::transport::{joined, Reply};
use crate::upstream::{Batch, Identity, Link, Settled};

/// The longest that units are kept in hand, whatever the resolution.
const LONGEST: Duration = Duration::from_secs(1);
/// How soon to try again to give back units, while the server is away.
const AGAIN: Duration = Duration::from_millis(200);
/// For how long it is tried, at most: then the units are written off.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most refunds that go out together.
const TOGETHER: usize = 500;

/// The leases of one limiter. Dropped, they hand over what they hold to the task that gives it back.
pub(crate) struct Leases(Arc<Core>);

struct Core {
    link: Arc<Link>,
    keys: Bounded<Arc<Leased>>,
    length: Duration,
    /// For so long it is tried to give units back.
    patience: Duration,
    /// The most units of a lease.
    most: u64,
    /// Leases by their end.
    ends: Mutex<BTreeMap<(Instant, u64), Lease>>,
    numbers: AtomicU64,
    /// GrantedUnits that go back.
    returning: Mutex<Vec<Return>>,
    /// A refund is under way, or due.
    is_busy: AtomicBool,
    wake: Notify,
    is_idle: Notify,
    is_running: AtomicBool,
    is_dropped: AtomicBool,
    /// The client is being closed, or was: nothing is leased any more, and what comes late goes back.
    is_closed: AtomicBool,
    /// What could not be given back so far is written off.
    is_given_up: AtomicBool,
    given_up: Notify,
}

type Lease = (Arc<[u8]>, Arc<Leased>);

/// The lease of a key, and whose turn it is to ask.
struct Leased {
    hand: Mutex<Hand>,
    /// Held by the request that asks the server.
    turn: tokio::sync::Mutex<()>,
}

/// GrantedUnits that go back to the server that counted them.
struct Return {
    key: Arc<[u8]>,
    units: u64,
    since: u64,
    server: Option<Identity>,
    begun: Instant,
}

impl Leases {
    /// Leases of at most so many units, of at most so many keys.
    pub fn new(link: Arc<Link>, quota: &Quota, most: u64, max_keys: usize) -> Self {
        Self(Arc::new(Core {
            link,
            keys: Bounded::new(max_keys),
            length: LONGEST.min(quota.resolution()),
            patience: PATIENCE.min(quota.window() + quota.resolution()),
            most,
            ends: Mutex::default(),
            numbers: AtomicU64::new(0),
            returning: Mutex::default(),
            is_busy: AtomicBool::new(false),
            wake: Notify::new(),
            is_idle: Notify::new(),
            is_running: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            given_up: Notify::new(),
        }))
    }

    /// Grants a request from the units in hand, if they suffice.
    #[inline]
    pub fn take(&self, key: &[u8], demand: &Demand) -> Option<Decision> {
        self.0.keys.see(key, |leased| leased.hand.lock().take(demand, Instant::now()))?
    }

    /// Puts back units that were taken just now.
    pub fn put_back(&self, key: &[u8], decision: &Decision) {
        self.0.keys.see(key, |leased| leased.hand.lock().put_back(decision));
    }

    /// Asks the server, when it is the request's turn, unless the one before brought enough or was denied. The second
    /// value is the instant of sending, where the server was asked.
    pub async fn ask(
        &self,
        key: &[u8],
        demand: &Demand,
        deadline: Instant,
    ) -> Result<(Decision, Option<(Exact, Instant)>), Error> {
        let arrived = Instant::now();
        let leased = self.0.keys.get_or_make(key, || Leased::new(self.0.length));
        if self.0.link.is_away(key) {
            return Err(Error::Unavailable("the breaker is open".into()));
        }
        let late = |_| Error::Unavailable("timed out waiting for a lease on this key".into());
        let _turn = timeout_at(deadline, leased.turn.lock()).await.map_err(late)?;
        let ahead = {
            let (mut hand, now) = (leased.hand.lock(), Instant::now());
            if let Some(decision) = hand.take(demand, now).or_else(|| hand.denied_since(arrived, demand, now)) {
                return Ok((decision, None));
            }
            match self.0.is_leasing(key) {
                true => hand.wanted(self.0.most, now),
                false => 0,
            }
        };
        let mut several = vec![Command::TIME, Command::allow(key, demand)];
        several.extend(lease_of(key, demand, ahead));
        let (core, key, demand) = (Arc::clone(&self.0), Arc::<[u8]>::from(key), *demand);
        let settle = {
            let (core, key, leased) = (Arc::clone(&core), Arc::clone(&key), Arc::clone(&leased));
            // Nobody takes the request's own units: they are leased, too.
            Box::new(move |settled: Settled| drop(core.granted(&key, &leased, &demand, &settled, true)))
        };
        let settled = core.link.exchange(Batch::Several(several), deadline, Some(settle)).await?;
        let decided = core.granted(&key, &leased, &demand, &settled, false)?;
        Ok((Source::Server.decided(decided.0).counted_since(decided.1), Some((decided.0, settled.sent))))
    }

    /// For a request that is decided with others: the command that leases units beside it, if any are wanted, and how
    /// what is granted to nobody is kept.
    pub fn beside(&self, key: &[u8], demand: &Demand) -> (Option<Command>, Beside) {
        let leased = self.0.keys.get_or_make(key, || Leased::new(self.0.length));
        let wanted = match self.0.is_leasing(key) {
            true => leased.hand.lock().wanted(self.0.most, Instant::now()),
            false => 0,
        };
        let command = lease_of(key, demand, wanted);
        (command, Beside { core: Arc::clone(&self.0), key: key.into(), leased })
    }

    /// The server granted a request units of its own.
    pub fn used(&self, key: &[u8], units: u64) {
        self.0.keys.see(key, |leased| leased.hand.lock().used(units, Instant::now()));
    }

    /// What [`close`](Closing::close) needs, without keeping the leases from being dropped.
    pub fn closing(&self) -> Closing {
        Closing(Arc::downgrade(&self.0))
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.0.surrender();
        self.0.is_dropped.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }
}

/// Gives back all that is in hand.
pub(crate) struct Closing(std::sync::Weak<Core>);

impl Closing {
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Gives back all that is in hand, and waits until that is sent. Nothing is leased from then on.
    pub async fn close(&self) {
        let Some(core) = self.0.upgrade() else { return };
        core.is_closed.store(true, Ordering::Release);
        core.surrender();
        core.wake.notify_one();
        core.idle().await;
    }

    /// Writes off what could not be given back.
    pub async fn write_off(&self) {
        let Some(core) = self.0.upgrade() else { return };
        core.is_given_up.store(true, Ordering::Release);
        core.given_up.notify_waiters();
        core.wake.notify_one();
        core.idle().await;
        core.is_given_up.store(false, Ordering::Release);
    }
}

/// The lease of one of several limits in one decision.
pub(crate) struct Beside {
    core: Arc<Core>,
    key: Arc<[u8]>,
    leased: Arc<Leased>,
}

impl Beside {
    /// Keeps units that the server granted behind that TIME.
    pub fn keep(&self, decision: &Exact, time: &Reply, settled: &Settled) {
        self.core.keep(&self.key, &self.leased, decision, time.unix_ms(), settled);
    }
}

fn lease_of(key: &[u8], demand: &Demand, units: u64) -> Option<Command> {
    let ahead = Demand { block: None, ..demand.of_up_to(units) };
    (units > 0).then(|| Command::allow(key, &ahead))
}

impl Core {
    fn is_leasing(&self, key: &[u8]) -> bool {
        !self.is_closed.load(Ordering::Acquire) && self.link.is_identified(key)
    }

    /// Waits until nothing goes back any more.
    async fn idle(&self) {
        loop {
            let idle = self.is_idle.notified();
            if !self.is_busy.load(Ordering::Acquire) {
                return;
            }
            idle.await;
        }
    }

    /// Takes in the replies to a request and to the lease beside it. The request's own decision, and since when its
    /// units count.
    fn granted(
        self: &Arc<Self>,
        key: &Arc<[u8]>,
        leased: &Arc<Leased>,
        demand: &Demand,
        settled: &Settled,
        is_abandoned: bool,
    ) -> Result<(Exact, Option<u64>), Error> {
        let replies = match &settled.reply {
            Ok(Reply::Array(replies)) => replies.as_slice(),
            Ok(reply) => return Err(Error::Answer(reply.to_string())),
            Err(failure) => {
                // Whether the units were counted is in doubt. They are never refunded.
                self.link.count(Count::InDoubt, 1);
                return Err(Error::Unavailable(failure.clone().into()));
            }
        };
        let [time, own, ahead @ ..] = replies else { return Err(Error::Answer(joined(replies))) };
        let since = time.unix_ms();
        for decision in ahead.iter().filter_map(|reply| reply.decision().ok()) {
            self.keep(key, leased, &decision, since, settled);
        }
        let decision = match own {
            Reply::Error(text) => return Err(self.link.error(text.clone(), key)),
            own => own.decision()?,
        };
        let now = Instant::now();
        if is_abandoned {
            self.keep(key, leased, &decision, since, settled);
        } else if decision.granted > 0 {
            leased.hand.lock().used(decision.granted, now);
        } else {
            leased.hand.lock().denied(demand, decision, now);
        }
        Ok((decision, since))
    }

    /// Keeps units that were granted ahead, until the lease ends. Those of which nobody knows since when they count
    /// could not be given back.
    fn keep(
        self: &Arc<Self>,
        key: &Arc<[u8]>,
        leased: &Arc<Leased>,
        decision: &Exact,
        since: Option<u64>,
        settled: &Settled,
    ) {
        self.link.count(Count::Leased, decision.granted);
        let Some(since) = since else { return self.link.count(Count::WrittenOff, decision.granted) };
        let sent = settled.sent;
        {
            let mut hand = leased.hand.lock();
            hand.heard(decision, Instant::now());
            if decision.granted == 0 {
                return;
            }
            let (units, until) = (decision.granted, sent + self.length);
            hand.add(GrantedUnits { units, since, until, server: settled.line.identity().cloned() });
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.ends.lock().insert((sent + self.length, number), (Arc::clone(key), Arc::clone(leased)));
        self.begin();
        if self.is_dropped.load(Ordering::Acquire) || self.is_closed.load(Ordering::Acquire) {
            self.surrender();
        }
        self.wake.notify_one();
    }

    /// All units go back.
    fn surrender(&self) {
        for (_, (key, leased)) in std::mem::take(&mut *self.ends.lock()) {
            let batches = leased.hand.lock().surrender();
            self.give_back(&key, batches);
        }
    }

    fn give_back(&self, key: &Arc<[u8]>, batches: Vec<GrantedUnits>) {
        let begun = Instant::now();
        let returns = batches.into_iter().map(|GrantedUnits { units, since, server, .. }| {
            let key = Arc::clone(key);
            Return { key, units, since, server, begun }
        });
        let mut returning = self.returning.lock();
        returning.extend(returns);
        if !returning.is_empty() {
            self.is_busy.store(true, Ordering::Release);
        }
    }

    fn begin(self: &Arc<Self>) {
        if !self.is_running.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::clone(self)));
        }
    }

    /// Ends leases whose time has come; when the next one ends.
    fn end(&self, now: Instant) -> Option<Instant> {
        loop {
            let (key, leased) = {
                let mut ends = self.ends.lock();
                match ends.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    first => return first.map(|first| first.key().0),
                }
            };
            let batches = leased.hand.lock().ended(now);
            self.give_back(&key, batches);
        }
    }

    /// Gives units back. What cannot be sent yet stays.
    async fn refund(&self) {
        let returning = std::mem::take(&mut *self.returning.lock());
        let is_in_time =
            |units: &Return| !self.is_given_up.load(Ordering::Acquire) && units.begun.elapsed() < self.patience;
        let (returning, late): (Vec<_>, Vec<_>) = returning.into_iter().partition(is_in_time);
        self.write_off(&late);
        let (groups, unknown) = self.link.by_node(returning, |units| &units.key).await;
        self.returning.lock().extend(unknown);
        for (node, returns) in groups {
            for returns in chunks(returns) {
                let connecting = async {
                    let line = node.line(&returns[0].key).await?;
                    node.identify(&line).await;
                    Ok::<_, Error>(line)
                };
                let Some(Ok(line)) = self.unless_given_up(connecting).await else {
                    self.returning.lock().extend(returns);
                    continue;
                };
                let is_its = |units: &Return| units.server.is_some() && units.server.as_ref() == line.identity();
                let (its, others): (Vec<_>, Vec<_>) = returns.into_iter().partition(is_its);
                self.write_off(&others);
                if its.is_empty() {
                    continue;
                }
                let refund = |units: &Return| Command::refund(&units.key, units.units, Counted::Since(units.since));
                let batch = Batch::Several(its.iter().map(refund).collect());
                // Sent once, whatever becomes of it.
                let settled = self.unless_given_up(self.link.see_through_on(&node, line, batch)).await;
                let replies = match settled.map(|settled| settled.reply) {
                    Some(Ok(Reply::Array(replies))) => replies,
                    _ => Vec::new(),
                };
                let mut replies = replies.into_iter();
                let is_refunded = |_: &Return| matches!(replies.next(), Some(Reply::Integer(_)));
                let (refunded, others): (Vec<_>, Vec<_>) = its.into_iter().partition(is_refunded);
                self.link.count(Count::Returned, refunded.iter().map(|units| units.units).sum());
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
        let units: u64 = returns.iter().map(|units| units.units).sum();
        if units > 0 {
            self.link.count(Count::WrittenOff, units);
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
        let next = core.end(Instant::now());
        if !core.returning.lock().is_empty() {
            core.refund().await;
        }
        let is_left = !core.returning.lock().is_empty();
        if !is_left {
            core.is_busy.store(false, Ordering::Release);
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
        let again = is_left.then(|| Instant::now() + AGAIN);
        let wake = core.wake.notified();
        match [next, again].into_iter().flatten().min() {
            Some(next) => drop(timeout_at(next, wake).await),
            None => wake.await,
        }
    }
}

impl Leased {
    fn new(length: Duration) -> Self {
        Self { hand: Mutex::new(Hand::new(length, Instant::now())), turn: tokio::sync::Mutex::new(()) }
    }
}

impl Keep for Leased {
    fn is_idle(&self, now: Instant) -> bool {
        self.turn.try_lock().is_ok() && self.hand.try_lock().is_some_and(|hand| hand.is_idle(now))
    }

    fn is_pinned(&self) -> bool {
        self.turn.try_lock().is_err() || self.hand.try_lock().is_none_or(|hand| hand.units() > 0)
    }
}
