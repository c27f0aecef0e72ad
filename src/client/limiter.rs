//! A limiter: one quota, any number of keys.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use swlimit_window::MAX_WINDOW;
use tokio::time::Instant;

use crate::background::Background;
use crate::client::{Client, Shared};
use crate::clock::{ms, ms_up};
use crate::commands;
use crate::deciding::{Deciding, WhenAway};
use crate::decision::{Decision, Decisions, Way};
use crate::demand::Demand;
use crate::error::Error;
use crate::leases::Leases;
use crate::local::Windows;
use crate::operating::unix;
use crate::quota::Quota;
use crate::request::Request;
use crate::server::Server;

/// One quota, and any number of keys that it holds for. Cheap to clone.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    client: Arc<Shared>,
    quota: Quota,
    strict: bool,
    /// The block that a denial begins, in ms.
    block: Option<u64>,
    deciding: Deciders,
    away: Away,
}

/// Who decides, with what each needs.
enum Deciders {
    Direct,
    Denials,
    Leases(Arc<Leases>),
    Background(Arc<Background>),
    OnlyLocal(Windows),
}

/// Who decides when the server is away.
struct Away {
    policy: WhenAway,
    windows: OnceLock<Windows>,
}

/// How a limiter is to be.
#[must_use = "nothing is built yet"]
pub struct LimiterBuilder {
    client: Client,
    quota: Quota,
    strict: bool,
    block: Option<u64>,
    deciding: Deciding,
    when_away: WhenAway,
}

impl LimiterBuilder {
    pub(crate) fn new(client: Client, quota: Quota) -> Self {
        let (deciding, when_away) = (Deciding::default(), WhenAway::default());
        Self { client, quota, strict: false, block: None, deciding, when_away }
    }

    /// Count the trailing subinterval whole: no span of the window ever sees more than the limit.
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// Block the key for so long when the window denies a request: a penalty. Whole ms, 1 ms … 3650 d; what is longer
    /// or shorter counts as the longest or shortest.
    pub fn blocking(self, duration: Duration) -> Self {
        Self { block: Some(ms(duration).clamp(1, MAX_WINDOW)), ..self }
    }

    /// Who decides: [`Deciding::Denials`] unless set.
    pub fn deciding(self, deciding: Deciding) -> Self {
        Self { deciding, ..self }
    }

    /// Who decides when the server is away: a tenth of the limit in this process unless set.
    pub fn when_away(self, when_away: WhenAway) -> Self {
        Self { when_away, ..self }
    }

    /// The limiter. Of a client without a server, it is [`Deciding::OnlyLocal`] whatever was set.
    pub fn build(self) -> Limiter {
        let Self { client: Client(client), quota, strict, block, deciding, when_away } = self;
        let most_keys = client.most_keys;
        let deciding = match (&client.server, deciding) {
            (None, _) | (_, Deciding::OnlyLocal) => Deciders::OnlyLocal(Windows::new(most_keys)),
            (_, Deciding::Direct) => Deciders::Direct,
            (_, Deciding::Denials) => Deciders::Denials,
            (Some(server), Deciding::Leases { share }) => {
                let leases = Arc::new(Leases::new(Arc::clone(server), &quota, share, most_keys));
                remember(&client.leases, &leases);
                Deciders::Leases(leases)
            }
            (Some(server), Deciding::Background { interval, share }) => {
                let background = Arc::new(Background::new(Arc::clone(server), &quota, interval, share, most_keys));
                remember(&client.backgrounds, &background);
                Deciders::Background(background)
            }
        };
        let away = Away { policy: when_away, windows: OnceLock::new() };
        Limiter(Arc::new(Inner { client, quota, strict, block, deciding, away }))
    }
}

/// Keep in mind what is to be closed at the end, and no longer what is gone.
fn remember<T>(all: &parking_lot::Mutex<Vec<std::sync::Weak<T>>>, one: &Arc<T>) {
    let mut all = all.lock();
    all.retain(|known| known.strong_count() > 0);
    all.push(Arc::downgrade(one));
}

impl Limiter {
    /// Its quota.
    pub fn quota(&self) -> &Quota {
        &self.0.quota
    }

