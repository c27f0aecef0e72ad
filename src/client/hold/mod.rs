//! Things under way: how many at once.

mod guard;
mod keeper;
mod moment;
mod seats;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use swlimit_window::{MAX_EXACT, MAX_WINDOW};
use tokio::time::Instant;

pub(crate) use self::guard::Taken;
pub use self::guard::{Hold, Lost};
pub(crate) use self::keeper::{Keeper, Name, Settlement};
pub(crate) use self::moment::Moment;
use self::seats::Seats;
use crate::client::{Client, Shared};
use crate::clock::{ms, ms_up};
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::link::{Batch, Link, Settled, WAITS_ELSEWHERE};
use crate::mode::{OnFailure, Share, SHARE};
use crate::protocol::{held_of, unix, Bytes, Command, HoldClause, HoldReply, NO_SUCH_KEY};
use crate::quota::checked_limit;
use crate::transport::{Failure, Reply};
use crate::wait::{Wait, POLL};

const TTL: Duration = Duration::from_secs(30);
const MAX_ID: usize = 128;
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);
/// While the server is away, somebody who waits asks it again after so long.
const AGAIN: Duration = Duration::from_secs(1);

/// How many at once, for any number of keys: streams, jobs, connections, seats of a plan. Cheap to clone.
///
/// Each one under way has a [`Hold`], which ends when it is dropped, and when its time to live has passed without a
/// sign of its process.
///
/// ```no_run
/// # async fn example() -> Result<(), swlimit_client::Error> {
/// use std::time::Duration;
/// use swlimit_client::{Client, HoldRequest};
///
/// let client = Client::connect("redis://127.0.0.1/").await?;
/// let streams = client.holds(5).build()?;
/// let hold = streams.hold(HoldRequest::of("user:1").wait(Duration::from_secs(10))).await?;
/// if hold.granted() {
///     // … the stream, for as long as hold.is_live()
/// }
/// drop(hold);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HoldLimiter(Arc<Inner>);

struct Inner {
    client: Arc<Shared>,
    limit: u64,
    ttl: Duration,
    on_failure: OnFailure,
    local_share: Share,
    /// Holds of this process, by the failure policy or without a server.
    seats: Seats,
}

/// Builder for [`HoldLimiter`].
#[derive(Clone)]
#[must_use = "nothing is built yet"]
pub struct HoldLimiterBuilder {
    client: Client,
    limit: u64,
    ttl: Duration,
    on_failure: OnFailure,
    local_share: f64,
}

/// One request for a hold: a key, how many units, and how long to wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRequest<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    ttl: Option<Duration>,
    wait: Duration,
    id: Option<&'a [u8]>,
    deadline: Option<Instant>,
}

impl<'a> HoldRequest<'a> {
    /// A request for one unit that does not wait.
    pub fn of<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Self {
        Self { key: key.as_ref(), cost: 1, ttl: None, wait: Duration::ZERO, id: None, deadline: None }
    }

    /// Hold so many units: 1 … 2^53 − 1.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { cost: units, ..self }
    }

    /// End so long after the last sign of life: 3 s … 3650 d in whole ms, instead of the limiter's.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Wait so long for one's turn, at most 1 h: first come, first served. Not for [`Client::admit`].
    #[must_use]
    pub fn wait(self, time: Duration) -> Self {
        Self { wait: time, ..self }
    }

    /// The id by which the server knows the hold, 1 … 128 bytes, instead of 16 random ones. An id is for one hold: it
    /// must be fresh, and nobody must guess it. What it is granted when nobody waits any more is not released: the next
    /// try with it may have been told.
    #[must_use]
    pub fn id(self, id: &'a [u8]) -> Self {
        Self { id: Some(id), ..self }
    }

    /// When the caller's own time is up, as [`Request::deadline`](crate::Request::deadline) says.
    #[must_use]
    pub fn deadline(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    pub(crate) fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

    pub(crate) fn own_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for HoldRequest<'a> {
    fn from(key: &'a K) -> Self {
        Self::of(key)
    }
}

/// Somebody who holds units of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The id that the holder chose.
    pub id: Vec<u8>,
    /// Units held.
    pub units: u64,
    /// For how long they have been held.
    pub held_for: Duration,
    /// When the hold ends unless it is renewed.
    pub expires_after: Duration,
    /// The fencing token.
    pub token: u64,
}

