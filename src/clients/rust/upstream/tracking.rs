//! The connection on which a server announces changed keys. Its health is its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout, Duration, Instant};

use super::connector::Connector;
use super::health::is_failure;
use super::line::Line;
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
    line: Mutex<Option<Arc<Line>>>,
    connecting: tokio::sync::Mutex<()>,
    /// The server, or a proxy before it, has no tracking, or not for this user.
    is_refused: AtomicBool,
}

impl Tracking {
    pub fn new(connector: &Connector) -> Arc<Self> {
        let (line, connecting, is_refused) = (Mutex::default(), tokio::sync::Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { connector: connector.clone(), line, connecting, is_refused })
    }

    /// Whether the server can announce changed keys.
    pub fn is_offered(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed) && self.connector.context.transport.offers(Purpose::Tracking)
    }

    /// Forgets the connection, and with it all that was known.
    pub fn renew(&self) {
        if let Some(line) = self.line.lock().take() {
            line.retire();
            (self.connector.context.changes)(Event::AllChanged);
        }
        self.is_refused.store(false, Ordering::Relaxed);
    }

    /// Sends reads whose keys are tracked from then on.
    pub async fn read(self: &Arc<Self>, commands: &[Command]) -> Result<Reply, Failure> {
        let late = |_| Failure::Connection(Reason::NoAnswer.because("the tracking connection is late"));
        let line = timeout(PATIENCE, self.line()).await.map_err(late)??;
        self.connector.sent(commands.len());
        let reply = timeout(PATIENCE, line.send_all(commands)).await.map_err(late).and_then(|reply| reply);
        line.heard(0, Instant::now());
        if reply.is_err() {
            self.lost(&line);
        }
        reply
    }

    async fn line(self: &Arc<Self>) -> Result<Arc<Line>, Failure> {
        if let Some(line) = self.current() {
            return Ok(line);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(line) = self.current() {
            return Ok(line);
        }
        let rights = &self.connector.context.rights;
        match self.connector.connect(Purpose::Tracking).await {
            Ok(line) => {
                rights.is_there(Right::Tracking);
                *self.line.lock() = Some(Arc::clone(&line));
                tokio::spawn(watch(Arc::downgrade(self), Arc::clone(&line)));
                Ok(line)
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

    fn current(&self) -> Option<Arc<Line>> {
        self.line.lock().as_ref().filter(|line| !line.is_closed()).map(Arc::clone)
    }

    /// This connection announces nothing any more.
    fn lost(&self, line: &Arc<Line>) {
        line.retire();
        self.line.lock().take_if(|current| Arc::ptr_eq(current, line));
        (self.connector.context.changes)(Event::AllChanged);
    }
}

/// Pings a tracking connection that has gone silent: while everything is denied locally, no request would notice that
/// it is half open.
async fn watch(tracking: Weak<Tracking>, line: Arc<Line>) {
    loop {
        sleep(SILENCE).await;
        let Some(tracking) = tracking.upgrade() else { return };
        if line.is_closed() {
            return;
        }
        let patience = tracking.connector.context.timeout.max(Duration::from_millis(1));
        if !matches!(timeout(patience, line.send(&Command::server(&["PING"]))).await, Ok(Ok(_))) {
            tracking.lost(&line);
            return;
        }
    }
}
