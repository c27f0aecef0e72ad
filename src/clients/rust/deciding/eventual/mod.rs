//! Eventual: no request waits for the server. Usage is sent to it later, and its replies decide from then on.
//!
//! Every interval all keys that were asked for go out in one go: what was used as `RECORD key … COST n AGE a`, whose
//! reply is the new state, and `PEEK` for a key with nothing to tell, else a denied one would stay denied. One
//! synchronization is under way at a time, and it is over when its replies have come or its connection has closed.

mod counted;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use futures_util::future::join_all;
use parking_lot::Mutex;
use swlimit_window::Decision as Exact;
use tokio::sync::{watch, Notify};
use tokio::time::{sleep, timeout_at, Duration, Instant};

use self::counted::{Counted, Known, Outcome, UsedUnits};
use crate::clock::{self, ms, now_ms};
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::keyed::{Bounded, Keep};
use crate::mode::Share;
use crate::protocol::Command;
use crate::quota::Quota;
use crate::statistics::Count;
use crate::transport::Reply;
use crate::upstream::{is_failure, Batch, Server, Upstream};

/// So many failed synchronizations in a row, and the failure policy takes over.
const FAILURES: u32 = 3;
/// A synchronization is late after this, or after two intervals if that is longer: decisions do not rely on it then.
const LATE: Duration = Duration::from_secs(1);
/// How soon it is tried again to tell what is unsent, while the client is being closed.
const AGAIN: Duration = Duration::from_millis(50);
/// For how long what is unsent of a limiter that was dropped is kept, while the server is unavailable.
const PATIENCE: Duration = Duration::from_secs(60);
/// How late a timer may be.
const LATE_TIMER: Duration = Duration::from_millis(2);
/// The most commands that go out together. Few in tests, where there are few keys.
const TOGETHER: usize = if cfg!(test) { 5 } else { 500 };

/// The counts of one limiter. Dropped, it hands over what was not sent yet.
pub(crate) struct Eventual(Arc<Core>);

struct Core {
    upstream: Arc<Upstream>,
    keys: Bounded<Arc<Key>>,
    interval: Duration,
    window: Duration,
    resolution: Duration,
    share: Share,
    /// Keys that were asked for since the last synchronization began.
    queue: Mutex<Vec<Queued>>,
    failures: AtomicU32,
    /// When the synchronization that is under way began, in ms of the clock; 0 if none is.
    under_way: AtomicU64,
    /// How many synchronizations have begun, or would have, had there been anything to synchronize.
    round: AtomicU64,
    /// When the next one is due, in µs since `begun`.
    due: AtomicU64,
    begun: Instant,
    wake: Notify,
    is_done: Notify,
    /// Sends the queue at once.
    is_urgent: Notify,
    is_running: AtomicBool,
    /// When the limiter was dropped.
    dropped: OnceLock<Instant>,
    /// How many give up what is unsent now.
    giving_up: watch::Sender<usize>,
}

#[derive(Default)]
struct Key(Mutex<Counted>);

#[derive(Clone)]
struct Queued {
    key: Arc<[u8]>,
    counts: Arc<Key>,
    /// Of the request that queued it.
    demand: Demand,
}

/// How a request gets decided.
pub(crate) enum Decided {
    Here(Decision),
    /// What was known of the key may have been forgotten: the server has to be asked.
    ByServer,
    ByPolicy,
}

impl Eventual {
    /// Synchronized every `interval`, with such a share for a key of which nothing is known; of at most so many keys.
    pub fn new(upstream: Arc<Upstream>, quota: &Quota, interval: Duration, share: Share, max_keys: usize) -> Self {
        Self(Arc::new(Core {
            upstream,
            keys: Bounded::new(max_keys),
            interval,
            window: quota.window(),
            resolution: quota.resolution(),
            share,
            queue: Mutex::default(),
            failures: AtomicU32::new(0),
            under_way: AtomicU64::new(0),
            // Keys begin with 0: what was never part of one.
            round: AtomicU64::new(1),
            due: AtomicU64::new(0),
            begun: Instant::now(),
            wake: Notify::new(),
            is_done: Notify::new(),
            is_urgent: Notify::new(),
            is_running: AtomicBool::new(false),
            dropped: OnceLock::new(),
            giving_up: watch::Sender::new(0),
        }))
    }

