//! Connections of the crate `redis`.

use std::sync::Arc;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind, Value,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::unconstrained;
use tokio::time::{timeout, Duration};

use super::certificates;
use super::sentinel::{Sentinels, Tenure};
use super::url::{at, Target};
use super::{Connection, ConnectionOptions, Event, Events, Failure, Pending, Purpose, Reply, Transport, Words};
use crate::error::Cause;
use crate::mode::Cluster;
use crate::reason::Reason;

/// Commands that a connection queues, at least as many as may be unanswered: a command that was polled once is queued.
const QUEUE: usize = 4096;
/// How long a server may take to say why it closes connections.
const FAREWELL: Duration = Duration::from_millis(100);

/// The servers that a URL names.
pub(crate) struct Servers {
    place: Arc<Target>,
    cluster: Cluster,
}

impl Servers {
    /// # Errors
    /// A text that says what is wrong with the URL or the certificates.
    pub fn at(url: &str, options: &ConnectionOptions, cluster: Cluster) -> Result<Self, String> {
        let place = match (Target::parse(url, options)?, cluster) {
            (Target::Server(info), Cluster::On) => Target::Cluster(vec![info]),
            (Target::Cluster(_), Cluster::Off) => return Err("a cluster's URL needs a client that follows it".into()),
            (place, _) => place,
        };
        Ok(Self { place: Arc::new(place), cluster })
    }
}

impl Transport for Servers {
    fn connect(&self, node: Option<&str>, purpose: Purpose, events: Events) -> Pending<Box<dyn Connection>> {
        let (place, node) = (Arc::clone(&self.place), node.map(str::to_owned));
        Box::pin(async move {
            let info = match (&*place, &node) {
                (Target::Cluster(seeds), Some(node)) => at(&seeds[0], node)?,
                (Target::Cluster(seeds), None) => seeds[0].clone(),
                (Target::Server(info), Some(node)) => at(info, node)?,
                (Target::Server(info), None) => info.clone(),
                (Target::Sentinels(sentinels), _) => return primary(sentinels, purpose, events).await,
            };
            Ok(Box::new(connected(info, purpose, events).await?) as Box<dyn Connection>)
        })
    }

    fn seeds(&self) -> Vec<String> {
        match &*self.place {
            Target::Cluster(seeds) => seeds.iter().map(|seed| seed.addr().to_string()).collect(),
            _ => Vec::new(),
        }
    }

    fn address(&self) -> String {
        match &*self.place {
            Target::Server(info) => info.addr().to_string(),
            Target::Sentinels(sentinels) => sentinels.to_string(),
            Target::Cluster(seeds) => seeds.iter().map(|seed| seed.addr().to_string()).collect::<Vec<_>>().join(","),
        }
    }

    fn offers(&self, _: Purpose) -> bool {
        true
    }

    fn follows(&self) -> bool {
        let is_network =
            matches!(&*self.place, Target::Server(info) if !matches!(info.addr(), ConnectionAddr::Unix(_)));
        is_network && self.cluster == Cluster::Auto
    }
}

/// How long a primary may take before the sentinels are asked whether there is another one.
const UNREACHED: Duration = Duration::from_millis(300);

/// A connection to the primary that the sentinels name. Where that is not reached, or is no primary, the sentinels may
/// have begun again.
async fn primary(sentinels: &Sentinels, purpose: Purpose, events: Events) -> Result<Box<dyn Connection>, Failure> {
    let (info, tenure) = sentinels.primary().await?;
    let mut connecting = Box::pin(in_office(info, purpose, Arc::clone(&events)));
    let made = match timeout(UNREACHED, &mut connecting).await {
        Ok(Ok(connection)) => return Ok(OfPrimary::boxed(connection, tenure, events)),
        made => made,
    };
    if let Some((info, other)) = sentinels.elected(&tenure).await {
        if let Ok(connection) = in_office(info, purpose, Arc::clone(&events)).await {
            other.begin();
            return Ok(OfPrimary::boxed(connection, other, events));
        }
    }
    let connection = match made {
        Ok(made) => made?,
        Err(_) => connecting.await?,
    };
    Ok(OfPrimary::boxed(connection, tenure, events))
}

/// A connection to a primary. A sentinel may be behind: the server itself has to agree.
async fn in_office(info: ConnectionInfo, purpose: Purpose, events: Events) -> Result<Shared, Failure> {
    let connection = connected(info, purpose, events).await?;
    match connection.send(&["ROLE"]).await? {
        Reply::Array(fields) if fields.first() != Some(&Reply::Bytes(b"master".to_vec())) => {
            Err(Failure::Connection(Reason::Other.because("the sentinels name a server that is not the primary")))
        }
        // A user may lack the right to ask.
        _ => Ok(connection),
    }
}