impl HoldLimiterBuilder {
    pub(crate) fn new(client: Client, limit: u64) -> Self {
        Self { client, limit, ttl: TTL, on_failure: OnFailure::default(), local_share: SHARE }
    }

    /// How long a hold lasts after the last sign of its process: 30 s unless set, at least 3 s. It is renewed every
    /// third of it. It should outlast a failover of the server.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Who decides when the server does not answer: [`OnFailure::Local`] unless set. Only for taking: a hold that the
    /// server granted ends at its time.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// The part of the limit, 0 … 1, that is granted in this process by [`OnFailure::Local`]: 0.1 unless set. Rounded up
    /// to whole units. These holds may come on top of the server's once it is back.
    pub fn local_share(self, share: f64) -> Self {
        Self { local_share: share, ..self }
    }

    /// The limiter.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit, a share or a time to live out of range.
    pub fn build(self) -> Result<HoldLimiter, Error> {
        let Self { client: Client(client), limit, ttl, on_failure, local_share } = self;
        let (limit, local_share) = (checked_limit(limit)?, Share::named("local_share", local_share)?);
        let ttl = checked_ttl(ttl)?;
        Ok(HoldLimiter(Arc::new(Inner { client, limit, ttl, on_failure, local_share, seats: Seats::default() })))
    }
}

fn checked_ttl(ttl: Duration) -> Result<Duration, Error> {
    let is_whole = ttl.subsec_nanos().is_multiple_of(1_000_000);
    match is_whole && (HoldLimiter::MIN_TTL..=Duration::from_millis(MAX_WINDOW)).contains(&ttl) {
        true => Ok(ttl),
        false => Err(Error::Invalid("ttl must be a duration of at least 3s in whole ms".into())),
    }
}

fn check_ids(ids: &[&[u8]]) -> Result<(), Error> {
    match !ids.is_empty() && ids.iter().all(|id| (1..=MAX_ID).contains(&id.len())) {
        true => Ok(()),
        false => Err(Error::Invalid("id must be 1 to 128 bytes".into())),
    }
}

/// What is sent for a hold.
#[derive(Clone)]
pub(crate) struct PendingHold {
    pub name: Name,
    /// The id was drawn here, and nobody was told: what nobody waits for any more is given back. What an id that its
    /// caller chose is granted belongs to the caller, whose next try, or other process, may know of it by now.
    pub is_own: bool,
    pub limit: u64,
    pub cost: u64,
}

impl PendingHold {
    pub fn clause(&self) -> HoldClause {
        let (ttl, id) = (ms(self.name.ttl), Arc::clone(&self.name.id));
        HoldClause { limit: self.limit, ttl, id, cost: self.cost, own_id: self.is_own }
    }

    /// Another id, unless the caller chose it.
    fn renew_id(&mut self) -> Result<(), Error> {
        if self.is_own {
            self.name.id = fresh_id()?;
        }
        Ok(())
    }

    /// Whose hold is to be released where nobody knows whether it was granted.
    pub fn released_in_doubt(&self) -> Option<Name> {
        self.is_own.then(|| self.name.clone())
    }

    fn command(&self, wait: Option<Duration>) -> Command {
        Command::Hold { key: Arc::clone(&self.name.key), hold: self.clause(), wait: wait.map(ms_up) }
    }

    /// A decision of the server's. What matters to nobody else is no field of it.
    pub fn decision(&self, held: &HoldReply) -> Decision {
        let HoldReply { granted, remaining, retry_after, .. } = *held;
        let unknown = Source::Server.unknown(granted, self.limit, retry_after);
        Decision { remaining: Some(remaining), ..unknown }
    }

    /// What was granted, or renewed, by what was sent at a moment.
    pub fn kept(self, keeper: &Keeper, held: &HoldReply, sent: Moment) -> Hold {
        let decision = self.decision(held);
        let life = keeper.keep(self.name.clone(), sent);
        Hold::there(decision, held.expires_after, held.token, Taken::There(keeper.clone(), self.name, life))
    }
}

