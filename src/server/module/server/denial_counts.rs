//! The server's denial counts for SWLIMIT.TOP: a process-wide [`Denials`] behind the server's lock.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use lazy_static::lazy_static;
use redis_module::{RedisGILGuard, RedisLockIndicator};

use super::context::Context;
use super::key::Moment;
use super::text::Text;
use crate::configuration::TOP_KEYS;
use crate::denials::{Denials, Denied, Key};

lazy_static! {
    /// Guarded by the server's own lock, which every holder of a context has; another lock would only slow counting down.
    static ref DENIALS: RedisGILGuard<RefCell<Denials>> = RedisGILGuard::default();
}
/// Whether denials are counted: there is a sketch, or there may be one from the next minute on.
static ENABLED: AtomicBool = AtomicBool::new(true);

/// The setting may have changed, which the first denial of the next minute has to notice.
pub(super) fn settings_changed() {
    ENABLED.store(true, Ordering::Relaxed);
}

// SAFETY: a context is valid during a callback of the server's only, and the server runs those that are given one under its
// lock.
unsafe impl RedisLockIndicator for Context {}

impl Context {
    /// Whether denials are counted, as far as can be said without reading the clock.
    #[inline(always)]
    pub fn counts_denials(self) -> bool {
        ENABLED.load(Ordering::Relaxed)
    }

    /// Count a denied request for `SWLIMIT.TOP`.
    #[inline(always)]
    pub fn count_denial(self, key: &Text, moment: Moment) {
        if self.counts_denials() {
            self.with_denials(moment.clock(self), |denials| denials.count(Key::new(self.database(), key.bytes())));
        }
    }

    /// Calls `look` with the keys that have denied requests, those with the most first.
    pub fn denied<T>(self, look: impl FnOnce(&mut dyn Iterator<Item = Denied>) -> T) -> T {
        self.with_denials(self.clock(), |denials| look(&mut denials.most_first()))
    }

    /// The denials as they are at this instant by the server's clock, in ms.
    #[inline(never)]
    fn with_denials<T>(self, now: u64, then: impl FnOnce(&mut Denials) -> T) -> T {
        let denials = DENIALS.lock(&self);
        let mut denials = denials.borrow_mut();
        if denials.turn(now, TOP_KEYS.get() as usize) {
            ENABLED.store(denials.are_held(), Ordering::Relaxed);
        }
        then(&mut denials)
    }
}
