//! Windows in this process, with the module's own arithmetic.

use std::sync::Arc;

use parking_lot::Mutex;
use swlimit_window::{Decision, Entry, Recording, Verdict};
use tokio::time::Instant;

use crate::clock::{now_ms, unix_ms};
use crate::demand::Demand;
use crate::error::Error;
use crate::keyed::{Bounded, Keep};
use crate::statistics::Counters;

/// One window for each key.
pub(crate) struct Windows {
    keys: Bounded<Window>,
}

/// The window of one key.
#[derive(Default)]
struct Window(Mutex<Entry>);

impl Windows {
    /// Windows of at most so many keys. Where there are more, those that are blocked are forgotten last.
    pub fn new(max_keys: usize, counters: &Arc<Counters>) -> Self {
        Self { keys: Bounded::new(max_keys).counting(counters) }
    }

    /// Decide a demand, count it if it is granted, and begin its block if it is not.
    #[inline]
    pub fn allow(&self, key: &[u8], demand: &Demand) -> Result<Decision, Error> {
        self.with(key, |entry, now| match Entry::decide(Some(entry), now, &demand.exact).map_err(overflow)? {
            Verdict::Granted(grant) => Ok(grant.apply(entry)),
            Verdict::Denied(decision) => Ok(denied(entry, decision, demand, now)),
        })
    }

    /// The decision without counting.
    pub fn peek(&self, key: &[u8], demand: &Demand) -> Result<Decision, Error> {
        self.with(key, |entry, now| Entry::peek(Some(entry), now, &demand.exact).map_err(overflow))
    }

    /// Count a demand whatever the limit says, as used `age` ms ago.
    pub fn record(&self, key: &[u8], demand: &Demand, age: Option<u64>) -> Result<Decision, Error> {
        self.with(key, |entry, now| {
            let dated = age.map(|age| now.saturating_sub(age));
            match Entry::record(Some(entry), now, dated, &demand.exact).map_err(overflow)? {
                Recording::Dropped(decision) => Ok(decision),
                Recording::Counted(record) if record.is_denied() => {
                    let decision = record.apply(entry);
                    Ok(denied(entry, decision, demand, now))
                }
                Recording::Counted(record) => Ok(record.apply(entry)),
            }
        })
    }

    /// Give units back, taken `age` ms ago; how many were.
    pub fn refund(&self, key: &[u8], units: u64, age: Option<u64>) -> u64 {
        self.with(key, |entry, now| entry.refund(units, age, now))
    }

    /// Block a key for so many ms; how many it is blocked for.
    pub fn block(&self, key: &[u8], ms: u64, unless_blocked: bool) -> u64 {
        self.with(key, |entry, now| match entry.blocked_for(now) {
            Some(left) if unless_blocked => left,
            _ => {
                entry.block(now + ms);
                ms
            }
        })
    }

    /// Forget a key.
    pub fn reset(&self, key: &[u8]) -> bool {
        self.with(key, |entry, _| std::mem::take(entry).end() > 0)
    }

    /// Lift a block; whether there was one.
    pub fn unblock(&self, key: &[u8]) -> bool {
        self.with(key, |entry, now| {
            let was_blocked = entry.blocked_for(now).is_some();
            entry.unblock();
            was_blocked
        })
    }

    /// Several demands at once: all are counted, or none.
    pub fn allow_all(members: &[(&Self, &[u8], Demand)]) -> Result<Vec<Decision>, Error> {
        let mut granted = Vec::with_capacity(members.len());
        for (windows, key, demand) in members {
            let decided = windows.allow(key, demand);
            if decided.as_ref().is_ok_and(|decision| decision.granted > 0) {
                granted.extend(decided);
                continue;
            }
            for (windows, key, demand) in &members[..granted.len()] {
                windows.refund(key, demand.exact.cost, None);
            }
            decided?;
            return members.iter().map(|(windows, key, demand)| windows.peek(key, demand)).collect();
        }
        Ok(granted)
    }

    #[inline]
    fn with<R>(&self, key: &[u8], see: impl FnOnce(&mut Entry, u64) -> R) -> R {
        self.keys.with(key, Window::default, |window| see(&mut window.0.lock(), now_ms()))
    }
}

/// A denial, which begins the demand's block.
fn denied(entry: &mut Entry, decision: Decision, demand: &Demand, now: u64) -> Decision {
    match demand.block {
        Some(ms) if entry.blocked_for(now).is_none() => {
            entry.block(now + ms);
            decision.blocked_for(Some(ms))
        }
        _ => decision,
    }
}

fn overflow(_: swlimit_window::Overflow) -> Error {
    Error::Refused("ERR count would overflow".into())
}

impl Keep for Window {
    fn is_idle(&self, now: Instant) -> bool {
        self.0.try_lock().is_some_and(|entry| entry.end() <= unix_ms(now))
    }

    /// Or many keys that count little would lift the blocks of others.
    fn most_pinned(max_keys: usize) -> usize {
        max_keys / 2
    }

    fn is_pinned(&self) -> bool {
        self.0.try_lock().is_none_or(|entry| entry.blocked_for(now_ms()).is_some())
    }
}
