//! The server, or the cluster, as the rest of the client sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::{timeout_at, Instant};

use super::batch::Batch;
use super::connection::Connection;
use super::connector::Context;
use super::exchange::{Exchange, Owner, Settle, Settled};
use super::health::{is_failure, redirection, Redirection};
use super::outcome::Outcome;
use super::reaper::Reaper;
use super::rights::{Right, Rights};
use super::server::Server;
use super::topology::Topology;
use crate::error::{Cause, Error};
use crate::protocol::{Command, Encoding, PREFIX, TOO_OLD};
use crate::reason::{is_unknown_command, Reason};
use crate::servers::{Backend, ServerState, State};
use crate::statistics::{Count, Counters};
use crate::transport::{Events, Failure, Purpose, Reply};
use crate::wait::Wait;

/// With less time than this a request is decided at once.
const TOO_LITTLE: Duration = Duration::from_millis(2);
/// A request is decided a tenth of its time before its deadline, at least and at most so much.
const EARLY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));

/// How long a request may wait whose caller waits for so long; `None` if it is decided at once.
pub(crate) fn time_to_wait(left: Duration) -> Option<Duration> {
    (left >= TOO_LITTLE).then(|| left - (left / 10).clamp(EARLY.0, EARLY.1))
}

/// The server, or the cluster, as the strategies see it.
pub(crate) struct Upstream {
    context: Arc<Context>,
    topology: Topology,
    reaper: Reaper,
    /// How many may wait on the server, each over a connection of its own.
    places: Semaphore,
    /// The server is older than ACQUIRE, or does not let this user use it.
    lets_nobody_wait: AtomicBool,
}

/// The server's error when a new waiter with the same id takes over the place. That wait is over.
pub(crate) const WAITS_ELSEWHERE: &str = "UNBLOCKED another client now waits for this id";

/// Whether the server only lets somebody go who may ask again.
fn is_unblocked(error: &str) -> bool {
    error.starts_with("UNBLOCKED") && error != WAITS_ELSEWHERE
}

impl Upstream {
    /// A link on which requests wait for `timeout`, and at most `max_waiting` wait on the server.
    pub fn new(
        transport: Encoding,
        counters: Arc<Counters>,
        changes: Events,
        timeout: Duration,
        max_waiting: usize,
    ) -> Self {
        let (slots_are_stale, rights) = (AtomicBool::new(false), Rights::new(transport.address()));
        let is_back = Notify::new();
        let context = Arc::new(Context { transport, timeout, counters, changes, slots_are_stale, rights, is_back });
        let topology = Topology::new(&context);
        let places = Semaphore::new(max_waiting.min(Semaphore::MAX_PERMITS));
        Self { context, topology, reaper: Reaper::default(), places, lets_nobody_wait: AtomicBool::new(false) }
    }

    /// How long a request waits for the server, at most.
    pub fn timeout(&self) -> Duration {
        self.context.timeout
    }

    /// Until when a request that comes now may wait.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where its own deadline leaves it no time.
    pub fn deadline(&self, asked: Option<Instant>) -> Result<Instant, Error> {
        self.deadline_after(self.context.timeout, asked)
    }

    /// The same with another timeout.
    ///
    /// # Errors
    /// As [`deadline`](Self::deadline).
    pub fn deadline_after(&self, timeout: Duration, asked: Option<Instant>) -> Result<Instant, Error> {
        let now = Instant::now();
        let deadline = now + timeout;
        let Some(asked) = asked else { return Ok(deadline) };
        match time_to_wait(asked.saturating_duration_since(now)) {
            Some(time) => Ok(deadline.min(now + time)),
            None => Err(Error::Unavailable(Reason::NoAnswer.because("the request has no time left"))),
        }
    }

    /// Until when a request for a key may wait that comes now, and that a policy decides otherwise.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where its own deadline leaves it no time, or the server is slower than its timeout.
    pub fn time_to_decide(&self, key: &[u8], timeout: Duration, asked: Option<Instant>) -> Result<Instant, Error> {
        let deadline = self.deadline_after(timeout, asked)?;
        let server = self.topology.known(key).filter(|server| !server.health.is_unavailable());
        match server.and_then(|server| server.health.too_slow(timeout)) {
            None => Ok(deadline),
            Some(cause) => Err(Error::Unavailable(cause)),
        }
    }

    /// Whether the server of a key is believed to be unavailable.
    pub fn is_unavailable(&self, key: &[u8]) -> bool {
        self.topology.is_unavailable(key)
    }

    /// Whether all servers are believed to be there.
    pub fn is_there(&self) -> bool {
        self.servers().iter().all(|server| server.state != State::Unavailable)
    }

