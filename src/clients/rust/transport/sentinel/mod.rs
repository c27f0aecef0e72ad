//! The primary's address, from sentinels.
//!
//! Each is listened to for `+switch-master`, and one of them is asked every second besides, since a message may be lost.
//! [`belief`] says whom to follow.

mod belief;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::belief::{elected, is_news, Primary, Vote};
use super::Failure;
use crate::reason::Reason;

/// How often a sentinel is asked; and how long one may take to answer.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Sentinels, and the primary they are asked for.
pub(super) struct Sentinels {
    pub nodes: Vec<ConnectionInfo>,
    /// The settings of connections to the primary; its address is the sentinels' to say.
    pub primary: ConnectionInfo,
    pub name: Arc<str>,
    newest: Arc<Newest>,
    /// Listens to the sentinels, once a connection was asked for; it ends with this.
    watching: Mutex<JoinSet<()>>,
}

/// The primary with the largest epoch so far.
type Newest = watch::Sender<Option<Primary>>;

/// A sentinel that is asked again and again.
struct Sentinel {
    node: ConnectionInfo,
    name: Arc<str>,
    connection: Option<MultiplexedConnection>,
}

/// A primary, while it is the newest.
#[derive(Clone)]
pub(super) struct Tenure {
    primary: Primary,
    newest: Arc<Newest>,
}

impl Sentinels {
    pub fn new(nodes: Vec<ConnectionInfo>, primary: ConnectionInfo, name: &str) -> Self {
        Self { nodes, primary, name: name.into(), newest: Arc::new(Newest::new(None)), watching: Mutex::default() }
    }

    /// Asks all sentinels at the same time; the first that knows the primary is believed, unless a newer one is known.
    pub async fn primary(&self) -> Result<(ConnectionInfo, Tenure), Failure> {
        self.watch();
        let asking = self.nodes.iter().map(|node| {
            let mut sentinel = self.sentinel(node);
            Box::pin(async move { sentinel.ask().await })
        });
        let told = futures_util::future::select_ok(asking).await?.0;
        hear(&self.newest, &told);
        let primary = self.newest.borrow().clone().unwrap_or(told);
        Ok(self.tenure(primary))
    }

    fn tenure(&self, primary: Primary) -> (ConnectionInfo, Tenure) {
        let info = with_host(&self.primary, primary.host.clone(), primary.port);
        (info, Tenure { primary, newest: Arc::clone(&self.newest) })
    }

    /// Another primary that a majority of the sentinels names, where this one cannot be reached, or is none any more.
    pub async fn elected(&self, tenure: &Tenure) -> Option<(ConnectionInfo, Tenure)> {
        let asking = self.nodes.iter().map(|node| {
            let mut sentinel = self.sentinel(node);
            async move { timeout(INTERVAL, sentinel.vote()).await.ok()?.ok() }
        });
        let votes: Vec<Vote> = join_all(asking).await.into_iter().flatten().collect();
        elected(&tenure.primary, &votes, self.nodes.len()).map(|primary| self.tenure(primary))
    }

    fn sentinel(&self, node: &ConnectionInfo) -> Sentinel {
        Sentinel { node: node.clone(), name: Arc::clone(&self.name), connection: None }
    }

    fn watch(&self) {
        let mut watching = self.watching.lock();
        if !watching.is_empty() {
            return;
        }
        for node in &self.nodes {
            watching.spawn(follow(self.sentinel(node), Arc::clone(&self.newest)));
        }
        let all = self.nodes.iter().map(|node| self.sentinel(node)).collect();
        watching.spawn(ask_in_turn(all, Arc::clone(&self.newest)));
    }
}

impl Tenure {
    pub fn address(&self) -> String {
        let Primary { host, port, .. } = &self.primary;
        format!("{host}:{port}")
    }

    /// Follows it, whatever was known, and whatever its epoch is: it says itself that it is the primary.
    pub fn begin(&self) {
        self.newest.send_replace(Some(self.primary.clone()));
        tracing::warn!(
            address = self.address(),
            epoch = self.primary.epoch,
            "the sentinels have begun again: following the primary that most of them name"
        );
    }

