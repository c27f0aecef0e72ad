//! Connections for commands that the server may answer late: one command at a time on each.

use std::sync::Arc;

use parking_lot::Mutex;

use super::line::Line;
use super::node::Node;
use crate::protocol::Command;
use crate::transport::{Failure, Purpose, Reply};

/// The idle ones.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Vec<Arc<Line>>>);

impl Waiting {
    /// Sends a command over a connection of its own. The connection is closed when this is dropped: the server then
    /// stops waiting.
    pub async fn ask(node: &Arc<Node>, command: &Command) -> Result<Reply, Failure> {
        let line = match node.waiting.idle() {
            Some(line) => line,
            None => node.connected(Purpose::Waiting).await?,
        };
        node.sent(1);
        let reply = line.send(command).await;
        if reply.is_ok() {
            node.waiting.0.lock().push(line);
        }
        reply
    }

    fn idle(&self) -> Option<Arc<Line>> {
        let mut idle = self.0.lock();
        std::iter::from_fn(|| idle.pop()).find(|line| !line.is_closed())
    }
}
