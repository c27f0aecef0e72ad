//! Background: no request waits for the server; what was used is told to it later, and what it says decides from then
//! on.
//!
//! Every interval all keys that were asked for go out in one go: what was used as `RECORD key … COST n AGE a`, whose
//! reply is the new state, and `PEEK` for a key with nothing to tell, else one that is denied would stay denied. One
//! synchronization is under way at a time. What could not be sent is sent later, dated by its age.

mod counted;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use swlimit_window::Decision;
use tokio::time::{Duration, Instant, MissedTickBehavior};

use self::counted::{Batch, Counted, Known};
use crate::clock::ms;
use crate::commands;
use crate::demand::Demand;
use crate::error::Error;
use crate::keys::{Keep, Keys};
use crate::quota::{share_of, Quota};
use crate::server::Server;
use crate::statistics::Count;
use crate::wire::{Command, Reply};

/// So many failed synchronizations in a row, and the failure policy takes over.
const FAILURES: u32 = 3;

/// The counts of one limiter.
pub(crate) struct Background {
    server: Arc<Server>,
    keys: Keys<Key>,
    interval: Duration,
    window: Duration,
    share: u64,
    /// Keys that were asked for since the last synchronization began.
    asked: Mutex<Vec<Asked>>,
    failures: AtomicU32,
    /// Held by the synchronization that is under way: two would tell the same twice.
    alone: tokio::sync::Mutex<()>,
    /// How many synchronizations have begun.
    round: Arc<AtomicU64>,
    is_begun: AtomicBool,
}

struct Key {
    counted: Mutex<Counted>,
    round: Arc<AtomicU64>,
}

#[derive(Clone)]
struct Asked {
    key: Arc<[u8]>,
    counts: Arc<Key>,
    /// The quota, with a cost of no meaning.
    demand: Demand,
}

impl Background {
    /// Synchronized every `interval`, with a share of the limit for a key of which nothing is known; of at most so many
    /// keys.
    pub fn new(server: Arc<Server>, quota: &Quota, interval: Duration, share: f64, most_keys: usize) -> Self {
        let interval = interval.max(Duration::from_millis(1));
        Self {
            server,
            keys: Keys::new(most_keys),
            interval,
            window: quota.window(),
            share: share_of(quota.limit(), share),
            asked: Mutex::default(),
            failures: AtomicU32::new(0),
            alone: tokio::sync::Mutex::default(),
            // Keys begin with 0: what was never part of one.
            round: Arc::new(AtomicU64::new(1)),
            is_begun: AtomicBool::new(false),
        }
    }

    /// Whether the failure policy is to decide, because nothing could be synchronized lately.
    pub fn is_away(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES
    }

    /// Have the server asked about a key, whoever decides now: else nobody would notice that it is back.
    pub fn ask_about(self: &Arc<Self>, key: &[u8], demand: &Demand) {
        self.with(key, demand, |_, _, _| ());
    }

    /// Decide a demand by what is known, and have it told later.
    #[inline]
    pub fn decide(self: &Arc<Self>, key: &[u8], demand: &Demand) -> Decision {
        self.with(key, demand, |counted, known, now| counted.decide(demand, known, now))
    }

    /// Count a demand whatever is available, as used so long ago; and the decision for as much again.
    pub fn record(self: &Arc<Self>, key: &[u8], demand: &Demand, age: Duration) -> Decision {
        self.with(key, demand, |counted, known, now| {
            let before = counted.peek(demand, known, now);
            counted.record(demand.exact.cost, now.checked_sub(age).unwrap_or(now));
            let after = counted.peek(demand, known, now);
            Decision { granted: before.granted, ..after }
        })
    }

    /// Take back units of which the server was not told; how many.
    pub fn take_back(&self, key: &[u8], units: u64) -> u64 {
        self.keys.see(key, |counts| counts.counted.lock().take_back(units)).unwrap_or_default()
    }

    fn with<R>(
        self: &Arc<Self>,
        key: &[u8],
        demand: &Demand,
        see: impl FnOnce(&mut Counted, Known, Instant) -> R,
    ) -> R {
        let known = Known { share: self.share, round: self.round.load(Ordering::Acquire) };
        let seen = |counts: &Arc<Key>| {
            let mut counted = counts.counted.lock();
            let is_first = !std::mem::replace(&mut counted.is_queued, true);
            (see(&mut counted, known, Instant::now()), is_first.then(|| Arc::clone(counts)))
        };
        let (result, first) = self.keys.with(key, || Key::new(&self.round), seen);
        if let Some(counts) = first {
            self.asked.lock().push(Asked { key: key.into(), counts, demand: *demand });
            if !self.is_begun.swap(true, Ordering::AcqRel) {
                tokio::spawn(run(Arc::downgrade(self), self.interval));
            }
        }
        result
    }

