//! Which node has a key: the only one, or, of a cluster, the primary of its slot.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::{Mutex, RwLock};
use redis::cluster_routing::Slot;
use tokio::sync::watch;
use tokio::time::{sleep, timeout, Duration};

use super::breaker::{pauses, Breaker};
use super::connector::Context;
use super::rights::Right;
use super::server::Server;
use crate::error::{Cause, Error};
use crate::protocol::Command;
use crate::reason::Reason;
use crate::servers::ServerState;
use crate::statistics::Count;
use crate::transport::{Failure, Purpose, Reply};

/// Slots of a whole cluster.
const SLOTS: usize = 16_384;
/// How long a node may take to tell the slots.
const PATIENCE: Duration = Duration::from_secs(1);

/// The server that was opened, or the cluster: from the beginning, or once the server turns out to be part of one.
pub(super) struct Topology {
    opened: Arc<Server>,
    cluster: Arc<OnceLock<Arc<Cluster>>>,
    /// The look at the cluster that the opened server is part of. It is nobody's: requests only wait for it.
    joining: Mutex<Option<Joining>>,
}

/// Whether the cluster was joined.
type Joining = watch::Receiver<Option<bool>>;

/// The nodes of a cluster, and the slots of each.
pub(super) struct Cluster {
    context: Arc<Context>,
    /// Addresses that are asked for the slots first.
    seeds: Vec<String>,
    nodes: RwLock<Nodes>,
    /// The lookup of the slots that is under way, and what came of it first. It is nobody's: requests only wait for it.
    lookup: Mutex<Option<Lookup>>,
    /// Open while no node tells the slots.
    breaker: Breaker,
}

type Lookup = watch::Receiver<Option<Result<(), Cause>>>;

#[derive(Default)]
struct Nodes {
    by_address: HashMap<Arc<str>, Arc<Server>>,
    by_slot: BySlot,
}

/// An entry for each of the 16,384 slots, whose numbers the library keeps to itself.
type BySlot = HashMap<Slot, Arc<Server>, ahash::RandomState>;

impl Topology {
    pub fn new(context: &Arc<Context>) -> Self {
        let (opened, seeds) = (Server::new(None, Arc::clone(context)), context.transport.seeds());
        let cluster = Arc::new(OnceLock::new());
        if !seeds.is_empty() {
            let _ = cluster.set(Cluster::of(context, seeds));
        }
        Self { opened, cluster, joining: Mutex::default() }
    }

    /// The node that has a key, as far as is known already.
    pub fn known(&self, key: &[u8]) -> Option<Arc<Server>> {
        match self.cluster.get() {
            None => Some(Arc::clone(&self.opened)),
            Some(cluster) => cluster.known(key),
        }
    }

    /// The node that has a key.
    pub async fn server(&self, key: &[u8]) -> Result<Arc<Server>, Error> {
        match self.cluster.get() {
            None => Ok(Arc::clone(&self.opened)),
            Some(cluster) => cluster.server(key).await,
        }
    }

    /// The node at an address that another one named; `None` where only the opened server is asked. Where a slot has
    /// moved there, it stays there.
    pub fn redirected(&self, key: &[u8], address: &str, has_moved: bool) -> Option<Arc<Server>> {
        let cluster = self.cluster.get()?;
        let server = cluster.at(address);
        if has_moved {
            cluster.nodes.write().by_slot.insert(Slot::for_key(key), Arc::clone(&server));
            cluster.context.slots_are_stale.store(true, Ordering::Release);
        }
        Some(server)
    }

    /// Becomes a client of the cluster that the opened server is part of; whether it is one. Where none of the addresses
    /// that the cluster names is reached, it stays with the one that was opened.
    pub async fn join(&self) -> bool {
        if self.cluster.get().is_some() {
            return true;
        }
        let context = &self.opened.connector.context;
        let mut joining = {
            let mut joining = self.joining.lock();
            let begin = || {
                let (done, joining) = watch::channel(None);
                tokio::spawn(join(Arc::clone(context), Arc::downgrade(&self.cluster), done));
                joining
            };
            joining.get_or_insert_with(begin).clone()
        };
        let joined = joining.wait_for(Option::is_some).await;
        joined.is_ok_and(|joined| *joined == Some(true))
    }

