//! Connections to servers, and what travels over them: words there, replies back. The rest of the client needs no Redis
//! library but a [`Transport`]; `redis` implements it with the crate `redis`.

mod certificates;
mod existing;
mod redis;
mod sentinel;
mod url;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Cause;

pub use existing::ExistingConnection;
pub(crate) use redis::Servers;
pub use url::ConnectionOptions;

/// A reply that will come. Dropping it may drop the reply, but the server still executes what was sent.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Makes connections to one server, to the primary that sentinels name, or to the nodes of a cluster.
pub trait Transport: Send + Sync + 'static {
    /// Connects. `node` is the address of a cluster's node; without it, the transport finds the primary itself, again
    /// for each connection. `events` hears what the connection tells unasked.
    ///
    /// Dropping the future ends the attempt.
    fn connect(&self, node: Option<&str>, purpose: Purpose, events: Events) -> Pending<Box<dyn Connection>>;

    /// Some nodes of a cluster, by address. Empty where there is no cluster.
    fn seeds(&self) -> Vec<String>;

    /// Whether connections can be made to other addresses that the server names, when it turns out to be part of a
    /// cluster.
    fn follows(&self) -> bool {
        false
    }

    /// The server's address for logs, without its password.
    fn address(&self) -> String;

    /// Whether connections can be made for this purpose.
    fn offers(&self, purpose: Purpose) -> bool;
}

/// A connection. Dropping it closes it, once nothing that was sent over it is waited for any more.
pub trait Connection: Send + Sync + 'static {
    /// Sends a command. The first poll queues it, whole; the replies come in the order of the commands.
    fn send(&self, command: &dyn Words) -> Pending<Reply>;

    /// Sends several commands in one go, in their order. The reply is an array with one reply for each.
    fn send_all(&self, commands: &[&dyn Words]) -> Pending<Reply>;

    /// The server's address, where the transport has found it itself.
    fn address(&self) -> Option<String> {
        None
    }
}

/// A command as it is written to a socket.
pub trait Words {
    /// Hands over each of its words, the name first.
    fn each(&self, word: &mut dyn FnMut(&[u8]));
}

impl<const N: usize> Words for [&str; N] {
    fn each(&self, word: &mut dyn FnMut(&[u8])) {
        self.iter().for_each(|one| word(one.as_bytes()));
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// Commands that the server answers at once. Many requests share the connection.
    Requests,
    /// Reads after which the server tells, once, that the key has changed (client tracking).
    Tracking,
    /// Commands that the server may answer late, one at a time.
    Waiting,
}

/// What a connection tells unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A tracked key has changed.
    Changed(Vec<u8>),
    /// Any tracked key may have changed.
    AllChanged,
    /// The connection is closed.
    Closed,
}

/// Hears the events of a connection.
pub type Events = Arc<dyn Fn(Event) + Send + Sync>;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The server was not reached, or the connection broke. What was sent may have been executed.
    #[error("{0}")]
    Connection(Cause),
    /// The server refused the connection: its error, which begins with a code.
    #[error("{0}")]
    Refused(String),
}

impl From<Failure> for Cause {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connection(cause) => cause,
            Failure::Refused(text) => Self::said(text),
        }
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// Null.
    Nil,
    /// A number.
    Integer(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// Several replies; of a map, names and values in turn.
    Array(Vec<Reply>),
    /// An error, which begins with a code.
    Error(String),
}

/// In one line, for errors about replies that are not understood.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Array(replies) => write!(f, "[{}]", joined(replies)),
            Self::Error(text) => write!(f, "(error) {}", text.escape_debug()),
        }
    }
}

/// Replies with commas between them.
pub(crate) fn joined(replies: &[Reply]) -> String {
    replies.iter().map(Reply::to_string).collect::<Vec<_>>().join(", ")
}

/// Numbers of `tests/conformance/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] = &[("sentinel_interval", sentinel::INTERVAL.as_millis() as u64)];
