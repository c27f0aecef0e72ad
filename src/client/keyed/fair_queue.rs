//! A queue for each key in this process, where the server lets nobody wait: first come, first served.

use tokio::time::{sleep_until, timeout_at, Instant};

use super::{Bounded, Keep};
use crate::decision::Decision;
use crate::error::Error;

/// The queues of all keys.
pub(crate) struct FairQueue(Bounded<Turn>);

#[derive(Default)]
struct Turn(tokio::sync::Mutex<()>);

impl FairQueue {
    /// For at most so many keys.
    pub fn new(max_keys: usize) -> Self {
        Self(Bounded::new(max_keys))
    }

    /// Waits for its turn, then asks again and again, each time after as long as the reply says, until it is granted or
    /// there is nothing to hope for. The last decision; `None` when its turn has not come in time.
    pub async fn wait<F>(&self, key: &[u8], until: Instant, ask: impl Fn() -> F) -> Option<Result<Decision, Error>>
    where
        F: std::future::Future<Output = Result<Decision, Error>>,
    {
        let turn = self.0.get_or_make(key, Turn::default);
        let _turn = timeout_at(until, turn.0.lock()).await.ok()?;
        loop {
            let decision = match ask().await {
                Ok(decision) if !decision.granted() => decision,
                decided => return Some(decided),
            };
            match decision.retry_after().map(|wait| Instant::now() + wait) {
                Some(next) if next <= until => sleep_until(next).await,
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