/// A hold that may have been granted, and that nobody has: dropped, it is released.
struct InDoubt<'a> {
    keeper: &'a Keeper,
    name: Option<Name>,
}

impl InDoubt<'_> {
    fn settle(mut self) {
        self.name = None;
    }
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.keeper.release(name);
        }
    }
}

impl HoldLimiter {
    /// The shortest time to live: what is less would be lost by every pause of the server's.
    pub const MIN_TTL: Duration = Duration::from_secs(3);

    /// Units of all holds of a key together.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    pub(crate) fn has_server(&self) -> bool {
        self.0.client.link.is_some()
    }

    /// How long a hold lasts after the last sign of its process.
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// Takes units of a key until the guard is dropped. Denied, the guard holds nothing.
    ///
    /// Dropped at any time, it leaves nothing held for longer than a moment, or than the time to live if the server
    /// cannot be asked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is out of range; [`Error::Refused`] and [`Error::ModuleMissing`] as the server says;
    /// [`Error::Away`] only with [`OnFailure::Error`].
    pub async fn hold<'a>(&self, request: impl Into<HoldRequest<'a>>) -> Result<Hold, Error> {
        let request = request.into();
        let asked = self.asked(&request)?;
        let until = Instant::now() + request.wait;
        let until = request.deadline.map_or(until, |deadline| deadline.min(until));
        let wait = self.0.client.wait(until);
        let hold = match &self.0.client.keeper {
            None => self.sit(&asked, self.0.limit, &wait, Source::Local).await,
            Some(keeper) => self.take(keeper, asked, &request, &wait).await?,
        };
        self.0.client.counters.decided(hold.decision());
        Ok(hold)
    }

    /// # Errors
    /// [`Error::Invalid`] for what no server would take.
    pub(crate) fn asked(&self, request: &HoldRequest<'_>) -> Result<PendingHold, Error> {
        let HoldRequest { key, cost, ttl, wait, id, .. } = *request;
        if !(1..=MAX_EXACT).contains(&cost) {
            return Err(Error::Invalid(format!("cost must be an integer between 1 and {MAX_EXACT}")));
        }
        if wait > MAX_WAIT {
            return Err(Error::Invalid("wait must be at most 1h".into()));
        }
        let ttl = ttl.map_or(Ok(self.0.ttl), checked_ttl)?;
        let (id, is_own) = match id {
            None => (fresh_id()?, true),
            Some(id) => {
                check_ids(&[id])?;
                (id.into(), false)
            }
        };
        let key = self.0.client.key(key).into();
        Ok(PendingHold { name: Name { key, id, ttl }, is_own, limit: self.0.limit, cost })
    }

    /// Of the server, or of the failure policy for as long as it is away.
    async fn take(
        &self,
        keeper: &Keeper,
        mut asked: PendingHold,
        request: &HoldRequest<'_>,
        wait: &Wait,
    ) -> Result<Hold, Error> {
        loop {
            let reason = match self.take_there(keeper, asked.clone(), request, wait).await {
                Err(Error::Away(reason)) => reason,
                taken => return taken,
            };
            let again = Instant::now() + AGAIN;
            let hold = self.by_policy(&asked, reason, &wait.by(again)).await?;
            if hold.granted() || wait.is_over() {
                return Ok(hold);
            }
            wait.sleep_until(again).await;
            asked.renew_id()?; // the former one is being released
        }
    }

    /// Who decides where the server does not.
    ///
    /// # Errors
    /// [`Error::Away`] with [`OnFailure::Error`].
    pub(crate) async fn by_policy(&self, asked: &PendingHold, reason: String, wait: &Wait) -> Result<Hold, Error> {
        let granted = Source::Failure.unknown(asked.cost, self.0.limit, Some(0));
        Ok(match self.0.on_failure {
            OnFailure::Error => return Err(Error::Away(reason)),
            OnFailure::Allow => Hold::local(granted, Taken::Uncounted),
            OnFailure::Deny => Hold::denied(Source::Failure.unknown(0, self.0.limit, Some(ms(AGAIN)))),
            OnFailure::Local => {
                let share = self.0.local_share.units(self.0.limit);
                self.sit(asked, share, wait, Source::Failure).await
            }
        })
    }

    /// A seat in this process.
    pub(crate) async fn sit(&self, asked: &PendingHold, limit: u64, wait: &Wait, source: Source) -> Hold {
        let seat = self.0.seats.take(&asked.name.key, limit, asked.cost, wait).await;
        let remaining = Some(self.0.seats.remaining(&asked.name.key, limit));
        let retry_after = (asked.cost <= limit).then_some(ms(AGAIN));
        let decision =
            |granted, retry_after| Decision { remaining, ..source.unknown(granted, self.0.limit, retry_after) };
        match seat {
            Some(seat) => Hold::local(decision(asked.cost, Some(0)), Taken::Here(seat)),
            None => Hold::denied(decision(0, retry_after)),
        }
    }

    /// Of the server: at once over the connection that all share, so that a free key never waits for a place; else
    /// waiting, over one of its own.
    async fn take_there(
        &self,
        keeper: &Keeper,
        mut asked: PendingHold,
        request: &HoldRequest<'_>,
        wait: &Wait,
    ) -> Result<Hold, Error> {
        let (mut deadline, mut turn) = (request.deadline, None);
        loop {
            let (held, sent) = ask_at_once(keeper, &asked, deadline).await?;
            if held.granted > 0 {
                return Ok(asked.kept(keeper, &held, sent));
            }
            if held.retry_after.is_none() || wait.is_over() {
                return Ok(Hold::denied(asked.decision(&held)));
            }
            match wait_there(keeper, &asked, wait).await {
                Some(Err(Error::Refused(text))) if text == WAITS_ELSEWHERE => {
                    return Ok(Hold::denied(asked.decision(&held)));
                }
                Some(waited) => match waited? {
                    Waited::Granted(held, renewed) => return Ok(asked.kept(keeper, &held, renewed)),
                    Waited::Denied(held) => return Ok(Hold::denied(asked.decision(&held))),
                    // It ended before it was renewed.
                    Waited::Lost => {}
                },
                None if wait.is_over() => return Ok(Hold::denied(asked.decision(&held))),
                // Of those who wait for a key here, one polls.
                None if turn.is_none() => turn = self.0.client.fair_queue.turn(&asked.name.key, wait).await,
                None => {
                    let pause = held.retry_after.map_or(POLL, |ms| POLL.min(Duration::from_millis(ms.max(1))));
                    wait.sleep_until(Instant::now() + pause).await;
                }
            }
            asked.renew_id()?; // an id is for one hold
            deadline = None;
        }
    }

    /// What a request would be told now; nothing is taken. Denied, it may try again when the last hold ends, if nobody
    /// releases or renews any; −1 ms of a cost above the limit is `None`. Waits and ids mean nothing here.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub async fn peek<'a>(&self, request: impl Into<HoldRequest<'a>>) -> Result<Decision, Error> {
        let request = request.into();
        let asked = self.asked(&request)?;
        let Some(keeper) = &self.0.client.keeper else {
            return Ok(self.look_here(&asked, self.0.limit, Source::Local));
        };
        match self.look_there(keeper.link(), &asked, request.deadline).await {
            Err(Error::Away(reason)) => match self.0.on_failure {
                OnFailure::Error => Err(Error::Away(reason)),
                OnFailure::Allow => Ok(Source::Failure.unknown(asked.cost, self.0.limit, Some(0))),
                OnFailure::Deny => Ok(Source::Failure.unknown(0, self.0.limit, Some(ms(AGAIN)))),
                OnFailure::Local => Ok(self.look_here(&asked, self.0.local_share.units(self.0.limit), Source::Failure)),
            },
            looked => looked,
        }
    }

    async fn look_there(&self, link: &Link, asked: &PendingHold, deadline: Option<Instant>) -> Result<Decision, Error> {
        let (units, end) = match link.ask(Command::info(&asked.name.key), link.deadline(deadline)?).await {
            Err(Error::Refused(text)) if text == NO_SUCH_KEY => (0, 0),
            reply => held_of(&reply?)?,
        };
        let left = unix(end).duration_since(SystemTime::now()).unwrap_or_default();
        Ok(self.looked(asked, self.0.limit.saturating_sub(units), ms_up(left).max(1), Source::Server))
    }

    fn look_here(&self, asked: &PendingHold, limit: u64, source: Source) -> Decision {
        self.looked(asked, self.0.seats.remaining(&asked.name.key, limit), ms(AGAIN), source)
    }

    fn looked(&self, asked: &PendingHold, remaining: u64, wait: u64, source: Source) -> Decision {
        let (granted, retry_after) = match asked.cost {
            cost if cost <= remaining => (cost, Some(0)),
            cost => (0, (cost <= self.0.limit).then_some(wait)),
        };
        Decision { remaining: Some(remaining), ..source.unknown(granted, self.0.limit, retry_after) }
    }

    /// Ends holds of a key by their ids, as [`Client::release`] does: of guards that were [detached](Hold::detach).
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn release<K: AsRef<[u8]> + ?Sized>(&self, key: &K, ids: &[&[u8]]) -> Result<u64, Error> {
        Client(Arc::clone(&self.0.client)).release(key, ids).await
    }

    /// Ends a hold by its id, for whoever is told that what it stands for has ended; the units that were freed. It waits
    /// for the server until the request's deadline; after an error it goes on until the server has answered, or the
    /// time to live has passed.
    ///
    /// # Errors
    /// As [`release`](Self::release), and [`Error::Invalid`] without an id.
    pub async fn end<'a>(&self, request: impl Into<HoldRequest<'a>>) -> Result<u64, Error> {
        let request = request.into();
        check_ids(request.id.as_slice())?;
        let name = self.asked(&request)?.name;
        let keeper = self.0.client.keeper.as_ref().ok_or(Error::NoServer("end"))?;
        let command = name.release();
        let unanswered = InDoubt { keeper, name: Some(name) };
        let link = keeper.link();
        let freed = link.ask(command, link.deadline(request.deadline)?).await?.natural()?;
        unanswered.settle();
        Ok(freed)
    }

    /// Who holds units of a key now, the oldest hold first; at most so many, 1 … 10 000.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn holders<K: AsRef<[u8]> + ?Sized>(&self, key: &K, count: usize) -> Result<Vec<Holder>, Error> {
        Client(Arc::clone(&self.0.client)).holders(key, count).await
    }

    /// Forgets all holds of a key, whoever has them; whether there were any. They are lost, and told so when they are
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

    /// Who holds units of a key now, as [`HoldLimiter::holders`] says.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn holders<K: AsRef<[u8]> + ?Sized>(&self, key: &K, count: usize) -> Result<Vec<Holder>, Error> {
        let key = self.0.key(key.as_ref());
        let command = Command::Holders { key: key.as_ref().into(), count: count as u64 };
        let reply = self.ask("holders", command).await?;
        let Reply::Array(holders) = &reply else { return Err(Error::Answer(reply.to_string())) };
        holders.iter().map(Holder::of).collect()
    }

    /// Ends holds of a key by their ids, whoever has them; the units that were freed. It is for operators: a [`Hold`]
    /// is released when it is dropped.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub async fn release<K: AsRef<[u8]> + ?Sized>(&self, key: &K, ids: &[&[u8]]) -> Result<u64, Error> {
        check_ids(ids)?;
        let key = self.0.key(key.as_ref());
        let command =
            Command::Release { key: key.as_ref().into(), ids: ids.iter().copied().map(Bytes::from).collect() };
        self.ask("release", command).await?.natural()
    }

    /// Renews holds of a key by their ids, for whoever holds for others; whether each is live. A [`Hold`] renews itself.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub async fn renew<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        ttl: Duration,
        ids: &[&[u8]],
    ) -> Result<Vec<bool>, Error> {
        check_ids(ids)?;
        let key = self.0.key(key.as_ref());
        let ids = ids.iter().copied().map(Bytes::from).collect();
        match self.ask("renew", Command::Renew { key: key.as_ref().into(), ttl: ms(ttl), ids }).await? {
            Reply::Array(each) => each.iter().map(|one| Ok(one.natural()? == 1)).collect(),
            reply => Err(Error::Answer(reply.to_string())),
        }
    }
}

