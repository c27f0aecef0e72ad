//! One exchange with the server, which outlives the request that began it.
//!
//! What was sent is executed and answered, whether or not anybody waits. So an exchange that is dropped before its
//! reply goes to the [`Reaper`], which waits for the reply, reports to the breaker, and settles.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{timeout, timeout_at, Duration, Instant};

use super::batch::Batch;
use super::connection::{Connection, Turn};
use super::health::{failure, is_read_only, redirection};
use super::reaper::Reaper;
use super::server_health::ServerHealth;
use crate::protocol::Command;
use crate::reason::Reason;
use crate::transport::{Failure, Pending, Reply};

/// An exchange without a reply is given up after so long, at the latest, and its connection with it.
pub(super) const GIVEN_UP: Duration = Duration::from_secs(10);
/// Turns of the event loop after a timeout, before it counts: the reply may have arrived and not been read.
pub(super) const TURNS: usize = 3;
/// Interval between checks whether the server is back without that connection.
const LOOK: Duration = Duration::from_millis(100);

/// What became of an exchange.
pub(crate) struct Settled {
    pub reply: Result<Reply, Failure>,
    /// Before it was written.
    pub sent: Instant,
    pub connection: Arc<Connection>,
    pub batch: Batch,
    /// What would have been done had nobody waited.
    pub owner: Owner,
}

impl Settled {
    /// What gives back what was granted beyond these units, since an instant of the server's clock.
    fn undo(&self, told: u64, since: u64) -> Vec<Command> {
        match (&self.batch, &self.reply) {
            (Batch::One(command), Ok(reply)) => command.undo(Some(reply), since, told),
            _ => Vec::new(),
        }
    }

    /// Drops the replies to ASKING, and the commands: one command that was redirected is one again.
    fn forget_asking(&mut self) {
        let Batch::Several(commands) = &mut self.batch else { return };
        let is_asking = |command: &Command| *command == Command::ASKING;
        if !commands.first().is_some_and(is_asking) {
            return;
        }
        commands.retain(|command| !is_asking(command));
        let is_one = commands.len() == 1;
        if let Ok(Reply::Array(replies)) = &mut self.reply {
            *replies = std::mem::take(replies).into_iter().skip(1).step_by(2).collect();
            if let Some(only) = replies.pop_if(|_| is_one) {
                self.reply = Ok(only);
            }
        }
        if is_one {
            self.batch = Batch::One(commands.remove(0));
        }
    }
}

/// Handles a reply that nobody waits for.
pub(crate) type Settle = Box<dyn FnOnce(Settled) + Send>;

/// Who handles a reply that nobody waits for.
#[derive(Default)]
pub(crate) enum Owner {
    /// The exchange itself: it gives back what it can.
    #[default]
    Exchange,
    /// The same, once its caller knows how many units are granted. Without a word, the caller has gone.
    Caller(oneshot::Receiver<u64>),
    Settle(Settle),
}

/// A reply that will come; dropped, it goes to the reaper.
pub(crate) struct Exchange {
    owned: Option<Owned>,
    reaper: Reaper,
}

struct Owned {
    reply: Pending<Reply>,
    server: Arc<ServerHealth>,
    connection: Arc<Connection>,
    batch: Batch,
    owner: Owner,
    /// Kept until the end, where it had to wait for one.
    _turn: Option<Turn>,
    /// A reply that takes longer is late.
    timeout: Duration,
    /// When it was first polled, and so queued.
    sent: Option<Instant>,
    /// Few others were unanswered then: the time until its reply is the link's.
    is_measured: bool,
    /// It has followed a redirection.
    is_redirected: bool,
    /// No reply has come in time.
    is_late: bool,
    /// The breaker has counted that.
    is_failure: bool,
}

impl Exchange {
    pub fn new(
        server: Arc<ServerHealth>,
        (connection, turn): (Arc<Connection>, Option<Turn>),
        batch: Batch,
        owner: Owner,
        reaper: &Reaper,
    ) -> Self {
        let owned = Owned {
            reply: batch.send(&connection),
            timeout: server.timeout(),
            server,
            connection,
            batch,
            owner,
            _turn: turn,
            sent: None,
            is_measured: false,
            is_redirected: false,
            is_late: false,
            is_failure: false,
        };
        Self { owned: Some(owned), reaper: reaper.clone() }
    }

    /// For a caller that waits until an instant: its reply is in time until then.
    pub fn until(mut self, deadline: Instant) -> Self {
        let owned = self.owned.as_mut().expect("it is not polled yet");
        owned.timeout = owned.timeout.max(deadline.saturating_duration_since(Instant::now()));
        self
    }

    /// It has followed a redirection.
    pub fn redirected(mut self) -> Self {
        self.owned.as_mut().expect("it is not polled yet").is_redirected = true;
        self
    }

    /// Waits for as long as the reply may come, and tells the breaker meanwhile: for owners that have the time.
    pub async fn see_through(mut self) -> Settled {
        let owned = self.owned.take().expect("it is taken once");
        owned.see_through().await
    }
}

impl Future for Exchange {
    type Output = Settled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Settled> {
        let owned = self.owned.as_mut().expect("it is not polled after its end");
        owned.begin();
        let Poll::Ready(reply) = owned.reply.as_mut().poll(context) else { return Poll::Pending };
        let owned = self.owned.take().expect("it was there just now");
        Poll::Ready(owned.answered(reply))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // What was never polled was never sent.
        if let Some(owned) = self.owned.take_if(|owned| owned.sent.is_some()) {
            self.reaper.take(Box::pin(owned.reap()));
        }
    }
}

