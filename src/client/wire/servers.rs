//! The line upon the crate `redis`: one server, the master that sentinels name, or a cluster.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind};

use super::address::Address;
use super::given::send_all;
use super::kept::Kept;
use super::{Answer, Command, Failure, Listener, Reply, Wire};

/// How long a connection may take to be made, and an idle one to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long nothing may be heard on a tracking connection before it is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(1);

/// Which node: of a cluster its address, elsewhere the only one.
type Node = Option<Arc<str>>;

type Nodes<C> = Mutex<HashMap<Node, C>>;

/// A line to servers.
pub(crate) struct Servers {
    ends: Arc<Ends>,
    shared: Shared,
    tracked: Nodes<Kept<Tracked>>,
    alone: Nodes<Vec<MultiplexedConnection>>,
}

/// Both ends of the line. What outlives the line, such as a connection that falls silent, holds them weakly.
struct Ends {
    place: Place,
    listener: OnceLock<Arc<dyn Listener>>,
    /// A server, or what is before it, has no tracking.
    untrackable: AtomicBool,
}

/// Where connections lead to.
enum Place {
    One(ConnectionInfo),
    Sentinel(tokio::sync::Mutex<SentinelClient>),
    Cluster { seed: ConnectionInfo, slots: RwLock<HashMap<Slot, Arc<str>>> },
}

/// The connection that all commands share but those that need another.
enum Shared {
    One(Kept<MultiplexedConnection>),
    Cluster(Kept<ClusterConnection>),
}

/// A connection that is told of changed keys.
#[derive(Clone)]
struct Tracked {
    connection: MultiplexedConnection,
    /// Whether anything was heard on it lately.
    heard: Arc<AtomicBool>,
    /// It did not answer when it was asked whether it is there. Nobody may have closed it.
    is_silent: Arc<AtomicBool>,
}

impl Servers {
    /// A line to where a URL says. Nothing is connected yet.
    ///
    /// # Errors
    /// A text that says what is wrong with the URL.
    pub fn at(url: &str) -> Result<Self, String> {
        let (place, cluster) = match Address::parse(url)? {
            Address::One(info) => (Place::One(info), None),
            Address::Sentinel(builder) => {
                let client = builder.build().map_err(|error| error.to_string())?;
                (Place::Sentinel(tokio::sync::Mutex::new(client)), None)
            }
            Address::Cluster(nodes) => {
                let seed = nodes.first().cloned().ok_or("a cluster has nodes")?;
                let client = ClusterClientBuilder::new(nodes)
                    .connection_timeout(PATIENCE)
                    .response_timeout(PATIENCE)
                    .retries(3)
                    .tcp_settings(seed.tcp_settings().clone())
                    .build()
                    .map_err(|error| error.to_string())?;
                (Place::Cluster { seed, slots: RwLock::default() }, Some(client))
            }
        };
        let ends = Arc::new(Ends { place, listener: OnceLock::new(), untrackable: AtomicBool::new(false) });
        let shared = match cluster {
            Some(client) => Shared::Cluster(Kept::new(move || {
                let client = client.clone();
                async move { Ok(client.get_async_connection().await?) }
            })),
            None => {
                let ends = Arc::clone(&ends);
                Shared::One(Kept::new(move || {
                    let ends = Arc::clone(&ends);
                    async move { ends.place.connect(&None, AsyncConnectionConfig::new(), false).await }
                }))
            }
        };
        Ok(Self { ends, shared, tracked: Mutex::default(), alone: Mutex::default() })
    }

    /// The node that has a command's key.
    async fn node(&self, command: &Command) -> Result<Node, Failure> {
        let Place::Cluster { slots, .. } = &self.ends.place else { return Ok(None) };
        let slot = Slot::for_key(command.key().unwrap_or_default());
        let find = || slots.read().get(&slot).map(Arc::clone);
        if find().is_none() {
            let map = self.slots().await?;
            *slots.write() = map;
        }
        find().map(Some).ok_or_else(|| Failure::Connection("the slot has no node".into()))
    }

