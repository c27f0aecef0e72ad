//! The client and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{timeout, Instant};

use crate::clock;
use crate::deciding::cached::DenialCache;
use crate::demand::Demand;
use crate::error::Error;
use crate::keyed::FairQueue;
use crate::mode::{Cluster, Module, OnRefused};
use crate::protocol::{Command, Encoding};
use crate::quota::Quota;
use crate::servers::ServerState;
use crate::shared::{Closing, Shared};
use crate::statistics::{Count, Counters, Statistics};
use crate::transport::{ConnectionOptions, Event, Reply, Servers, Transport};
use crate::upstream::{HoldRenewer, Upstream};

/// How long [`Client::close`] takes, at most, unless round trips are long: then so many of them.
pub(crate) const CLOSING: Duration = Duration::from_millis(1_500);
pub(crate) const CLOSING_ROUND_TRIPS: u32 = 6;

/// A client of a server, of the primary that sentinels name, or of a cluster; or of none. Cheap to clone.
///
/// It needs tokio's runtime, with time and I/O enabled, to be used and to be dropped.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Shared>);

/// Builder for [`Client`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built yet"]
pub struct ClientBuilder {
    pub(crate) timeout: Duration,
    pub(crate) max_untracked_age: Duration,
    pub(crate) max_keys: usize,
    pub(crate) max_waiting: usize,
    module: Module,
    on_refused: OnRefused,
    cluster: Cluster,
    pub(crate) prefix: Vec<u8>,
    options: ConnectionOptions,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(50),
            max_untracked_age: Duration::from_millis(100),
            max_keys: 100_000,
            max_waiting: 10,
            module: Module::Auto,
            on_refused: OnRefused::Error,
            cluster: Cluster::Auto,
            prefix: Vec::new(),
            options: ConnectionOptions::new(),
        }
    }
}

impl ClientBuilder {
    /// The longest that a request waits because of the limiter: 50 ms unless set. `acquire` waits its own time.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long a denial is remembered when the server can't send invalidations, because there is no RESP3 or a
    /// proxy in between: 100 ms unless set. A refund is noticed that much later.
    pub fn max_untracked_age(self, age: Duration) -> Self {
        Self { max_untracked_age: age, ..self }
    }

    /// Maximum cached keys, of the client and of each limiter: 100 000 unless set. Those that were not used are forgotten
    /// first, and those that are blocked last. Their names take at most 128 bytes a key on average.
    pub fn max_keys(self, keys: usize) -> Self {
        Self { max_keys: keys, ..self }
    }

    /// How many requests wait on the server, each over a connection of its own: 10 unless set. Of the others, one for
    /// each key asks again and again.
    pub fn max_waiting(self, waiting: usize) -> Self {
        Self { max_waiting: waiting, ..self }
    }

    /// Whether the module decides, or a script on servers that have not loaded it: [`Module::Auto`] unless set.
    pub fn module(self, module: Module) -> Self {
        Self { module, ..self }
    }

    /// What a request gets that the server refuses to decide: [`OnRefused::Error`] unless set.
    pub fn on_refused(self, on_refused: OnRefused) -> Self {
        Self { on_refused, ..self }
    }

    /// Whether the client follows a cluster's slots: [`Cluster::Auto`] unless set.
    pub fn cluster(self, cluster: Cluster) -> Self {
        Self { cluster, ..self }
    }

    /// Put before each key: nothing unless set.
    pub fn prefix(self, prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Certificates, and what sentinels need.
    pub fn connection_options(self, options: ConnectionOptions) -> Self {
        Self { options, ..self }
    }

    /// A client that connects when it is first used. Meanwhile its limiters decide by their failure policy. The first
    /// client of a process measures the processor's counter, which mostly takes a millisecond, and at most 200.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting, a certificate or a URL that is wrong: see [`Client::connect`].
    pub fn build(self, url: &str) -> Result<Client, Error> {
        let servers = Servers::at(url, &self.options, self.cluster).map_err(Error::Invalid)?;
        self.made(Some(Box::new(servers)))
    }

    /// The same client, once the server has answered.
    ///
    /// # Errors
    /// [`Error::Invalid`] as [`build`](Self::build), [`Error::Unavailable`] when nobody answers within a second,
    /// [`Error::ModuleMissing`] and [`Error::Refused`] when what answers is not what is needed.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let client = self.build(url)?;
        client.check().await?;
        Ok(client)
    }

