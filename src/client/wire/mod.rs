//! The line to the server: what is sent, what comes back, and nothing of what it means.
//!
//! All that the client wants of a Redis library is the trait [`Wire`]. `servers` is it, upon the crate `redis`.

mod address;
mod given;
mod kept;
mod servers;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use given::Given;
pub(crate) use servers::Servers;

/// What comes back, sometime.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// A line to a server, or to a cluster of them. Dropping an answer gives it up.
pub trait Wire: Send + Sync + 'static {
    /// Send one command over a connection that many share.
    fn send(&self, command: Command) -> Answer<'_, Reply>;

    /// Send several commands in one go; each has an answer of its own.
    fn send_all(&self, commands: Vec<Command>) -> Answer<'_, Vec<Result<Reply, Failure>>>;

    /// Send a command over a connection that nobody else uses meanwhile, because the server may be long in answering. A
    /// line that has none to spare returns `None`.
    fn send_alone(&self, command: Command) -> Option<Answer<'_, Reply>>;

    /// Send a command that only reads, over a connection on which the server then tells, once, that the key was
    /// changed. A line on which nothing is told returns `None`.
    fn send_tracked(&self, command: Command) -> Option<Answer<'_, Reply>>;

    /// Whom to tell of changed keys; said once, before anything is sent.
    fn tell(&self, listener: Arc<dyn Listener>);

    /// Give up connections that have gone silent; those needed are made anew.
    fn renew(&self);
}

/// Who is told of changed keys.
pub trait Listener: Send + Sync {
    /// This key was changed.
    fn changed(&self, key: &[u8]);

    /// Any key may have been changed: all were, or a connection was lost.
    fn all_changed(&self);
}

/// Why there is no reply, or that it was an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server was not reached, or did not answer.
    Connection(String),
    /// The server's error, which begins with a code.
    Reply(String),
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A number.
    Integer(i64),
    /// Any bytes.
    Bytes(Vec<u8>),
    /// Several replies; of a map, names and values in turn.
    Array(Vec<Reply>),
}

/// A command, word by word. The words are kept in one place, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    words: Vec<u8>,
    ends: Vec<usize>,
    key: usize,
}

impl Command {
    /// A command upon one key, which is its first word.
    pub fn on(name: &str, key: &[u8]) -> Self {
        Self::named(name, 1).word(key)
    }

    /// A command whose key, by which a cluster finds the node, is this word; the name is word 0.
    pub fn named(name: &str, key: usize) -> Self {
        let command = Self { words: Vec::with_capacity(128), ends: Vec::with_capacity(12), key };
        command.word(name.as_bytes())
    }

    /// One more word.
    #[must_use]
    pub fn word(mut self, word: &[u8]) -> Self {
        self.words.extend_from_slice(word);
        self.ends.push(self.words.len());
        self
    }

    /// One more number.
    #[must_use]
    pub fn number(self, number: u64) -> Self {
        self.written(format_args!("{number}"))
    }

    /// One more duration, in ms.
    #[must_use]
    pub fn ms(self, ms: u64) -> Self {
        self.written(format_args!("{ms}ms"))
    }

    fn written(mut self, word: std::fmt::Arguments<'_>) -> Self {
        use std::io::Write;
        // Writing to memory does not fail.
        let _ = self.words.write_fmt(word);
        self.ends.push(self.words.len());
        self
    }

    /// The words, the name first.
    pub fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().scan(0, |start, &end| self.words.get(std::mem::replace(start, end)..end))
    }

    /// The key by which a cluster finds the node, if there is one.
    pub fn key(&self) -> Option<&[u8]> {
        let start = *self.ends.get(self.key.checked_sub(1)?)?;
        self.words.get(start..*self.ends.get(self.key)?)
    }

    /// How many words there are, and their bytes together.
    pub fn size(&self) -> (usize, usize) {
        (self.ends.len(), self.words.len())
    }
}
