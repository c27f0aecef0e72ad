//! What all limiters of a client share.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use swlimit_window::MAX_WINDOW;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::{ms, ms_up};
use crate::deciding::cached::DenialCache;
use crate::deciding::{eventual, leased};
use crate::error::Error;
use crate::keyed::FairQueue;
use crate::mode::OnRefused;
use crate::protocol::{unix, Command, Counted};
use crate::reason::Reason;
use crate::request::Request;
use crate::statistics::Counters;
#[cfg(feature = "metrics")]
use crate::statistics::Statistics;
use crate::upstream::{HoldRenewer, Upstream};
use crate::wait::Wait;

/// How often refusals are logged that failure policies decide.
const REFUSALS: Duration = Duration::from_secs(60);

/// What all limiters of a client share.
pub(crate) struct Shared {
    pub upstream: Option<Arc<Upstream>>,
    pub denial_cache: Arc<DenialCache>,
    pub fair_queue: Arc<FairQueue>,
    /// Renews and releases what this client holds; `None` without a server.
    pub renewer: Option<HoldRenewer>,
    pub counters: Arc<Counters>,
    pub max_keys: usize,
    pub on_refused: OnRefused,
    /// When a refusal was logged last.
    pub refused: Mutex<Option<Instant>>,
    pub prefix: Vec<u8>,
    pub closing: Mutex<Vec<Closing>>,
    /// Whether the client was closed: nobody waits any more.
    pub closed: watch::Sender<bool>,
    #[cfg(feature = "metrics")]
    pub published: Mutex<Statistics>,
}

impl Shared {
    /// The name of a key on the server.
    pub fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        match self.prefix.as_slice() {
            [] => Cow::Borrowed(key),
            prefix => Cow::Owned([prefix, key].concat()),
        }
    }

    /// Why there is no decision: [`Error::Unavailable`] also where the server refuses to make one, if refusals are the
    /// failure policies' to decide.
    pub fn failure(&self, error: Error) -> Error {
        let is_refusal =
            matches!(error, Error::Refused(_) | Error::ModuleMissing | Error::ModuleTooOld(_) | Error::NeedsModule);
        if !is_refusal || self.on_refused == OnRefused::Error {
            return error;
        }
        let (mut logged, now) = (self.refused.lock(), Instant::now());
        if logged.is_none_or(|logged| now.saturating_duration_since(logged) >= REFUSALS) {
            *logged = Some(now);
            tracing::error!(%error, "the rate limit server refuses commands; on_failure decides");
        }
        Error::Unavailable(Reason::Other.because(error.to_string()))
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
        let upstream = self.upstream.as_ref().ok_or(Error::NoServer(what))?;
        let reply = match upstream.deadline(deadline) {
            Ok(deadline) => Box::pin(upstream.ask(command, deadline)).await,
            Err(error) => Err(error),
        };
        self.denial_cache.forget(key);
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

/// What goes back to the server, or is sent to it, at the end.
pub(crate) enum Closing {
    Leases(leased::Closing),
    Eventual(eventual::Closing),
}

impl Shared {
    /// Remembers what to close at the end, and forgets what is gone.
    pub fn close_later(&self, one: impl Into<Closing>) {
        let mut closing = self.closing.lock();
        closing.retain(|closing| !closing.is_over());
        closing.push(one.into());
    }
}

impl Closing {
    pub fn is_over(&self) -> bool {
        match self {
            Self::Leases(leases) => leases.is_over(),
            Self::Eventual(eventual) => eventual.is_over(),
        }
    }

    /// Whether its server is too far for leases.
    #[cfg(feature = "metrics")]
    pub fn is_too_far(&self) -> bool {
        matches!(self, Self::Leases(leases) if leases.is_too_far())
    }

    pub async fn close(&self) {
        match self {
            Self::Leases(leases) => leases.close().await,
            Self::Eventual(eventual) => eventual.close().await,
        }
    }

    pub async fn give_up(&self) {
        match self {
            Self::Leases(leases) => leases.write_off().await,
            Self::Eventual(eventual) => eventual.give_up().await,
        }
    }
}

impl From<leased::Closing> for Closing {
    fn from(leases: leased::Closing) -> Self {
        Self::Leases(leases)
    }
}

impl From<eventual::Closing> for Closing {
    fn from(eventual: eventual::Closing) -> Self {
        Self::Eventual(eventual)
    }
}