/// A connection to a server while it is the primary. Then it is given up at once, with what is unanswered on it: the
/// server may go on granting what nobody will ever count.
struct OfPrimary {
    connection: Shared,
    tenure: Tenure,
    _in_use: oneshot::Sender<()>,
}

impl OfPrimary {
    fn boxed(connection: Shared, tenure: Tenure, events: Events) -> Box<dyn Connection> {
        let (in_use, dropped) = oneshot::channel::<()>();
        let watched = tenure.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = watched.ended() => events(Event::Closed),
                _ = dropped => {}
            }
        });
        Box::new(Self { connection, tenure, _in_use: in_use })
    }

    fn in_tenure(&self, reply: Pending<Reply>) -> Pending<Reply> {
        let ended = self.tenure.clone().ended();
        Box::pin(unconstrained(async move {
            tokio::select! {
                biased;
                reply = reply => reply,
                () = ended => Err(Failure::Connection(Reason::Disconnected.because("closed: another server is the primary now"))),
            }
        }))
    }
}

impl Connection for OfPrimary {
    fn send(&self, command: &dyn Words) -> Pending<Reply> {
        self.in_tenure(self.connection.send(command))
    }

    fn send_all(&self, commands: &[&dyn Words]) -> Pending<Reply> {
        self.in_tenure(self.connection.send_all(commands))
    }

    fn address(&self) -> Option<String> {
        Some(self.tenure.address())
    }
}

/// RESP3, which reports the end of a connection at once; RESP2 with servers and proxies that know nothing else.
async fn connected(info: ConnectionInfo, purpose: Purpose, events: Events) -> Result<Shared, Failure> {
    let speaking = |protocol| {
        let settings = info.redis_settings().clone().set_protocol(protocol);
        redis::Client::open(info.clone().set_redis_settings(settings))
    };
    let plain = AsyncConnectionConfig::new()
        // No timeouts here: the breaker and the requests have limits of their own.
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE);
    let ears = plain.clone().set_push_sender(move |push: PushInfo| {
        hear(&push, &events);
        Ok::<(), ()>(())
    });
    let made = speaking(ProtocolVersion::RESP3)?.get_multiplexed_async_connection_with_config(&ears).await;
    let connection = match made {
        Err(error) if knows_no_resp3(&error) && purpose != Purpose::Tracking => {
            speaking(ProtocolVersion::RESP2)?.get_multiplexed_async_connection_with_config(&plain).await?
        }
        Err(error) if knows_no_resp3(&error) => return Err(Failure::Refused(format!("ERR {error}"))),
        Err(error) if error.is_connection_dropped() => return Err(farewell(&info).await.unwrap_or(error.into())),
        made => made?,
    };
    let shared = Shared(connection);
    if purpose == Purpose::Tracking {
        // Not NOLOOP: a key that has expired is deleted by the read that finds it so, and that must be announced, too.
        if let Reply::Error(text) = shared.send(&["CLIENT", "TRACKING", "ON"]).await? {
            return Err(Failure::Refused(text));
        }
    }
    Ok(shared)
}

/// What a server says that closes each connection at once, such as one with too many clients. It reads nothing: who
/// writes to it finds the connection broken, and its words are lost. So this only reads.
async fn farewell(info: &ConnectionInfo) -> Option<Failure> {
    let ConnectionAddr::Tcp(host, port) = info.addr() else { return None };
    let mut said = [0; 100];
    let reading = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.read(&mut said).await
    };
    let read = timeout(FAREWELL, reading).await.ok()?.ok()?;
    let text = std::str::from_utf8(&said[..read]).ok()?.strip_prefix('-')?.lines().next()?;
    Some(Failure::Refused(text.to_owned()))
}

/// Whether the server, or what is before it, did not understand HELLO.
fn knows_no_resp3(error: &redis::RedisError) -> bool {
    let is_refused =
        |text: String| text.starts_with("NOPROTO") || text.to_ascii_lowercase().contains("unknown command");
    error.kind() == ErrorKind::RESP3NotSupported || server_error(error).is_some_and(is_refused)
}

