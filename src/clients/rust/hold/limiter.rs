//! The limiter of things under way: how many at once.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::info::Holder;
use super::local::LocalHolds;
use super::request::{check_ids, checked_ttl, HoldRequest, InDoubt, PendingHold, MIN_TTL};
use crate::client::Client;
use crate::clock::{ms, ms_up};
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::mode::{OnFailure, Share, SHARE};
use crate::protocol::{held_of, unix, Command, NO_SUCH_KEY};
use crate::quota::checked_limit;
use crate::shared::Shared;
use crate::upstream::Upstream;

pub(super) const TTL: Duration = Duration::from_secs(30);
/// The longest that a request waits because of the limiter.
const TIMEOUT: Duration = Duration::from_secs(1);
/// While the server is unavailable, somebody who waits asks it again after so long.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// How many at once, for any number of keys: streams, jobs, connections, seats of a plan. Cheap to clone.
///
/// Each one under way has a [`Hold`](crate::Hold), which ends when it is dropped, and when its time to live has passed
/// without a sign of its process.
///
/// ```no_run
/// # async fn example() -> Result<(), swlimit_client::Error> {
/// use std::time::Duration;
/// use swlimit_client::{Client, HoldRequest};
///
/// let client = Client::connect("redis://127.0.0.1/").await?;
/// let streams = client.holds(5).build()?;
/// let hold = streams.hold(HoldRequest::new("user:1").wait(Duration::from_secs(10))).await?;
/// if hold.granted() {
///     // … the stream, for as long as hold.is_live()
/// }
/// drop(hold);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HoldLimiter(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub client: Arc<Shared>,
    pub limit: u64,
    pub ttl: Duration,
    pub timeout: Duration,
    pub on_failure: OnFailure,
    pub local_share: Share,
    /// Holds of this process, by the failure policy or without a server.
    pub local: LocalHolds,
}

/// Builder for [`HoldLimiter`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built yet"]
pub struct HoldLimiterBuilder {
    client: Client,
    limit: u64,
    ttl: Duration,
    timeout: Duration,
    on_failure: OnFailure,
    local_share: f64,
}

impl HoldLimiterBuilder {
    pub(crate) fn new(client: Client, limit: u64) -> Self {
        Self { client, limit, ttl: TTL, timeout: TIMEOUT, on_failure: OnFailure::Error, local_share: SHARE }
    }

    /// How long a hold lasts after the last sign of its process: 30 s unless set, at least 3 s. It is renewed every
    /// third of it. It should outlast a failover of the server.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// The longest that a request waits because of the limiter, beside the time that it waits for its turn: 1 s unless
    /// set. A first connection takes several round trips.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// What decides when the server does not answer: [`OnFailure::Error`] unless set, since a hold that this process
    /// grants by itself may be somebody else's. Only for taking: a hold that the
    /// server granted ends at its time.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// The part of the limit, 0 … 1, that is granted in this process by [`OnFailure::Local`]: 0.1 unless set. Rounded
    /// up to whole units. These holds may come on top of the server's once it is back.
    pub fn local_share(self, share: f64) -> Self {
        Self { local_share: share, ..self }
    }

    /// The limiter.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit, a share or a time to live out of range.
    pub fn build(self) -> Result<HoldLimiter, Error> {
        let Self { client: Client(client), limit, ttl, timeout, on_failure, local_share } = self;
        let (limit, local_share) = (checked_limit(limit)?, Share::named("local_share", local_share)?);
        let ttl = checked_ttl(ttl)?;
        Ok(HoldLimiter(Arc::new(Inner {
            client,
            limit,
            ttl,
            timeout,
            on_failure,
            local_share,
            local: LocalHolds::default(),
        })))
    }
}

impl fmt::Debug for HoldLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldLimiter").field("limit", &self.limit()).field("ttl", &self.ttl()).finish_non_exhaustive()
    }
}

impl HoldLimiter {
    /// The shortest time to live: what is less would be lost by every pause of the server's.
    pub const MIN_TTL: Duration = MIN_TTL;

