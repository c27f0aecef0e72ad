//! A connection with the account of what it owes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{timeout, Duration, Instant};

use super::rights::{Right, Rights};
use crate::clock::{ms, ms_up};
use crate::protocol::{Command, Encoded};
use crate::servers::Backend;
use crate::transport::{Failure, Pending, Reply};

/// A connection that owes something and has been silent for so long takes nothing new.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// The most commands that may be unanswered.
pub(super) const MOST_UNANSWERED: usize = 1000;
/// Behind more, a command waits for them rather than for the link.
const FEW: usize = 16;

/// Redis 6.2 takes one section at a time.
const MEMORY: [Command; 2] = [Command::server(&["INFO", "memory"]), Command::server(&["INFO", "stats"])];

/// A connection that many requests share.
pub(crate) struct Connection {
    encoded: Encoded,
    is_closed: Arc<AtomicBool>,
    account: Mutex<Account>,
    /// As many as commands may still be sent before a reply comes.
    turns: Arc<Semaphore>,
    identity: OnceLock<Identity>,
    /// What time the server had, in Unix ms, no later than an instant.
    time: OnceLock<(u64, Instant)>,
    made: Instant,
    /// When INFO is asked next, in ms after it was made.
    next_look: AtomicU64,
}

/// The right to send commands, which lasts until they are answered.
pub(super) type Turn = OwnedSemaphorePermit;

struct Account {
    unanswered: usize,
    /// When something was heard last, or became owed while nothing was.
    quiet_since: Instant,
    /// When a reply came in time last.
    in_time: Option<Instant>,
    /// When a failure was counted last.
    failed: Option<Instant>,
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

impl Connection {
    pub fn new(encoded: Encoded, is_closed: Arc<AtomicBool>) -> Self {
        let account = Mutex::new(Account { unanswered: 0, quiet_since: Instant::now(), in_time: None, failed: None });
        let (identity, time, next_look) = (OnceLock::new(), OnceLock::new(), AtomicU64::new(pause_of_looks()));
        let turns = Arc::new(Semaphore::new(MOST_UNANSWERED));
        Self { encoded, is_closed, account, turns, identity, time, made: Instant::now(), next_look }
    }

    /// Whether commands may still be sent.
    pub fn takes(&self, now: Instant) -> bool {
        if self.is_closed() {
            return false;
        }
        let account = self.account.lock();
        account.unanswered == 0 || now.saturating_duration_since(account.quiet_since) < SILENCE
    }

