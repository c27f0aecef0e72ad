//! The client: the link to the server, and what all limiters share.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use parking_lot::Mutex;
use swlimit_window::MAX_WINDOW;
use tokio::sync::watch;
use tokio::time::{timeout, Instant};

use crate::clock::{ms, ms_up};
use crate::decision::Decisions;
use crate::demand::Demand;
use crate::error::Error;
use crate::hold::Keeper;
use crate::keyed::FairQueue;
use crate::limiter::{Limiter, LimiterBuilder};
use crate::link::Link;
use crate::mode::Module;
use crate::protocol::{unix, Command, Counted, DeniedKey, Encoding, KeyInfo, NO_SUCH_KEY};
use crate::quota::Quota;
use crate::request::Request;
use crate::servers::ServerState;
use crate::several::Several;
use crate::statistics::{Count, Counters, Statistics};
use crate::strategy::deny_cache::DenyCache;
use crate::strategy::{eventual, lease};
use crate::transport::{ConnectionOptions, Event, Reply, Servers, Transport};
use crate::wait::Wait;

/// What the strings of the script begin with.
const SCRIPTED_KEYS: [&[u8]; 2] = [b"swl1", b"swb1"];

/// How long [`Client::close`] takes, at most, unless round trips are long: then so many of them.
const CLOSING: Duration = Duration::from_millis(1_500);
const CLOSING_ROUND_TRIPS: u32 = 6;

/// A client of a server, of the primary that sentinels name, or of a cluster; or of none. Cheap to clone.
///
/// It needs tokio's runtime, with time and I/O enabled, to be used and to be dropped.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Shared>);

/// What all limiters of a client share.
pub(crate) struct Shared {
    pub link: Option<Arc<Link>>,
    pub deny_cache: Arc<DenyCache>,
    pub fair_queue: FairQueue,
    /// Renews and releases what this client holds; `None` without a server.
    pub keeper: Option<Keeper>,
    pub counters: Arc<Counters>,
    pub max_keys: usize,
    pub prefix: Vec<u8>,
    closing: Mutex<Vec<Closing>>,
    /// Whether the client was closed: nobody waits any more.
    closed: watch::Sender<bool>,
    #[cfg(feature = "metrics")]
    published: Mutex<Statistics>,
}

impl Shared {
    /// The name of a key on the server.
    pub fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        match self.prefix.as_slice() {
            [] => Cow::Borrowed(key),
            prefix => Cow::Owned([prefix, key].concat()),
        }
    }

    /// A wait until an instant, or the end of the client.
    pub fn wait(&self, until: Instant) -> Wait {
        Wait::new(until, &self.closed)
    }

    pub async fn refund(&self, request: Request<'_>) -> Result<u64, Error> {
        let key = self.key(request.key);
        let command = Command::refund(&key, request.cost, Counted::of(request.since, request.age.map(ms_up)));
        self.change("refund", &key, command, request.deadline).await
    }

    /// `duration` in ms.
    pub async fn block(&self, key: &[u8], duration: u64, unless_blocked: bool) -> Result<SystemTime, Error> {
        let key = self.key(key);
        let command = Command::Block { key: key.as_ref().into(), duration, unless_blocked };
        self.change("block", &key, command, None).await.map(unix)
    }

    pub async fn unblock(&self, key: &[u8]) -> Result<bool, Error> {
        let key = self.key(key);
        self.change("unblock", &key, Command::Unblock { key: key.as_ref().into() }, None).await.map(|lifted| lifted > 0)
    }

    pub async fn reset(&self, key: &[u8]) -> Result<bool, Error> {
        let key = self.key(key);
        self.change("reset", &key, Command::delete(&key), None).await.map(|deleted| deleted > 0)
    }

    /// Sends a change that may make a remembered denial wrong. Nobody is denied by it once this has returned.
    async fn change(
        &self,
        what: &'static str,
        key: &[u8],
        command: Command,
        deadline: Option<Instant>,
    ) -> Result<u64, Error> {
        let link = self.link.as_ref().ok_or(Error::NoServer(what))?;
        let reply = match link.deadline(deadline) {
            Ok(deadline) => Box::pin(link.ask(command, deadline)).await,
            Err(error) => Err(error),
        };
        self.deny_cache.forget(key);
        reply?.natural()
    }
}

