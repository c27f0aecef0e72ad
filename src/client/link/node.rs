//! One server: its breaker, and the connections to it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::{sleep, timeout, Duration, Instant};

use super::breaker::{pauses, Breaker};
use super::exchange::Batch;
use super::health::{failure, is_unknown, redirection};
use super::line::Line;
use super::tracking::Tracking;
use super::waiting::Waiting;
use super::Context;
use crate::demand::Demand;
use crate::error::Error;
use crate::protocol::{is_unknown_command, Command};
use crate::servers::{Backend, ServerState};
use crate::statistics::Count;
use crate::transport::{Event, Failure, Purpose, Reply};

/// A connection that takes longer to be made opens the breaker, and goes on as its first probe.
const CONNECTING: Duration = Duration::from_secs(1);
/// A probe is given up after so long.
const PROBING: Duration = Duration::from_millis(500);

/// One server: the only one, or a primary of a cluster.
pub(crate) struct Node {
    address: Option<Arc<str>>,
    context: Arc<Context>,
    breaker: Breaker,
    requests: RwLock<Option<Arc<Line>>>,
    connecting: Mutex<Option<Attempt>>,
    /// The key of the last request that failed: a probe asks for it.
    failed_key: Mutex<Vec<u8>>,
    /// In µs, a moving mean of those in time; and the last one, in time or late.
    round_trip: AtomicU64,
    last_round_trip: AtomicU64,
    /// The module has answered once: since then its absence is a failure of the server's.
    was_served: AtomicBool,
    pub tracking: Tracking,
    pub waiting: Waiting,
}

type Attempt = watch::Receiver<Option<Result<Arc<Line>, String>>>;
type Connecting = std::pin::Pin<Box<dyn std::future::Future<Output = Result<Arc<Line>, Failure>> + Send>>;

impl Node {
    pub fn new(address: Option<Arc<str>>, context: Arc<Context>) -> Self {
        Self {
            address,
            context,
            breaker: Breaker::default(),
            requests: RwLock::new(None),
            connecting: Mutex::new(None),
            failed_key: Mutex::default(),
            round_trip: AtomicU64::new(0),
            last_round_trip: AtomicU64::new(0),
            was_served: AtomicBool::new(false),
            tracking: Tracking::default(),
            waiting: Waiting::default(),
        }
    }