    /// Tell the server what was used, and hear what it knows, of all keys that were asked for.
    async fn synchronize(&self) {
        let _alone = self.alone.lock().await;
        let round = self.round.fetch_add(1, Ordering::AcqRel) + 1;
        let asked = std::mem::take(&mut *self.asked.lock());
        if asked.is_empty() {
            return;
        }
        let begun = Instant::now();
        let sending: Vec<_> =
            asked.iter().map(|asked| asked.counts.counted.lock().begin(round, self.window, begun)).collect();
        let question = if self.is_away() { commands::unrecorded } else { commands::peek };
        let commands = asked.iter().zip(&sending);
        let commands = commands.flat_map(|(asked, batches)| asked.commands(batches, question, begun)).collect();
        // Nobody waits for this; it may take as long as two intervals.
        let deadline = begun + 2 * self.interval.max(self.server.timeout());
        let replies = self.server.ask_all(commands, deadline).await;
        // One that cannot write may still answer questions.
        let is_telling = sending.iter().any(|batches| !batches.is_empty());
        let is_done = replies.is_ok_and(|replies| {
            let mut replies = replies.into_iter();
            let heard = asked.iter().zip(&sending).map(|(asked, batches)| {
                let own: Vec<_> = replies.by_ref().take(batches.len().max(1)).collect();
                asked.heard(batches.len(), own) && is_telling != batches.is_empty()
            });
            // Of a cluster, one node suffices.
            heard.fold(false, |any, is_there| any | is_there)
        });
        self.again(asked);
        let (what, failures) = match is_done {
            true => (Count::Synchronized, 0),
            false => (Count::Unsynchronized, self.failures.load(Ordering::Relaxed).saturating_add(1)),
        };
        self.server.count(what, 1);
        self.failures.store(failures, Ordering::Relaxed);
    }

    /// What could not be sent is sent with the next synchronization.
    fn again(&self, asked: Vec<Asked>) {
        let behind = asked.into_iter().filter(|asked| {
            let mut counted = asked.counts.counted.lock();
            counted.end() && !std::mem::replace(&mut counted.is_queued, true)
        });
        let behind: Vec<_> = behind.collect();
        self.asked.lock().extend(behind);
    }

    /// Tell the server all that it does not know yet.
    pub async fn close(&self) {
        self.synchronize().await;
    }
}

impl Asked {
    /// What was used, dated; or a question, where nothing was.
    fn commands(&self, batches: &[Batch], question: fn(&[u8], &Demand) -> Command, now: Instant) -> Vec<Command> {
        let of = |units: u64| {
            let exact = swlimit_window::Request { cost: units, partial: false, ..self.demand.exact };
            Demand { exact, ..self.demand }
        };
        if batches.is_empty() {
            return vec![question(&self.key, &of(1))];
        }
        let record = |batch: &Batch| {
            let age = ms(now.saturating_duration_since(batch.at));
            commands::record(&self.key, &of(batch.units), (age > 0).then_some(age))
        };
        batches.iter().map(record).collect()
    }

    /// Take note of the replies to what was sent of so many batches; whether the server is there, be it to refuse.
    fn heard(&self, batches: usize, replies: Vec<Result<Reply, Error>>) -> bool {
        let mut is_there = true;
        let decisions = replies.into_iter().map_while(|reply| {
            let decision = reply.and_then(|reply| reply.decision());
            is_there = matches!(decision, Ok(_) | Err(Error::Refused(_)));
            decision.ok()
        });
        let decisions: Vec<Decision> = decisions.collect();
        if let Some(last) = decisions.last() {
            self.counts.counted.lock().synchronized(decisions.len().min(batches), last, Instant::now());
        }
        is_there
    }
}

/// Synchronize every interval, until there is no limiter any more.
async fn run(background: Weak<Background>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await; // at once, for the keys that nothing is known of
    while let Some(background) = background.upgrade() {
        background.synchronize().await;
        drop(background);
        ticks.tick().await;
    }
}

impl Key {
    fn new(round: &Arc<AtomicU64>) -> Self {
        Self { counted: Mutex::default(), round: Arc::clone(round) }
    }
}

impl Keep for Key {
    fn is_idle(&self, _: Instant) -> bool {
        self.counted.try_lock().is_some_and(|counted| counted.is_idle(self.round.load(Ordering::Relaxed)))
    }
}