    /// Units of all holds of a key together.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    pub(crate) fn has_server(&self) -> bool {
        self.0.client.upstream.is_some()
    }

    /// How long a hold lasts after the last sign of its process.
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// The decision that a request would get now; nothing is taken. Denied, it may try again when the last hold ends,
    /// if nobody releases or renews any; −1 ms of a cost above the limit is `None`. Waits and ids mean nothing here.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub async fn peek<'a>(&self, request: impl Into<HoldRequest<'a>>) -> Result<Decision, Error> {
        let request = request.into();
        let pending = self.pending(&request)?;
        let Some(renewer) = &self.0.client.renewer else {
            return Ok(self.look_here(&pending, self.0.limit, Source::Local));
        };
        let looked = self.look_there(renewer.upstream(), &pending, request.deadline).await;
        match looked.map_err(|error| self.0.client.failure(error)) {
            Err(Error::Unavailable(reason)) => match self.0.on_failure {
                OnFailure::Error => Err(Error::Unavailable(reason)),
                OnFailure::Allow => Ok(Source::Failure.unknown(pending.cost, self.0.limit, Some(0))),
                OnFailure::Deny => Ok(Source::Failure.unknown(0, self.0.limit, Some(ms(AGAIN)))),
                OnFailure::Local => {
                    Ok(self.look_here(&pending, self.0.local_share.units(self.0.limit), Source::Failure))
                }
            },
            looked => looked,
        }
    }

    pub(super) async fn look_there(
        &self,
        upstream: &Upstream,
        pending: &PendingHold,
        deadline: Option<Instant>,
    ) -> Result<Decision, Error> {
        let (units, end) = match upstream
            .ask(Command::info(&pending.name.key), upstream.deadline_after(self.0.timeout, deadline)?)
            .await
        {
            Err(Error::Refused(text)) if text == NO_SUCH_KEY => (0, 0),
            reply => held_of(&reply?)?,
        };
        let left = unix(end).duration_since(SystemTime::now()).unwrap_or_default();
        Ok(self.looked(pending, self.0.limit.saturating_sub(units), ms_up(left).max(1), Source::Server))
    }

    fn look_here(&self, pending: &PendingHold, limit: u64, source: Source) -> Decision {
        self.looked(pending, self.0.local.remaining(&pending.name.key, limit), ms(AGAIN), source)
    }

    fn looked(&self, pending: &PendingHold, remaining: u64, wait: u64, source: Source) -> Decision {
        let (granted, retry_after) = match pending.cost {
            cost if cost <= remaining => (cost, Some(0)),
            cost => (0, (cost <= self.0.limit).then_some(wait)),
        };
        Decision { remaining: Some(remaining), ..source.unknown(granted, self.0.limit, retry_after) }
    }

    /// Ends holds of a key by their ids, as [`Client::release`] does: of guards that were
    /// [detached](crate::Hold::detach).
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn release<K: AsRef<[u8]> + ?Sized>(&self, key: &K, ids: &[&[u8]]) -> Result<u64, Error> {
        Client(Arc::clone(&self.0.client)).release(key, ids).await
    }

    /// The holders of a key's units, the oldest hold first; at most so many, 1 … 10 000.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn holders<K: AsRef<[u8]> + ?Sized>(&self, key: &K, count: usize) -> Result<Vec<Holder>, Error> {
        Client(Arc::clone(&self.0.client)).holders(key, count).await
    }

    /// Ends a hold by its id, for a caller that learns that what it stands for has ended; the units that were freed. It
    /// waits for the server until the request's deadline; after an error it goes on until the server has answered, or
    /// the time to live has passed.
    ///
    /// # Errors
    /// As [`release`](Self::release), and [`Error::Invalid`] without an id.
    pub async fn end<'a>(&self, request: impl Into<HoldRequest<'a>>) -> Result<u64, Error> {
        let request = request.into();
        check_ids(request.id.as_slice())?;
        let name = self.pending(&request)?.name;
        let renewer = self.0.client.renewer.as_ref().ok_or(Error::NoServer("end"))?;
        let command = name.release();
        let unanswered = InDoubt { renewer, name: Some(name) };
        let upstream = renewer.upstream();
        let freed =
            upstream.ask(command, upstream.deadline_after(self.0.timeout, request.deadline)?).await?.natural()?;
        unanswered.settle();
        Ok(freed)
    }

    /// Deletes all holds of a key, any client's; whether there were any. They are lost, and told so when they are
    /// renewed next.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub async fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        self.0.client.reset(key.as_ref()).await
    }
}

impl Client {
    /// How many at once: a limiter of things under way, with a limit of 0 … 2^53 − 1 units for each key.
    pub fn holds(&self, limit: u64) -> HoldLimiterBuilder {
        HoldLimiterBuilder::new(self.clone(), limit)
    }
}
