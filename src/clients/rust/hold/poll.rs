//! Polling for a hold, by the caller that is first in this process's queue for a key.

use std::time::Duration;

use tokio::time::Instant;

use super::request::PendingHold;
use crate::keyed::Turn;
use crate::protocol::{held_of, Command};
use crate::upstream::Upstream;
use crate::wait::{Wait, POLL};

/// Where the script decides, a poll comes at the latest after a random time between these.
pub(super) const MIN_POLL: Duration = Duration::from_millis(20);
pub(super) const MAX_POLL: Duration = Duration::from_millis(60);

/// A caller's turn to poll.
pub(super) struct Poll {
    turn: Turn,
    /// The server tells when the key changes.
    is_tracked: bool,
}

impl Poll {
    pub fn new(turn: Turn) -> Self {
        Self { turn, is_tracked: false }
    }

    /// Pauses until units may have become free, and not for long.
    pub async fn pause(&mut self, upstream: &Upstream, pending: &PendingHold, retry_after: Option<u64>, wait: &Wait) {
        let longest = match upstream.is_scripted(&pending.name.key) {
            true => Duration::from_millis(fastrand::u64(MIN_POLL.as_millis() as u64..=MAX_POLL.as_millis() as u64)),
            false => POLL,
        };
        let pause = retry_after.map_or(longest, |ms| longest.min(Duration::from_millis(ms.max(1))));
        wait.by(Instant::now() + pause).during(self.freed(upstream, pending)).await;
    }

    /// Waits until units may have become free, by a server that tells; else for ever.
    async fn freed(&mut self, upstream: &Upstream, pending: &PendingHold) {
        let key = &pending.name.key;
        if !self.is_tracked && upstream.is_scripted(key) && upstream.is_tracked(key) {
            if let Ok(replies) = upstream.read_tracked(key, &[Command::info(key)]).await {
                self.is_tracked = true;
                let held = replies.first().and_then(|reply| held_of(reply).ok());
                if held.is_none_or(|(units, _)| units.saturating_add(pending.cost) <= pending.limit) {
                    return;
                }
            }
        }
        match self.is_tracked {
            true => self.turn.changed().await,
            false => std::future::pending().await,
        }
        self.is_tracked = false;
    }
}
