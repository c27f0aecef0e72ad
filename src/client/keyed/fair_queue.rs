//! A queue for each key in this process, where the server lets nobody wait: first come, first served.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Duration, Instant};

use super::{Bounded, Keep};
use crate::decision::Decision;
use crate::error::Error;
use crate::wait::Wait;

/// The queues of all keys.
pub(crate) struct FairQueue(Bounded<Arc<Turn>>);

#[derive(Default)]
struct Turn(Arc<tokio::sync::Mutex<()>>);

impl FairQueue {
    /// For at most so many keys.
    pub fn new(max_keys: usize) -> Self {
        Self(Bounded::new(max_keys))
    }

    /// Waits for its turn, which lasts until it is dropped; `None` when it has not come in time.
    pub async fn turn(&self, key: &[u8], wait: &Wait) -> Option<OwnedMutexGuard<()>> {
        let turn = self.0.get_or_make(key, Turn::default);
        wait.during(Arc::clone(&turn.0).lock_owned()).await
    }

    /// Waits for its turn, then asks again and again, each time after as long as the reply says, at the latest after a
    /// pause, until it is granted or there is nothing to hope for. The last decision; `None` when its turn has not come in time.
    pub async fn wait<F>(
        &self,
        key: &[u8],
        wait: &Wait,
        longest: Duration,
        ask: impl Fn() -> F,
    ) -> Option<Result<Decision, Error>>
    where
        F: std::future::Future<Output = Result<Decision, Error>>,
    {
        let _turn = self.turn(key, wait).await?;
        loop {
            let decision = match ask().await {
                Ok(decision) if !decision.granted() => decision,
                decided => return Some(decided),
            };
            match decision.retry_after() {
                Some(pause) if pause <= wait.left() => wait.sleep_until(Instant::now() + pause.min(longest)).await,
                _ => return Some(Ok(decision)),
            }
        }
    }
}

impl Keep for Turn {
    fn is_idle(&self, _: Instant) -> bool {
        self.0.try_lock().is_ok()
    }

    fn is_pinned(&self) -> bool {
        self.0.try_lock().is_err()
    }
}