    pub fn timeout(&self) -> Duration {
        self.context.timeout
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    pub fn is_away(&self) -> bool {
        self.breaker.is_open()
    }

    /// What is known of the server.
    pub fn state(&self) -> ServerState {
        let micros = self.last_round_trip.load(Ordering::Relaxed);
        let round_trip = (micros > 0).then(|| Duration::from_micros(micros));
        let state = self.breaker.state(self.name(), self.context.rights.missing(), round_trip);
        ServerState { backend: self.backend(), ..state }
    }

    /// The connection for requests: the one there is, or one that is made. The attempt is nobody's: it goes on without
    /// whoever began it, and those who ask meanwhile share its outcome.
    ///
    /// # Errors
    /// [`Error::Away`] at once while the breaker is open, or when the attempt fails.
    pub async fn line(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Line>, Error> {
        if self.breaker.is_open() {
            return Err(Error::Away(self.breaker.reason()));
        }
        self.any_line(key).await
    }

    /// The same, whatever the breaker says.
    ///
    /// # Errors
    /// [`Error::Away`] when the attempt fails.
    pub async fn any_line(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Line>, Error> {
        if let Some(line) = self.current() {
            return Ok(line);
        }
        let mut attempt = self.attempt(key);
        let made = attempt.wait_for(Option::is_some).await;
        match made.as_deref() {
            Ok(Some(Ok(line))) => Ok(Arc::clone(line)),
            Ok(Some(Err(reason))) => Err(Error::Away(reason.clone())),
            _ => Err(Error::Away("the connection was not made".into())),
        }
    }

    /// The connection for requests, if there is one that takes them.
    pub fn current(&self) -> Option<Arc<Line>> {
        let requests = self.requests.read();
        requests.as_ref().filter(|line| line.takes(Instant::now())).map(Arc::clone)
    }

    /// Whether the server has answered for a while over another connection, and this one is silent: it is half open.
    pub fn is_back_without(&self, line: &Arc<Line>) -> bool {
        let is_back = || {
            let requests = self.requests.read();
            requests.as_ref().is_some_and(|other| !Arc::ptr_eq(other, line) && other.age() >= PROBING)
        };
        !self.is_away() && line.is_silent(CONNECTING, Instant::now()) && is_back()
    }

    fn attempt(self: &Arc<Self>, key: &[u8]) -> Attempt {
        let mut connecting = self.connecting.lock();
        if let Some(attempt) = &*connecting {
            return attempt.clone();
        }
        *self.failed_key.lock() = key.to_vec();
        let (done, attempt) = watch::channel(None);
        *connecting = Some(attempt.clone());
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let mut connecting: Connecting = Box::pin(node.connected(Purpose::Requests));
            let made = match timeout(CONNECTING, &mut connecting).await {
                Ok(made) => made.map_err(|failure| failure.to_string()),
                Err(_) => {
                    let reason = "no connection within a second";
                    if node.breaker.open(reason) {
                        node.opened(Some(connecting));
                    }
                    Err(reason.into())
                }
            };
            match &made {
                Ok(line) => node.install(line),
                Err(reason) if !node.breaker.is_open() => node.failure(reason),
                Err(_) => {}
            }
            *node.connecting.lock() = None;
            done.send_replace(Some(made));
        });
        attempt
    }

    /// A new connection. Its events are heard as the purpose needs it.
    pub fn connected(
        self: &Arc<Self>,
        purpose: Purpose,
    ) -> impl std::future::Future<Output = Result<Arc<Line>, Failure>> + Send + 'static {
        let is_closed = Arc::new(AtomicBool::new(false));
        let (closed, context) = (Arc::clone(&is_closed), Arc::downgrade(&self.context));
        let events = Arc::new(move |event: Event| {
            if event == Event::Closed {
                closed.store(true, Ordering::Release);
            }
            if purpose == Purpose::Tracking {
                if let Some(context) = context.upgrade() {
                    (context.changes)(event);
                }
            }
        });
        let connecting = self.context.transport.connect(self.address.as_deref(), purpose, events);
        async move { Ok(Arc::new(Line::new(connecting.await?, is_closed))) }
    }

    /// Requests go over this connection from now on. With another server in its place, or after a gap, nothing that
    /// was known of changes holds.
    fn install(self: &Arc<Self>, line: &Arc<Line>) {
        let before = self.requests.write().replace(Arc::clone(line));
        if let Some(before) = before {
            self.tracking.renew(&self.context);
            let (from, to) = (before.address(), line.address());
            if from != to {
                self.context.counters.count(Count::Failovers, 1);
                tracing::warn!(from, to, "another server is the rate limit primary now");
            }
        }
        let (node, line) = (Arc::clone(self), Arc::clone(line));
        tokio::spawn(async move { node.identify(&line).await });
    }

    /// Has the server say who it is, unless it did.
    pub async fn identify(&self, line: &Line) {
        if line.identity().is_none() {
            let _ = timeout(CONNECTING, line.identify(&self.context.rights)).await;
        }
    }

    pub fn sent(&self, commands: usize) {
        self.context.counters.count(Count::Commands, commands as u64);
    }

    /// A reply came in time, and the server can decide.
    pub fn answered(
        self: &Arc<Self>,
        line: &Line,
        reply: &Result<Reply, Failure>,
        round_trip: Duration,
        batch: &Batch,
    ) {
        match reply {
            // The script has not all commands, and need not.
            Ok(reply) if is_unknown(reply) && is_scripted(line) => {}
            Ok(reply) if is_unknown(reply) && self.was_served() => {
                return self.failed("the module is missing", batch.key());
            }
            Ok(reply) if is_unknown(reply) => {}
            _ => self.was_served.store(true, Ordering::Relaxed),
        }
        let micros = self.took(round_trip);
        let mean = match self.round_trip.load(Ordering::Relaxed) {
            0 => micros,
            mean => mean - mean / 8 + micros / 8,
        };
        self.round_trip.store(mean.max(1), Ordering::Relaxed);
        // The script denies without writing.
        let is_write = match is_scripted(line) {
            true => batch.granted(reply) > 0,
            false => batch.commands().iter().any(Command::is_refused_with_writes),
        };
        self.breaker.succeeded(is_write);
    }

