//! Budgets: quotas of the calendar.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use swlimit_budget::{Budget, Request as Exact};
use tokio::time::Instant;

use crate::calendar::Calendar;
use crate::client::Client;
use crate::clock::{ms, ms_up};
use crate::decision::{Decision, Source};
use crate::error::{Cause, Error};
use crate::keyed::{Bounded, Keep};
use crate::mode::{OnFailure, Share, SHARE};
use crate::protocol::{unix, wrong_type, BudgetClause, Command, KeyInfo, NO_SUCH_KEY};
use crate::quota::checked_limit;
use crate::request::Request;
use crate::shared::Shared;
use crate::transport::Reply;
use crate::upstream::{Outcome, Upstream};

/// A clock that is so far behind the server's is logged, and how often.
const FAR_BEHIND: Duration = Duration::from_secs(1);
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How soon a request that the failure policy denied may try again, in ms.
const RETRY: u64 = 1000;

/// So many units a period of the calendar, for any number of keys: 10,000 a month, by Berlin's clocks. Cheap to clone.
///
/// The server decides every request. It knows no calendar: the limiter tells it when the period ends. The first unit of
/// a period decides its end for all who ask.
///
/// ```no_run
/// # async fn example() -> Result<(), swlimit_client::Error> {
/// use swlimit_client::{Calendar, Client, Period};
///
/// let client = Client::connect("redis://127.0.0.1/").await?;
/// let months = Calendar::new(Period::Month).time_zone("Europe/Berlin")?;
/// let plan = client.budget(10_000, months).build()?;
/// assert!(plan.allow("user:1").await?.granted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BudgetLimiter(Arc<Inner>);

struct Inner {
    client: Arc<Shared>,
    limit: u64,
    calendar: Calendar,
    on_failure: OnFailure,
    local_share: Share,
    /// The period of the last request, in Unix ms.
    period: Mutex<(u64, u64)>,
    /// Budgets of this process, by the failure policy or without a server.
    local: Bounded<Local>,
}

/// How a request counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Allow,
    Peek,
    Record,
}

#[derive(Default)]
struct Local(Mutex<Option<Budget>>);

impl Keep for Local {
    fn is_idle(&self, _: Instant) -> bool {
        let now = unix_ms(SystemTime::now());
        self.0.try_lock().is_some_and(|budget| budget.is_none_or(|budget| budget.end() <= now))
    }
}

/// Builder for [`BudgetLimiter`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built yet"]
pub struct BudgetLimiterBuilder {
    client: Client,
    limit: u64,
    calendar: Calendar,
    on_failure: OnFailure,
    local_share: f64,
}

impl Client {
    /// A limiter of so many units, 0 … 2^53 − 1, for each key in each period of a calendar.
    pub fn budget(&self, limit: u64, calendar: Calendar) -> BudgetLimiterBuilder {
        let (client, on_failure, local_share) = (self.clone(), OnFailure::default(), SHARE);
        BudgetLimiterBuilder { client, limit, calendar, on_failure, local_share }
    }
}

impl BudgetLimiterBuilder {
    /// What decides when the server does not answer: [`OnFailure::Local`] unless set.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// The part of the limit, 0 … 1, that is granted in this process by [`OnFailure::Local`]: 0.1 unless set. Rounded up
    /// to whole units.
    pub fn local_share(self, share: f64) -> Self {
        Self { local_share: share, ..self }
    }

    /// The limiter.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit or a share out of range.
    pub fn build(self) -> Result<BudgetLimiter, Error> {
        let Self { client: Client(client), limit, calendar, on_failure, local_share } = self;
        let (limit, local_share) = (checked_limit(limit)?, Share::named("local_share", local_share)?);
        let (period, local) = (Mutex::default(), Bounded::new(client.max_keys).counting(&client.counters));
        Ok(BudgetLimiter(Arc::new(Inner { client, limit, calendar, on_failure, local_share, period, local })))
    }
}

impl fmt::Debug for BudgetLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, calendar) = (self.limit(), self.calendar());
        f.debug_struct("BudgetLimiter").field("limit", &limit).field("calendar", calendar).finish_non_exhaustive()
    }
}

impl BudgetLimiter {
    /// Units of a period.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Its periods.
    pub fn calendar(&self) -> &Calendar {
        &self.0.calendar
    }

