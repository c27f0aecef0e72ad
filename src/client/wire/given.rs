//! A connection that somebody else made: it sends commands, and that is all it is good for.

use std::sync::Arc;

use redis::aio::ConnectionLike;

use super::{Answer, Command, Failure, Listener, Reply, Wire};

/// A line over an asynchronous connection of the crate `redis`: multiplexed, managed, or to a cluster.
///
/// Nothing can be heard over it of keys that were changed, and nobody can wait over it without stalling the others. So
/// denials are remembered for a short time only, and whoever waits for units asks again instead.
pub struct Given<C>(C);

impl<C> Given<C> {
    /// A line over this connection, which its owner goes on using.
    pub fn new(connection: C) -> Self {
        Self(connection)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Wire for Given<C> {
    fn send(&self, command: Command) -> Answer<'_, Reply> {
        let mut connection = self.0.clone();
        Box::pin(async move { Reply::of(connection.req_packed_command(&redis::Cmd::from(&command)).await?) })
    }

    fn send_all(&self, commands: Vec<Command>) -> Answer<'_, Vec<Result<Reply, Failure>>> {
        let mut connection = self.0.clone();
        Box::pin(async move { send_all(&mut connection, &commands).await })
    }

    fn send_alone(&self, _: Command) -> Option<Answer<'_, Reply>> {
        None
    }

    fn send_tracked(&self, _: Command) -> Option<Answer<'_, Reply>> {
        None
    }

    fn tell(&self, _: Arc<dyn Listener>) {}

    fn renew(&self) {}
}

/// Send several commands in one go over any connection.
pub(super) async fn send_all<C: ConnectionLike + Send>(
    connection: &mut C,
    commands: &[Command],
) -> Result<Vec<Result<Reply, Failure>>, Failure> {
    let mut pipeline = redis::Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(redis::Cmd::from(command));
    }
    // What `Pipeline` offers itself stops at the first error.
    let replies = connection.req_packed_commands(&pipeline, 0, commands.len()).await?;
    Ok(replies.into_iter().map(Reply::of).collect())
}

impl From<&Command> for redis::Cmd {
    fn from(command: &Command) -> Self {
        let (words, bytes) = command.size();
        let mut packed = redis::Cmd::with_capacity(words, bytes);
        for word in command.words() {
            packed.arg(word);
        }
        packed
    }
}

impl Reply {
    /// # Errors
    /// The server's error, where that is what came.
    pub(super) fn of(value: redis::Value) -> Result<Self, Failure> {
        use redis::Value;
        let all = |values: Vec<Value>| values.into_iter().map(Self::of).collect::<Result<Vec<_>, _>>().map(Self::Array);
        match value {
            Value::Nil => Ok(Self::Nil),
            Value::Int(number) => Ok(Self::Integer(number)),
            Value::Boolean(is) => Ok(Self::Integer(is.into())),
            Value::BulkString(bytes) => Ok(Self::Bytes(bytes)),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(Self::Bytes(text.into_bytes())),
            Value::Okay => Ok(Self::Bytes(b"OK".to_vec())),
            Value::Array(values) | Value::Set(values) => all(values),
            Value::Map(pairs) => all(pairs.into_iter().flat_map(|(name, value)| [name, value]).collect()),
            Value::Attribute { data, .. } => Self::of(*data),
            Value::Double(number) => Ok(Self::Bytes(number.to_string().into_bytes())),
            Value::ServerError(error) => Err(redis::RedisError::from(error).into()),
            other => Err(Failure::Connection(format!("unexpected {other:?}"))),
        }
    }
}
