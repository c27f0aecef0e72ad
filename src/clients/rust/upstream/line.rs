//! A connection with the account of what it owes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use super::rights::{Right, Rights};
use crate::clock::ms;
use crate::protocol::{Command, Encoded};
use crate::servers::Backend;
use crate::transport::{Failure, Pending, Reply};

/// A connection that owes something and has been silent for so long takes nothing new.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// The most commands that may be unanswered.
pub(super) const MOST_UNANSWERED: usize = 1000;

/// A connection that many requests share.
pub(crate) struct Line {
    connection: Encoded,
    is_closed: Arc<AtomicBool>,
    account: Mutex<Account>,
    identity: OnceLock<Identity>,
    /// What time the server had, in Unix ms, no later than an instant.
    time: OnceLock<(u64, Instant)>,
    made: Instant,
}

struct Account {
    unanswered: usize,
    /// When something was heard last, or became owed while nothing was.
    quiet_since: Instant,
}

/// Which server answers, and which data it holds: units go back only to the server that counted them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    run_id: String,
    replication_id: String,
}

#[cfg(test)]
impl Identity {
    pub fn of(run_id: impl ToString) -> Self {
        Self { run_id: run_id.to_string(), replication_id: String::new() }
    }
}

impl Line {
    pub fn new(connection: Encoded, is_closed: Arc<AtomicBool>) -> Self {
        let account = Mutex::new(Account { unanswered: 0, quiet_since: Instant::now() });
        Self { connection, is_closed, account, identity: OnceLock::new(), time: OnceLock::new(), made: Instant::now() }
    }

    /// Whether commands may still be sent.
    pub fn takes(&self, now: Instant) -> bool {
        if self.is_closed() {
            return false;
        }
        let account = self.account.lock();
        account.unanswered == 0
            || (account.unanswered < MOST_UNANSWERED && now.saturating_duration_since(account.quiet_since) < SILENCE)
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// How long ago it was made.
    pub fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// Takes nothing new from now on. It closes when nobody waits for a reply any more.
    pub fn retire(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether something is unanswered, and nothing was heard for so long.
    pub fn is_silent(&self, time: Duration, now: Instant) -> bool {
        let account = self.account.lock();
        account.unanswered > 0 && now.saturating_duration_since(account.quiet_since) >= time
    }

    /// Since when nothing was heard, where something is unanswered.
    pub fn quiet_since(&self) -> Instant {
        self.account.lock().quiet_since
    }

    pub fn sent(&self, commands: usize, now: Instant) {
        let mut account = self.account.lock();
        if account.unanswered == 0 {
            account.quiet_since = now;
        }
        account.unanswered += commands;
    }

    pub fn heard(&self, commands: usize, now: Instant) {
        let mut account = self.account.lock();
        account.unanswered = account.unanswered.saturating_sub(commands);
        account.quiet_since = now;
    }

    /// Their callers have given up waiting for these.
    pub fn given_up(&self, commands: usize) {
        let mut account = self.account.lock();
        account.unanswered = account.unanswered.saturating_sub(commands);
    }

    pub fn send(&self, command: &Command) -> Pending<Reply> {
        self.connection.send(command)
    }

    pub fn send_all(&self, commands: &[Command]) -> Pending<Reply> {
        self.connection.send_all(commands)
    }

    /// The server's address, where the transport has found it itself.
    pub fn address(&self) -> Option<String> {
        self.connection.address()
    }

    /// What decides on the server; `None` while that is not known.
    pub fn backend(&self) -> Option<Backend> {
        self.connection.backend()
    }

    pub fn is_scripted(&self) -> bool {
        self.backend() == Some(Backend::Script)
    }

    /// Which server this is; `None` where it did not say, or not yet.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    /// An instant of the server's clock, in Unix ms, that is no later than this one; `None` where it has not told the time
    /// before. The thousandth is for clocks that drift.
    pub fn unix_ms(&self, instant: Instant) -> Option<u64> {
        let (unix_ms, at) = self.time.get().filter(|_| self.identity().is_some())?;
        let passed = ms(instant.checked_duration_since(*at)?);
        Some(unix_ms + passed - passed.div_ceil(1000))
    }

    /// Asks the server who it is, and whether it tells the time: without either, nothing can be given back to it.
    pub async fn identify(&self, rights: &Rights) -> Result<(), Failure> {
        let asked = [Command::server(&["INFO", "server"]), Command::server(&["INFO", "replication"]), Command::TIME];
        let reply = self.connection.send_all(&asked).await?;
        let Reply::Array(replies) = reply else { return Ok(()) };
        let [sections @ .., time] = replies.as_slice() else { return Ok(()) };
        rights.heard(Right::Time, time);
        sections.iter().for_each(|section| rights.heard(Right::Info, section));
        let Some(unix_ms) = time.unix_ms() else { return Ok(()) };
        let _ = self.time.set((unix_ms, Instant::now()));
        let text: Vec<_> = sections
            .iter()
            .filter_map(|section| match section {
                Reply::Bytes(bytes) => Some(String::from_utf8_lossy(bytes)),
                _ => None,
            })
            .collect();
        let text = text.join("\n");
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|id| id.trim().to_owned());
        if let (Some(run_id), Some(replication_id)) = (field("run_id:"), field("master_replid:")) {
            let _ = self.identity.set(Identity { run_id, replication_id });
        }
        Ok(())
    }
}