    /// Whether the node that has a key is believed to be unavailable.
    pub fn is_unavailable(&self, key: &[u8]) -> bool {
        match self.cluster.get() {
            None => self.opened.health.is_unavailable(),
            Some(cluster) => match cluster.known(key) {
                Some(server) => server.health.is_unavailable(),
                None => cluster.breaker.is_open(),
            },
        }
    }

    /// All nodes that are known.
    pub fn nodes(&self) -> Vec<Arc<Server>> {
        match self.cluster.get() {
            None => vec![Arc::clone(&self.opened)],
            Some(cluster) => cluster.nodes.read().by_address.values().map(Arc::clone).collect(),
        }
    }

    /// The state of each node; if no node of a cluster answers about its slots, also that.
    pub fn states(&self) -> Vec<ServerState> {
        match self.cluster.get() {
            None => vec![self.opened.health.state()],
            Some(cluster) => {
                let nodes = cluster.nodes.read();
                let mut states: Vec<_> = nodes.by_address.values().map(|server| server.health.state()).collect();
                if states.is_empty() || cluster.breaker.is_open() {
                    let address = cluster.context.transport.address();
                    states.push(cluster.breaker.state(address, cluster.context.rights.missing(), None));
                }
                states.sort_by(|one, other| one.address.cmp(&other.address));
                states
            }
        }
    }
}

impl Cluster {
    fn of(context: &Arc<Context>, seeds: Vec<String>) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(context),
            seeds,
            nodes: RwLock::default(),
            lookup: Mutex::default(),
            breaker: Breaker::default(),
        })
    }

    fn known(self: &Arc<Self>, key: &[u8]) -> Option<Arc<Server>> {
        if self.context.slots_are_stale.swap(false, Ordering::AcqRel) {
            // Requests go on by what is known meanwhile.
            self.lookup();
        }
        self.nodes.read().by_slot.get(&Slot::for_key(key)).map(Arc::clone)
    }

    async fn server(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Server>, Error> {
        if let Some(server) = self.known(key) {
            return Ok(server);
        }
        if self.breaker.is_open() {
            return Err(Error::Unavailable(self.breaker.cause()));
        }
        let mut lookup = self.lookup();
        if let Ok(Some(Err(cause))) = lookup.wait_for(Option::is_some).await.as_deref() {
            return Err(Error::Unavailable(cause.clone()));
        }
        self.known(key).ok_or_else(|| {
            Error::Unavailable(Reason::Code("CLUSTERDOWN").because("CLUSTERDOWN no server has the key's slot"))
        })
    }

    fn lookup(self: &Arc<Self>) -> Lookup {
        let mut lookup = self.lookup.lock();
        let begin = || {
            let (done, lookup) = watch::channel(None);
            tokio::spawn(look_up(Arc::downgrade(self), done));
            lookup
        };
        lookup.get_or_insert_with(begin).clone()
    }

    fn at(&self, address: &str) -> Arc<Server> {
        let mut nodes = self.nodes.write();
        if let Some(server) = nodes.by_address.get(address) {
            return Arc::clone(server);
        }
        let address: Arc<str> = address.into();
        let server = Server::new(Some(Arc::clone(&address)), Arc::clone(&self.context));
        nodes.by_address.insert(address, Arc::clone(&server));
        server
    }

    /// Asks all nodes that are known for the slots. The table with the most slots is believed, and the first with all of
    /// them at once: a node that has left the cluster knows of fewer, or of none.
    async fn refresh(&self) -> Result<(), Failure> {
        let mut addresses = self.seeds.clone();
        addresses.extend(self.nodes.read().by_address.keys().map(|address| address.to_string()));
        addresses.sort_unstable();
        addresses.dedup();
        let mut asking: FuturesUnordered<_> =
            addresses.into_iter().map(|address| timed(ask(&self.context, address))).collect();
        let mut best = Err(Failure::Connection(Reason::NoAnswer.because("no server tells the slots")));
        while let Some(told) = asking.next().await {
            let slots = |told: &Result<Vec<Range>, _>| told.as_deref().map_or(0, covered);
            if best.is_err() || slots(&told) > slots(&best) {
                best = told;
            }
            if slots(&best) >= SLOTS {
                break;
            }
        }
        let ranges = best?;
        let mut by_slot = BySlot::with_capacity_and_hasher(covered(&ranges), ahash::RandomState::default());
        for (first, last, address) in &ranges {
            let server = self.at(address);
            by_slot.extend((*first..=*last).filter_map(Slot::new).map(|slot| (slot, Arc::clone(&server))));
        }
        let mut nodes = self.nodes.write();
        nodes.by_address.retain(|address, _| ranges.iter().any(|(_, _, told)| **told == **address));
        nodes.by_slot = by_slot;
        Ok(())
    }
}