    /// Decides a request by what is known, and has it told later.
    ///
    /// # Errors
    /// As the server refused the key.
    #[inline]
    pub fn decide(&self, key: &[u8], demand: &Demand) -> Result<Decided, Error> {
        let core = &self.0;
        if core.is_unavailable(key) {
            // Else nobody would notice that the server is back. Without room, each request would queue its key again; and
            // then other keys are queued.
            if let Ok(counts) = core.keys.get_or_keep(key, Key::default) {
                core.seen(key, demand, &counts, |_, _, _| ());
            }
            return Ok(Decided::ByPolicy);
        }
        let decide = |counted: &mut Counted, known, now| match &counted.refused {
            Some(error) => Err(error.clone()),
            None => Ok(counted.decide(demand, known, now)),
        };
        let seen = core.keys.see(key, |counts| core.seen(key, demand, counts, decide));
        let decided = match seen {
            Some(decided) => decided,
            None if core.may_have_known() => return Ok(Decided::ByServer),
            None => match core.keys.get_or_keep(key, Key::default) {
                Ok(counts) => core.seen(key, demand, &counts, decide),
                // What is granted here would be unknown to the next request of the key.
                Err(_) => return Ok(Decided::ByServer),
            },
        };
        Ok(Decided::Here(Source::Eventual.decided(decided?)))
    }

    /// The server decided a request itself: its reply is the key's state.
    pub fn heard(&self, key: &[u8], decision: &Exact) {
        let now = Instant::now();
        let known = self.0.known(now);
        let counts = self.0.keys.get_or_make(key, Key::default);
        counts.0.lock().heard_directly(decision, known, now);
    }

    /// Counts a request whatever is available, as used so long ago; and the decision for as much again.
    pub fn record(&self, key: &[u8], demand: &Demand, age: Duration) -> Decision {
        let apart = self.0.apart();
        let exact = self.0.with(key, demand, |counted, known, now| {
            let before = counted.peek(demand, known, now);
            counted.record(demand.exact.cost, now.checked_sub(age).unwrap_or(now), apart);
            let after = counted.peek(demand, known, now);
            Exact { granted: before.granted, ..after }
        });
        Source::Eventual.decided(exact)
    }

    /// Takes back units that were not sent yet; how many.
    pub fn take_back(&self, key: &[u8], units: u64) -> u64 {
        self.0.keys.see(key, |counts| counts.0.lock().take_back(units)).unwrap_or_default()
    }

    /// What [`close`](Closing::close) needs, without keeping the counts from being dropped.
    pub fn closing(&self) -> Closing {
        Closing(Arc::downgrade(&self.0))
    }
}

impl Drop for Eventual {
    fn drop(&mut self) {
        let _ = self.0.dropped.set(Instant::now());
        self.0.wake.notify_one();
        self.0.is_urgent.notify_one();
    }
}

/// Tells the server all that it does not know yet.
pub(crate) struct Closing(Weak<Core>);

impl Closing {
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Tells the server all that it does not know yet; while it is unavailable, again and again.
    pub async fn close(&self) {
        let Some(core) = self.0.upgrade() else { return };
        while !core.is_told() {
            let done = core.is_done.notified();
            core.is_urgent.notify_one();
            done.await;
            if core.failures.load(Ordering::Relaxed) > 0 {
                sleep(AGAIN).await;
            }
        }
    }

    /// Gives up what could not be sent, after a last try: what a silent connection leaves in doubt is sent once more.
    pub async fn give_up(&self) {
        let Some(core) = self.0.upgrade() else { return };
        if core.is_told() {
            return;
        }
        let last_try = async {
            core.cut().await;
            self.close().await;
        };
        if timeout_at(Instant::now() + AGAIN, last_try).await.is_ok() {
            return;
        }
        let _giving_up = GivingUp::begin(&core);
        let rest = async {
            loop {
                core.cut().await;
                core.give_up();
                // One that had just begun, and had taken what was queued, ends at once and queues it again.
                if core.under_way.load(Ordering::Acquire) == 0 {
                    return;
                }
            }
        };
        let _ = timeout_at(Instant::now() + AGAIN, rest).await;
    }
}

