//! The connection on which a server announces changed keys. Its health is its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout, Duration, Instant};

use super::connection::Connection;
use super::connector::Connector;
use super::health::is_failure;
use super::rights::Right;
use crate::protocol::Command;
use crate::reason::Reason;
use crate::transport::{Event, Failure, Purpose, Reply};

/// A tracking connection that was silent for so long gets a PING.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// How long connecting and answering may take. No request waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Tracking {
    connector: Connector,
    connection: Mutex<Option<Arc<Connection>>>,
    connecting: tokio::sync::Mutex<()>,
    /// The server, or a proxy before it, has no tracking, or not for this user.
    is_refused: AtomicBool,
}

impl Tracking {
    pub fn new(connector: &Connector) -> Arc<Self> {
        let (connection, connecting, is_refused) =
            (Mutex::default(), tokio::sync::Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { connector: connector.clone(), connection, connecting, is_refused })
    }

    /// Whether the server can announce changed keys.
    pub fn is_offered(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed) && self.connector.context.transport.offers(Purpose::Tracking)
    }

    /// Forgets the connection, and with it all that was known.
    pub fn renew(&self) {
        if let Some(connection) = self.connection.lock().take() {
            connection.retire();
            (self.connector.context.changes)(Event::AllChanged);
        }
        self.is_refused.store(false, Ordering::Relaxed);
    }

    /// Sends reads whose keys are tracked from then on.
    pub async fn read(self: &Arc<Self>, commands: &[Command]) -> Result<Reply, Failure> {
        let late = |_| Failure::Connection(Reason::NoAnswer.because("the tracking connection is late"));
        let connection = timeout(PATIENCE, self.connection()).await.map_err(late)??;
        self.connector.sent(commands.len());
        let reply = timeout(PATIENCE, connection.send_all(commands)).await.map_err(late).and_then(|reply| reply);
        connection.heard(0, Instant::now());
        if reply.is_err() {
            self.lost(&connection);
        }
        reply
    }

    async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let rights = &self.connector.context.rights;
        match self.connector.connect(Purpose::Tracking).await {
            Ok(connection) => {
                rights.is_there(Right::Tracking);
                *self.connection.lock() = Some(Arc::clone(&connection));
                tokio::spawn(watch(Arc::downgrade(self), Arc::clone(&connection)));
                Ok(connection)
            }
            Err(failure) => {
                if let Failure::Refused(text) = &failure {
                    if !is_failure(text) {
                        self.is_refused.store(true, Ordering::Relaxed);
                        rights.is_missing(Right::Tracking, text);
                    }
                }
                Err(failure)
            }
        }
    }

    fn current(&self) -> Option<Arc<Connection>> {
        self.connection.lock().as_ref().filter(|connection| !connection.is_closed()).map(Arc::clone)
    }

    /// This connection announces nothing any more.
    fn lost(&self, connection: &Arc<Connection>) {
        connection.retire();
        self.connection.lock().take_if(|current| Arc::ptr_eq(current, connection));
        (self.connector.context.changes)(Event::AllChanged);
    }
}

/// Pings a tracking connection that has gone silent: while everything is denied locally, no request would notice that
/// it is half open.
async fn watch(tracking: Weak<Tracking>, connection: Arc<Connection>) {
    loop {
        sleep(SILENCE).await;
        let Some(tracking) = tracking.upgrade() else { return };
        if connection.is_closed() {
            return;
        }
        let patience = tracking.connector.context.timeout.max(Duration::from_millis(1));
        if !matches!(timeout(patience, connection.send(&Command::server(&["PING"]))).await, Ok(Ok(_))) {
            tracking.lost(&connection);
            return;
        }
    }
}