    /// A reply took so long; in µs.
    fn took(&self, round_trip: Duration) -> u64 {
        let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX).max(1);
        self.last_round_trip.store(micros, Ordering::Relaxed);
        micros
    }

    /// The server granted units that nobody takes any more.
    pub fn unclaimed(&self, units: u64) {
        self.context.counters.count(Count::Unclaimed, units);
    }

    pub fn was_served(&self) -> bool {
        self.was_served.load(Ordering::Relaxed)
    }

    /// A reply came late. It stays the one failure that it was counted as, and closes nothing.
    pub fn slow(&self, round_trip: Duration) {
        self.took(round_trip);
        self.context.counters.count(Count::Slow, 1);
        if self.breaker.late() {
            let (address, timeout) = (self.name(), self.context.timeout);
            tracing::warn!(address, ?round_trip, ?timeout, "the rate limit server is slow");
        }
    }

    /// A request failed: the server did not answer in time, or cannot decide.
    pub fn failed(self: &Arc<Self>, reason: &str, key: &[u8]) {
        *self.failed_key.lock() = key.to_vec();
        self.failure(reason);
    }

    fn failure(self: &Arc<Self>, reason: &str) {
        self.context.counters.count(Count::Failures, 1);
        if self.breaker.failed(reason) {
            self.opened(None);
        }
    }

    /// Opens the breaker, whatever was before.
    pub fn open(self: &Arc<Self>, reason: &str, key: &[u8]) {
        *self.failed_key.lock() = key.to_vec();
        if self.breaker.open(reason) {
            self.opened(None);
        }
    }

    fn opened(self: &Arc<Self>, connecting: Option<Connecting>) {
        self.context.counters.count(Count::Opened, 1);
        let (address, reason) = (self.name(), self.breaker.reason());
        tracing::warn!(address, reason, "the rate limit server is away: deciding without it");
        tokio::spawn(probe(Arc::downgrade(self), connecting));
    }

    /// Asks for what a write would be refused, and what is otherwise denied without a trace.
    async fn probe(&self, line: &Line) -> Result<(), String> {
        let key = self.failed_key.lock().clone();
        let mut reply = line.send(&Command::allow(&key, &Demand::nothing())).await;
        if is_scripted(line) && failure(&reply, false).is_none() {
            reply = line.send(&Command::empty_write(&key)).await;
        }
        if reply.as_ref().is_ok_and(|reply| redirection(reply).is_some()) {
            // Another node has the key by now; this one has others, and answers.
            return Ok(());
        }
        if let Some(reason) = failure(&reply, true) {
            return Err(reason.to_owned());
        }
        match reply {
            Ok(Reply::Error(text)) if is_unknown_command(&text) && self.was_served() => Err(text),
            _ => Ok(()),
        }
    }

    /// What decides there, as far as is known.
    pub fn backend(&self) -> Option<Backend> {
        self.requests.read().as_ref().and_then(|line| line.backend())
    }

    fn name(&self) -> String {
        self.address.as_ref().map_or_else(|| self.context.transport.address(), |address| address.to_string())
    }
}

fn is_scripted(line: &Line) -> bool {
    line.backend() == Some(Backend::Script)
}

/// Probes until the server is back, or the client is gone. The first probe may be a connection that is being made.
async fn probe(node: Weak<Node>, mut connecting: Option<Connecting>) {
    let mut pauses = pauses();
    loop {
        if connecting.is_none() {
            sleep(pauses.next().unwrap_or(PROBING)).await;
        }
        let Some(node) = node.upgrade() else { return };
        let probing = async {
            let connecting = connecting.take().unwrap_or_else(|| Box::pin(node.connected(Purpose::Requests)));
            let line = connecting.await.map_err(|failure| failure.to_string())?;
            node.probe(&line).await.map(|()| line)
        };
        match timeout(PROBING, probing).await {
            Ok(Ok(line)) => {
                node.install(&line);
                node.breaker.close();
                node.context.is_back.notify_waiters();
                tracing::info!(address = node.name(), "the rate limit server is back");
                return;
            }
            Ok(Err(reason)) => drop(node.breaker.open(&reason)),
            Err(_) => drop(node.breaker.open("a probe was not answered")),
        }
        // In a cluster, another node may have taken over.
        node.context.slots_are_stale.store(true, Ordering::Release);
    }
}
