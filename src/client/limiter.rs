//! A limiter: one quota, any number of keys.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use swlimit_window::{Decision as Exact, MAX_WINDOW};
use tokio::time::Instant;

use crate::client::{block_ms, Client, Shared};
use crate::clock::{ms, ms_up};
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::link::Link;
use crate::mode::{Mode, OnFailure, Share, SHARE, SYNC_INTERVAL};
use crate::protocol::Command;
use crate::quota::Quota;
use crate::request::Request;
use crate::strategy::eventual::{Decided, Eventual};
use crate::strategy::lease::Leases;
use crate::strategy::local::Windows;
use crate::transport::Reply;
use crate::wait::{Wait, POLL};

/// One quota, and any number of keys that it holds for. Cheap to clone.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    client: Arc<Shared>,
    quota: Quota,
    strict: bool,
    /// The block that a denial begins, in ms.
    block: Option<u64>,
    strategy: Strategy,
    on_failure: OnFailure,
    local_share: Share,
    failure_windows: OnceLock<Windows>,
}

/// A mode with what it needs.
pub(crate) enum Strategy {
    Direct(Arc<Link>),
    Cached(Arc<Link>),
    Leased(Arc<Link>, Leases),
    Eventual(Arc<Link>, Eventual),
    Local(Windows),
}

/// Builder for [`Limiter`].
#[derive(Clone)]
#[must_use = "nothing is built yet"]
pub struct LimiterBuilder {
    client: Client,
    quota: Quota,
    strict: bool,
    block: Option<u64>,
    mode: Option<Mode>,
    on_failure: OnFailure,
    local_share: f64,
    lease_share: f64,
    sync_interval: Duration,
}

impl LimiterBuilder {
    pub(crate) fn new(client: Client, quota: Quota) -> Self {
        let (mode, on_failure) = (None, OnFailure::default());
        let (local_share, lease_share, sync_interval) = (SHARE, SHARE, SYNC_INTERVAL);
        Self { client, quota, strict: false, block: None, mode, on_failure, local_share, lease_share, sync_interval }
    }

    /// Counts the trailing subinterval whole: no span of the window ever sees more than the limit.
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// Blocks the key for so long when the window denies a request: a penalty. Whole ms, 1 ms … 3650 d.
    pub fn blocking(self, duration: Duration) -> Self {
        Self { block: Some(ms(duration)), ..self }
    }

    /// Who decides: [`Mode::Cached`] unless set; of a client without a server [`Mode::Local`].
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Who decides when the server does not answer: [`OnFailure::Local`] unless set.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// The part of the limit, 0 … 1, that is granted in this process by [`OnFailure::Local`], and by
    /// [`Mode::Eventual`] before the first reply: 0.1 unless set. Rounded up to whole units.
    pub fn local_share(self, share: f64) -> Self {
        Self { local_share: share, ..self }
    }

    /// The most of the limit, 0 … 1, that one lease takes: 0.1 unless set. Rounded up to whole units.
    pub fn lease_share(self, share: f64) -> Self {
        Self { lease_share: share, ..self }
    }

    /// How often [`Mode::Eventual`] synchronizes: every 100 ms unless set, at least 1 ms.
    pub fn sync_interval(self, interval: Duration) -> Self {
        Self { sync_interval: interval, ..self }
    }