    /// The address of the node that has each slot.
    async fn slots(&self) -> Result<HashMap<Slot, Arc<str>>, Failure> {
        let Place::Cluster { seed, .. } = &self.ends.place else { return Ok(HashMap::new()) };
        let unclear = || Failure::Connection("the map of slots is not understood".into());
        let number = |reply: &Reply| match reply {
            Reply::Integer(number) => u16::try_from(*number).map_err(|_| unclear()),
            _ => Err(unclear()),
        };
        let Reply::Array(ranges) = self.send(Command::named("CLUSTER", usize::MAX).word(b"SLOTS")).await? else {
            return Err(unclear());
        };
        let mut slots = HashMap::new();
        for range in &ranges {
            let Reply::Array(range) = range else { return Err(unclear()) };
            let [first, last, Reply::Array(primary), ..] = range.as_slice() else { return Err(unclear()) };
            let [host, port, ..] = primary.as_slice() else { return Err(unclear()) };
            let host = match host {
                Reply::Bytes(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
                // The node does not know its own name: it is where it was asked.
                _ => host_of(seed),
            };
            let node = Arc::from(format!("{host}:{}", number(port)?));
            let range = number(first)?..=number(last)?;
            slots.extend(range.filter_map(Slot::new).map(|slot| (slot, Arc::clone(&node))));
        }
        Ok(slots)
    }

    /// What a node answers to something that is asked of it alone; the node is looked up anew where a slot has moved.
    async fn ask_node<F>(&self, command: &Command, ask: impl Fn(Node) -> F) -> Result<Reply, Failure>
    where
        F: std::future::Future<Output = Result<Reply, Failure>>,
    {
        let asked = ask(self.node(command).await?).await;
        let Place::Cluster { slots, .. } = &self.ends.place else { return asked };
        match asked {
            Err(Failure::Reply(text)) if text.starts_with("MOVED ") => {
                slots.write().clear();
                ask(self.node(command).await?).await
            }
            Err(failure @ Failure::Connection(_)) => {
                slots.write().clear();
                Err(failure)
            }
            asked => asked,
        }
    }

    /// Ask over the tracking connection to a node.
    async fn ask_tracked(&self, node: Node, command: &Command) -> Result<Reply, Failure> {
        let tracked = self.tracked(node);
        let (mut name, mut found) = tracked.get().await?;
        if found.is_silent.load(Ordering::Relaxed) {
            tracked.give_up(name);
            (name, found) = tracked.get().await?;
        }
        let Tracked { mut connection, heard, .. } = found;
        let reply = connection.send_packed_command(&command.into()).await;
        heard.store(true, Ordering::Relaxed);
        if reply.as_ref().is_err_and(redis::RedisError::is_unrecoverable_error) {
            tracked.give_up(name);
        }
        Reply::of(reply?)
    }

    fn tracked(&self, node: Node) -> Kept<Tracked> {
        let mut tracked = self.tracked.lock();
        let kept = tracked.entry(node.clone()).or_insert_with(|| {
            let ends = Arc::clone(&self.ends);
            Kept::new(move || {
                let (ends, node) = (Arc::clone(&ends), node.clone());
                async move {
                    let made = track(&ends, &node).await;
                    if let Err(Failure::Reply(text)) = &made {
                        if !text.starts_with("LOADING") {
                            tracing::warn!("no client tracking, denials are remembered for a short time only: {text}");
                            ends.untrackable.store(true, Ordering::Relaxed);
                        }
                    }
                    made
                }
            })
        });
        kept.clone()
    }

    /// Ask over a connection that nobody else uses meanwhile. It is closed when the answer is given up: the server then
    /// stops waiting.
    async fn ask_alone(&self, node: Node, command: &Command) -> Result<Reply, Failure> {
        let idle = self.alone.lock().get_mut(&node).and_then(Vec::pop);
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.ends.place.connect(&node, AsyncConnectionConfig::new(), false).await?,
        };
        let reply = connection.send_packed_command(&command.into()).await;
        if !reply.as_ref().is_err_and(|error| error.is_unrecoverable_error() || error.is_io_error()) {
            self.alone.lock().entry(node).or_default().push(connection);
        }
        Reply::of(reply?)
    }
}

impl Wire for Servers {
    fn send(&self, command: Command) -> Answer<'_, Reply> {
        Box::pin(async move {
            match &self.shared {
                Shared::One(kept) => {
                    let (name, mut connection) = kept.get().await?;
                    let reply = connection.send_packed_command(&(&command).into()).await;
                    if reply.as_ref().is_err_and(is_over) {
                        kept.give_up(name);
                    }
                    Reply::of(reply?)
                }
                Shared::Cluster(kept) => {
                    let (_, mut connection) = kept.get().await?;
                    let node = match command.key() {
                        Some(key) => SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master)),
                        None => SingleNodeRoutingInfo::Random,
                    };
                    Reply::of(connection.route_command((&command).into(), RoutingInfo::SingleNode(node)).await?)
                }
            }
        })
    }

    fn send_all(&self, commands: Vec<Command>) -> Answer<'_, Vec<Result<Reply, Failure>>> {
        Box::pin(async move {
            match &self.shared {
                Shared::One(kept) => {
                    let (name, mut connection) = kept.get().await?;
                    let replies = send_all(&mut connection, &commands).await;
                    if replies.is_err() {
                        kept.give_up(name);
                    }
                    replies
                }
                // Each finds its own node.
                Shared::Cluster(_) => Ok(join_all(commands.into_iter().map(|command| self.send(command))).await),
            }
        })
    }

    fn send_alone(&self, command: Command) -> Option<Answer<'_, Reply>> {
        Some(Box::pin(async move { self.ask_node(&command, |node| self.ask_alone(node, &command)).await }))
    }

    fn send_tracked(&self, command: Command) -> Option<Answer<'_, Reply>> {
        if self.ends.untrackable.load(Ordering::Relaxed) {
            return None;
        }
        Some(Box::pin(async move { self.ask_node(&command, |node| self.ask_tracked(node, &command)).await }))
    }

    fn tell(&self, listener: Arc<dyn Listener>) {
        // Said once; whoever comes later is not heard.
        let _ = self.ends.listener.set(listener);
    }

    fn renew(&self) {
        match &self.shared {
            Shared::One(kept) => kept.give_up_any(),
            Shared::Cluster(kept) => kept.give_up_any(),
        }
        self.alone.lock().clear();
        self.ends.untrackable.store(false, Ordering::Relaxed);
    }
}

