//! One server: its health, and the connections to it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::breaker::pauses;
use super::connector::{Connector, Context};
use super::health::{failure, redirection};
use super::line::Line;
use super::node_health::{NodeHealth, CONNECTING, PROBING};
use super::tracking::Tracking;
use super::waiting::Waiting;
use crate::demand::Demand;
use crate::error::{Cause, Error};
use crate::protocol::Command;
use crate::reason::{is_unknown_command, Reason};
use crate::statistics::Count;
use crate::transport::{Pending, Purpose, Reply};

/// One server: the only one, or a primary of a cluster.
pub(crate) struct Node {
    pub health: Arc<NodeHealth>,
    pub(super) connector: Connector,
    connecting: Mutex<Option<Attempt>>,
    pub(super) tracking: Arc<Tracking>,
    pub(super) waiting: Waiting,
}

type Attempt = watch::Receiver<Option<Result<Arc<Line>, Cause>>>;
type Connecting = Pending<Arc<Line>>;

impl Node {
    pub(super) fn new(address: Option<Arc<str>>, context: Arc<Context>) -> Arc<Self> {
        let connector = Connector { address, context };
        Arc::new_cyclic(|node: &Weak<Self>| {
            let node = node.clone();
            Self {
                health: Arc::new(NodeHealth::new(&connector, move || drop(tokio::spawn(probe(node.clone(), None))))),
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
    pub async fn line(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Line>, Error> {
        if self.health.is_unavailable() {
            return Err(Error::Unavailable(self.health.breaker.cause()));
        }
        self.any_line(key).await
    }

    /// The same, whatever the breaker says.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the attempt fails.
    pub async fn any_line(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Line>, Error> {
        if let Some(line) = self.health.current() {
            return Ok(line);
        }
        let mut attempt = self.attempt(key);
        let made = attempt.wait_for(Option::is_some).await;
        match made.as_deref() {
            Ok(Some(Ok(line))) => Ok(Arc::clone(line)),
            Ok(Some(Err(reason))) => Err(Error::Unavailable(reason.clone())),
            _ => Err(Error::Unavailable(Reason::Disconnected.because("the connection was not made"))),
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
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let mut connecting = node.connector.connect(Purpose::Requests);
            let made = match timeout(CONNECTING, &mut connecting).await {
                Ok(made) => made.map_err(Cause::from),
                Err(_) => {
                    let cause = Reason::NoAnswer.because("no connection within a second");
                    if node.health.opens(&cause) {
                        tokio::spawn(probe(Arc::downgrade(&node), Some(connecting)));
                    }
                    Err(cause)
                }
            };
            match &made {
                Ok(line) => node.install(line),
                Err(cause) if !node.health.is_unavailable() => node.health.failure(cause),
                Err(_) => {}
            }
            *node.connecting.lock() = None;
            done.send_replace(Some(made));
        });
        attempt
    }

    /// Requests go over this connection from now on. With another server in its place, or after a gap, nothing that
    /// was known of changes holds.
    fn install(self: &Arc<Self>, line: &Arc<Line>) {
        let before = self.health.requests.write().replace(Arc::clone(line));
        if let Some(before) = before {
            self.tracking.renew();
            let (from, to) = (before.address(), line.address());
            if from != to {
                self.connector.context.counters.count(Count::Failovers, 1);
                tracing::warn!(from, to, "another server is the rate limit primary now");
            }
        }
        let (node, line) = (Arc::clone(self), Arc::clone(line));
        tokio::spawn(async move { node.health.identify(&line).await });
    }

    /// Sends what a server that refuses writes would refuse, and what is otherwise denied without a trace.
    async fn probe(&self, line: &Line) -> Result<(), Cause> {
        let key = self.health.failed_key();
        let mut reply = line.send(&Command::allow(&key, &Demand::nothing())).await;
        if line.is_scripted() && failure(&reply, false).is_none() {
            reply = line.send(&Command::empty_write(&key)).await;
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
async fn probe(node: Weak<Node>, mut connecting: Option<Connecting>) {
    let mut pauses = pauses();
    loop {
        if connecting.is_none() {
            sleep(pauses.next().unwrap_or(PROBING)).await;
        }
        let Some(node) = node.upgrade() else { return };
        let probing = async {
            let connecting = connecting.take().unwrap_or_else(|| node.connector.connect(Purpose::Requests));
            let line = connecting.await?;
            node.probe(&line).await.map(|()| line)
        };
        let (breaker, context) = (&node.health.breaker, &node.connector.context);
        match timeout(PROBING, probing).await {
            Ok(Ok(line)) => {
                node.install(&line);
                breaker.close();
                context.is_back.notify_waiters();
                tracing::info!(address = node.connector.name(), "the rate limit server is back");
                return;
            }
            Ok(Err(cause)) => drop(breaker.open(&cause)),
            Err(_) => drop(breaker.open(&Reason::NoAnswer.because("a probe was not answered"))),
        }
        // In a cluster, another node may have taken over.
        context.slots_are_stale.store(true, Ordering::Release);
    }
}