impl Holder {
    fn of(reply: &Reply) -> Result<Self, Error> {
        let unclear = || Error::Answer(reply.to_string());
        let Reply::Array(fields) = reply else { return Err(unclear()) };
        let [Reply::Bytes(id), units, held, left, token] = fields.as_slice() else { return Err(unclear()) };
        let ms = |reply: &Reply| reply.natural().map(Duration::from_millis);
        Ok(Self {
            id: id.clone(),
            units: units.natural()?,
            held_for: ms(held)?,
            expires_after: ms(left)?,
            token: token.natural()?,
        })
    }
}

/// Asks without waiting, at most twice, as the id takes nothing twice. What is granted to nobody is released.
async fn ask_at_once(
    keeper: &Keeper,
    asked: &PendingHold,
    deadline: Option<Instant>,
) -> Result<(HoldReply, Moment), Error> {
    let link = keeper.link();
    let deadline = link.deadline(deadline)?;
    let first = ask_once(keeper, asked, deadline).await?;
    let (settled, sent) = match first {
        (Settled { reply: Err(_), .. }, _) => {
            let in_doubt = InDoubt { keeper, name: asked.released_in_doubt() };
            let second = ask_once(keeper, asked, deadline).await?;
            if second.0.reply.is_ok() {
                in_doubt.settle();
            }
            second
        }
        first => first,
    };
    Ok((link.understood(settled.reply, &asked.name.key)?.hold()?, sent))
}