    /// A client over a transport that somebody else made, such as [`ExistingConnection`](crate::transport::ExistingConnection).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting that is wrong.
    pub fn over(self, transport: impl Transport) -> Result<Client, Error> {
        self.made(Some(Box::new(transport)))
    }

    /// A client without a server: every limiter is one of [`Mode::Local`](crate::Mode::Local).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting that is wrong.
    pub fn local(self) -> Result<Client, Error> {
        self.made(None)
    }

    fn made(self, transport: Option<Box<dyn Transport>>) -> Result<Client, Error> {
        let invalid = |text: &str| Err(Error::Invalid(text.into()));
        if self.timeout < Duration::from_millis(1) {
            return invalid("timeout must be at least 1 ms");
        }
        if self.max_keys == 0 {
            return invalid("max_keys must be at least 1");
        }
        clock::prepare();
        let counters = Arc::new(Counters::new());
        let denial_cache = Arc::new(DenialCache::new(self.max_keys, self.max_untracked_age, &counters));
        let fair_queue = Arc::new(FairQueue::new(self.max_keys));
        let upstream = transport.map(|transport| {
            let (cache, queue) = (Arc::clone(&denial_cache), Arc::clone(&fair_queue));
            let counting = Arc::clone(&counters);
            let changes = Arc::new(move |event: Event| match event {
                Event::Changed(key) => {
                    counting.count(Count::Changes, 1);
                    cache.forget(&key);
                    queue.changed(&key);
                }
                Event::AllChanged | Event::Closed => {
                    counting.count(Count::Forgotten, 1);
                    cache.forget_all();
                }
            });
            let transport = Encoding::new(transport, self.module, self.timeout, Arc::clone(&counters));
            Arc::new(Upstream::new(transport, Arc::clone(&counters), changes, self.timeout, self.max_waiting))
        });
        let renewer = upstream.as_ref().map(HoldRenewer::new);
        Ok(Client(Arc::new(Shared {
            upstream,
            renewer,
            denial_cache,
            fair_queue,
            counters,
            max_keys: self.max_keys,
            on_refused: self.on_refused,
            refused: Mutex::default(),
            prefix: self.prefix,
            closing: Mutex::default(),
            closed: watch::Sender::new(false),
            #[cfg(feature = "metrics")]
            published: Mutex::default(),
        })))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.servers();
        f.debug_struct("Client").field("servers", &servers).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at a URL, once it has answered: `redis://`, with TLS `rediss://`, `unix://`, a cluster by
    /// some of its nodes `redis-cluster://a,b:7001`, a primary by its sentinels `redis-sentinel://a,b/mymaster`; with
    /// `user:password@` before, and a `/database` behind.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// A client without a server.
    pub fn local() -> Self {
        Self::builder().local().expect("the default settings are right")
    }

    /// A builder with the default settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) async fn ask(&self, what: &'static str, command: Command) -> Result<Reply, Error> {
        let upstream = self.0.upstream.as_ref().ok_or(Error::NoServer(what))?;
        upstream.ask(command, Instant::now() + upstream.timeout()).await
    }

    /// The longest that a request waits because of the limiter; zero without a server.
    pub fn timeout(&self) -> Duration {
        self.0.upstream.as_ref().map_or(Duration::ZERO, |upstream| upstream.timeout())
    }

    /// Whether the client has a server, available or not.
    pub fn has_server(&self) -> bool {
        self.0.upstream.is_some()
    }