/// The length of a block in ms.
///
/// # Errors
/// [`Error::Invalid`] for what no server takes.
pub(crate) fn block_ms(duration: Duration) -> Result<u64, Error> {
    let invalid = || Error::Invalid("duration must be a duration such as 60, 500ms, 5m, 1h or 7d".into());
    Some(ms(duration)).filter(|ms| (1..=MAX_WINDOW).contains(ms)).ok_or_else(invalid)
}

/// What is to be given back or told at the end.
pub(crate) enum Closing {
    Leases(lease::Closing),
    Eventual(eventual::Closing),
}

/// Builder for [`Client`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built yet"]
pub struct ClientBuilder {
    timeout: Duration,
    max_untracked_age: Duration,
    max_keys: usize,
    max_waiting: usize,
    module: Module,
    prefix: Vec<u8>,
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

    /// How long a denial is remembered where the server does not tell of changed keys, because there is no RESP3 or a
    /// proxy in between: 100 ms unless set. A refund is noticed that much later.
    pub fn max_untracked_age(self, age: Duration) -> Self {
        Self { max_untracked_age: age, ..self }
    }

    /// Of how many keys something is remembered, by the client and by each limiter: 100 000 unless set. The oldest are
    /// forgotten first. Their names take at most 128 bytes a key on average.
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

