//! Holds in this process, where no server decides: first come, first served.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::wait::Wait;

/// How many units of each key are held.
#[derive(Clone, Default)]
pub(crate) struct LocalHolds(Arc<Mutex<Keys>>);

type Keys = HashMap<Box<[u8]>, Arc<Key>>;

#[derive(Default)]
struct Key {
    units: Mutex<u64>,
    freed: Notify,
    /// Its owner is the next.
    turn: tokio::sync::Mutex<()>,
}

/// Units that are held until this is dropped.
pub(crate) struct LocalHold {
    key_in_use: KeyInUse,
    units: u64,
}

/// A key while a caller holds units of it, or waits for them.
struct KeyInUse {
    holds: LocalHolds,
    name: Box<[u8]>,
    key: Arc<Key>,
}

impl LocalHolds {
    /// Takes units of a limit, and waits for them; `None` if they have not become free by then.
    pub async fn take(&self, name: &[u8], limit: u64, units: u64, wait: &Wait) -> Option<LocalHold> {
        if units > limit {
            return None;
        }
        let key = Arc::clone(self.0.lock().entry(name.into()).or_default());
        let key_in_use = KeyInUse { holds: self.clone(), name: name.into(), key };
        let turn = match key_in_use.key.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => wait.during(key_in_use.key.turn.lock()).await?,
        };
        loop {
            let freed = key_in_use.key.freed.notified();
            if key_in_use.key.take(limit, units) {
                break;
            }
            wait.during(freed).await?;
        }
        drop(turn);
        Some(LocalHold { key_in_use, units })
    }

    /// Units of a limit that are free.
    pub fn remaining(&self, name: &[u8], limit: u64) -> u64 {
        limit.saturating_sub(self.0.lock().get(name).map_or(0, |key| *key.units.lock()))
    }
}

impl Key {
    /// Takes units, if they fit.
    fn take(&self, limit: u64, units: u64) -> bool {
        let mut held = self.units.lock();
        let after = held.checked_add(units).filter(|after| *after <= limit);
        *held = after.unwrap_or(*held);
        after.is_some()
    }
}

impl Drop for LocalHold {
    fn drop(&mut self) {
        *self.key_in_use.key.units.lock() -= self.units;
        self.key_in_use.key.freed.notify_one();
    }
}

impl Drop for KeyInUse {
    fn drop(&mut self) {
        let mut keys = self.holds.0.lock();
        // The map has it, and this.
        if Arc::strong_count(&self.key) == 2 && *self.key.units.lock() == 0 {
            keys.remove(&self.name);
        }
    }
}