    /// Waits until another server is the primary; for ever if none will be.
    pub async fn ended(self) {
        let is_other = |newest: &Option<Primary>| newest.as_ref().is_some_and(|newest| !newest.is_at(&self.primary));
        let mut newest = self.newest.subscribe();
        drop(self.newest);
        if newest.wait_for(is_other).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Takes what a sentinel tells, if it is news.
fn hear(newest: &Newest, told: &Primary) {
    newest.send_if_modified(|known| {
        let is_news = is_news(known.as_ref(), told);
        if is_news {
            *known = Some(told.clone());
        }
        is_news
    });
}

/// Listens to a sentinel, again and again.
async fn follow(mut sentinel: Sentinel, newest: Arc<Newest>) {
    loop {
        let _ = sentinel.listen(&newest).await;
        sleep(INTERVAL).await;
    }
}

/// Asks one sentinel after the other.
async fn ask_in_turn(mut sentinels: Vec<Sentinel>, newest: Arc<Newest>) {
    loop {
        for sentinel in &mut sentinels {
            sleep(INTERVAL).await;
            match timeout(INTERVAL, sentinel.ask()).await {
                Ok(Ok(told)) => hear(&newest, &told),
                _ => sentinel.connection = None,
            }
        }
    }
}

impl Sentinel {
    /// Until the connection ends.
    async fn listen(&mut self, newest: &Newest) -> Result<(), Failure> {
        let mut listening = redis::Client::open(self.node.clone())?.get_async_pubsub().await?;
        listening.subscribe("+switch-master").await?;
        // What it said before.
        hear(newest, &self.ask().await?);
        self.connection = None;
        let mut messages = listening.on_message();
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload()?;
            // The name, the old address, and the new one; the epoch is asked for.
            if text.split(' ').next() == Some(&self.name) {
                hear(newest, &self.ask().await?);
            }
        }
        Ok(())
    }

    async fn connection(&mut self) -> Result<MultiplexedConnection, Failure> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        Ok(redis::Client::open(self.node.clone())?.get_multiplexed_async_connection_with_config(&config).await?)
    }

    async fn ask(&mut self) -> Result<Primary, Failure> {
        self.told().await.map(|(primary, _)| primary)
    }

    async fn vote(&mut self) -> Result<Vote, Failure> {
        let (primary, others) = self.told().await?;
        let mut connection = self.connection().await?;
        let sentinels: Vec<HashMap<String, String>> =
            redis::cmd("SENTINEL").arg("SENTINELS").arg(&*self.name).query_async(&mut connection).await?;
        let is_down = |sentinel: &HashMap<String, String>| {
            sentinel.get("flags").is_some_and(|flags| flags.split(',').any(|flag| flag == "s_down"))
        };
        let id = |sentinel: HashMap<String, String>| {
            let of = |name| sentinel.get(name).map_or("", String::as_str);
            format!("{}:{}", of("ip"), of("port"))
        };
        Ok(Vote { primary, others, down: sentinels.into_iter().filter(is_down).map(id).collect() })
    }

    /// The primary, and how many other sentinels there are.
    async fn told(&mut self) -> Result<(Primary, usize), Failure> {
        let mut connection = self.connection().await?;
        // The epoch first: the address that comes after it is as new, or newer.
        let (fields, address): (HashMap<String, String>, Option<(String, u16)>) = redis::pipe()
            .cmd("SENTINEL")
            .arg("MASTER")
            .arg(&*self.name)
            .cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&*self.name)
            .query_async(&mut connection)
            .await?;
        self.connection = Some(connection);
        let unknown = || {
            let text = format!("the sentinels do not know a primary called {}", self.name);
            Failure::Connection(Reason::Other.because(text))
        };
        let (host, port) = address.ok_or_else(unknown)?;
        let number = |name| fields.get(name).and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
        let others = usize::try_from(number("num-other-sentinels")).unwrap_or_default();
        Ok((Primary { epoch: number("config-epoch"), host, port }, others))
    }
}

/// The same settings at another host.
pub(super) fn with_host(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(address)
}

impl std::fmt::Display for Sentinels {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        write!(to, "{} (of {})", self.name, nodes.join(","))
    }
}
