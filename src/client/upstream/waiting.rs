//! Connections for commands that the server may answer late: one command at a time on each.

use std::sync::Arc;

use parking_lot::Mutex;

use super::connector::Connector;
use super::line::Line;
use crate::protocol::Command;
use crate::transport::{Failure, Purpose, Reply};

/// Connections on which commands wait, one each.
pub(super) struct Waiting {
    connector: Connector,
    idle: Mutex<Vec<Arc<Line>>>,
}

impl Waiting {
    pub fn new(connector: &Connector) -> Self {
        Self { connector: connector.clone(), idle: Mutex::default() }
    }

    /// Sends a command over a connection of its own. The connection is closed when this is dropped: the server then
    /// stops waiting.
    pub async fn send(&self, command: &Command) -> Result<Reply, Failure> {
        let line = match self.idle() {
            Some(line) => line,
            None => self.connector.connect(Purpose::Waiting).await?,
        };
        self.connector.sent(1);
        let reply = line.send(command).await;
        if reply.is_ok() {
            self.idle.lock().push(line);
        }
        reply
    }

    fn idle(&self) -> Option<Arc<Line>> {
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop()).find(|line| !line.is_closed())
    }
}
