//! One server: its health, and the connections to it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout, Duration, Instant};

use super::breaker::pauses;
use super::connection::{Connection, Turn};
use super::connector::{Connector, Context};
use super::health::{failure, is_read_only, redirection};
use super::server_health::{ServerHealth, CONNECTING, PROBING};
use super::tracking::Tracking;
use super::waiting::Waiting;
use crate::demand::Demand;
use crate::error::{Cause, Error};
use crate::protocol::Command;
use crate::reason::{is_unknown_command, Reason};
use crate::statistics::Count;
use crate::transport::{Pending, Purpose, Reply};

/// One server: the only one, or a primary of a cluster.
pub(crate) struct Server {
    pub health: Arc<ServerHealth>,
    pub(super) connector: Connector,
    connecting: Mutex<Option<Attempt>>,
    pub(super) tracking: Arc<Tracking>,
    pub(super) waiting: Waiting,
}

/// The time between two probes of a server that is slow, at least.
const SLOW_PROBES: Duration = Duration::from_millis(500);

type Attempt = watch::Receiver<Option<Result<Arc<Connection>, Cause>>>;
type Connecting = Pending<Arc<Connection>>;

impl Server {
    pub(super) fn new(address: Option<Arc<str>>, context: Arc<Context>) -> Arc<Self> {
        let connector = Connector { address, context };
        Arc::new_cyclic(|server: &Weak<Self>| {
            let (server, other) = (server.clone(), server.clone());
            Self {
                health: Arc::new(ServerHealth::new(
                    &connector,
                    move || drop(tokio::spawn(probe(server.clone(), None))),
                    move || drop(tokio::spawn(probe_slow(other.clone()))),
                )),
                connecting: Mutex::new(None),
                tracking: Tracking::new(&connector),
                waiting: Waiting::new(&connector),
                connector,
            }
        })
    }

    /// The connection for requests: the one there is, or one that is made. The attempt is nobody's: it goes on without
    /// the request that began it, and concurrent requests share its outcome.
    ///
    /// # Errors
    /// [`Error::Unavailable`] at once while the breaker is open, or when the attempt fails.
    pub async fn connection(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Connection>, Error> {
        if self.health.is_unavailable() {
            return Err(Error::Unavailable(self.health.breaker.cause()));
        }
        self.any_connection(key).await
    }

    /// The same, whatever the breaker says.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the attempt fails.
    pub async fn any_connection(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.health.current() {
            return Ok(connection);
        }
        let mut attempt = self.attempt(key);
        let made = attempt.wait_for(Option::is_some).await;
        match made.as_deref() {
            Ok(Some(Ok(connection))) => Ok(Arc::clone(connection)),
            Ok(Some(Err(reason))) => Err(Error::Unavailable(reason.clone())),
            _ => Err(Error::Unavailable(Reason::Disconnected.because("the connection was not made"))),
        }
    }

    /// The connection for requests, and a turn for commands on it; where it `insists`, whatever the breaker says.
    ///
    /// # Errors
    /// As [`connection`](Self::connection).
    pub(super) async fn turn(
        self: &Arc<Self>,
        key: &[u8],
        commands: usize,
        insists: bool,
    ) -> Result<(Arc<Connection>, Turn), Error> {
        loop {
            let connection = if insists { self.any_connection(key).await? } else { self.connection(key).await? };
            if let Some(turn) = connection.turn(commands).await {
                return Ok((connection, turn));
            }
        }
    }

    fn attempt(self: &Arc<Self>, key: &[u8]) -> Attempt {
        let mut connecting = self.connecting.lock();
        if let Some(attempt) = &*connecting {
            return attempt.clone();
        }
        self.health.set_failed_key(key);
        let (done, attempt) = watch::channel(None);
        *connecting = Some(attempt.clone());
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let mut connecting = server.connector.connect(Purpose::Requests);
            let made = match timeout(CONNECTING, &mut connecting).await {
                Ok(made) => made.map_err(Cause::from),
                Err(_) => {
                    let cause = Reason::NoAnswer.because("no connection within a second");
                    if server.health.opens(&cause) {
                        tokio::spawn(probe(Arc::downgrade(&server), Some(connecting)));
                    }
                    Err(cause)
                }
            };
            match &made {
                Ok(connection) => server.install(connection),
                Err(cause) if !server.health.is_unavailable() => server.health.failure(cause),
                Err(_) => {}
            }
            *server.connecting.lock() = None;
            done.send_replace(Some(made));
        });
        attempt
    }

    /// Requests go over this connection from now on. With another server in its place, or after a gap, nothing that
    /// was known of changes holds.
    fn install(self: &Arc<Self>, connection: &Arc<Connection>) {
        let before = self.health.requests.write().replace(Arc::clone(connection));
        if let Some(before) = before {
            self.tracking.renew();
            let (from, to) = (before.address(), connection.address());
            if from != to {
                self.connector.context.counters.count(Count::Failovers, 1);
                tracing::warn!(from, to, "another server is the rate limit primary now");
            }
        }
        let (server, connection) = (Arc::clone(self), Arc::clone(connection));
        tokio::spawn(async move { server.health.identify(&connection).await });
    }

    /// Sends what a server that refuses writes would refuse, and what is otherwise denied without a trace.
    async fn probe(&self, connection: &Connection) -> Result<(), Cause> {
        let key = self.health.failed_key();
        let mut reply = connection.send(&Command::allow(&key, &Demand::nothing())).await;
        if connection.is_scripted() && failure(&reply, false).is_none() {
            reply = connection.send(&Command::empty_write(&key)).await;
        }
        if reply.as_ref().is_ok_and(|reply| redirection(reply).is_some()) {
            // Another node has the key by now; this one has others, and answers.
            return Ok(());
        }
        if let Some(cause) = failure(&reply, true) {
            return Err(cause);
        }
        match reply {
            Ok(Reply::Error(text)) if is_unknown_command(&text) && self.health.was_served() => Err(Cause::said(text)),
            _ => Ok(()),
        }
    }
}

