//! The denial cache: a request that the server is known to deny is denied without asking it.
//!
//! After a denial, nothing as large can be granted before the server said so, unless something is given back. Where the
//! server sends invalidations, the key is read after the denial on the connection that gets them, and that read's
//! own reply is remembered. The read goes beside the request, never before it, and only for a key of which many requests
//! are denied. Elsewhere a denial is remembered for a short time only.

mod memory;
#[cfg(test)]
mod models;
mod sync;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use swlimit_window::Decision as Exact;
use tokio::time::Instant;

pub(crate) use self::memory::Ticket;
#[cfg(test)]
pub(super) use self::memory::MANY;
use self::memory::{Epoch, Generation, Memory};
use crate::clock::{ms, ms_up};
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::keyed::{Bounded, Keep};
use crate::protocol::Command;
use crate::statistics::Counters;
use crate::transport::Reply;
use crate::upstream::{Right, Upstream};

/// The denials of all keys that the server is asked about.
pub(crate) struct DenialCache {
    keys: Bounded<Arc<Memory<KnownDenial>>>,
    generations: Box<[Generation]>,
    epoch: Epoch,
    /// How long a denial is remembered when the server can't send invalidations.
    max_untracked_age: Duration,
    hashers: [RandomState; 2],
}

/// A request that the server denied, and what it said.
#[derive(Clone, Copy, Debug)]
struct KnownDenial {
    demand: Demand,
    limit: u64,
    remaining: u64,
    retry_at: Instant,
    reset_at: Instant,
}

/// How far the server's clock may be behind what it says: it has whole milliseconds.
const FLOOR: Duration = Duration::from_millis(1);
/// How much slower the server's clock may run than ours: one in so many.
pub(super) const SLEW: u32 = 1000;
/// A denial is worth a read from this, and from so many round trips on.
pub(super) const WORTH: (Duration, u32) = (Duration::from_millis(20), 4);
/// Keys that share a generation disturb each other; so there are many.
const GENERATIONS: usize = 1024;
/// Longer names are hashed.
const LONG_NAME: usize = 64;

impl DenialCache {
    /// Denials of at most so many keys.
    pub fn new(max_keys: usize, max_untracked_age: Duration, counters: &Arc<Counters>) -> Self {
        let generations = (0..GENERATIONS).map(|_| Generation::new()).collect();
        let hashers = [RandomState::new(), RandomState::new()];
        let keys = Bounded::new(max_keys).counting(counters);
        Self { keys, generations, epoch: Epoch::new(), max_untracked_age, hashers }
    }

    /// The decision of a request that the server is known to deny.
    #[inline]
    pub fn find(&self, key: &[u8], demand: &Demand, now: Instant) -> Option<Decision> {
        let name = self.name(key);
        let known = || self.keys.see(&name, |memory| memory.find(&self.epoch, now, |denial| denial.of(demand, now)))?;
        known().or_else(|| demand.never_fits().then(|| demand.never()))
    }

    /// To be taken before the server is asked about a key.
    #[inline]
    pub fn ticket(&self, key: &[u8]) -> Ticket {
        self.generation(&self.name(key)).ticket(&self.epoch)
    }

    /// The server denied what was sent at an instant.
    pub fn denied(
        self: &Arc<Self>,
        upstream: &Arc<Upstream>,
        key: &[u8],
        demand: &Demand,
        denied: &Exact,
        sent: Instant,
        ticket: Ticket,
    ) {
        let Some(retry_after) = denied.retry_after.map(Duration::from_millis) else { return };
        let worth = WORTH.0.max(upstream.round_trip(key) * WORTH.1);
        let is_tracked = upstream.is_tracked(key);
        if is_tracked && retry_after > worth {
            let memory = self.keys.get_or_make(&self.name(key), Memory::new);
            let now = Instant::now();
            if !memory.denied(now, now + retry_after) {
                return;
            }
            // While a read is under way, no denial is remembered: until it registers the key, changes go unnoticed.
            if memory.begin_reading() {
                let reading = Reading { cache: Arc::clone(self), memory };
                tokio::spawn(reading.read(Arc::clone(upstream), key.to_vec(), *demand));
            }
            return;
        }
        let longest = if is_tracked { self.max_untracked_age.min(worth) } else { self.max_untracked_age };
        self.remember(key, demand, denied, sent, ticket, Some(longest));
    }

    /// Many requests for a key are denied, by the server or by leases.
    pub fn denied_often(&self, key: &[u8]) {
        self.keys.with(&self.name(key), || Arc::new(Memory::new()), |memory| memory.denied_often());
    }

