//! Makes connections to one server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::connection::Connection;
use super::rights::Rights;
use crate::protocol::Encoding;
use crate::statistics::{Count, Counters};
use crate::transport::{Event, Events, Failure, Pending, Purpose};

/// What all servers of a client share.
pub(super) struct Context {
    pub transport: Encoding,
    pub timeout: Duration,
    pub counters: Arc<Counters>,
    /// Gets the events about changed keys.
    pub changes: Events,
    /// A node of the cluster failed, or slots have moved.
    pub slots_are_stale: AtomicBool,
    pub rights: Rights,
    /// Wakes all that wait for a server whose breaker has closed.
    pub is_back: Notify,
}

/// Makes connections to one server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connector {
    /// `None` of the only one, which the transport finds itself.
    pub address: Option<Arc<str>>,
    pub context: Arc<Context>,
}

impl Connector {
    /// A new connection. Its events are heard as the purpose needs it.
    pub fn connect(&self, purpose: Purpose) -> Pending<Arc<Connection>> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let (closed, context) = (Arc::clone(&is_closed), Arc::downgrade(&self.context));
        let events = Arc::new(move |event: Event| {
            if event == Event::Closed {
                closed.store(true, Ordering::Release);
            }
            if purpose == Purpose::Tracking {
                if let Some(context) = context.upgrade() {
                    (context.changes)(event);
                }
            }
        });
        let connecting = self.context.transport.connect(self.address.as_deref(), purpose, events);
        Box::pin(async move { Ok::<_, Failure>(Arc::new(Connection::new(connecting.await?, is_closed))) })
    }

    /// Counts commands that are sent.
    pub fn sent(&self, commands: usize) {
        self.context.counters.count(Count::Commands, commands as u64);
    }

    /// The server's address for logs.
    pub fn name(&self) -> String {
        self.address.as_ref().map_or_else(|| self.context.transport.address(), |address| address.to_string())
    }
}