/// While this lives, synchronizations end at once, and none begins.
struct GivingUp<'a>(&'a Core);

impl<'a> GivingUp<'a> {
    fn begin(core: &'a Core) -> Self {
        core.giving_up.send_modify(|count| *count += 1);
        Self(core)
    }
}

impl Drop for GivingUp<'_> {
    fn drop(&mut self) {
        self.0.giving_up.send_modify(|count| *count -= 1);
    }
}

impl Core {
    /// Whether the server knows everything.
    fn is_told(&self) -> bool {
        let is_told = |queued: &Queued| queued.counts.0.lock().unsent() == 0;
        self.under_way.load(Ordering::Acquire) == 0 && self.queue.lock().iter().all(is_told)
    }

    /// Ends the synchronization under way; what it sent is in doubt.
    async fn cut(&self) {
        let _giving_up = GivingUp::begin(self);
        loop {
            let done = self.is_done.notified();
            if self.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            done.await;
        }
    }

    /// Nothing of what is unsent will be sent.
    fn give_up(&self) {
        let queue = std::mem::take(&mut *self.queue.lock());
        let each = queue.iter().map(|queued| queued.counts.0.lock().give_up());
        let each: Vec<u64> = each.filter(|units| *units > 0).collect();
        self.lose(each.iter().sum(), each.len());
    }

    fn lose(&self, units: u64, keys: usize) {
        if units > 0 {
            self.upstream.count(Count::Lost, units);
            tracing::warn!(units, keys, "units were granted that the rate limit server may not have counted");
        }
    }

    /// Whether the failure policy is to decide, because nothing could be synchronized lately.
    fn is_unavailable(&self, key: &[u8]) -> bool {
        let since = self.under_way.load(Ordering::Relaxed);
        let late = || now_ms().saturating_sub(since) > ms(LATE.max(2 * self.interval));
        self.failures.load(Ordering::Relaxed) >= FAILURES || (since > 0 && late()) || self.upstream.is_unavailable(key)
    }

    /// Whether an unknown key may be one that was forgotten, and that matters still.
    fn may_have_known(&self) -> bool {
        let now = Instant::now();
        let since = now.checked_sub(self.window + self.resolution).unwrap_or(now);
        self.keys.has_forgotten_since(since)
    }

    /// How far batches are apart.
    fn apart(&self) -> Duration {
        (self.resolution / 10).max(Duration::from_millis(1))
    }

    fn known(&self, now: Instant) -> Known {
        let is_missed = || now > self.due() && self.under_way.load(Ordering::Acquire) == 0;
        // One that is missed, because there was nothing to synchronize, makes what was heard before it as old.
        let round = self.round.load(Ordering::Acquire) + u64::from(is_missed());
        Known { share: self.share, round }
    }

    /// When the next synchronization is due, as late as its timer may be.
    fn due(&self) -> Instant {
        self.begun + Duration::from_micros(self.due.load(Ordering::Acquire)) + LATE_TIMER
    }

    fn with<R>(
        self: &Arc<Self>,
        key: &[u8],
        demand: &Demand,
        see: impl FnOnce(&mut Counted, Known, Instant) -> R,
    ) -> R {
        self.keys.with(key, Arc::default, |counts| self.seen(key, demand, counts, see))
    }

    #[inline]
    fn seen<R>(
        self: &Arc<Self>,
        key: &[u8],
        demand: &Demand,
        counts: &Arc<Key>,
        see: impl FnOnce(&mut Counted, Known, Instant) -> R,
    ) -> R {
        let (result, is_first) = {
            let mut counted = counts.0.lock();
            let is_first = !std::mem::replace(&mut counted.is_queued, true);
            let now = Instant::now();
            (see(&mut counted, self.known(now), now), is_first)
        };
        if is_first {
            self.queue(Queued { key: key.into(), counts: Arc::clone(counts), demand: *demand });
        }
        result
    }