impl Place {
    /// A new connection to a node.
    async fn connect(
        &self,
        node: &Node,
        config: AsyncConnectionConfig,
        is_tracked: bool,
    ) -> Result<MultiplexedConnection, Failure> {
        // How long an answer may take is the business of who asks.
        let config = config.set_connection_timeout(Some(PATIENCE)).set_response_timeout(None);
        let info = match (self, node) {
            (Self::Sentinel(client), _) => {
                return Ok(client.lock().await.get_async_connection_with_config(&config).await?)
            }
            (Self::Cluster { seed, .. }, Some(node)) => at(seed, node)?,
            (Self::One(info) | Self::Cluster { seed: info, .. }, _) => info.clone(),
        };
        let info = match is_tracked {
            true => {
                let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
                info.set_redis_settings(settings)
            }
            false => info,
        };
        Ok(redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

impl Ends {
    fn tell(&self, told: impl FnOnce(&dyn Listener)) {
        if let Some(listener) = self.listener.get() {
            told(&**listener);
        }
    }
}

/// A connection to a node that tells the listener of changed keys.
async fn track(ends: &Arc<Ends>, node: &Node) -> Result<Tracked, Failure> {
    let heard = Arc::new(AtomicBool::new(true));
    let (line, ears) = (Arc::downgrade(ends), Arc::clone(&heard));
    let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
        ears.store(true, Ordering::Relaxed);
        if let Some(ends) = line.upgrade() {
            ends.tell(|listener| hear(&push, listener));
        }
        Ok::<(), ()>(())
    });
    let mut connection = ends.place.connect(node, config, true).await.map_err(|failure| match failure {
        Failure::Connection(text) if text.contains("RESP3") => Failure::Reply(text),
        other => other,
    })?;
    // Not NOLOOP: a key that has expired is deleted by the question that finds it so, and that has to be told, too.
    let tracking = Command::named("CLIENT", usize::MAX).word(b"TRACKING").word(b"ON");
    Reply::of(connection.send_packed_command(&(&tracking).into()).await?)?;
    let tracked = Tracked { connection, heard, is_silent: Arc::default() };
    tokio::spawn(watch(tracked.clone(), Arc::downgrade(ends)));
    Ok(tracked)
}

/// What a push says of keys.
fn hear(push: &PushInfo, listener: &dyn Listener) {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Invalidate, [redis::Value::Array(keys)]) => {
            for key in keys {
                if let redis::Value::BulkString(key) = key {
                    listener.changed(key);
                }
            }
        }
        (PushKind::Invalidate | PushKind::Disconnection, _) => listener.all_changed(),
        _ => {}
    }
}

/// Ask a tracking connection that has gone silent whether it is there; end when it is not, or the line is gone.
async fn watch(tracked: Tracked, line: Weak<Ends>) {
    let Tracked { mut connection, heard, is_silent } = tracked;
    while line.strong_count() > 0 {
        tokio::time::sleep(SILENCE).await;
        if heard.swap(false, Ordering::Relaxed) {
            continue;
        }
        let ping = redis::cmd("PING");
        let answer = tokio::time::timeout(PATIENCE, connection.send_packed_command(&ping)).await;
        if !matches!(answer, Ok(Ok(_))) {
            is_silent.store(true, Ordering::Relaxed);
            if let Some(ends) = line.upgrade() {
                ends.tell(|listener| listener.all_changed());
            }
            return;
        }
    }
}

fn is_over(error: &redis::RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        // The server has become a replica: the name or the sentinels lead to another one by now.
        || error.kind() == ErrorKind::Server(redis::ServerErrorKind::ReadOnly)
}

fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        address => address.to_string(),
    }
}

/// The seed's settings at another node's address.
fn at(seed: &ConnectionInfo, node: &str) -> Result<ConnectionInfo, Failure> {
    let unclear = || Failure::Connection(format!("{node} is no address"));
    let (host, port) = node.rsplit_once(':').ok_or_else(unclear)?;
    let (host, port) = (host.to_owned(), port.parse().map_err(|_| unclear())?);
    let address = match seed.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(seed.clone().set_addr(address))
}