    /// Remembers a denial for as long as it is certain, and no longer than `longest`.
    fn remember(
        &self,
        key: &[u8],
        demand: &Demand,
        denied: &Exact,
        sent: Instant,
        ticket: Ticket,
        longest: Option<Duration>,
    ) {
        let Some(wait) = denied.retry_after.map(Duration::from_millis).filter(|_| denied.granted == 0) else { return };
        let heard = Instant::now();
        // Behind its own block, such a request begins another one.
        let block = demand.block.map(Duration::from_millis);
        let bounds = [block, longest].into_iter().flatten();
        let until = sent + bounds.fold(certain(wait), Duration::min);
        if heard >= until {
            return;
        }
        let (retry_at, reset_at) = (heard + wait, heard + Duration::from_millis(denied.reset_after));
        let Exact { limit, remaining, .. } = *denied;
        let denial = KnownDenial { demand: *demand, limit, remaining, retry_at, reset_at };
        let name = self.name(key);
        let memory = self.keys.get_or_make(&name, Memory::new);
        let includes = |new: &KnownDenial, old: &KnownDenial| old.demand.is_denied_with(&new.demand);
        let remember = || memory.remember(ticket, until, denial, includes);
        self.generation(&name).unless_changed(ticket, &self.epoch, remember);
    }

    /// The key has changed: something was given back, or may have been.
    pub fn forget(&self, key: &[u8]) {
        let name = self.name(key);
        self.generation(&name).changed(|| {
            self.keys.see(&name, |memory| memory.forget());
        });
    }

    /// Any key may have changed.
    pub fn forget_all(&self) {
        self.epoch.forget();
    }

    /// How many keys are remembered.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    fn generation(&self, name: &[u8]) -> &Generation {
        &self.generations[self.hashers[0].hash_one(name) as usize % GENERATIONS]
    }

    /// The name under which a key is remembered, of bounded length.
    #[inline]
    fn name<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        if key.len() < LONG_NAME {
            return Cow::Borrowed(key);
        }
        let hashes = self.hashers.iter().map(|hasher| hasher.hash_one(key).to_le_bytes());
        let mut name = hashes.collect::<Vec<_>>().concat();
        // Of a length that no name has that is remembered as it is.
        name.resize(LONG_NAME, 0);
        Cow::Owned(name)
    }
}

/// For how long a wait that the server told is certain.
pub(crate) fn certain(wait: Duration) -> Duration {
    wait.saturating_sub(FLOOR).saturating_sub(wait / SLEW)
}

/// A read that registers a key for invalidations; one at a time.
struct Reading {
    cache: Arc<DenialCache>,
    memory: Arc<Memory<KnownDenial>>,
}

impl Reading {
    /// Reads the key on the connection that gets invalidations, and remembers what that read says.
    async fn read(self, upstream: Arc<Upstream>, key: Vec<u8>, demand: Demand) {
        let (ticket, sent) = (self.cache.ticket(&key), Instant::now());
        let commands = [Command::peek(&key, &demand), Command::pttl(&key)];
        let Ok(replies) = upstream.read_tracked(&key, &commands).await else { return };
        let [peeked, ttl] = replies.as_slice() else { return };
        upstream.heard_right(Right::Pttl, ttl);
        let Ok(decision) = peeked.decision() else { return };
        let longest = match ttl {
            // It has expired, and the server has not noticed yet.
            Reply::Integer(-2) => return,
            Reply::Integer(-1) => None,
            Reply::Integer(ms) => Some(certain(Duration::from_millis(u64::try_from(*ms).unwrap_or_default()))),
            // Without the right to ask, nobody knows when the key expires.
            _ => Some(self.cache.max_untracked_age),
        };
        self.cache.remember(&key, &demand, &decision, sent, ticket, longest);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.memory.end_reading();
    }
}

impl KnownDenial {
    /// The decision of a request that is denied with this one.
    #[inline]
    fn of(&self, demand: &Demand, now: Instant) -> Option<Decision> {
        demand.is_denied_with(&self.demand).then(|| {
            Source::Cache.decided(Exact {
                granted: 0,
                limit: self.limit,
                remaining: self.remaining,
                retry_after: (!demand.never_fits()).then(|| ms_up(self.retry_at.saturating_duration_since(now))),
                reset_after: ms(self.reset_at.saturating_duration_since(now)),
            })
        })
    }
}

impl Keep for Memory<KnownDenial> {
    fn is_idle(&self, now: Instant) -> bool {
        Memory::is_idle(self, now)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_read_pays_where_many_are_denied() {
        let defaults: Value =
            serde_json::from_str(include_str!("../../../../../tests/conformance/vectors/defaults.json")).unwrap();
        for case in defaults["looks"].as_array().unwrap() {
            let (memory, epoch) = (Memory::new(), Epoch::new());
            let (begun, ticket) = (Instant::now(), Generation::new().ticket(&epoch));
            memory.remember(ticket, begun + Duration::from_secs(3_600), (), |(), ()| true);
            let ms = |of: &Value| Duration::from_millis(of.as_u64().unwrap());
            for denial in case["denials"].as_array().unwrap() {
                let at = begun + ms(&denial["at"]);
                let pays = match denial["pays"] {
                    Value::Null => memory.find(&epoch, at, |()| Some(Value::Null)).unwrap(),
                    _ => memory.denied(at, at + ms(&case["retry_after"])).into(),
                };
                assert_eq!(pays, denial["pays"], "{denial} of {case}");
            }
        }
    }
}