/// Joins the cluster of the server that was opened, if the addresses that it names are reached.
async fn join(context: Arc<Context>, joined: Weak<OnceLock<Arc<Cluster>>>, done: watch::Sender<Option<bool>>) {
    let opened = context.transport.address();
    let is_joined = match context.transport.follows() {
        false => false,
        true => {
            let cluster = Cluster::of(&context, vec![opened.clone()]);
            let named = match cluster.refresh().await {
                Ok(()) => cluster.nodes.read().by_address.keys().map(Arc::clone).collect(),
                Err(_) => Vec::new(),
            };
            let mut reaching: FuturesUnordered<_> = named
                .iter()
                .map(|address| timed(context.transport.connect(Some(address), Purpose::Requests, Arc::new(|_| ()))))
                .collect();
            let mut is_reached = false;
            while let Some(reached) = reaching.next().await {
                is_reached |= reached.is_ok();
                if is_reached {
                    break;
                }
            }
            match joined.upgrade().filter(|_| is_reached) {
                Some(joined) => joined.set(cluster).is_ok(),
                None => false,
            }
        }
    };
    if is_joined {
        tracing::info!(address = opened, "the rate limit server is part of a cluster: following its slots");
    } else {
        tracing::warn!(
            address = opened,
            "the rate limit server is part of a cluster of which no other address can be used: only this one is asked"
        );
    }
    done.send_replace(Some(is_joined));
}

/// Looks up the slots, again and again until some node tells them.
async fn look_up(cluster: Weak<Cluster>, done: watch::Sender<Option<Result<(), Cause>>>) {
    let mut pauses = pauses();
    loop {
        {
            let Some(cluster) = cluster.upgrade() else { return };
            let address = cluster.context.transport.address();
            match cluster.refresh().await {
                Ok(()) => {
                    if cluster.breaker.is_open() {
                        tracing::info!(address, "the rate limit cluster is back");
                    }
                    cluster.breaker.close();
                    *cluster.lookup.lock() = None;
                    done.send_replace(Some(Ok(())));
                    return;
                }
                Err(failure) => {
                    let cause = Cause::from(failure);
                    cluster.context.counters.count(Count::Failures, 1);
                    if cluster.breaker.open(&cause) {
                        cluster.context.counters.count(Count::Opened, 1);
                        tracing::warn!("cannot read the slots of the cluster {address} from any server ({cause:#})");
                    }
                    done.send_replace(Some(Err(cause)));
                }
            }
        }
        sleep(pauses.next().unwrap_or(PATIENCE)).await;
    }
}

async fn timed<T>(asking: impl std::future::Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Failure::Connection(Reason::NoAnswer.because("no server tells the slots"));
    timeout(PATIENCE, asking).await.map_err(late).and_then(|asked| asked)
}

/// First and last slot, and the primary's address.
type Range = (u16, u16, String);

async fn ask(context: &Arc<Context>, address: String) -> Result<Vec<Range>, Failure> {
    let connection = context.transport.connect(Some(&address), Purpose::Requests, Arc::new(|_| ())).await?;
    let reply = connection.send(&Command::server(&["CLUSTER", "SLOTS"])).await?;
    context.rights.heard(Right::ClusterSlots, &reply);
    if let Reply::Error(text) = reply {
        return Err(Failure::Refused(text));
    }
    let ranges = ranges(&reply, &address).ok_or_else(|| Failure::Connection(Cause::unclear(&reply)))?;
    match ranges.is_empty() {
        true => Err(Failure::Connection(Reason::Other.because(format!("{address} has an empty slot table")))),
        false => Ok(ranges),
    }
}

/// How many slots these are.
fn covered(ranges: &[Range]) -> usize {
    ranges.iter().map(|(first, last, _)| usize::from(last.saturating_sub(*first)) + 1).sum()
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