    /// Put before each key: nothing unless set.
    pub fn prefix(self, prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Certificates, and what sentinels need.
    pub fn connection_options(self, options: ConnectionOptions) -> Self {
        Self { options, ..self }
    }

    /// A client that connects when it is first used. Meanwhile its limiters decide by their failure policy.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting, a certificate or a URL that is wrong: see [`Client::connect`].
    pub fn build(self, url: &str) -> Result<Client, Error> {
        let servers = Servers::at(url, &self.options).map_err(Error::Invalid)?;
        self.made(Some(Box::new(servers)))
    }

    /// The same client, once the server has answered.
    ///
    /// # Errors
    /// [`Error::Invalid`] as [`build`](Self::build), [`Error::Away`] when nobody answers within a second,
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
        let counters = Arc::new(Counters::new());
        let deny_cache = Arc::new(DenyCache::new(self.max_keys, self.max_untracked_age));
        let link = transport.map(|transport| {
            let (cache, counting) = (Arc::clone(&deny_cache), Arc::clone(&counters));
            let changes = Arc::new(move |event: Event| match event {
                Event::Changed(key) => {
                    counting.count(Count::Changes, 1);
                    cache.forget(&key);
                }
                Event::AllChanged | Event::Closed => {
                    counting.count(Count::Forgotten, 1);
                    cache.forget_all();
                }
            });
            let transport = Encoding::new(transport, self.module);
            Arc::new(Link::new(transport, Arc::clone(&counters), changes, self.timeout, self.max_waiting))
        });
        let keeper = link.as_ref().map(Keeper::new);
        Ok(Client(Arc::new(Shared {
            link,
            keeper,
            deny_cache,
            fair_queue: FairQueue::new(self.max_keys),
            counters,
            max_keys: self.max_keys,
            prefix: self.prefix,
            closing: Mutex::default(),
            closed: watch::Sender::new(false),
            #[cfg(feature = "metrics")]
            published: Mutex::default(),
        })))
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

    /// A limiter of this quota, for any number of keys.
    pub fn limiter(&self, quota: Quota) -> LimiterBuilder {
        LimiterBuilder::new(self.clone(), quota)
    }

    /// Several limits in one decision: granted only if each of them is; otherwise nothing is counted anywhere. Each
    /// request goes to a limiter of this client; a block that its limiter begins upon a denial is not begun. The server
    /// decides (`MALLOW`), unless one of them is known to be denied, or all are leased. In a cluster all keys need the
    /// same hash tag. The earliest [deadline](Request::deadline) holds for all.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range, partial requests, a key named twice, or limiters of which only some
    /// are strict, or only some decided in this process; [`Error::Refused`] and [`Error::ModuleMissing`] as the server
    /// says; [`Error::Away`] where a limiter has [`OnFailure::Error`](crate::OnFailure::Error).
    pub async fn allow_all(&self, requests: &[(&Limiter, Request<'_>)]) -> Result<Decisions, Error> {
        let deadline = requests.iter().filter_map(|(_, request)| request.deadline).min();
        let decisions = Several::checked(requests)?.decide(&self.0, deadline).await?;
        // Of what was denied as a whole, nothing was granted.
        for decision in decisions.each().iter().filter(|decision| decision.granted() == decisions.granted()) {
            self.0.counters.decided(decision);
        }
        Ok(decisions)
    }

    /// Who is being limited: the keys with the most denied requests on the server, as TOP says. Of a cluster,
    /// of one of its nodes.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn top(&self, count: usize) -> Result<Vec<DeniedKey>, Error> {
        DeniedKey::all_of(&self.ask("top", Command::Top { count: count as u64 }).await?)
    }

    /// What the server holds of a key, as INFO says; `None` of a key that it has not.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn info<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<Option<KeyInfo>, Error> {
        let key = self.0.key(key.as_ref());
        match self.ask("info", Command::info(&key)).await {
            Ok(reply) => KeyInfo::of(&reply).map(Some),
            Err(Error::Refused(text)) if text == NO_SUCH_KEY => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives back up to `cost` units of a window or a budget: those that count [since](Request::since) an instant, or of
    /// an [age](Request::age), else the youngest. How many were given back. An age includes the way to the server: add
    /// the [timeout](ClientBuilder::timeout). Never refund the same units twice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn refund<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64, Error> {
        self.0.refund(request.into().checked()?).await
    }

    /// Blocks a key for so long, whatever its block was before; until when it is blocked.
    ///
    /// # Errors
    /// As [`refund`](Self::refund); [`Error::Invalid`] for a duration out of range: whole ms, 1 ms … 3650 d.
    pub async fn block<K: AsRef<[u8]> + ?Sized>(&self, key: &K, duration: Duration) -> Result<SystemTime, Error> {
        self.0.block(key.as_ref(), block_ms(duration)?, false).await
    }

    /// Blocks a key for so long, unless it is blocked already; until when it is blocked.
    ///
    /// # Errors
    /// As [`block`](Self::block).
    pub async fn block_unless_blocked<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        duration: Duration,
    ) -> Result<SystemTime, Error> {
        self.0.block(key.as_ref(), block_ms(duration)?, true).await
    }

    /// Lifts a block; whether the key was blocked.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn unblock<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        self.0.unblock(key.as_ref()).await
    }

