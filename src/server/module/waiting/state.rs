//! Who waits, with what outcome.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lazy_static::lazy_static;

use super::queues::{QueueId, Queues, WaiterId};
use crate::server::{wall_clock, Admitted, BlockedClient, OwnText, Timer};
use crate::statistics;

/// A key: its database and its name.
pub type Key = (i32, OwnText);

/// How a wait ended.
pub enum Outcome {
    /// The integers of ALLOW or HOLD, and what is given back if the client is gone before it reads them.
    Granted(Vec<i64>, Option<PendingRefund>),
    /// The decision that denied it.
    Denied(Admitted),
    /// An error, with its code.
    Error(String),
}

/// A client that waits, or that waits for its reply to be sent.
pub struct Client {
    /// Its place in a queue; `None` when another client has taken that over.
    pub waiter: Option<WaiterId>,
    /// Its ACL user, if it has one.
    pub user: Option<OwnText>,
    /// Its command: name, key, limit, window, resolution, and so on; the server keeps these strings for it, too.
    pub words: Box<[OwnText]>,
    /// What it is answered, once that is known.
    pub outcome: Option<Outcome>,
}

/// What was granted, to give back if the client is gone before its reply.
pub struct PendingRefund {
    pub key: Key,
    pub of: Granted,
}

/// What a turn came to.
pub enum Granted {
    /// Units of a window, counted at an instant.
    Units { units: u64, instant: u64 },
    /// A hold.
    Hold { id: Box<[u8]>, token: u64 },
}

impl PendingRefund {
    /// Whether it is of this hold.
    pub fn is_of(&self, (database, name): (i32, &[u8]), hold: &[u8]) -> bool {
        let is_hold = matches!(&self.of, Granted::Hold { id, .. } if **id == *hold);
        is_hold && self.key.0 == database && self.key.1.bytes() == name
    }
}

#[derive(Default)]
pub struct State {
    pub queues: Queues<OwnText>,
    /// Those that wait, and those whose reply has not been sent.
    pub clients: HashMap<BlockedClient, Client>,
    /// The clients of the waiters.
    pub by_waiter: HashMap<WaiterId, BlockedClient>,
    pub refunds: Vec<PendingRefund>,
    /// Grants whose reply has not been sent.
    pub unsent: usize,
    /// The queue whose first waiter HOLD is called for: that call alone does not queue.
    pub granting: Option<QueueId>,
    /// Clients whose wait has ended, for the timer to unblock. A command does not, because Redis 7.0 sends no reply at all to
    /// a client that is unblocked by a module and by `CLIENT UNBLOCK … TIMEOUT` before it has answered.
    pub ended: Vec<BlockedClient>,
    /// Key events that the timer raises when nothing is in use.
    pub events: Vec<(Key, &'static CStr)>,
    /// The timer, and when it runs, in ms by the monotonic clock.
    pub timer: Option<(Timer, u64)>,
    /// Whether the timer's callback is running, which sets the timer again when it ends.
    pub is_running: bool,
}

lazy_static! {
    static ref STATE: Mutex<State> = Mutex::default();
    static ref START: Instant = Instant::now();
}

/// Locks the state. Release it before calling the server, which may call back into this module, and before replying.
pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A clock that nobody can set, in ms.
pub fn monotonic_clock() -> u64 {
    START.elapsed().as_millis() as u64
}

impl State {
    /// ms until a queue or a deadline is due.
    pub fn next(&self) -> Option<u64> {
        let due = self.queues.next_due().map(|(due, _)| due.saturating_sub(wall_clock()));
        let deadline = self.queues.next_deadline().map(|(deadline, _)| deadline.saturating_sub(monotonic_clock()));
        let is_pending = !self.refunds.is_empty() || !self.ended.is_empty() || !self.events.is_empty();
        let pending = is_pending.then_some(0);
        [due, deadline, pending].into_iter().flatten().min()
    }

    /// A client waits no more: the timer unblocks it, and this is its answer.
    pub fn answer(&mut self, client: BlockedClient, outcome: Outcome) {
        if let Some(waiting) = self.clients.get_mut(&client) {
            (waiting.waiter, waiting.outcome) = (None, Some(outcome));
        }
        self.ended.push(client);
        statistics::WAITING.subtract(1);
    }

    /// The reply to a client, which is then not there any more.
    pub fn take_outcome(&mut self, client: BlockedClient) -> Option<Outcome> {
        let outcome = self.clients.get_mut(&client)?.outcome.take();
        if let Some(Outcome::Granted(..)) = outcome {
            self.unsent -= 1;
        }
        outcome
    }

    /// Schedule the refund of a grant whose client is gone.
    pub fn refund_later(&mut self, outcome: Outcome) {
        if let Outcome::Granted(_, refund) = outcome {
            self.refunds.extend(refund);
        }
    }

    /// Forget a client.
    pub fn forget(&mut self, client: BlockedClient) {
        self.clients.remove(&client);
        self.ended.retain(|ended| *ended != client);
        if self.clients.is_empty() {
            self.clients.shrink_to_fit();
            self.by_waiter.shrink_to_fit();
            self.queues.shrink();
        }
    }

    /// Stop the timer, if it is set.
    pub fn stop_timer(&mut self) {
        if let Some((timer, _)) = self.timer.take() {
            timer.stop();
        }
    }
}
