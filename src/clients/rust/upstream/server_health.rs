//! The health of one server, as exchanges with it report it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::time::{timeout, Duration, Instant};

use super::batch::Batch;
use super::breaker::{Breaker, SILENT_TIMEOUTS};
use super::connection::Connection;
use super::connector::Connector;
use super::health::is_unknown;
use super::slow::Slow;
use super::trips::Trips;
use crate::error::Cause;
use crate::protocol::Command;
use crate::reason::Reason;
use crate::servers::{Backend, Eviction, ServerState, State};
use crate::statistics::Count;
use crate::transport::{Failure, Reply};

/// A connection that takes longer to be made opens the breaker, and goes on as its first probe.
pub(super) const CONNECTING: Duration = Duration::from_secs(1);
/// A probe is given up after so long.
pub(super) const PROBING: Duration = Duration::from_millis(500);

/// The health of one server: its breaker, how fast it answers, and the connection that requests use.
pub(crate) struct ServerHealth {
    connector: Connector,
    pub(super) breaker: Breaker,
    pub(super) requests: RwLock<Option<Arc<Connection>>>,
    /// The key of the last request that failed, which a probe uses.
    failed_key: Mutex<Arc<[u8]>>,
    trips: Trips,
    pub(super) slow: Slow,
    eviction: Mutex<Option<Eviction>>,
    /// The module has answered once: since then its absence is a failure of the server's.
    was_served: AtomicBool,
    /// The log has said that it is unavailable.
    was_reported: AtomicBool,
    /// Begins to probe a server that is unavailable.
    on_open: Box<dyn Fn() + Send + Sync>,
    /// Begins to probe a server that is slow.
    on_slow: Box<dyn Fn() + Send + Sync>,
}