    /// The client it is one of.
    pub fn client(&self) -> Client {
        Client(Arc::clone(&self.0.client))
    }

    /// Decide a request, and count it if it is granted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range; [`Error::Refused`] and [`Error::ModuleMissing`] as the server says.
    /// Not when it is away: then the failure policy decides.
    pub async fn allow<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let decision = self.decide(&request, &self.demand(&request)).await?;
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    async fn decide(&self, request: &Request<'_>, demand: &Demand) -> Result<Decision, Error> {
        let key = request.key;
        let asked = match &self.0.deciding {
            Deciders::OnlyLocal(windows) => return Ok(Way::OnlyLocal.made(windows.allow(key, demand)?)),
            Deciders::Background(background) if background.is_away() => {
                background.ask_about(key, demand);
                Err(Error::Away(String::new()))
            }
            Deciders::Background(background) => return Ok(Way::Background.made(background.decide(key, demand))),
            Deciders::Leases(leases) => {
                if let Some(decision) = leases.take(key, demand) {
                    return Ok(Way::Lease.made(decision));
                }
                if let Some(decision) = self.0.client.denials.find(key, demand, Instant::now()) {
                    return Ok(Way::Denial.made(decision));
                }
                let sent = Instant::now();
                let asked = leases.ask(key, demand).await;
                self.remembering(key, demand, sent, asked)
            }
            Deciders::Denials => {
                let now = Instant::now();
                if let Some(decision) = self.0.client.denials.find(key, demand, now) {
                    return Ok(Way::Denial.made(decision));
                }
                if let Some(denied) = self.0.client.denied_again(key, demand).await {
                    return Ok(Way::Server.made(denied));
                }
                let sent = Instant::now();
                let asked = self.server()?.ask(commands::allow(key, demand), now + self.server()?.timeout()).await;
                let decided = asked.and_then(|reply| Ok((reply.decision()?, Way::Server)));
                self.remembering(key, demand, sent, decided)
            }
            Deciders::Direct => {
                let server = self.server()?;
                let reply = server.ask(commands::allow(key, demand), server.deadline()).await;
                reply.and_then(|reply| Ok(Way::Server.made(reply.decision()?)))
            }
        };
        self.or_away(asked, demand, |windows, share| windows.allow(key, share))
    }

    /// A decision of something that was sent then; a denial is remembered.
    fn remembering(
        &self,
        key: &[u8],
        demand: &Demand,
        sent: Instant,
        decided: Result<(swlimit_window::Decision, Way), Error>,
    ) -> Result<Decision, Error> {
        let (exact, way) = decided?;
        if exact.granted == 0 && way == Way::Server {
            self.0.client.remember(key, demand, &exact, sent);
        }
        Ok(way.made(exact))
    }