    /// The limiter.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a share, an interval or a block out of range, and for a mode that needs a server which
    /// the client has not.
    pub fn build(self) -> Result<Limiter, Error> {
        let invalid = |text: &str| Error::Invalid(text.into());
        let local_share = Share::named("local_share", self.local_share)?;
        let lease_share = Share::named("lease_share", self.lease_share)?;
        if self.sync_interval < Duration::from_millis(1) {
            return Err(invalid("sync_interval must be at least 1 ms"));
        }
        if self.block.is_some_and(|block| !(1..=MAX_WINDOW).contains(&block)) {
            return Err(invalid("BLOCK must be a duration such as 60, 500ms, 5m, 1h or 7d"));
        }
        let Self { client: Client(client), quota, strict, block, mode, on_failure, sync_interval, .. } = self;
        let max_keys = client.max_keys;
        let strategy = match (&client.link, mode) {
            (None, None) | (_, Some(Mode::Local)) => Strategy::Local(Windows::new(max_keys)),
            (None, Some(_)) => return Err(invalid("mode must be local: the client has no server")),
            (Some(link), Some(Mode::Direct)) => Strategy::Direct(Arc::clone(link)),
            (Some(link), None | Some(Mode::Cached)) => Strategy::Cached(Arc::clone(link)),
            (Some(link), Some(Mode::Leased)) => {
                let most = lease_share.units(quota.limit());
                let leases = Leases::new(Arc::clone(link), &quota, most, max_keys);
                client.close_later(leases.closing());
                Strategy::Leased(Arc::clone(link), leases)
            }
            (Some(link), Some(Mode::Eventual)) => {
                let share = local_share.units(quota.limit());
                let eventual = Eventual::new(Arc::clone(link), &quota, sync_interval, share, max_keys);
                client.close_later(eventual.closing());
                Strategy::Eventual(Arc::clone(link), eventual)
            }
        };
        let failure_windows = OnceLock::new();
        Ok(Limiter(Arc::new(Inner {
            client,
            quota,
            strict,
            block,
            strategy,
            on_failure,
            local_share,
            failure_windows,
        })))
    }
}

impl Limiter {
    /// Its quota.
    pub fn quota(&self) -> &Quota {
        &self.0.quota
    }

    /// Its mode.
    pub fn mode(&self) -> Mode {
        match &self.0.strategy {
            Strategy::Direct(_) => Mode::Direct,
            Strategy::Cached(_) => Mode::Cached,
            Strategy::Leased(..) => Mode::Leased,
            Strategy::Eventual(..) => Mode::Eventual,
            Strategy::Local(_) => Mode::Local,
        }
    }

    /// The client it belongs to.
    pub fn client(&self) -> Client {
        Client(Arc::clone(&self.0.client))
    }

    /// Decides a request, and counts it if it is granted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range; [`Error::Refused`] and [`Error::ModuleMissing`] as the server says;
    /// [`Error::Away`] only with [`OnFailure::Error`].
    pub async fn allow<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let key = self.key(request.key);
        let decision = self.decide(&key, &self.demand(&request), request.deadline).await?;
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    async fn decide(&self, key: &[u8], demand: &Demand, deadline: Option<Instant>) -> Result<Decision, Error> {
        let decided = match &self.0.strategy {
            Strategy::Local(windows) => return Ok(Source::Local.decided(windows.allow(key, demand)?)),
            Strategy::Eventual(link, eventual) => match eventual.decide(key, demand)? {
                Decided::Here(decision) => return Ok(decision),
                Decided::ByPolicy => Err(Error::Away("nothing could be synchronized lately".into())),
                Decided::ByServer => {
                    let asked = self.ask(link, Command::allow(key, demand), deadline).await;
                    asked.and_then(|reply| reply.decision()).map(|exact| {
                        eventual.heard(key, &exact);
                        Source::Server.decided(exact)
                    })
                }
            },
            Strategy::Leased(link, leases) => {
                if let Some(decision) = leases.take(key, demand) {
                    return Ok(decision);
                }
                if let Some(decision) = self.0.client.deny_cache.find(key, demand, Instant::now()) {
                    return Ok(decision);
                }
                self.lease(link, leases, key, demand, deadline).await
            }
            Strategy::Cached(link) => {
                if let Some(decision) = self.0.client.deny_cache.find(key, demand, Instant::now()) {
                    return Ok(decision);
                }
                let (ticket, sent) = (self.0.client.deny_cache.ticket(key), Instant::now());
                let asked = self.ask(link, Command::allow(key, demand), deadline).await;
                asked.and_then(|reply| reply.decision()).map(|exact| {
                    if exact.granted == 0 {
                        self.0.client.deny_cache.denied(link, key, demand, &exact, sent, ticket);
                    }
                    Source::Server.decided(exact)
                })
            }
            Strategy::Direct(link) => {
                let asked = self.ask(link, Command::allow(key, demand), deadline).await;
                asked.and_then(|reply| Ok(Source::Server.decided(reply.decision()?)))
            }
        };
        self.or_on_failure(decided, demand, |windows, demand| windows.allow(key, demand))
    }