    /// Decides a request, and counts it if it is granted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range, and for an age; [`Error::Refused`] and [`Error::ModuleMissing`] as
    /// the server says; [`Error::Unavailable`] only with [`OnFailure::Error`].
    pub async fn allow<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let decision = self.decided(request.into(), Way::Allow).await?;
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    /// The same decision without counting, of the period that is in force by this machine's clock.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        self.decided(request.into(), Way::Peek).await
    }

    /// Counts a request whatever the limit says: usage that is known afterwards.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), and [`Error::Unavailable`].
    pub async fn record<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        self.decided(Request { partial: false, ..request.into() }, Way::Record).await
    }

    async fn decided(&self, request: Request<'_>, way: Way) -> Result<Decision, Error> {
        let request = self.checked(request)?;
        let (key, outcome) = (self.key(request.key), Outcome::keeping(request.keeps_late_grant));
        let decided = match &self.0.client.upstream {
            None => return self.locally(&key, &request, self.0.limit, Source::Local, way),
            Some(upstream) if way == Way::Peek => self.look(upstream, &key, &request).await,
            Some(upstream) => self.ask(upstream, &key, &request, way == Way::Record, &outcome).await,
        };
        match decided.map_err(|error| self.0.client.failure(error)) {
            Err(Error::Unavailable(reason)) if way != Way::Record => {
                let decided = self.by_policy(&key, &request, reason, way);
                match &decided {
                    Ok(decision) => outcome.decided(decision.granted),
                    Err(_) => outcome.failed(),
                }
                decided
            }
            decided => decided,
        }
    }

    /// Gives back up to `cost` units of the period that is in force; with an [age](Request::age), none if they are
    /// older than that. How many were given back. Never refund the same units twice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::Unavailable`].
    pub async fn refund<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64, Error> {
        let request = request.into().checked()?;
        match self.has_server() {
            false => Ok(self.give_back(&self.key(request.key), request.cost, request.age.map(ms_up))),
            true => self.0.client.refund(request).await,
        }
    }

    /// Deletes what is counted; whether there was anything.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        let key = key.as_ref();
        match self.has_server() {
            false => Ok(self.with_local(&self.key(key), |budget, _| std::mem::take(budget).is_some())),
            true => self.0.client.reset(key).await,
        }
    }

    pub(crate) fn has_server(&self) -> bool {
        self.0.client.upstream.is_some()
    }

    pub(crate) fn key(&self, key: &[u8]) -> Vec<u8> {
        self.0.client.key(key).into_owned()
    }

    /// # Errors
    /// [`Error::Invalid`] for what no server would take.
    pub(crate) fn checked<'a>(&self, request: Request<'a>) -> Result<Request<'a>, Error> {
        match request.age.is_some() || request.since.is_some() {
            true => Err(Error::Invalid("units of a budget count in the period that is in force".into())),
            false => request.checked(),
        }
    }

    /// The end of the period that is in force now, in Unix ms.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the machine's clock is thousands of years wrong.
    pub(crate) fn until(&self) -> Result<u64, Error> {
        self.until_at(unix_ms(SystemTime::now()))
    }

    fn until_at(&self, now: u64) -> Result<u64, Error> {
        let mut known = self.0.period.lock();
        if !(known.0..known.1).contains(&now) {
            let (start, end) = self.0.calendar.period_at(unix(now))?;
            *known = (unix_ms(start), unix_ms(end));
        }
        Ok(known.1)
    }

    /// The end of the period that is in force by the server's clock, which is ahead of this machine's: at least the one
    /// behind the period in force here. The server's time is `None` if it may not be asked for.
    pub(crate) fn until_there(&self, server_time: Option<u64>) -> Result<u64, Error> {
        let there = self.until()?.max(server_time.unwrap_or_default());
        self.0.calendar.period_at(unix(there)).map(|(_, end)| unix_ms(end))
    }

    /// The budget as a command has it.
    pub(crate) fn clause(&self, until: u64, cost: u64) -> BudgetClause {
        BudgetClause { limit: self.0.limit, until, cost }
    }

    async fn ask(
        &self,
        upstream: &Upstream,
        key: &[u8],
        request: &Request<'_>,
        force: bool,
        outcome: &Outcome,
    ) -> Result<Decision, Error> {
        let deadline = match force {
            true => upstream.deadline(request.deadline)?,
            false => upstream.time_to_decide(key, upstream.timeout(), request.deadline)?,
        };
        let command = |until| {
            let budget = self.clause(until, request.cost);
            Command::Budget { key: key.into(), budget, partial: request.partial, force }
        };
        let reply: Reply = match upstream.ask_for(outcome, command(self.until()?), deadline).await {
            Err(Error::Refused(text)) if has_ended(&text) => {
                let server_time = server_time(upstream, deadline).await;
                upstream.ask_for(outcome, command(self.until_there(server_time)?), deadline).await?
            }
            reply => reply?,
        };
        Ok(Source::Server.decided(reply.decision()?))
    }

    /// What the server would say: it has no command that looks, but tells what is counted, and until when.
    async fn look(&self, upstream: &Upstream, key: &[u8], request: &Request<'_>) -> Result<Decision, Error> {
        let held = match upstream.ask(Command::info(key), upstream.deadline(request.deadline)?).await {
            Err(Error::Refused(text)) if text == NO_SUCH_KEY => None,
            reply => Some(KeyInfo::of(&reply?)?),
        };
        let counted = held.map(|held| held.budget().ok_or_else(wrong_type)).transpose()?;
        let now = unix_ms(SystemTime::now());
        Ok(Source::Server.decided(Budget::peek(counted.as_ref(), now, &self.exact(request, self.0.limit, now)?)))
    }

    /// The failure policy's decision.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with [`OnFailure::Error`].
    pub(crate) fn by_policy(
        &self,
        key: &[u8],
        request: &Request<'_>,
        reason: Cause,
        way: Way,
    ) -> Result<Decision, Error> {
        let unknown = |granted, retry_after| Source::Failure.unknown(granted, self.0.limit, Some(retry_after));
        match self.0.on_failure {
            OnFailure::Error => Err(Error::Unavailable(reason)),
            OnFailure::Allow => Ok(unknown(request.cost, 0)),
            OnFailure::Deny => Ok(unknown(0, RETRY)),
            OnFailure::Local => {
                let share = self.0.local_share.units(self.0.limit);
                self.locally(key, request, share, Source::Failure, way)
            }
        }
    }

    /// Whether this process counts what it decides in place of a server.
    pub(crate) fn counts_here(&self) -> bool {
        self.0.client.upstream.is_none() || self.0.on_failure == OnFailure::Local
    }

    /// A decision of this process.
    pub(crate) fn locally(
        &self,
        key: &[u8],
        request: &Request<'_>,
        limit: u64,
        source: Source,
        way: Way,
    ) -> Result<Decision, Error> {
        let overflow = |_| Error::Refused("ERR count would overflow".into());
        self.with_local(key, |budget, now| {
            let exact = self.exact(request, limit, now)?;
            let (count, decision) = match way {
                Way::Allow => Budget::decide(budget.as_ref(), now, &exact),
                Way::Peek => (None, Budget::peek(budget.as_ref(), now, &exact)),
                Way::Record => Budget::force(budget.as_ref(), now, &exact)
                    .map(|(count, decision)| (Some(count), decision))
                    .map_err(overflow)?,
            };
            if let Some(count) = count {
                *budget = Some(count.budget());
            }
            Ok(Decision { limit: self.0.limit, ..source.decided(decision) })
        })
    }

    fn exact(&self, request: &Request<'_>, limit: u64, now: u64) -> Result<Exact, Error> {
        Ok(Exact { limit, until: self.until_at(now)?, cost: request.cost, partial: request.partial })
    }

    /// Gives units of this process back; how many.
    pub(crate) fn give_back(&self, key: &[u8], units: u64, age: Option<u64>) -> u64 {
        self.with_local(key, |budget, now| {
            let Some(counted) = budget else { return 0 };
            let units = counted.refundable(units, age, now);
            counted.refund(units);
            if counted.used() == 0 {
                *budget = None;
            }
            units
        })
    }

    fn with_local<R>(&self, key: &[u8], see: impl FnOnce(&mut Option<Budget>, u64) -> R) -> R {
        let now = unix_ms(SystemTime::now());
        self.0.local.with(key, Local::default, |local| see(&mut local.0.lock(), now))
    }
}

/// Whether the server says that the period had ended by its clock.
pub(crate) fn has_ended(error: &str) -> bool {
    error.starts_with("ERR until must be ")
}

/// The server's time in Unix ms; `None` if it refuses to tell. Logs, once a minute, a clock that is far behind it.
pub(crate) async fn server_time(upstream: &Upstream, deadline: Instant) -> Option<u64> {
    static LOGGED: Mutex<Option<Instant>> = Mutex::new(None);
    let there = upstream.ask(Command::TIME, deadline).await.ok()?.unix_ms()?;
    let behind = Duration::from_millis(there.saturating_sub(unix_ms(SystemTime::now())));
    if behind >= FAR_BEHIND {
        let (mut logged, now) = (LOGGED.lock(), Instant::now());
        if logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL) {
            *logged = Some(now);
            tracing::warn!(?behind, "this machine's clock is behind that of the rate limit server, which ends periods");
        }
    }
    Some(there)
}

fn unix_ms(instant: SystemTime) -> u64 {
    ms(instant.duration_since(UNIX_EPOCH).unwrap_or_default())
}