    /// The state of each server, by address.
    pub fn servers(&self) -> Vec<ServerState> {
        self.topology.states()
    }

    /// The server's reply to what needs a right beside the module's commands.
    pub fn heard_right(&self, right: Right, reply: &Reply) {
        self.context.rights.heard(right, reply);
    }

    /// Something needs a right beside the module's commands.
    pub fn need_right(&self, right: Right) {
        self.context.rights.need(right);
    }

    #[cfg(feature = "metrics")]
    pub fn publish_rights(&self) {
        self.context.rights.publish();
    }

    /// Whether the script decides for a key.
    pub fn is_scripted(&self, key: &[u8]) -> bool {
        self.topology.known(key).is_some_and(|server| server.health.backend() == Some(Backend::Script))
    }

    /// The mean round trip to the server of a key.
    pub fn round_trip(&self, key: &[u8]) -> Duration {
        self.topology.known(key).map_or(Duration::ZERO, |server| server.health.round_trip())
    }

    /// How long a round trip to the server of a key takes, at most; `None` where nothing is known.
    pub fn longest_trip(&self, key: &[u8]) -> Option<Duration> {
        self.topology.known(key)?.health.longest_trip()
    }

    /// Asks one thing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the server does not answer by the deadline or cannot decide; else as it refuses.
    pub async fn ask(&self, command: Command, deadline: Instant) -> Result<Reply, Error> {
        let settled = self.exchange(Batch::One(command), deadline, Owner::Exchange).await?;
        self.understood(settled.reply, settled.batch.key())
    }