    fn queue(self: &Arc<Self>, queued: Queued) {
        self.queue.lock().push(queued);
        if !self.is_running.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::clone(self)));
        }
        self.wake.notify_one();
    }

    /// Tells the server what was used, and hears what it knows, of all keys that were asked for.
    async fn synchronize(self: &Arc<Self>) {
        let begun = Instant::now();
        let missed = u64::from(begun > self.due());
        let round = self.round.fetch_add(1 + missed, Ordering::AcqRel) + 1 + missed;
        self.under_way.store(clock::unix_ms(begun).max(1), Ordering::Release);
        let due = begun.saturating_duration_since(self.begun) + self.interval;
        self.due.store(u64::try_from(due.as_micros()).unwrap_or(u64::MAX), Ordering::Release);
        let queue = std::mem::take(&mut *self.queue.lock());
        let begin = |queued: Queued| {
            let units = queued.counts.0.lock().begin(round, self.window, self.apart(), begun);
            (queued, units)
        };
        let sending: Vec<_> = queue.into_iter().map(begin).collect();
        let (groups, unknown) = self.upstream.by_server(sending, |(queued, _)| &queued.key).await;
        let is_known = !groups.is_empty();
        let synchronizing = groups.into_iter().map(|(server, sending)| self.synchronize_node(server, sending));
        // Of a cluster, one node suffices.
        let is_done = join_all(synchronizing).await.into_iter().fold(false, |any, done| any | done) && is_known;
        self.over(unknown, None);
        let (what, failures) = match is_done {
            true => (Count::Synchronized, 0),
            false => (Count::Unsynchronized, self.failures.load(Ordering::Relaxed).saturating_add(1)),
        };
        self.upstream.count(what, 1);
        self.failures.store(failures, Ordering::Relaxed);
        // The next one begins at once if this one took longer than an interval.
        let now = Instant::now().saturating_duration_since(self.begun);
        self.due.fetch_max(u64::try_from(now.as_micros()).unwrap_or(u64::MAX), Ordering::AcqRel);
        self.under_way.store(0, Ordering::Release);
        self.is_done.notify_waiters();
    }

    /// Whether the node answered.
    async fn synchronize_node(
        self: &Arc<Self>,
        server: Arc<Server>,
        mut sending: Vec<(Queued, Vec<UsedUnits>)>,
    ) -> bool {
        let mut is_done = true;
        while !sending.is_empty() {
            let mut count = 0;
            let fits = sending.iter().take_while(|(_, units)| {
                count += units.len().max(1);
                count <= TOGETHER
            });
            let rest = sending.split_off(fits.count().max(1));
            let chunk = std::mem::replace(&mut sending, rest);
            let connecting = self.unless_given_up(server.connection(&chunk[0].0.key)).await;
            let Some(Ok(connection)) = connecting else {
                // Nothing was sent.
                self.over(chunk, None);
                is_done = false;
                continue;
            };
            let now = Instant::now();
            let commands = chunk.iter().flat_map(|(queued, units)| queued.commands(units, now)).collect();
            let settled =
                self.unless_given_up(self.upstream.see_through_on(&server, connection, Batch::Several(commands))).await;
            let replies = match settled.map(|settled| settled.reply) {
                Some(Ok(Reply::Array(replies))) => replies,
                _ => Vec::new(),
            };
            is_done &= !replies.is_empty();
            is_done &= !replies.iter().any(|reply| matches!(reply, Reply::Error(text) if is_failure(text)));
            self.over(chunk, Some(replies));
        }
        is_done
    }

    async fn unless_given_up<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = future => Some(done),
            () = self.gives_up(true) => None,
        }
    }

    /// Waits until what is unsent is given up, or is no longer.
    async fn gives_up(&self, gives_up: bool) {
        let _ = self.giving_up.subscribe().wait_for(|count| (*count > 0) == gives_up).await;
    }

    /// A synchronization is over for these keys. `None`: nothing was sent. Without replies, all is in doubt.
    fn over(self: &Arc<Self>, chunk: Vec<(Queued, Vec<UsedUnits>)>, replies: Option<Vec<Reply>>) {
        let mut replies = replies.map(Vec::into_iter);
        let (mut lost, mut keys) = (0, 0);
        for (queued, units) in chunk {
            let own: Option<Vec<Reply>> = replies.as_mut().map(|all| all.take(units.len().max(1)).collect());
            let (is_behind, units) = self.ended(&queued, &units, own);
            if is_behind {
                self.queue(queued);
            }
            lost += units;
            keys += usize::from(units > 0);
        }
        self.lose(lost, keys);
    }

    /// What became of a key's units. Whether it has to be part of the next synchronization, too; and units that are lost.
    fn ended(&self, queued: &Queued, units: &[UsedUnits], replies: Option<Vec<Reply>>) -> (bool, u64) {
        let now = Instant::now();
        let mut global = None;
        let mut refused = None;
        let outcomes: Vec<Outcome> = match replies {
            None => Vec::new(),
            Some(replies) if replies.is_empty() => vec![Outcome::InDoubt; units.len()],
            Some(replies) => {
                let outcome = |reply: Reply| match reply {
                    Reply::Error(text) if is_failure(&text) => Outcome::NotCounted,
                    Reply::Error(text) => match self.upstream.error(text, &queued.key) {
                        Error::Unavailable(_) => Outcome::NotCounted,
                        error => {
                            refused = Some(error);
                            Outcome::Refused
                        }
                    },
                    reply => match reply.decision() {
                        Ok(decision) => {
                            global = Some(decision);
                            Outcome::Counted
                        }
                        Err(_) => Outcome::InDoubt,
                    },
                };
                replies.into_iter().map(outcome).collect()
            }
        };
        let mut counted = queued.counts.0.lock();
        let doubted = counted.end(&outcomes[..outcomes.len().min(units.len())], global.as_ref(), now);
        if let Some(error) = refused {
            if counted.refused.is_none() {
                let key = String::from_utf8_lossy(&queued.key);
                tracing::warn!(%key, %error, "the rate limit server refuses a key that is synchronized");
            }
            counted.refused = Some(error);
        }
        self.upstream.count(Count::Refused, doubted.refused);
        self.upstream.count(Count::SentAgain, doubted.sent_again);
        (counted.unsent() > 0 && !std::mem::replace(&mut counted.is_queued, true), doubted.lost)
    }
}