    async fn lease(
        &self,
        link: &Arc<Link>,
        leases: &Leases,
        key: &[u8],
        demand: &Demand,
        deadline: Option<Instant>,
    ) -> Result<Decision, Error> {
        let ticket = self.0.client.deny_cache.ticket(key);
        let (decision, asked) = Box::pin(leases.ask(key, demand, link.deadline(deadline)?)).await?;
        if let Some((exact, sent)) = asked.filter(|(exact, _)| exact.granted == 0) {
            self.0.client.deny_cache.denied(link, key, demand, &exact, sent, ticket);
        }
        Ok(decision)
    }

    async fn ask(&self, link: &Arc<Link>, command: Command, deadline: Option<Instant>) -> Result<Reply, Error> {
        // Boxed: it is large, and most of those who wait for a decision never ask.
        Box::pin(link.ask(command, link.deadline(deadline)?)).await
    }

    /// The same decision without counting. The server is asked, whatever the mode.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let (key, demand) = (self.key(request.key), self.demand(&request));
        let link = match &self.0.strategy {
            Strategy::Local(windows) => return Ok(Source::Local.decided(windows.peek(&key, &demand)?)),
            strategy => strategy.link()?,
        };
        let reply = self.ask(link, Command::peek(&key, &demand), request.deadline).await;
        let decided = reply.and_then(|reply| Ok(Source::Server.decided(reply.decision()?)));
        self.or_on_failure(decided, &demand, |windows, demand| windows.peek(&key, demand))
    }

    /// Counts a request whatever the limit says: usage that is known afterwards. The decision is the one it would have
    /// been, with what remains after counting.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), and [`Error::Away`].
    pub async fn record<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let (key, demand) = (self.key(request.key), self.demand(&Request { partial: false, ..request }));
        let age = request.age.map(ms);
        match &self.0.strategy {
            Strategy::Local(windows) => Ok(Source::Local.decided(windows.record(&key, &demand, age)?)),
            Strategy::Eventual(_, eventual) => Ok(eventual.record(&key, &demand, request.age.unwrap_or_default())),
            strategy => {
                let command = Command::record(&key, &demand, age.unwrap_or_default());
                let reply = self.ask(strategy.link()?, command, request.deadline).await?;
                Ok(Source::Server.decided(reply.decision()?))
            }
        }
    }

    /// Gives back up to `cost` units of the request: those that count [since](Request::since) an instant, or of an
    /// [age](Request::age), else the youngest. How many were given back. An age includes the way to the server: add the
    /// [timeout](crate::ClientBuilder::timeout). Never refund the same units twice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::Away`].
    pub async fn refund<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64, Error> {
        let request = request.into().checked()?;
        let unsent = match &self.0.strategy {
            Strategy::Local(windows) => {
                return Ok(windows.refund(&self.key(request.key), request.cost, request.age.map(ms_up)));
            }
            // Of an age, the server looks for the units that were counted then.
            Strategy::Eventual(_, eventual) if request.age.is_none() && request.since.is_none() => {
                eventual.take_back(&self.key(request.key), request.cost)
            }
            _ => 0,
        };
        let sent = match request.cost - unsent {
            0 => 0,
            left => self.0.client.refund(Request { cost: left, ..request }).await?,
        };
        Ok(unsent + sent)
    }

    /// Blocks a key for so long, whatever its block was before; until when it is blocked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a duration out of range, otherwise as [`refund`](Self::refund).
    pub async fn block<K: AsRef<[u8]> + ?Sized>(&self, key: &K, duration: Duration) -> Result<SystemTime, Error> {
        self.begin_block(key.as_ref(), duration, false).await
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
        self.begin_block(key.as_ref(), duration, true).await
    }

    async fn begin_block(&self, key: &[u8], duration: Duration, unless_blocked: bool) -> Result<SystemTime, Error> {
        let duration = block_ms(duration)?;
        match &self.0.strategy {
            Strategy::Local(windows) => {
                let left = windows.block(&self.key(key), duration, unless_blocked);
                Ok(SystemTime::now() + Duration::from_millis(left))
            }
            _ => self.0.client.block(key, duration, unless_blocked).await,
        }
    }

    /// Lifts a block; whether the key was blocked.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn unblock<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        match &self.0.strategy {
            Strategy::Local(windows) => Ok(windows.unblock(&self.key(key.as_ref()))),
            _ => self.0.client.unblock(key.as_ref()).await,
        }
    }

    /// Forgets all that was counted for a key, and its block; whether there was anything.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        match &self.0.strategy {
            Strategy::Local(windows) => Ok(windows.reset(&self.key(key.as_ref()))),
            _ => self.0.client.reset(key.as_ref()).await,
        }
    }

    /// Waits for one's turn, at most so long: first come, first served, whatever each one's cost. The server keeps the
    /// queue where it can; elsewhere each process keeps its own and asks when the wait is over. Denied at once where
    /// there is nothing to hope for.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), and [`Error::Invalid`] for a partial request, and [`Error::Refused`] when too many
    /// wait.
    pub async fn acquire<'a>(&self, request: impl Into<Request<'a>>, timeout: Duration) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        if request.partial {
            return Err(Error::Invalid("a request that waits is granted the whole cost or nothing".into()));
        }
        let (key, demand) = (self.key(request.key), Demand { block: None, ..self.demand(&request) });
        let until = Instant::now() + timeout.min(Duration::from_millis(MAX_WINDOW));
        let until = request.deadline.map_or(until, |deadline| deadline.min(until));
        let decision = self.wait(&key, &request, &demand, &self.0.client.wait(until)).await?;
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    async fn wait(&self, key: &[u8], request: &Request<'_>, demand: &Demand, wait: &Wait) -> Result<Decision, Error> {
        if let Ok(link) = self.0.strategy.link() {
            match self.wait_there(link, key, demand, wait).await {
                Some(Ok(decision)) => return Ok(decision),
                // Nobody can wait there now: who decides instead is asked again and again.
                None | Some(Err(Error::Away(_))) => {}
                Some(Err(error)) => return Err(error),
            }
        }
        // Where only a place is missing, one may become free, or units be given back.
        let link = self.0.strategy.link().ok().filter(|link| link.lets_wait(key));
        let longest = if link.is_some() { POLL } else { Duration::MAX };
        let ask = || async move {
            if let Some(link) = link.filter(|link| link.lets_wait(key)) {
                match self.wait_in_place(link, key, demand, wait).await {
                    None | Some(Err(Error::Away(_))) => {}
                    Some(waited) => return waited,
                }
            }
            self.decide(key, demand, None).await
        };
        match self.0.client.fair_queue.wait(key, wait, longest, ask).await {
            Some(decided) => decided,
            // Others were before, to the end.
            None => {
                let peeked = self.peek(*request).await?;
                let retry_after = peeked.retry_after.map(|ms| ms.max(1));
                Ok(Decision { granted: 0, retry_after, ..peeked })
            }
        }
    }

    /// Waits on the server. A free key is granted over the connection that all share, so that it never waits for a
    /// place.
    async fn wait_there(
        &self,
        link: &Arc<Link>,
        key: &[u8],
        demand: &Demand,
        wait: &Wait,
    ) -> Option<Result<Decision, Error>> {
        // The script does not know of waiting.
        if link.is_scripted(key) {
            return None;
        }
        let decided = |reply: Reply| Ok(Source::Server.decided(reply.decision()?));
        let at_once = match self.ask(link, Command::acquire(key, demand, 0), None).await {
            Ok(reply) => decided(reply),
            Err(error) if error.is_unknown_or_forbidden() => return None,
            Err(error) => Err(error),
        };
        let at_once = match at_once {
            Ok(decision) if !decision.granted() => decision,
            done => return Some(done),
        };
        if at_once.retry_after().is_none_or(|pause| pause > wait.left()) {
            return Some(Ok(at_once));
        }
        match self.wait_in_place(link, key, demand, wait).await {
            None if wait.is_over() => Some(Ok(at_once)),
            waited => waited,
        }
    }

    /// Waits over a connection of its own; `None` where there is no place.
    async fn wait_in_place(
        &self,
        link: &Arc<Link>,
        key: &[u8],
        demand: &Demand,
        wait: &Wait,
    ) -> Option<Result<Decision, Error>> {
        let waited = link.wait(key, wait, |left| Command::acquire(key, demand, ms(left))).await?;
        Some(waited.and_then(|reply| Ok(Source::Server.decided(reply.decision()?))))
    }

    /// The name of a key on the server.
    pub(crate) fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        self.0.client.key(key)
    }

    /// A request with this limiter's quota.
    pub(crate) fn demand(&self, request: &Request<'_>) -> Demand {
        let (cost, partial) = (request.cost, request.partial);
        let exact = swlimit_window::Request { quota: self.0.quota.exact(), cost, partial, strict: self.0.strict };
        Demand { exact, block: self.0.block }
    }

    pub(crate) fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// The decision, or the failure policy's if the server is away: of its window, where it has one, as `local` asks
    /// it.
    fn or_on_failure(
        &self,
        decided: Result<Decision, Error>,
        demand: &Demand,
        local: impl FnOnce(&Windows, &Demand) -> Result<Exact, Error>,
    ) -> Result<Decision, Error> {
        let Err(Error::Away(reason)) = decided else { return decided };
        match self.policy(demand, reason)? {
            Policy::Decided(decision) => Ok(decision),
            Policy::Window(windows, share, source) => Ok(source.decided(local(windows, &share)?).of(demand)),
        }
    }

    /// Who decides where the server does not.
    ///
    /// # Errors
    /// [`Error::Away`] with [`OnFailure::Error`].
    pub(crate) fn policy(&self, demand: &Demand, reason: String) -> Result<Policy<'_>, Error> {
        if let Strategy::Local(windows) = &self.0.strategy {
            return Ok(Policy::Window(windows, *demand, Source::Local));
        }
        Ok(match self.0.on_failure {
            OnFailure::Error => return Err(Error::Away(reason)),
            OnFailure::Allow => Policy::Decided(demand.allowed()),
            OnFailure::Deny => Policy::Decided(demand.denied()),
            OnFailure::Local => {
                let windows = self.0.failure_windows.get_or_init(|| Windows::new(self.0.client.max_keys));
                let quota = self.0.quota.with_limit(self.0.local_share.units(self.0.quota.limit()));
                let exact = swlimit_window::Request { quota, ..demand.exact };
                Policy::Window(windows, Demand { exact, ..*demand }, Source::Failure)
            }
        })
    }
}

/// Who decides where the server does not.
pub(crate) enum Policy<'a> {
    /// The policy, whatever was used.
    Decided(Decision),
    /// A window in this process, with its share of the limit.
    Window(&'a Windows, Demand, Source),
}

impl Strategy {
    pub fn link(&self) -> Result<&Arc<Link>, Error> {
        match self {
            Self::Direct(link) | Self::Cached(link) | Self::Leased(link, _) | Self::Eventual(link, _) => Ok(link),
            Self::Local(_) => Err(Error::NoServer("this")),
        }
    }
}

impl Decision {
    /// Made with a share of the limit, of which nobody is told.
    pub(crate) fn of(self, demand: &Demand) -> Self {
        Self { limit: demand.exact.quota.limit, ..self }
    }
}