    /// The same for a caller that a policy may decide: a late reply is made equal to its outcome.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_for(&self, outcome: &Outcome, command: Command, deadline: Instant) -> Result<Reply, Error> {
        let settled = self.exchange(Batch::One(command), deadline, outcome.owner()).await?;
        self.understood(settled.reply, settled.batch.key())
    }

    /// Sends commands that have keys of one slot, and waits for their replies until a deadline. If this is dropped, or
    /// late, the exchange is seen through all the same, and its owner hears its end.
    pub async fn exchange(&self, batch: Batch, deadline: Instant, owner: Owner) -> Result<Settled, Error> {
        self.exchange_by(false, batch, deadline, owner).await
    }

    /// Asks one thing, whatever the breaker says: for owners that nobody can decide in place of.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn insist(&self, command: Command, deadline: Instant, settle: Option<Settle>) -> Result<Reply, Error> {
        let owner = settle.map_or(Owner::Exchange, Owner::Settle);
        let settled = self.exchange_by(true, Batch::One(command), deadline, owner).await?;
        self.understood(settled.reply, settled.batch.key())
    }

    async fn exchange_by(
        &self,
        insists: bool,
        batch: Batch,
        deadline: Instant,
        owner: Owner,
    ) -> Result<Settled, Error> {
        self.reaper.begin();
        let exchanging = async {
            let server = self.topology.server(batch.key()).await?;
            let (connection, turn) = server.turn(batch.key(), batch.len(), insists).await?;
            let health = Arc::clone(&server.health);
            let settled =
                Exchange::new(health, (connection, Some(turn)), batch, owner, &self.reaper).until(deadline).await;
            match settled.reply.as_ref().ok().and_then(redirection) {
                Some(redirection) => Box::pin(self.follow(redirection, settled, deadline)).await, // rare, and large
                None => Ok(settled),
            }
        };
        let late = |_| Error::Unavailable(Reason::NoAnswer.because("no reply in time"));
        timeout_at(deadline, exchanging).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    /// Sends commands over a connection that was chosen already, and waits for their replies for as long as they may
    /// come: for owners that have the time. Redirections are not followed, but noticed.
    pub async fn see_through_on(&self, server: &Arc<Server>, connection: Arc<Connection>, batch: Batch) -> Settled {
        self.reaper.begin();
        let exchange =
            Exchange::new(Arc::clone(&server.health), (connection, None), batch, Owner::Exchange, &self.reaper);
        let settled = exchange.redirected().see_through().await;
        let has_moved = |reply: &Reply| matches!(reply, Reply::Error(text) if text.starts_with("MOVED "));
        if matches!(&settled.reply, Ok(Reply::Array(replies)) if replies.iter().any(has_moved)) {
            self.context.slots_are_stale.store(true, Ordering::Release);
        }
        settled
    }

    /// Groups what belongs to keys by the node that has them; and what has none that is known.
    pub async fn by_server<T>(&self, all: Vec<T>, key: impl Fn(&T) -> &[u8]) -> (Vec<(Arc<Server>, Vec<T>)>, Vec<T>) {
        let (mut groups, mut others): (Vec<(Arc<Server>, Vec<T>)>, _) = (Vec::new(), Vec::new());
        if let Some(first) = all.first() {
            // Where no slot is known yet, the first key has them looked up.
            let _ = self.topology.server(key(first)).await;
        }
        for one in all {
            let Some(server) = self.topology.known(key(&one)) else {
                others.push(one);
                continue;
            };
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &server)) {
                Some((_, group)) => group.push(one),
                None => groups.push((server, vec![one])),
            }
        }
        (groups, others)
    }

    /// Waits until the server of a key has said who it is, and how it evicts keys.
    pub async fn identify(&self, key: &[u8]) {
        if let Some(server) = self.topology.known(key) {
            if let Some(connection) = server.health.current() {
                server.health.identify(&connection).await;
            }
        }
    }

    /// Whether the server of a key has said who it is.
    pub fn is_identified(&self, key: &[u8]) -> bool {
        let connection = self.topology.known(key).and_then(|server| server.health.current());
        connection.is_some_and(|connection| connection.identity().is_some())
    }

    /// Whether a request would be sent to that address.
    #[cfg(test)]
    pub fn leads_to(&self, address: &str, key: &[u8]) -> bool {
        self.topology.known(key).is_some_and(|server| server.health.state().address == address)
    }

    /// Whether it would go there at once, or be decided at once because the server there is unavailable.
    #[cfg(test)]
    pub fn finds(&self, address: &str, key: &[u8]) -> bool {
        let is_ready = |server: Arc<Server>| server.health.is_unavailable() || server.health.current().is_some();
        self.leads_to(address, key) && self.topology.known(key).is_some_and(is_ready)
    }

    /// Follows a redirection, once: nothing was executed.
    async fn follow(&self, redirection: Redirection, settled: Settled, deadline: Instant) -> Result<Settled, Error> {
        let Settled { batch, owner, .. } = settled;
        let key = batch.key().to_vec();
        if !matches!(redirection, Redirection::TryAgain) && !self.topology.join().await {
            return Err(self.not_followed(&key));
        }
        let here = async || self.topology.server(&key).await;
        let (server, batch) = match redirection {
            Redirection::Moved(address) => match self.topology.redirected(&key, &address, true) {
                Some(server) => (server, batch),
                None => (here().await?, batch),
            },
            Redirection::Ask(address) => {
                let mut commands = vec![Command::ASKING];
                match batch {
                    Batch::One(command) => commands.push(command),
                    // Each command needs a word of its own that it may ask here.
                    Batch::Several(several) => {
                        commands = several.into_iter().flat_map(|command| [Command::ASKING, command]).collect();
                    }
                }
                match self.topology.redirected(&key, &address, false) {
                    Some(server) => (server, Batch::Several(commands)),
                    None => return Err(self.not_followed(&key)),
                }
            }
            Redirection::TryAgain => (here().await?, batch),
        };
        let (connection, turn) = server.turn(&key, batch.len(), false).await?;
        let exchange = Exchange::new(Arc::clone(&server.health), (connection, Some(turn)), batch, owner, &self.reaper);
        Ok(exchange.until(deadline).redirected().await)
    }

    /// The server redirects to others, and this client cannot follow.
    fn not_followed(&self, key: &[u8]) -> Error {
        match self.topology.known(key) {
            Some(server) if server.health.was_served() => {
                let cause =
                    Reason::Cluster.because("the server redirects to others, which this client does not follow");
                server.health.failed(&cause, key);
                Error::Unavailable(cause)
            }
            _ => Error::NeedsCluster,
        }
    }

    /// A reply, or the error that it is.
    pub fn understood(&self, reply: Result<Reply, Failure>, key: &[u8]) -> Result<Reply, Error> {
        match reply {
            Ok(Reply::Error(text)) => Err(self.error(text, key)),
            Ok(reply) => Ok(reply),
            Err(failure) => Err(Error::Unavailable(failure.into())),
        }
    }

    /// What an error of the server's means to a caller.
    pub fn error(&self, text: String, key: &[u8]) -> Error {
        if is_failure(&text) {
            return Error::Unavailable(Cause::said(text));
        }
        if let Some(command) = text.strip_prefix(TOO_OLD) {
            return Error::ModuleTooOld(command.to_owned());
        }
        if is_unknown_command(&text) {
            let server = self.topology.known(key);
            return match server.as_ref().and_then(|server| server.health.backend()) {
                // EVALSHA itself may be what is unknown.
                Some(Backend::Script) if text.contains(PREFIX) => Error::NeedsModule,
                // A server that was replaced by one without the module is unavailable.
                _ if server.is_some_and(|server| server.health.was_served()) => Error::Unavailable(Cause::said(text)),
                _ => Error::ModuleMissing,
            };
        }
        refused(text)
    }

    /// Whether the server can announce changes of a key.
    pub fn is_tracked(&self, key: &[u8]) -> bool {
        self.topology.known(key).is_some_and(|server| server.tracking.is_offered())
    }

    /// Reads a key so that the server announces its changes from then on. No request waits for this.
    pub async fn read_tracked(&self, key: &[u8], commands: &[Command]) -> Result<Vec<Reply>, Error> {
        let server = self.topology.server(key).await?;
        if server.health.is_unavailable() {
            return Err(Error::Unavailable(Reason::Other.because("the breaker is open")));
        }
        match server.tracking.read(commands).await {
            Ok(Reply::Array(replies)) => Ok(replies),
            Ok(reply) => Err(Error::Unavailable(Cause::unclear(&reply))),
            Err(failure) => Err(Error::Unavailable(failure.into())),
        }
    }

    /// Whether somebody can wait on the server of a key, if there is a place.
    pub fn lets_wait(&self, key: &[u8]) -> bool {
        self.can_wait(key) && !self.is_unavailable(key)
    }

    fn can_wait(&self, key: &[u8]) -> bool {
        let is_offered = self.context.transport.offers(Purpose::Waiting);
        // The script does not know of waiting.
        is_offered && !self.lets_nobody_wait.load(Ordering::Relaxed) && !self.is_scripted(key)
    }

    /// A server is back that was unavailable, some time after this was called.
    pub fn is_back(&self) -> impl std::future::Future<Output = ()> + '_ {
        self.context.is_back.notified()
    }

    /// Asks something that the server may answer as late as the end of a wait, which the command contains. `None` where
    /// nobody can wait on the server, there is no place for one more, or the client was closed.
    pub async fn wait(
        &self,
        key: &[u8],
        wait: &Wait,
        command: impl Fn(Duration) -> Command,
    ) -> Option<Result<Reply, Error>> {
        if !self.can_wait(key) {
            return None;
        }
        // A request for another key must not wait for a place, too.
        let _place = self.places.try_acquire().ok()?;
        loop {
            let left = wait.left();
            let waiting = async {
                let server = self.topology.server(key).await?;
                let sent = server.waiting.send(&command(left)).await;
                let (reply, is_scripted) = sent.map_err(|failure| Error::Unavailable(failure.into()))?;
                if let Some(Redirection::Moved(address)) = redirection(&reply) {
                    self.topology.redirected(key, &address, true);
                }
                let reply = self.understood(Ok(reply), key)?;
                let is_denied = reply.hold().is_ok_and(|held| held.granted == 0);
                Ok((!is_scripted || !is_denied).then_some(reply))
            };
            let late = || Error::Unavailable(Reason::NoAnswer.because("no reply in time"));
            let reply = wait.with(self.context.timeout, waiting).await;
            if reply.is_none() && wait.is_closed() {
                return None;
            }
            return match reply.unwrap_or_else(|| Err(late())) {
                Err(Error::Refused(text)) if is_unblocked(&text) && !left.is_zero() => continue,
                // The script does not wait.
                Ok(None) | Err(Error::NeedsModule) => None,
                Err(error) if error.is_unknown_or_forbidden() => {
                    self.lets_nobody_wait.store(true, Ordering::Relaxed);
                    None
                }
                Ok(Some(reply)) => Some(Ok(reply)),
                Err(error) => Some(Err(error)),
            };
        }
    }

    /// Counts something beside decisions.
    pub fn count(&self, what: Count, by: u64) {
        self.context.counters.count(what, by);
    }

    /// Gives up all exchanges that are still owed a reply, and their connections: what became of them is in doubt.
    pub fn give_up(&self) {
        let exchanges = self.reaper.give_up();
        if exchanges > 0 {
            self.count(Count::InDoubt, exchanges as u64);
            tracing::warn!(exchanges, "closed without replies: whether these requests were counted is in doubt");
        }
        self.topology.nodes().iter().for_each(|server| server.health.give_up());
    }

    /// Waits until all exchanges have been seen through.
    pub async fn settled(&self) {
        self.reaper.settled().await;
    }
}

/// A request that the server refuses.
pub(crate) fn refused(text: String) -> Error {
    let remedy = match text.starts_with("CROSSSLOT ") {
        true => {
            ": give the keys of one decision the same hash tag, such as {user:1}; a key with a brace needs one, too"
        }
        false => "",
    };
    Error::Refused(text + remedy)
}