async fn ask_once(keeper: &Keeper, asked: &PendingHold, deadline: Instant) -> Result<(Settled, Moment), Error> {
    let late = {
        let (keeper, name) = (keeper.clone(), asked.released_in_doubt());
        Box::new(move |settled: Settled| {
            if let Some(name) = name.filter(|_| may_be_granted(&settled.reply)) {
                keeper.release(name);
            }
        })
    };
    let sent = Moment::now();
    let settled = keeper.link().exchange(Batch::One(asked.command(None)), deadline, Some(late)).await?;
    Ok((settled, sent))
}

fn may_be_granted(reply: &Result<Reply, Failure>) -> bool {
    match reply {
        Err(_) => true,
        Ok(reply) => reply.hold().is_ok_and(|held| held.granted > 0),
    }
}

enum Waited {
    /// And renewed, by what was sent at a moment.
    Granted(HoldReply, Moment),
    Denied(HoldReply),
    /// It ended before it could be renewed.
    Lost,
}

/// Waits for one's turn on the server; `None` where nobody can, there is no place, or the client was closed.
async fn wait_there(keeper: &Keeper, asked: &PendingHold, wait: &Wait) -> Option<Result<Waited, Error>> {
    let link = keeper.link();
    let in_doubt = InDoubt { keeper, name: asked.released_in_doubt() };
    let waited = link.wait(&asked.name.key, wait, |left| asked.command(Some(left.min(MAX_WAIT)))).await;
    let held = match waited.map(|waited| waited.and_then(|reply| reply.hold())) {
        Some(Ok(held)) => held,
        Some(Err(error @ Error::Away(_))) => return Some(Err(error)),
        None if wait.is_closed() => return None,
        refused => {
            in_doubt.settle();
            return refused.map(|refused| refused.map(Waited::Denied));
        }
    };
    if held.granted == 0 {
        in_doubt.settle();
        return Some(Ok(Waited::Denied(held)));
    }
    // The time to live runs from the grant, which may be older than its reply.
    let renewed = renewed(link, asked).await;
    if renewed.is_ok() {
        in_doubt.settle();
    }
    Some(renewed.map(|renewed| renewed.map_or(Waited::Lost, |sent| Waited::Granted(held, sent))))
}

/// Renews a hold that was granted after a wait: when that was sent; `None` if it has ended.
async fn renewed(link: &Arc<Link>, asked: &PendingHold) -> Result<Option<Moment>, Error> {
    let sent = Moment::now();
    match link.insist(asked.name.renew(), sent.instant + link.timeout(), None).await? {
        Reply::Array(each) if each.len() == 1 => Ok((each[0].natural()? == 1).then_some(sent)),
        reply => Err(Error::Answer(reply.to_string())),
    }
}

fn fresh_id() -> Result<Arc<[u8]>, Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| Error::Away(format!("no random bytes: {error}")))?;
    Ok(Arc::new(id))
}
