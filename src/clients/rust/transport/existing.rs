//! A connection that the application already has.

use std::fmt;

use redis::aio::ConnectionLike;

use super::redis::{send, send_all};
use super::{Connection, Events, Failure, Pending, Purpose, Reply, Transport, Words};
use crate::reason::Reason;

/// A transport over an asynchronous connection of the crate `redis`: multiplexed, managed, or to a cluster.
///
/// It carries requests only. There are no invalidations, so denials are remembered for at most
/// [`max_untracked_age`](crate::ClientBuilder::max_untracked_age); `acquire` waits in the process; and `leased`
/// limiters decide as `cached` ones, since nobody knows which server answers. The connection should repeat nothing by
/// itself: set its retries to 0.
pub struct ExistingConnection<C>(C);

impl<C> ExistingConnection<C> {
    /// Shares this connection with its owner.
    pub fn new(connection: C) -> Self {
        Self(connection)
    }
}

impl<C> fmt::Debug for ExistingConnection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExistingConnection").finish_non_exhaustive()
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Transport for ExistingConnection<C> {
    fn connect(&self, _: Option<&str>, purpose: Purpose, _: Events) -> Pending<Box<dyn Connection>> {
        let connection = ExistingConnection(self.0.clone());
        let is_offered = self.offers(purpose);
        Box::pin(async move {
            match is_offered {
                true => Ok(Box::new(connection) as Box<dyn Connection>),
                false => Err(Failure::Connection(Reason::Other.because("this connection is for requests only"))),
            }
        })
    }

    fn seeds(&self) -> Vec<String> {
        Vec::new()
    }

    fn address(&self) -> String {
        "a connection of the application's".into()
    }

    fn offers(&self, purpose: Purpose) -> bool {
        purpose == Purpose::Requests
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for ExistingConnection<C> {
    fn send(&self, command: &dyn Words) -> Pending<Reply> {
        send(self.0.clone(), command)
    }

    fn send_all(&self, commands: &[&dyn Words]) -> Pending<Reply> {
        send_all(self.0.clone(), commands)
    }
}
