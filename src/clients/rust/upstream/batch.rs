//! Commands that go out together.

use super::connection::Connection;
use crate::protocol::Command;
use crate::transport::{Failure, Pending, Reply};

/// One command, or several that go out together to one node.
#[derive(Clone, Debug)]
pub(crate) enum Batch {
    One(Command),
    Several(Vec<Command>),
}

impl Batch {
    /// The key by which a cluster finds the node: that of the last command.
    pub fn key(&self) -> &[u8] {
        self.commands().last().and_then(Command::key).unwrap_or_default()
    }

    pub fn commands(&self) -> &[Command] {
        match self {
            Self::One(command) => std::slice::from_ref(command),
            Self::Several(commands) => commands,
        }
    }

    pub fn len(&self) -> usize {
        self.commands().len()
    }

    /// Whether what is granted stays when the caller is gone: that is often a proxy that lets its request pass.
    pub fn is_left_to_its_caller(&self) -> bool {
        matches!(self, Self::One(Command::Allow { .. } | Command::Mallow { .. }))
    }

    /// Units that the replies granted.
    pub fn granted(&self, reply: &Result<Reply, Failure>) -> u64 {
        self.answered(reply).map(|(command, reply)| command.granted(reply)).sum()
    }

    /// Whether a reply granted anything, holds among it.
    pub fn has_granted(&self, reply: &Result<Reply, Failure>) -> bool {
        self.answered(reply).any(|(command, reply)| match command {
            Command::Hold { .. } => reply.hold().is_ok_and(|held| held.granted > 0),
            Command::Admit { .. } => reply.clauses().is_ok_and(|(granted, _)| granted),
            _ => command.granted(reply) > 0,
        })
    }

    fn answered<'a>(&'a self, reply: &'a Result<Reply, Failure>) -> impl Iterator<Item = (&'a Command, &'a Reply)> {
        let replies = match reply {
            Ok(Reply::Array(replies)) if matches!(self, Self::Several(_)) => replies.as_slice(),
            Ok(reply) => std::slice::from_ref(reply),
            Err(_) => &[],
        };
        self.commands().iter().zip(replies)
    }

    pub(super) fn send(&self, connection: &Connection) -> Pending<Reply> {
        match self {
            Self::One(command) => connection.send(command),
            Self::Several(commands) => connection.send_all(commands),
        }
    }
}