    /// Whether the server is believed to be there. Without a server, it is not.
    pub fn is_connected(&self) -> bool {
        self.0.upstream.as_ref().is_some_and(|upstream| upstream.is_there())
    }

    /// The state of each server, by address: one, or the primaries of a cluster, as far as they are known. None
    /// without a server.
    pub fn servers(&self) -> Vec<ServerState> {
        self.0.upstream.as_ref().map(|upstream| upstream.servers()).unwrap_or_default()
    }

    /// What this client has counted so far.
    pub fn statistics(&self) -> Statistics {
        self.0.counters.sums()
    }

    /// Hands what was counted since the last call to the recorder of the crate `metrics`:
    /// `swlimit_client_decisions_total` by `source` and `granted`, and `swlimit_client_<name>_total` for the others.
    /// Gauges `swlimit_client_server_unavailable`, `swlimit_client_server_slow` and `swlimit_client_server_evicts` are 1 or 0 for
    /// each `server`, `swlimit_client_server_evicted_keys` is how many keys an evicting one has evicted,
    /// `swlimit_client_server_round_trip_seconds` is that of the last reply, and `swlimit_client_lacks` is 1 for each
    /// `right` that is missing; `swlimit_client_leases_too_far` is how many limiters take no lease because round trips are
    /// longer than half of one. To be called now and then, such as whenever metrics are asked for. Clients in
    /// one process add up.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        let mut published = self.0.published.lock();
        let now = self.statistics();
        now.publish_since(&published);
        *published = now;
        self.servers().iter().for_each(ServerState::publish);
        if let Some(upstream) = &self.0.upstream {
            upstream.publish_rights();
        }
        let too_far = self.0.closing.lock().iter().filter(|closing| closing.is_too_far()).count();
        metrics::gauge!("swlimit_client_leases_too_far").set(too_far as f64);
    }

    /// Keys with remembered denials, or with denials that ended a moment ago.
    pub fn denials(&self) -> usize {
        self.0.denial_cache.len()
    }

    /// Ends all waits for units and holds: they are denied. Nobody waits from then on.
    pub fn end_waits(&self) {
        self.0.closed.send_replace(true);
    }

    /// Ends all [waits](Self::end_waits), gives back what leases have left, tells the server what `eventual`
    /// limiters have counted, and waits until holds that were dropped are released. A server that is unavailable may come
    /// back meanwhile. Takes 1.5 s at most, or six round trips if that is longer; then logs what is lost.
    /// Limiters go on, without leases, but call this last in a process.
    pub async fn close(&self) {
        self.end_waits();
        let closing = std::mem::take(&mut *self.0.closing.lock());
        let close = async || join_all(closing.iter().map(Closing::close)).await;
        let closed = async {
            close().await;
            if let Some(renewer) = &self.0.renewer {
                renewer.settled().await;
            }
            if let Some(upstream) = &self.0.upstream {
                upstream.settled().await;
            }
            // And what late replies have granted.
            close().await;
        };
        let round_trip = self.servers().iter().filter_map(|server| server.round_trip).max().unwrap_or_default();
        let _ = timeout(CLOSING.max(CLOSING_ROUND_TRIPS * round_trip), closed).await;
        join_all(closing.iter().map(Closing::give_up)).await;
        if let Some(upstream) = &self.0.upstream {
            upstream.give_up();
        }
        self.0.closing.lock().extend(closing);
    }

    /// Whether the server is there and has what is needed. It is given more time than a request: it may have to be
    /// found.
    async fn check(&self) -> Result<(), Error> {
        let Some(upstream) = &self.0.upstream else { return Ok(()) };
        let demand = Demand::of(&Quota::new(1, "1m")?);
        let key = self.0.key(b"swlimit:connected");
        let deadline = Instant::now() + Duration::from_secs(1).max(upstream.timeout());
        match upstream.ask(Command::peek(&key, &demand), deadline).await {
            // Not every user may read every key.
            Err(Error::Refused(text)) if text.starts_with("NOPERM") => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }
}