    /// Deletes a key, whatever it holds: counts, a block, a budget, holds. Whether there was anything.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        self.0.reset(key.as_ref()).await
    }

    /// Whether the script wrote a key, which the module refuses with `WRONGTYPE`. It needs the right `+getrange`.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::NoServer`].
    pub async fn is_written_by_script<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        let key = self.0.key(key.as_ref());
        let reply = self.ask("is_written_by_script", Command::beginning(&key)).await?;
        Ok(matches!(reply, Reply::Bytes(bytes) if SCRIPTED_KEYS.contains(&bytes.as_slice())))
    }

    pub(crate) async fn ask(&self, what: &'static str, command: Command) -> Result<Reply, Error> {
        let link = self.0.link.as_ref().ok_or(Error::NoServer(what))?;
        link.ask(command, Instant::now() + link.timeout()).await
    }

    /// Whether the client has a server, be it away or not.
    pub fn has_server(&self) -> bool {
        self.0.link.is_some()
    }

    /// Whether the server is believed to be there. Without a server, it is not.
    pub fn is_connected(&self) -> bool {
        self.0.link.as_ref().is_some_and(|link| link.is_there())
    }

    /// What is known of each server, by address: one, or the primaries of a cluster, as far as they are known. None
    /// without a server.
    pub fn servers(&self) -> Vec<ServerState> {
        self.0.link.as_ref().map(|link| link.servers()).unwrap_or_default()
    }

    /// What this client has counted so far.
    pub fn statistics(&self) -> Statistics {
        self.0.counters.sums()
    }

    /// Hands what was counted since the last call to the recorder of the crate `metrics`:
    /// `swlimit_client_decisions_total` by `source` and `granted`, and `swlimit_client_<name>_total` for the others.
    /// Gauges `swlimit_client_server_away` and `swlimit_client_server_slow` are 1 or 0 for each `server`,
    /// `swlimit_client_server_round_trip_seconds` is that of the last reply, and `swlimit_client_lacks` is 1 for each
    /// `right` that is missing. To be called now and then, such as whenever metrics are asked for. Clients in
    /// one process add up.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        let mut published = self.0.published.lock();
        let now = self.statistics();
        now.publish_since(&published);
        *published = now;
        self.servers().iter().for_each(ServerState::publish);
        if let Some(link) = &self.0.link {
            link.publish_rights();
        }
    }

    /// Of how many keys a denial is remembered, or was until a moment ago.
    pub fn denials(&self) -> usize {
        self.0.deny_cache.len()
    }

    /// Answers whoever waits for units or holds: they are denied. Nobody waits from then on.
    pub fn end_waits(&self) {
        self.0.closed.send_replace(true);
    }

    /// Answers whoever [waits](Self::end_waits), gives back what leases have left, tells the server what `eventual`
    /// limiters have counted, and waits until holds that were dropped are released. A server that is away may come
    /// back meanwhile. Takes 1.5 s at most, or six round trips if that is longer; then logs what is lost.
    /// Limiters go on, without leases, but whoever ends a process calls this last.
    pub async fn close(&self) {
        self.end_waits();
        let closing = std::mem::take(&mut *self.0.closing.lock());
        let close = async || join_all(closing.iter().map(Closing::close)).await;
        let closed = async {
            close().await;
            if let Some(keeper) = &self.0.keeper {
                keeper.settled().await;
            }
            if let Some(link) = &self.0.link {
                link.settled().await;
            }
            // And what late replies have granted.
            close().await;
        };
        let round_trip = self.servers().iter().filter_map(|server| server.round_trip).max().unwrap_or_default();
        let _ = timeout(CLOSING.max(CLOSING_ROUND_TRIPS * round_trip), closed).await;
        join_all(closing.iter().map(Closing::give_up)).await;
        self.0.closing.lock().extend(closing);
    }

    /// Whether the server is there and has what is needed. It is given more time than a request: it may have to be
    /// found.
    async fn check(&self) -> Result<(), Error> {
        let Some(link) = &self.0.link else { return Ok(()) };
        let demand = Demand::of(&Quota::new(1, "1m")?);
        let key = self.0.key(b"swlimit:connected");
        let deadline = Instant::now() + Duration::from_secs(1).max(link.timeout());
        match link.ask(Command::peek(&key, &demand), deadline).await {
            // Not every user may read every key.
            Err(Error::Refused(text)) if text.starts_with("NOPERM") => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }
}

impl Shared {
    /// Keeps in mind what is to be closed at the end, and no longer what is gone.
    pub fn close_later(&self, one: impl Into<Closing>) {
        let mut closing = self.closing.lock();
        closing.retain(|closing| !closing.is_over());
        closing.push(one.into());
    }
}

impl Closing {
    fn is_over(&self) -> bool {
        match self {
            Self::Leases(leases) => leases.is_over(),
            Self::Eventual(eventual) => eventual.is_over(),
        }
    }

    async fn close(&self) {
        match self {
            Self::Leases(leases) => leases.close().await,
            Self::Eventual(eventual) => eventual.close().await,
        }
    }

    async fn give_up(&self) {
        match self {
            Self::Leases(leases) => leases.write_off().await,
            Self::Eventual(eventual) => eventual.give_up().await,
        }
    }
}

impl From<lease::Closing> for Closing {
    fn from(leases: lease::Closing) -> Self {
        Self::Leases(leases)
    }
}

impl From<eventual::Closing> for Closing {
    fn from(eventual: eventual::Closing) -> Self {
        Self::Eventual(eventual)
    }
}