fn hear(push: &PushInfo, events: &Events) {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Invalidate, [Value::Array(keys)]) => {
            for key in keys {
                if let Value::BulkString(key) = key {
                    events(Event::Changed(key.clone()));
                }
            }
        }
        (PushKind::Invalidate, _) => events(Event::AllChanged),
        (PushKind::Disconnection, _) => events(Event::Closed),
        _ => {}
    }
}

struct Shared(MultiplexedConnection);

impl Connection for Shared {
    fn send(&self, command: &dyn Words) -> Pending<Reply> {
        send(self.0.clone(), command)
    }

    fn send_all(&self, commands: &[&dyn Words]) -> Pending<Reply> {
        send_all(self.0.clone(), commands)
    }
}

/// Sends a command over any connection of the crate. Tokio's budget must not delay the first poll: it queues.
pub(super) fn send<C: ConnectionLike + Send + 'static>(mut connection: C, command: &dyn Words) -> Pending<Reply> {
    let command = packed(command);
    Box::pin(unconstrained(async move {
        match connection.req_packed_command(&command).await {
            Ok(value) => Reply::of(value),
            Err(error) => Reply::of_error(error),
        }
    }))
}

pub(super) fn send_all<C: ConnectionLike + Send + 'static>(
    mut connection: C,
    commands: &[&dyn Words],
) -> Pending<Reply> {
    let count = commands.len();
    let mut pipeline = redis::Pipeline::with_capacity(count);
    for command in commands {
        pipeline.add_command(packed(*command));
    }
    Box::pin(unconstrained(async move {
        // What `Pipeline` offers itself stops at the first error.
        let replies = connection.req_packed_commands(&pipeline, 0, count).await?;
        replies.into_iter().map(Reply::of).collect::<Result<_, _>>().map(Reply::Array)
    }))
}

/// With room for the words of most commands, and their bytes together.
fn packed(command: &dyn Words) -> redis::Cmd {
    let mut packed = redis::Cmd::with_capacity(12, 128);
    command.each(&mut |word| {
        packed.arg(word);
    });
    packed
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Self {
        match server_error(&error) {
            Some(text) => Self::Refused(text),
            None if error.kind() == ErrorKind::Parse => {
                Self::Connection(Reason::BadReply.because("the reply is not Redis's protocol"))
            }
            None => {
                let reason = reason(&error);
                Self::Connection(Cause::new(reason, certificates::explained(&error.to_string()), error))
            }
        }
    }
}

/// As the library keeps the errors below it.
type Shareable = Arc<dyn std::error::Error + Send + Sync>;

/// What a failure of the library comes to, by its kind and that of the system's error.
fn reason(error: &redis::RedisError) -> Reason {
    use std::io::ErrorKind as Io;
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Shareable>());
    let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    match io.map(std::io::Error::kind) {
        Some(Io::ConnectionRefused | Io::NotFound | Io::HostUnreachable | Io::NetworkUnreachable) => Reason::Refused,
        Some(Io::TimedOut) => Reason::NoAnswer,
        Some(Io::InvalidData) => Reason::Certificate,
        Some(Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::UnexpectedEof) => Reason::Disconnected,
        _ if error.kind() == ErrorKind::AuthenticationFailed => Reason::Auth,
        _ if error.is_timeout() => Reason::NoAnswer,
        // What the resolver says has no kind of its own.
        Some(_) if io.is_some_and(|io| io.raw_os_error().is_none()) => Reason::Unresolved,
        _ if error.is_connection_dropped() || error.is_io_error() => Reason::Disconnected,
        _ => Reason::Other,
    }
}

/// The server's own words, where they are the error.
fn server_error(error: &redis::RedisError) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed) {
        return None;
    }
    let first = error.clone().into_server_errors().and_then(|all| all.first().cloned());
    let of_several = first.map(|(_, first)| redis::RedisError::from(first));
    let error = of_several.as_ref().unwrap_or(error);
    Some(match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()).trim_end().to_owned(),
        None => error.detail().map_or_else(|| error.to_string(), str::to_owned),
    })
}

impl Reply {
    fn of(value: Value) -> Result<Self, Failure> {
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
            Value::ServerError(error) => Self::of_error(error.into()),
            _ => Err(Failure::Connection(Reason::BadReply.because("the server sent a reply of another kind"))),
        }
    }

    fn of_error(error: redis::RedisError) -> Result<Self, Failure> {
        match server_error(&error) {
            Some(text) => Ok(Self::Error(text)),
            None => Err(Failure::Connection(Cause::new(reason(&error), error.to_string(), error))),
        }
    }
}