impl Owned {
    fn begin(&mut self) {
        if self.sent.is_none() {
            let now = Instant::now();
            self.sent = Some(now);
            self.is_measured = self.connection.sent(self.batch.len(), now);
            self.server.sent(self.batch.len());
        }
    }

    /// Waits for the reply, however late, and does what it asks for where nobody waits.
    async fn reap(self) {
        let server = Arc::clone(&self.server);
        let mut settled = self.see_through().await;
        let told = match std::mem::take(&mut settled.owner) {
            Owner::Settle(settle) => return settle(settled),
            Owner::Caller(told) => told.await.ok(),
            Owner::Exchange => None,
        };
        server.unclaimed(settled.batch.granted(&settled.reply));
        if told.is_none() && settled.batch.is_left_to_its_caller() {
            return;
        }
        let told = told.unwrap_or_default();
        if settled.undo(told, 0).is_empty() {
            return;
        }
        server.identify(&settled.connection).await;
        let Some(since) = settled.connection.unix_ms(settled.sent) else { return };
        let undo = settled.undo(told, since);
        // To the server that counted it: over the same connection.
        server.sent(undo.len());
        let _ = timeout(GIVEN_UP, settled.connection.send_all(&undo)).await;
    }

    async fn see_through(mut self) -> Settled {
        self.begin();
        let sent = self.sent.unwrap_or_else(Instant::now);
        if let Some(reply) = self.reply_until(sent + self.timeout).await {
            return self.answered(reply);
        }
        self.late();
        // Others may be answered on the connection after this was sent, and nobody from then on.
        while sent.elapsed() < GIVEN_UP {
            let silence = self.server.silence();
            let silent = self.connection.quiet_since().max(sent) + silence;
            if let Some(reply) = self.reply_until(silent.min(sent + GIVEN_UP)).await {
                return self.answered(reply);
            }
            if self.connection.is_silent(silence, Instant::now()) {
                // A server that is back over another connection is judged by that one.
                if self.server.uses(&self.connection) {
                    self.server.open(&Reason::NoAnswer.because("the connection is silent"), self.batch.key());
                }
                break;
            }
        }
        while sent.elapsed() < GIVEN_UP && !self.server.is_back_without(&self.connection) {
            if let Some(reply) = self.reply_until((Instant::now() + LOOK).min(sent + GIVEN_UP)).await {
                return self.answered(reply);
            }
        }
        self.connection.retire();
        self.answered(Err(Failure::Connection(Reason::NoAnswer.because("given up: the connection is silent"))))
    }

    async fn reply_until(&mut self, until: Instant) -> Option<Result<Reply, Failure>> {
        if let Ok(reply) = timeout_at(until, &mut self.reply).await {
            return Some(reply);
        }
        // If the event loop stalled, the reply may have arrived and not been read.
        for _ in 0..TURNS {
            yield_now().await;
            if let Ok(reply) = timeout_at(until, &mut self.reply).await {
                return Some(reply);
            }
        }
        None
    }

    /// No reply in time. While others come in time, or are known to be slow, the server is there.
    fn late(&mut self) {
        self.is_late = true;
        let now = Instant::now();
        let sent = self.sent.unwrap_or(now);
        let is_there = self.connection.was_in_time(self.timeout, now) || self.server.slow.above(self.timeout).is_some();
        if is_there || !self.connection.fails_again(sent, now) {
            return;
        }
        self.is_failure = true;
        self.server.failed(&Reason::NoAnswer.because("no reply in time"), self.batch.key());
    }

    /// Tells the breaker what came.
    fn answered(mut self, reply: Result<Reply, Failure>) -> Settled {
        let now = Instant::now();
        let sent = self.sent.unwrap_or(now);
        self.connection.heard(self.batch.len(), now);
        if reply.is_ok() && self.connection.is_look_due(now) {
            self.server.look(&self.connection);
        }
        if reply.is_err() || is_read_only(&reply) {
            self.connection.retire();
        }
        let round_trip = now.saturating_duration_since(sent);
        match failure(&reply, self.is_redirected) {
            Some(_) if self.is_late => {}
            Some(cause) if self.connection.fails_again(sent, now) => self.server.failed(&cause, self.batch.key()),
            Some(_) => {}
            // A redirection clears no failures: nothing was executed.
            None if reply.as_ref().ok().and_then(redirection).is_some() => {}
            // Over a connection that requests have left, it says how the link was.
            None if self.is_late => {
                let is_measured = self.is_measured && self.server.uses(&self.connection);
                let was_failure = self.is_failure;
                self.server.late(round_trip, self.timeout, is_measured, was_failure, self.batch.key());
            }
            None => self.server.answered(&self.connection, &reply, round_trip, self.is_measured, &self.batch),
        }
        self.sent = None; // the account is settled
        let mut settled = Settled {
            reply,
            sent,
            connection: Arc::clone(&self.connection),
            batch: std::mem::replace(&mut self.batch, Batch::Several(Vec::new())),
            owner: std::mem::take(&mut self.owner),
        };
        if self.is_redirected {
            settled.forget_asking();
        }
        settled
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.sent.is_some() {
            self.connection.given_up(self.batch.len());
        }
    }
}