/// Probes until the server is back, or the client is gone. The first probe may be a connection that is being made.
async fn probe(server: Weak<Server>, mut connecting: Option<Connecting>) {
    let mut pauses = pauses();
    loop {
        if connecting.is_none() {
            sleep(pauses.next().unwrap_or(PROBING)).await;
        }
        let Some(server) = server.upgrade() else { return };
        let probing = async {
            let connecting = connecting.take().unwrap_or_else(|| server.connector.connect(Purpose::Requests));
            let connection = connecting.await?;
            let sent = Instant::now();
            server.probe(&connection).await?;
            server.health.measured(sent.elapsed());
            Ok(connection)
        };
        let (breaker, context) = (&server.health.breaker, &server.connector.context);
        match timeout(PROBING, probing).await {
            Ok(Ok(connection)) => {
                server.install(&connection);
                breaker.close();
                context.is_back.notify_waiters();
                tracing::info!(address = server.connector.name(), "the rate limit server is back");
                return;
            }
            Ok(Err(cause)) => drop(breaker.open(&cause)),
            Err(_) => drop(breaker.open(&Reason::NoAnswer.because("a probe was not answered"))),
        }
        // In a cluster, another node may have taken over.
        context.slots_are_stale.store(true, Ordering::Release);
    }
}

/// Probes a slow server, over the connection of requests, until it is in time. A connection without a reply is left.
async fn probe_slow(server: Weak<Server>) {
    let since = server.upgrade().and_then(|server| server.health.slow.since());
    let mut next = Instant::now() + SLOW_PROBES;
    loop {
        sleep_until(next).await;
        next = Instant::now() + SLOW_PROBES;
        let Some(server) = server.upgrade().filter(|server| server.health.slow.since() == since) else { return };
        if since.is_none() {
            return;
        }
        let (health, key) = (&server.health, server.health.failed_key());
        let Ok(connection) = server.connection(&key).await else { continue };
        server.connector.sent(1);
        let (sent, probe) = (Instant::now(), Command::allow(&key, &Demand::nothing()));
        match timeout(PROBING.max(health.timeout()), connection.send(&probe)).await {
            Ok(reply) => match failure(&reply, false) {
                None => health.measured(sent.elapsed()),
                // No request goes there that would find it out.
                Some(cause) => {
                    if reply.is_err() || is_read_only(&reply) {
                        connection.retire();
                    }
                    health.failed(&cause, &key);
                }
            },
            Err(_) => connection.retire(),
        }
    }
}