    /// Waits, first come, first served, until commands may be sent. `None` where it takes nothing new by then, or for so
    /// long that it may have fallen silent.
    pub async fn turn(&self, commands: usize) -> Option<Turn> {
        let commands = commands.min(MOST_UNANSWERED) as u32;
        let turn = match Arc::clone(&self.turns).try_acquire_many_owned(commands) {
            Ok(turn) => turn,
            Err(_) => timeout(SILENCE, Arc::clone(&self.turns).acquire_many_owned(commands)).await.ok()?.ok()?,
        };
        (!self.is_closed()).then_some(turn)
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
        self.turns.close();
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

    /// Commands are sent; whether they wait behind few others.
    pub fn sent(&self, commands: usize, now: Instant) -> bool {
        let mut account = self.account.lock();
        if account.unanswered == 0 {
            account.quiet_since = now;
        }
        account.unanswered += commands;
        account.unanswered <= FEW
    }

    pub fn heard(&self, commands: usize, now: Instant) {
        let mut account = self.account.lock();
        account.unanswered = account.unanswered.saturating_sub(commands);
        account.quiet_since = now;
    }

    /// Whether anything is unanswered.
    pub fn owes(&self) -> bool {
        self.account.lock().unanswered > 0
    }

    /// A reply came in time.
    pub fn answered_in_time(&self, now: Instant) {
        self.account.lock().in_time = Some(now);
    }

    /// Whether replies came in time within this time.
    pub fn was_in_time(&self, within: Duration, now: Instant) -> bool {
        self.account.lock().in_time.is_some_and(|at| now.saturating_duration_since(at) <= within)
    }

    /// Whether this is a new failure: what was sent before the last one was counted failed with it.
    pub fn fails_again(&self, sent: Instant, now: Instant) -> bool {
        let failed = &mut self.account.lock().failed;
        let is_new = failed.is_none_or(|failed| sent >= failed);
        if is_new {
            *failed = Some(now);
        }
        is_new
    }

    /// Their callers have given up waiting for these.
    pub fn given_up(&self, commands: usize) {
        let mut account = self.account.lock();
        account.unanswered = account.unanswered.saturating_sub(commands);
    }

    pub fn send(&self, command: &Command) -> Pending<Reply> {
        self.encoded.send(command)
    }

    pub fn send_all(&self, commands: &[Command]) -> Pending<Reply> {
        self.encoded.send_all(commands)
    }

    /// The server's address, where the transport has found it itself.
    pub fn address(&self) -> Option<String> {
        self.encoded.address()
    }

    /// What decides on the server; `None` while that is not known.
    pub fn backend(&self) -> Option<Backend> {
        self.encoded.backend()
    }

    pub fn is_scripted(&self) -> bool {
        self.backend() == Some(Backend::Script)
    }

    /// Which server this is; `None` where it did not say, or not yet.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    /// An instant of the server's clock, in Unix ms, that is no later than this one; `None` where it has not told the time
    /// and who it is. The thousandth is for clocks that drift.
    pub fn unix_ms(&self, instant: Instant) -> Option<u64> {
        let (unix_ms, at) = self.time.get().filter(|_| self.identity().is_some())?;
        match instant.checked_duration_since(*at) {
            Some(passed) => Some(unix_ms + ms(passed) - ms(passed).div_ceil(1000)),
            None => {
                let before = ms_up(at.duration_since(instant));
                Some(unix_ms.saturating_sub(before + before.div_ceil(1000)))
            }
        }
    }

    /// Asks the server who it is, and whether it tells the time: without either, nothing can be given back to it. What
    /// INFO says, of its memory too.
    pub async fn identify(&self, rights: &Rights) -> Result<String, Failure> {
        let [memory, stats] = MEMORY;
        let asked = [Command::server(&["INFO", "server"]), Command::server(&["INFO", "replication"]), memory, stats];
        let asked = [asked.as_slice(), &[Command::TIME]].concat();
        let Reply::Array(replies) = self.encoded.send_all(&asked).await? else { return Ok(String::new()) };
        let [sections @ .., time] = replies.as_slice() else { return Ok(String::new()) };
        rights.heard(Right::Time, time);
        sections.iter().for_each(|section| rights.heard(Right::Info, section));
        let text = text(sections);
        let Some(unix_ms) = time.unix_ms() else { return Ok(text) };
        let _ = self.time.set((unix_ms, Instant::now()));
        let field = |name: &str| text.lines().find_map(|row| row.strip_prefix(name)).map(|id| id.trim().to_owned());
        if let (Some(run_id), Some(replication_id)) = (field("run_id:"), field("master_replid:")) {
            let _ = self.identity.set(Identity { run_id, replication_id });
        }
        Ok(text)
    }

    /// Whether the server should be asked now what may have changed since. Then it is true once.
    pub fn is_look_due(&self, now: Instant) -> bool {
        let (age, due) = (ms(now.saturating_duration_since(self.made)), self.next_look.load(Ordering::Relaxed));
        let next = || age + pause_of_looks();
        age >= due && self.next_look.compare_exchange(due, next(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Looks for the module where the script decides. What INFO says of the server's memory.
    pub async fn look(&self) -> Result<String, Failure> {
        self.encoded.look_for_module().await?;
        match self.encoded.send_all(&MEMORY).await? {
            Reply::Array(sections) => Ok(text(&sections)),
            _ => Ok(String::new()),
        }
    }
}

/// In ms: a minute ± 50 %, so that the clients of a server do not ask it together.
fn pause_of_looks() -> u64 {
    fastrand::u64(30_000..90_000)
}

/// What several sections of INFO say.
fn text(sections: &[Reply]) -> String {
    let bytes = sections.iter().filter_map(|section| match section {
        Reply::Bytes(bytes) => Some(String::from_utf8_lossy(bytes)),
        _ => None,
    });
    bytes.collect::<Vec<_>>().join("\n")
}
