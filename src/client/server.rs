//! Asking the server: in time, through the circuit, and counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{timeout_at, Instant};

use crate::circuit::Circuit;
use crate::error::Error;
use crate::statistics::{Count, Counters};
use crate::wire::{Answer, Command, Failure, Reply, Wire};

/// The server, or cluster, as the ways of deciding see it.
pub(crate) struct Server {
    wire: Box<dyn Wire>,
    circuit: Circuit,
    counters: Arc<Counters>,
    timeout: Duration,
    /// How many may wait on the server, each over a connection of its own.
    waiting: Semaphore,
    /// The server is older than ACQUIRE, or does not let this user use it.
    lets_nobody_wait: AtomicBool,
}

impl Server {
    /// A server that is given `timeout` for an answer, and on which at most `waiting` requests wait at a time.
    pub fn new(wire: Box<dyn Wire>, counters: Arc<Counters>, timeout: Duration, waiting: usize) -> Self {
        let waiting = Semaphore::new(waiting.min(Semaphore::MAX_PERMITS));
        Self { wire, circuit: Circuit::new(), counters, timeout, waiting, lets_nobody_wait: AtomicBool::new(false) }
    }

    /// How long a request waits for the server, at most.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When somebody who comes now has waited long enough.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Whether the server is believed to be there.
    pub fn is_there(&self) -> bool {
        self.circuit.is_closed()
    }

    /// Ask one thing.
    pub async fn ask(&self, command: Command, deadline: Instant) -> Result<Reply, Error> {
        self.through(self.wire.send(command), 1, deadline).await
    }

    /// Ask several things in one go, in their order where one server has all the keys.
    pub async fn ask_all(&self, commands: Vec<Command>, deadline: Instant) -> Result<Vec<Result<Reply, Error>>, Error> {
        let count = commands.len() as u64;
        let replies = self.through(self.wire.send_all(commands), count, deadline).await?;
        Ok(replies.into_iter().map(|reply| reply.map_err(Error::from)).collect())
    }

    /// Ask something that changes nothing, so that changes of its key are heard of afterwards; `None` where they cannot
    /// be. No request waits for this, and whether it succeeds says nothing about the way that requests take.
    pub async fn ask_tracked(&self, command: Command, deadline: Instant) -> Option<Result<Reply, Error>> {
        let answer = self.wire.send_tracked(command)?;
        self.counters.count(Count::Commands, 1);
        Some(in_time(answer, deadline).await)
    }

    /// Ask something that the server may answer as late as a deadline, which the command is told in ms; `None` where
    /// nobody can wait on the server.
    pub async fn wait(
        &self,
        until: Instant,
        command: impl FnOnce(Duration) -> Command,
    ) -> Option<Result<Reply, Error>> {
        if self.lets_nobody_wait.load(Ordering::Relaxed) {
            return None;
        }
        let Ok(Ok(_turn)) = timeout_at(until, self.waiting.acquire()).await else {
            return None; // the time is up; what is left to say is said without waiting
        };
        let answer = self.wire.send_alone(command(until.saturating_duration_since(Instant::now())))?;
        let reply = self.through(answer, 1, until + self.timeout).await;
        if reply.as_ref().is_err_and(Error::is_unknown_or_forbidden) {
            self.lets_nobody_wait.store(true, Ordering::Relaxed);
            return None;
        }
        Some(reply)
    }

    /// Ask through the circuit, which is told how it went.
    async fn through<T>(&self, answer: Answer<'_, T>, commands: u64, deadline: Instant) -> Result<T, Error> {
        let Some(permit) = self.circuit.permit() else {
            return Err(Error::Away("it did not answer lately".into()));
        };
        self.counters.count(Count::Commands, commands);
        let answer = in_time(answer, deadline).await;
        if let Err(Error::Away(_)) = &answer {
            self.counters.count(Count::Failures, 1);
            if permit.failed() {
                self.counters.count(Count::Opened, 1);
                // What leads to a server that is gone may never say so.
                self.wire.renew();
            }
        } else {
            permit.succeeded();
        }
        answer
    }

    /// Count something beside decisions.
    pub fn count(&self, what: Count, by: u64) {
        self.counters.count(what, by);
    }
}

async fn in_time<T>(answer: Answer<'_, T>, deadline: Instant) -> Result<T, Error> {
    match timeout_at(deadline, answer).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Failure::Connection("no answer in time".into()).into()),
    }
}
