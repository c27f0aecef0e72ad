//! The connection on which a server tells of changed keys. Its health is its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout, Duration, Instant};

use super::health::is_failure;
use super::line::Line;
use super::node::Node;
use super::rights::Right;
use super::Context;
use crate::protocol::Command;
use crate::transport::{Event, Failure, Purpose, Reply};

/// A tracking connection that was silent for so long is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(1);
/// How long connecting and answering may take. No request waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Tracking {
    line: Mutex<Option<Arc<Line>>>,
    connecting: tokio::sync::Mutex<()>,
    /// The server, or a proxy before it, has no tracking, or not for this user.
    is_refused: AtomicBool,
}

impl Tracking {
    /// Whether changes of keys can be heard of.
    pub fn is_offered(&self, context: &Context) -> bool {
        !self.is_refused.load(Ordering::Relaxed) && context.transport.offers(Purpose::Tracking)
    }

    /// Forgets the connection, and with it whatever was known.
    pub fn renew(&self, context: &Context) {
        if let Some(line) = self.line.lock().take() {
            line.retire();
            (context.changes)(Event::AllChanged);
        }
        self.is_refused.store(false, Ordering::Relaxed);
    }

    /// Sends reads whose keys are tracked from then on.
    pub async fn read(node: &Arc<Node>, commands: &[Command]) -> Result<Reply, Failure> {
        let late = |_| Failure::Connection("the tracking connection is late".into());
        let line = timeout(PATIENCE, Self::line(node)).await.map_err(late)??;
        node.sent(commands.len());
        let reply = timeout(PATIENCE, line.send_all(commands)).await.map_err(late).and_then(|reply| reply);
        line.heard(0, Instant::now());
        if reply.is_err() {
            node.tracking.lost(&line, node.context());
        }
        reply
    }

    async fn line(node: &Arc<Node>) -> Result<Arc<Line>, Failure> {
        let tracking = &node.tracking;
        if let Some(line) = tracking.current() {
            return Ok(line);
        }
        let _connecting = tracking.connecting.lock().await;
        if let Some(line) = tracking.current() {
            return Ok(line);
        }
        match node.connected(Purpose::Tracking).await {
            Ok(line) => {
                node.context().rights.is_there(Right::Tracking);
                *tracking.line.lock() = Some(Arc::clone(&line));
                tokio::spawn(watch(Arc::downgrade(node), Arc::clone(&line)));
                Ok(line)
            }
            Err(failure) => {
                if let Failure::Refused(text) = &failure {
                    if !is_failure(text) {
                        tracking.is_refused.store(true, Ordering::Relaxed);
                        node.context().rights.is_missing(Right::Tracking, text);
                    }
                }
                Err(failure)
            }
        }
    }

    fn current(&self) -> Option<Arc<Line>> {
        self.line.lock().as_ref().filter(|line| !line.is_closed()).map(Arc::clone)
    }

    /// This connection tells nothing any more.
    fn lost(&self, line: &Arc<Line>, context: &Context) {
        line.retire();
        self.line.lock().take_if(|current| Arc::ptr_eq(current, line));
        (context.changes)(Event::AllChanged);
    }
}

/// Pings a tracking connection that has gone silent: while everything is denied locally, nobody else would notice that
/// it is half open.
async fn watch(node: Weak<Node>, line: Arc<Line>) {
    loop {
        sleep(SILENCE).await;
        let Some(node) = node.upgrade() else { return };
        if line.is_closed() {
            return;
        }
        if !matches!(
            timeout(node.timeout().max(Duration::from_millis(1)), line.send(&Command::server(&["PING"]))).await,
            Ok(Ok(_))
        ) {
            node.tracking.lost(&line, node.context());
            return;
        }
    }
}
