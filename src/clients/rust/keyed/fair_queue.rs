//! A queue for each key in this process, where the server lets nobody wait: first come, first served.

use std::sync::Arc;

use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::time::{Duration, Instant};

use super::{Bounded, Keep};
use crate::decision::Decision;
use crate::error::Error;
use crate::wait::Wait;

/// The queues of all keys.
pub(crate) struct FairQueue(Bounded<Arc<Queue>>);

#[derive(Default)]
struct Queue {
    turn: Arc<Mutex<()>>,
    changed: Notify,
}

/// A turn, which lasts until it is dropped.
pub(crate) struct Turn {
    queue: Arc<Queue>,
    _turn: OwnedMutexGuard<()>,
}

impl Turn {
    /// Waits until the server tells that the key has changed.
    pub async fn changed(&self) {
        self.queue.changed.notified().await;
    }
}

impl FairQueue {
    /// For at most so many keys.
    pub fn new(max_keys: usize) -> Self {
        Self(Bounded::new(max_keys))
    }

    /// Its turn, if nobody else is in the queue.
    pub fn turn_at_once(&self, key: &[u8]) -> Option<Turn> {
        let queue = self.0.get_or_make(key, Queue::default);
        let turn = Arc::clone(&queue.turn).try_lock_owned().ok()?;
        Some(Turn { queue, _turn: turn })
    }

    /// Waits for its turn; `None` when it has not come in time.
    pub async fn turn(&self, key: &[u8], wait: &Wait) -> Option<Turn> {
        let queue = self.0.get_or_make(key, Queue::default);
        let turn = wait.during(Arc::clone(&queue.turn).lock_owned()).await?;
        Some(Turn { queue, _turn: turn })
    }

    /// The server told that a key has changed.
    pub fn changed(&self, key: &[u8]) {
        self.0.see(key, |queue| queue.changed.notify_one());
    }

    /// Waits for its turn, then asks again and again, each time after as long as the reply says, at the latest after a
    /// pause, until it is granted or there is nothing to hope for. `ask` gets the denial before. The last decision; `None`
    /// when its turn has not come in time.
    pub async fn wait<F>(
        &self,
        key: &[u8],
        wait: &Wait,
        longest: Duration,
        mut denied: Option<Decision>,
        ask: impl Fn(Option<Decision>) -> F,
    ) -> Option<Result<Decision, Error>>
    where
        F: std::future::Future<Output = Result<Decision, Error>>,
    {
        let _turn = self.turn(key, wait).await?;
        loop {
            let decision = match ask(denied).await {
                Ok(decision) if !decision.granted() => decision,
                decided => return Some(decided),
            };
            denied = Some(decision);
            match decision.retry_after() {
                Some(pause) if pause <= wait.left() => wait.sleep_until(Instant::now() + pause.min(longest)).await,
                _ => return Some(Ok(decision)),
            }
        }
    }
}

impl Keep for Queue {
    fn is_idle(&self, _: Instant) -> bool {
        self.turn.try_lock().is_ok()
    }

    fn is_pinned(&self) -> bool {
        self.turn.try_lock().is_err()
    }
}