    /// The same decision without counting. The server is asked, whoever decides otherwise.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let demand = self.demand(&request);
        if let Deciders::OnlyLocal(windows) = &self.0.deciding {
            return Ok(Way::OnlyLocal.made(windows.peek(request.key, &demand)?));
        }
        let server = self.server()?;
        let reply = server.ask(commands::peek(request.key, &demand), server.deadline()).await;
        let asked = reply.and_then(|reply| Ok(Way::Server.made(reply.decision()?)));
        self.or_away(asked, &demand, |windows, share| windows.peek(request.key, share))
    }

    /// Count a request whatever the limit says: usage that is known afterwards. The decision is the one it would have
    /// been, with what remains after counting.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), and [`Error::Away`].
    pub async fn record<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let demand = self.demand(&Request { partial: false, ..request });
        let age = request.age.map(ms);
        match &self.0.deciding {
            Deciders::OnlyLocal(windows) => Ok(Way::OnlyLocal.made(windows.record(request.key, &demand, age)?)),
            Deciders::Background(background) => {
                let age = request.age.unwrap_or_default();
                Ok(Way::Background.made(background.record(request.key, &demand, age)))
            }
            _ => {
                let server = self.server()?;
                let reply = server.ask(commands::record(request.key, &demand, age), server.deadline()).await?;
                Ok(Way::Server.made(reply.decision()?))
            }
        }
    }

    /// Give back up to `cost` units of the request, of the [`age`](Request::age) it says if it says one, else the
    /// youngest; how many were given back. An age includes the way there: add the
    /// [timeout](crate::ClientBuilder::timeout). Never refund the same units twice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::Away`].
    pub async fn refund<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64, Error> {
        let request = request.into().checked()?;
        let age = request.age.map(ms_up);
        if let Deciders::OnlyLocal(windows) = &self.0.deciding {
            return Ok(windows.refund(request.key, request.cost, age));
        }
        let untold = match &self.0.deciding {
            // Of an age, the server looks for the units that were counted then.
            Deciders::Background(background) if age.is_none() => background.take_back(request.key, request.cost),
            _ => 0,
        };
        let told = match request.cost - untold {
            0 => 0,
            left => self.change(request.key, commands::refund(request.key, left, age)).await?,
        };
        Ok(untold + told)
    }

    /// Block a key for so long, whatever its block was before; until when it is blocked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a duration out of range, otherwise as [`refund`](Self::refund).
    pub async fn block<K: AsRef<[u8]> + ?Sized>(&self, key: &K, duration: Duration) -> Result<SystemTime, Error> {
        self.begin_block(key.as_ref(), duration, false).await
    }

    /// Block a key for so long, unless it is blocked already; until when it is blocked.
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
        let duration = Some(ms(duration)).filter(|ms| (1..=MAX_WINDOW).contains(ms));
        let invalid = || Error::Invalid("duration must be a duration such as 60, 500ms, 5m, 1h or 7d".into());
        let duration = duration.ok_or_else(invalid)?;
        if let Deciders::OnlyLocal(windows) = &self.0.deciding {
            let left = windows.block(key, duration, unless_blocked);
            return Ok(SystemTime::now() + Duration::from_millis(left));
        }
        self.change(key, commands::block(key, duration, unless_blocked)).await.map(unix)
    }

    /// Lift a block; whether the key was blocked.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn unblock<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        let key = key.as_ref();
        if let Deciders::OnlyLocal(windows) = &self.0.deciding {
            return Ok(windows.unblock(key));
        }
        self.change(key, commands::unblock(key)).await.map(|lifted| lifted > 0)
    }

    /// Send something that may make a denial wrong. Nobody is denied by it once this has returned.
    async fn change(&self, key: &[u8], command: crate::wire::Command) -> Result<u64, Error> {
        let server = self.server()?;
        let reply = server.ask(command, server.deadline()).await;
        self.0.client.denials.forget(key);
        reply?.natural()
    }

    /// Wait for one's turn, at most so long: first come, first served, whatever each one's cost. The server keeps the
    /// queue where it can; elsewhere each process keeps its own and asks when the wait is over. Denied at once where
    /// there is nothing to hope for.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), and [`Error::Invalid`] for a partial request, and [`Error::Refused`] when too many
    /// wait.
    pub async fn acquire<'a>(&self, request: impl Into<Request<'a>>, timeout: Duration) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        if request.partial {
            return Err(Error::Invalid("whoever waits is granted the whole cost or nothing".into()));
        }
        let demand = Demand { block: None, ..self.demand(&request) };
        let until = Instant::now() + timeout.min(Duration::from_millis(MAX_WINDOW));
        let decision = self.wait(&request, &demand, until).await?;
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    async fn wait(&self, request: &Request<'_>, demand: &Demand, until: Instant) -> Result<Decision, Error> {
        if let (Some(server), false) = (&self.0.client.server, self.is_only_local()) {
            let waited = server.wait(until, |left| commands::acquire(request.key, demand, ms(left))).await;
            match waited.map(|reply| reply?.decision()) {
                Some(Ok(decision)) => return Ok(Way::Server.made(decision)),
                // Nobody can wait there now: who decides instead is asked again and again.
                None | Some(Err(Error::Away(_))) => {}
                Some(Err(error)) => return Err(error),
            }
        }
        let ask = || async move { self.decide(request, demand).await };
        match self.0.client.turns.wait(request.key, until, ask).await {
            Some(answer) => answer,
            // Others were before, to the end.
            None => {
                let peeked = self.peek(*request).await?;
                Ok(Decision { exact: peeked.exact.behind(1), ..peeked })
            }
        }
    }

    /// What a request asks of this limiter's window.
    pub(crate) fn demand(&self, request: &Request<'_>) -> Demand {
        let (cost, partial) = (request.cost, request.partial);
        let exact = swlimit_window::Request { quota: self.0.quota.exact(), cost, partial, strict: self.0.strict };
        Demand { exact, block: self.0.block }
    }

    /// Whether a window in this process decides.
    pub(crate) fn is_only_local(&self) -> bool {
        matches!(self.0.deciding, Deciders::OnlyLocal(_))
    }

    fn server(&self) -> Result<&Arc<Server>, Error> {
        self.0.client.server.as_ref().ok_or(Error::OnlyLocal("this"))
    }

    /// The answer, or the failure policy's if the server is away: of its window, where it has one, as `local` asks it.
    fn or_away(
        &self,
        asked: Result<Decision, Error>,
        demand: &Demand,
        local: impl FnOnce(&Windows, &Demand) -> Result<swlimit_window::Decision, Error>,
    ) -> Result<Decision, Error> {
        let Err(Error::Away(_)) = asked else { return asked };
        Ok(match self.instead(demand) {
            Instead::Policy(decision) => Way::Away.made(decision),
            Instead::Window(windows, share, way) => way.made_of(local(windows, &share)?, demand),
        })
    }

    /// Who decides a demand where the server does not.
    fn instead(&self, demand: &Demand) -> Instead<'_> {
        if let Deciders::OnlyLocal(windows) = &self.0.deciding {
            return Instead::Window(windows, *demand, Way::OnlyLocal);
        }
        match self.0.away.policy {
            WhenAway::Allow => Instead::Policy(demand.granted_unseen()),
            WhenAway::Deny => Instead::Policy(demand.denied_unseen()),
            WhenAway::Local { share } => {
                let windows = self.0.away.windows.get_or_init(|| Windows::new(self.0.client.most_keys));
                let exact = swlimit_window::Request { quota: self.0.quota.share(share), ..demand.exact };
                Instead::Window(windows, Demand { exact, ..*demand }, Way::Away)
            }
        }
    }

    /// Several requests where the server does not decide: counted only if all are granted.
    pub(crate) fn decide_all_away(
        requests: &[(&Self, Request<'_>)],
        members: &[(&[u8], Demand)],
    ) -> Result<Decisions, Error> {
        let instead: Vec<_> =
            requests.iter().zip(members).map(|((limiter, _), (_, demand))| limiter.instead(demand)).collect();
        let windows = instead.iter().zip(members).filter_map(|(instead, (key, _))| match instead {
            Instead::Window(windows, share, _) => Some((*windows, *key, *share)),
            Instead::Policy(_) => None,
        });
        let windows: Vec<_> = windows.collect();
        let is_denied =
            instead.iter().any(|instead| matches!(instead, Instead::Policy(decision) if decision.granted == 0));
        let decided = match is_denied {
            true => windows.iter().map(|(windows, key, share)| windows.peek(key, share)).collect(),
            false => Windows::allow_all(&windows),
        };
        let mut decided = decided?.into_iter();
        let each = instead.iter().zip(members).map(|(instead, (_, demand))| match instead {
            Instead::Policy(decision) => Way::Away.made(*decision),
            Instead::Window(.., way) => way.made_of(decided.next().unwrap_or_else(|| demand.denied_unseen()), demand),
        });
        let each: Vec<Decision> = each.collect();
        Ok(Decisions { granted: each.iter().all(Decision::granted), each })
    }
}

/// Who decides where the server does not.
enum Instead<'a> {
    /// The policy, whatever was used.
    Policy(swlimit_window::Decision),
    /// A window in this process, upon a demand with its share of the limit.
    Window(&'a Windows, Demand, Way),
}

impl Way {
    fn made(self, exact: swlimit_window::Decision) -> Decision {
        Decision { exact, way: self }
    }

    /// Made with a share of the limit, of which nobody is told.
    fn made_of(self, exact: swlimit_window::Decision, demand: &Demand) -> Decision {
        self.made(swlimit_window::Decision { limit: demand.exact.quota.limit, ..exact })
    }
}
