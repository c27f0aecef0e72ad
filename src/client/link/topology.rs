//! Which node has a key: the only one, or, of a cluster, the primary of its slot.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use futures_util::future::select_ok;
use parking_lot::RwLock;
use redis::cluster_routing::Slot;
use tokio::time::{timeout, Duration};

use super::node::Node;
use super::rights::Right;
use super::Context;
use crate::error::Error;
use crate::wire::{Command, Failure, Purpose, Reply};

/// How long a node may take to tell the slots.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) enum Topology {
    Server(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// The nodes of a cluster, and the slots of each.
pub(super) struct Cluster {
    context: Arc<Context>,
    nodes: RwLock<Nodes>,
    refreshing: tokio::sync::Mutex<()>,
    is_refreshing: AtomicBool,
}

#[derive(Default)]
struct Nodes {
    by_address: HashMap<Arc<str>, Arc<Node>>,
    by_slot: HashMap<Slot, Arc<Node>>,
}

impl Topology {
    pub fn new(context: &Arc<Context>) -> Self {
        match context.transport.seeds().is_empty() {
            true => Self::Server(Arc::new(Node::new(None, Arc::clone(context)))),
            false => Self::Cluster(Arc::new(Cluster {
                context: Arc::clone(context),
                nodes: RwLock::default(),
                refreshing: tokio::sync::Mutex::default(),
                is_refreshing: AtomicBool::new(false),
            })),
        }
    }

    /// The node that has a key, as far as is known already.
    pub fn known(&self, key: &[u8]) -> Option<Arc<Node>> {
        match self {
            Self::Server(node) => Some(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.known(key),
        }
    }

    /// The node that has a key.
    pub async fn node(&self, key: &[u8]) -> Result<Arc<Node>, Error> {
        match self {
            Self::Server(node) => Ok(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.node(key).await,
        }
    }

    /// The node at an address that another one named. Where a slot has moved there, it stays there.
    pub fn redirected(&self, key: &[u8], address: &str, has_moved: bool) -> Arc<Node> {
        match self {
            Self::Server(node) => Arc::clone(node),
            Self::Cluster(cluster) => {
                let node = cluster.at(address);
                if has_moved {
                    cluster.nodes.write().by_slot.insert(Slot::for_key(key), Arc::clone(&node));
                    cluster.context.slots_are_stale.store(true, Ordering::Release);
                }
                node
            }
        }
    }

    /// All nodes that are known.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::Server(node) => vec![Arc::clone(node)],
            Self::Cluster(cluster) => cluster.nodes.read().by_address.values().map(Arc::clone).collect(),
        }
    }
}

impl Cluster {
    fn known(self: &Arc<Self>, key: &[u8]) -> Option<Arc<Node>> {
        if self.context.slots_are_stale.swap(false, Ordering::AcqRel)
            && !self.is_refreshing.swap(true, Ordering::AcqRel)
        {
            // Requests go on by what is known meanwhile.
            let cluster = Arc::clone(self);
            tokio::spawn(async move {
                let _ = timeout(PATIENCE, cluster.refresh()).await;
                cluster.is_refreshing.store(false, Ordering::Release);
            });
        }
        self.nodes.read().by_slot.get(&Slot::for_key(key)).map(Arc::clone)
    }

    async fn node(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Node>, Error> {
        if let Some(node) = self.known(key) {
            return Ok(node);
        }
        let _refreshing = self.refreshing.lock().await;
        if self.known(key).is_none() {
            self.refresh().await.map_err(|failure| Error::Away(failure.to_string()))?;
        }
        self.known(key).ok_or_else(|| Error::Away("CLUSTERDOWN no node has the key's slot".into()))
    }

    fn at(&self, address: &str) -> Arc<Node> {
        let mut nodes = self.nodes.write();
        if let Some(node) = nodes.by_address.get(address) {
            return Arc::clone(node);
        }
        let address: Arc<str> = address.into();
        let node = Arc::new(Node::new(Some(Arc::clone(&address)), Arc::clone(&self.context)));
        nodes.by_address.insert(address, Arc::clone(&node));
        node
    }

    /// Asks all nodes that are known for the slots; the first that answers is believed.
    async fn refresh(&self) -> Result<(), Failure> {
        let mut addresses = self.context.transport.seeds();
        addresses.extend(self.nodes.read().by_address.keys().map(|address| address.to_string()));
        addresses.sort_unstable();
        addresses.dedup();
        let asking = addresses.into_iter().map(|address| Box::pin(timed(ask(&self.context, address))));
        let (ranges, _) = select_ok(asking).await?;
        let by_slot = ranges.into_iter().flat_map(|(first, last, address)| {
            let node = self.at(&address);
            (first..=last).filter_map(Slot::new).map(move |slot| (slot, Arc::clone(&node)))
        });
        let by_slot: HashMap<_, _> = by_slot.collect();
        let mut nodes = self.nodes.write();
        nodes.by_address.retain(|_, node| by_slot.values().any(|other| Arc::ptr_eq(node, other)));
        nodes.by_slot = by_slot;
        Ok(())
    }
}

async fn timed<T>(asking: impl std::future::Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Failure::Connection("no node tells the slots".into());
    timeout(PATIENCE, asking).await.map_err(late).and_then(|asked| asked)
}

/// First and last slot, and the primary's address.
type Range = (u16, u16, String);

async fn ask(context: &Arc<Context>, address: String) -> Result<Vec<Range>, Failure> {
    let connection = context.transport.connect(Some(&address), Purpose::Requests, Arc::new(|_| ())).await?;
    let reply = connection.send(&Command::named("CLUSTER", usize::MAX).word(b"SLOTS")).await?;
    context.rights.heard(Right::ClusterSlots, &reply);
    if let Reply::Error(text) = reply {
        return Err(Failure::Refused(text));
    }
    ranges(&reply, &address).ok_or_else(|| Failure::Connection(format!("slots that are not understood: {reply:?}")))
}

fn ranges(reply: &Reply, asked: &str) -> Option<Vec<Range>> {
    let number = |reply: &Reply| match reply {
        Reply::Integer(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let Reply::Array(ranges) = reply else { return None };
    let range = |range: &Reply| {
        let Reply::Array(range) = range else { return None };
        let [first, last, Reply::Array(primary), ..] = range.as_slice() else { return None };
        let [host, port, ..] = primary.as_slice() else { return None };
        let host = match host {
            Reply::Bytes(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
            // The node does not know its own name: it is where it was asked.
            _ => asked.rsplit_once(':')?.0.to_owned(),
        };
        Some((number(first)?, number(last)?, format!("{host}:{}", number(port)?)))
    };
    ranges.iter().map(range).collect()
}
