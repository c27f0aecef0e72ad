//! The health of one server, as exchanges with it report it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::time::{Duration, Instant};

use super::batch::Batch;
use super::breaker::Breaker;
use super::connector::Connector;
use super::exchange::SILENT_TIMEOUTS;
use super::health::is_unknown;
use super::line::Line;
use super::trips::Trips;
use crate::protocol::Command;
use crate::servers::{Backend, ServerState};
use crate::statistics::Count;
use crate::transport::{Failure, Reply};

/// A connection that takes longer to be made opens the breaker, and goes on as its first probe.
pub(super) const CONNECTING: Duration = Duration::from_secs(1);
/// A probe is given up after so long.
pub(super) const PROBING: Duration = Duration::from_millis(500);

/// The health of one server: its breaker, how fast it answers, and the connection that requests use.
pub(crate) struct NodeHealth {
    connector: Connector,
    pub(super) breaker: Breaker,
    pub(super) requests: RwLock<Option<Arc<Line>>>,
    /// The key of the last request that failed, which a probe uses.
    failed_key: Mutex<Arc<[u8]>>,
    trips: Trips,
    /// The module has answered once: since then its absence is a failure of the server's.
    was_served: AtomicBool,
    /// Begins to probe.
    on_open: Box<dyn Fn() + Send + Sync>,
}

impl NodeHealth {
    /// `on_open` is called when an exchange opens the breaker.
    pub(super) fn new(connector: &Connector, on_open: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            connector: connector.clone(),
            breaker: Breaker::default(),
            requests: RwLock::new(None),
            failed_key: Mutex::new(Arc::default()),
            trips: Trips::default(),
            was_served: AtomicBool::new(false),
            on_open: Box::new(on_open),
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
        self.requests.read().as_ref().and_then(|line| line.backend())
    }

    /// The server's state, for callers.
    pub fn state(&self) -> ServerState {
        let round_trip = self.trips.last();
        let missing = self.connector.context.rights.missing();
        let state = self.breaker.state(self.connector.name(), missing, round_trip);
        ServerState { backend: self.backend(), ..state }
    }

    /// The connection for requests, if there is one that takes them.
    pub fn current(&self) -> Option<Arc<Line>> {
        let requests = self.requests.read();
        requests.as_ref().filter(|line| line.takes(Instant::now())).map(Arc::clone)
    }

    /// Whether requests go over this connection, and not over one that was made later.
    pub fn uses(&self, line: &Arc<Line>) -> bool {
        self.requests.read().as_ref().is_some_and(|current| Arc::ptr_eq(current, line))
    }

    /// Whether the server has answered for a while over another connection, and this one is silent: it is half open.
    pub fn is_back_without(&self, line: &Arc<Line>) -> bool {
        let is_back = || {
            let requests = self.requests.read();
            requests.as_ref().is_some_and(|other| !Arc::ptr_eq(other, line) && other.age() >= PROBING)
        };
        !self.is_unavailable() && line.is_silent(CONNECTING, Instant::now()) && is_back()
    }

    /// Counts commands that are sent.
    pub fn sent(&self, commands: usize) {
        self.connector.sent(commands);
    }

    /// A reply came in time, and the server can decide.
    pub fn answered(&self, line: &Line, reply: &Result<Reply, Failure>, round_trip: Duration, batch: &Batch) {
        let is_scripted = line.is_scripted();
        match reply {
            // The script has not all commands, and need not.
            Ok(reply) if is_unknown(reply) && is_scripted => {}
            Ok(reply) if is_unknown(reply) && self.was_served() => {
                return self.failed("the module is missing", batch.key());
            }
            Ok(reply) if is_unknown(reply) => {}
            _ => self.was_served.store(true, Ordering::Relaxed),
        }
        self.trips.took(round_trip);
        // The script denies without writing.
        let is_write = match is_scripted {
            true => batch.has_granted(reply),
            false => batch.commands().iter().any(Command::is_refused_with_writes),
        };
        self.breaker.succeeded(is_write);
    }

    /// The server granted units that nobody takes any more.
    pub fn unclaimed(&self, units: u64) {
        self.connector.context.counters.count(Count::Unclaimed, units);
    }

    /// A reply came late. It stays the one failure that it was counted as, and closes nothing.
    pub fn slow(&self, round_trip: Duration) {
        self.trips.took(round_trip);
        self.connector.context.counters.count(Count::Slow, 1);
        if self.breaker.late() {
            let (address, timeout) = (self.connector.name(), self.timeout());
            tracing::warn!(address, ?round_trip, ?timeout, "the rate limit server is slow");
        }
    }

    /// A request failed: the server did not answer in time, or cannot decide.
    pub fn failed(&self, reason: &str, key: &[u8]) {
        self.set_failed_key(key);
        self.failure(reason);
    }

    pub(super) fn failure(&self, reason: &str) {
        self.connector.context.counters.count(Count::Failures, 1);
        if self.breaker.failed(reason) {
            self.report_opened();
            (self.on_open)();
        }
    }

    /// Opens the breaker, whatever was before.
    pub fn open(&self, reason: &str, key: &[u8]) {
        self.set_failed_key(key);
        if self.opens(reason) {
            (self.on_open)();
        }
    }

    /// Opens the breaker, for a caller that probes itself; whether it was closed.
    pub(super) fn opens(&self, reason: &str) -> bool {
        let was_closed = self.breaker.open(reason);
        if was_closed {
            self.report_opened();
        }
        was_closed
    }

    fn report_opened(&self) {
        self.connector.context.counters.count(Count::Opened, 1);
        let (address, reason) = (self.connector.name(), self.breaker.reason());
        tracing::warn!(address, reason, "the rate limit server is unavailable: deciding without it");
    }
}