impl Queued {
    /// What was used, dated; or a read, where nothing was.
    fn commands(&self, units: &[UsedUnits], now: Instant) -> Vec<Command> {
        let of = |units: u64| {
            let exact = swlimit_window::Request { cost: units, partial: false, ..self.demand.exact };
            Demand { exact, ..self.demand }
        };
        if units.is_empty() {
            return vec![Command::peek(&self.key, &of(1))];
        }
        let record = |batch: &UsedUnits| {
            let age = ms(now.saturating_duration_since(batch.at));
            Command::record(&self.key, &of(batch.units), age)
        };
        units.iter().map(record).collect()
    }
}

/// Synchronizes every interval while there is something to synchronize, until the limiter is gone and all is sent.
async fn run(core: Arc<Core>) {
    let mut next = Instant::now();
    // At once for the first keys, of which nothing is known.
    loop {
        let dropped = core.dropped.get();
        if core.queue.lock().is_empty() {
            if dropped.is_some() {
                core.is_running.store(false, Ordering::Release);
                return;
            }
            core.wake.notified().await;
            continue;
        }
        let _ = timeout_at(next, core.is_urgent.notified()).await;
        core.gives_up(false).await;
        next = Instant::now() + core.interval;
        core.synchronize().await;
        let is_long_ago = dropped.is_some_and(|dropped| dropped.elapsed() >= PATIENCE);
        if is_long_ago && core.failures.load(Ordering::Relaxed) >= FAILURES {
            return core.give_up();
        }
    }
}

impl Keep for Key {
    fn is_idle(&self, now: Instant) -> bool {
        self.0.try_lock().is_some_and(|counted| counted.is_idle(now))
    }

    fn is_pinned(&self) -> bool {
        self.0.try_lock().is_none_or(|counted| counted.is_pinned())
    }
}