impl ServerHealth {
    /// `on_open` is called when an exchange opens the breaker, `on_slow` when replies begin to be late.
    pub(super) fn new(
        connector: &Connector,
        on_open: impl Fn() + Send + Sync + 'static,
        on_slow: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            connector: connector.clone(),
            breaker: Breaker::default(),
            requests: RwLock::new(None),
            failed_key: Mutex::new(Arc::default()),
            trips: Trips::default(),
            slow: Slow::default(),
            eviction: Mutex::default(),
            was_served: AtomicBool::new(false),
            was_reported: AtomicBool::new(false),
            on_open: Box::new(on_open),
            on_slow: Box::new(on_slow),
        }
    }

    pub fn timeout(&self) -> Duration {
        self.connector.context.timeout
    }

    /// The mean round trip.
    pub fn round_trip(&self) -> Duration {
        self.trips.mean()
    }

    /// How long a round trip takes, at most; `None` where nothing is known.
    pub fn longest_trip(&self) -> Option<Duration> {
        self.trips.longest()
    }

    /// After so long without a reply, a connection that owes one is down.
    pub fn silence(&self) -> Duration {
        SILENT_TIMEOUTS * self.timeout().max(self.longest_trip().unwrap_or_default())
    }

    pub fn is_unavailable(&self) -> bool {
        self.breaker.is_open()
    }

    pub fn was_served(&self) -> bool {
        self.was_served.load(Ordering::Relaxed)
    }

    pub(super) fn failed_key(&self) -> Arc<[u8]> {
        Arc::clone(&self.failed_key.lock())
    }

    pub(super) fn set_failed_key(&self, key: &[u8]) {
        *self.failed_key.lock() = key.into();
    }

    /// What decides there, as far as is known.
    pub fn backend(&self) -> Option<Backend> {
        self.requests.read().as_ref().and_then(|connection| connection.backend())
    }

    /// The server's state, for callers.
    pub fn state(&self) -> ServerState {
        let round_trip = self.trips.last();
        let missing = self.connector.context.rights.missing();
        let mut state = self.breaker.state(self.connector.name(), missing, round_trip);
        if let Some(since) = self.slow.since().filter(|_| state.state == State::Up) {
            (state.state, state.reason, state.since) = (State::Slow, Some(Reason::Slow), since);
        }
        ServerState { backend: self.backend(), eviction: self.eviction.lock().clone(), ..state }
    }

    /// The connection for requests, if there is one that takes them.
    pub fn current(&self) -> Option<Arc<Connection>> {
        let requests = self.requests.read();
        requests.as_ref().filter(|connection| connection.takes(Instant::now())).map(Arc::clone)
    }

    /// Whether requests go over this connection, and not over one that was made later.
    pub fn uses(&self, connection: &Arc<Connection>) -> bool {
        self.requests.read().as_ref().is_some_and(|current| Arc::ptr_eq(current, connection))
    }

    /// Whether the server has answered for a while over another connection, and this one is silent: it is half open.
    pub fn is_back_without(&self, connection: &Arc<Connection>) -> bool {
        let is_back = || {
            let requests = self.requests.read();
            requests.as_ref().is_some_and(|other| !Arc::ptr_eq(other, connection) && other.age() >= PROBING)
        };
        !self.is_unavailable() && connection.is_silent(CONNECTING, Instant::now()) && is_back()
    }

    /// Has the server say who it is, unless it did.
    pub async fn identify(&self, connection: &Connection) {
        if connection.identity().is_none() {
            if let Ok(Ok(info)) = timeout(CONNECTING, connection.identify(&self.connector.context.rights)).await {
                self.heard_info(&info);
            }
        }
    }

    /// Lets go of a connection that owes replies, which are in doubt: nobody waits for them any more.
    pub(super) fn give_up(&self) {
        if let Some(connection) = self.requests.write().take_if(|connection| connection.owes()) {
            connection.retire();
        }
    }

    /// Counts commands that are sent.
    pub fn sent(&self, commands: usize) {
        self.connector.sent(commands);
    }

    /// A reply came in time, and the server can decide. It is measured where it had not waited behind many others.
    pub fn answered(
        &self,
        connection: &Connection,
        reply: &Result<Reply, Failure>,
        round_trip: Duration,
        is_measured: bool,
        batch: &Batch,
    ) {
        let is_scripted = connection.is_scripted();
        match reply {
            // The script has not all commands, and need not.
            Ok(reply) if is_unknown(reply) && is_scripted => {}
            Ok(reply) if is_unknown(reply) && self.was_served() => {
                return self.failed(&Reason::ModuleMissing.because("the module is missing"), batch.key());
            }
            Ok(reply) if is_unknown(reply) => {}
            _ => self.was_served.store(true, Ordering::Relaxed),
        }
        self.took(round_trip, is_measured);
        connection.answered_in_time(Instant::now());
        // The script denies without writing.
        let is_write = match is_scripted {
            true => batch.has_granted(reply),
            false => batch.commands().iter().any(Command::is_refused_with_writes),
        };
        self.breaker.succeeded(is_write);
    }

    /// Asks now and then what may have changed since the connection was made.
    pub(super) fn look(self: &Arc<Self>, connection: &Arc<Connection>) {
        let (health, connection) = (Arc::clone(self), Arc::clone(connection));
        tokio::spawn(async move {
            if let Ok(Ok(info)) = timeout(CONNECTING, connection.look()).await {
                health.heard_info(&info);
            }
        });
    }

    /// What INFO says of the server's memory.
    pub(super) fn heard_info(&self, info: &str) {
        let eviction = Eviction::read(info);
        let policy = |eviction: &Option<Eviction>| eviction.as_ref().map(|eviction| eviction.policy.clone());
        let before = std::mem::replace(&mut *self.eviction.lock(), eviction.clone());
        if let Some(policy) = policy(&eviction).filter(|_| policy(&before) != policy(&eviction)) {
            let address = self.connector.name();
            tracing::warn!(address, policy, "the rate limit server evicts keys, and limits with them: use noeviction");
        }
    }

    /// The server granted units that nobody takes any more.
    pub fn unclaimed(&self, units: u64) {
        self.connector.context.counters.count(Count::Unclaimed, units);
    }

    /// A probe was answered.
    pub(super) fn measured(&self, round_trip: Duration) {
        let timeout = self.timeout();
        self.took(round_trip, round_trip <= timeout);
        if round_trip > timeout {
            self.say_slow(round_trip, timeout);
            self.too_late(round_trip, timeout);
        }
    }

    /// A reply was in time.
    fn took(&self, round_trip: Duration, is_measured: bool) {
        self.trips.took(round_trip);
        if self.slow.in_time(round_trip, is_measured) {
            let address = self.connector.name();
            tracing::info!("server {address} is in time again: a reply took {} ms", round_trip.as_millis());
        }
    }

    /// A reply came later than a timeout. It closes nothing. Where it had not waited behind many others, it was no failure
    /// of the server, which is slow if such replies go on.
    pub fn late(&self, round_trip: Duration, timeout: Duration, is_measured: bool, was_failure: bool, key: &[u8]) {
        self.trips.took(round_trip);
        self.connector.context.counters.count(Count::Slow, 1);
        self.say_slow(round_trip, timeout);
        if is_measured {
            self.set_failed_key(key);
            self.too_late(round_trip, timeout);
            if was_failure {
                self.breaker.excuse();
            }
        }
    }

    fn too_late(&self, round_trip: Duration, timeout: Duration) {
        if self.slow.late(round_trip, timeout) {
            (self.on_slow)();
        }
    }

    /// Why a policy decides requests with this timeout, if the server is slower.
    #[inline]
    pub fn too_slow(&self, timeout: Duration) -> Option<Cause> {
        let round_trip = self.slow.above(timeout)?;
        self.say_slow(round_trip, timeout);
        let (round_trip, timeout) = (round_trip.as_millis(), timeout.as_millis());
        Some(Reason::Slow.because(format!("the round trip is {round_trip} ms, and the timeout {timeout} ms")))
    }

    fn say_slow(&self, round_trip: Duration, timeout: Duration) {
        if self.slow.is_log_due() {
            let address = self.connector.name();
            let (round_trip, timeout) = (round_trip.as_millis(), timeout.as_millis());
            tracing::warn!(
                "server {address} is slow: the round trip is {round_trip} ms, and the timeout {timeout} ms; on_failure \
                 decides"
            );
        }
    }

    /// A request failed: the server did not answer in time, or cannot decide.
    pub fn failed(&self, cause: &Cause, key: &[u8]) {
        self.set_failed_key(key);
        self.failure(cause);
    }

    pub(super) fn failure(&self, cause: &Cause) {
        self.connector.context.counters.count(Count::Failures, 1);
        let has_opened = self.breaker.failed(cause);
        if has_opened {
            self.connector.context.counters.count(Count::Opened, 1);
        }
        if has_opened || !self.was_reported.swap(true, Ordering::Relaxed) {
            self.report(cause);
        }
        if has_opened {
            (self.on_open)();
        }
    }

    /// Opens the breaker, whatever was before.
    pub fn open(&self, cause: &Cause, key: &[u8]) {
        self.set_failed_key(key);
        if self.opens(cause) {
            (self.on_open)();
        }
    }

    /// Opens the breaker, for a caller that probes itself; whether it was closed.
    pub(super) fn opens(&self, cause: &Cause) -> bool {
        let was_closed = self.breaker.open(cause);
        if was_closed {
            self.connector.context.counters.count(Count::Opened, 1);
            self.report(cause);
        }
        was_closed
    }

    /// Logs the first failure of all, with which the policy decided first, and each time that the breaker opens.
    fn report(&self, cause: &Cause) {
        self.was_reported.store(true, Ordering::Relaxed);
        let address = self.connector.name();
        let reason = cause.reason().as_str();
        tracing::warn!(%cause, "server {address} is unavailable ({reason}); on_failure decides until it answers");
    }
}
