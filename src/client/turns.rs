//! Turns within the process, where the server lets nobody wait: first come, first served.

use tokio::time::{sleep_until, timeout_at, Instant};

use crate::decision::Decision;
use crate::error::Error;
use crate::keys::{Keep, Keys};

/// Whose turn it is, by key.
pub(crate) struct Turns(Keys<Turn>);

#[derive(Default)]
struct Turn(tokio::sync::Mutex<()>);

impl Turns {
    /// For at most so many keys.
    pub fn new(most: usize) -> Self {
        Self(Keys::new(most))
    }

    /// Ask again and again, when it is one's turn, each time after as long as the answer says, until it is a grant or
    /// there is nothing to hope for. The last answer; `None` when the turn has not come in time.
    pub async fn wait<F>(&self, key: &[u8], until: Instant, ask: impl Fn() -> F) -> Option<Result<Decision, Error>>
    where
        F: std::future::Future<Output = Result<Decision, Error>>,
    {
        let turn = self.0.get_or_make(key, Turn::default);
        let _turn = timeout_at(until, turn.0.lock()).await.ok()?;
        loop {
            let decision = match ask().await {
                Ok(decision) if !decision.granted() => decision,
                answer => return Some(answer),
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
}
