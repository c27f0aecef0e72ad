//! Connections for commands that the server may answer late: one command at a time on each.

use std::sync::Arc;

use parking_lot::Mutex;

use super::connection::Connection;
use super::connector::Connector;
use crate::protocol::Command;
use crate::transport::{Failure, Purpose, Reply};

/// Connections on which commands wait, one each.
pub(super) struct Waiting {
    connector: Connector,
    idle: Mutex<Vec<Arc<Connection>>>,
}

impl Waiting {
    pub fn new(connector: &Connector) -> Self {
        Self { connector: connector.clone(), idle: Mutex::default() }
    }

    /// Sends a command over a connection of its own; the reply, and whether the script gave it, which does not wait.
    /// The connection is closed when this is dropped: the server then stops waiting.
    pub async fn send(&self, command: &Command) -> Result<(Reply, bool), Failure> {
        let connection = match self.idle() {
            Some(connection) => connection,
            None => self.connector.connect(Purpose::Waiting).await?,
        };
        self.connector.sent(1);
        let reply = connection.send(command).await?;
        let is_scripted = connection.is_scripted();
        self.idle.lock().push(connection);
        Ok((reply, is_scripted))
    }

    fn idle(&self) -> Option<Arc<Connection>> {
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop()).find(|connection| !connection.is_closed())
    }
}
