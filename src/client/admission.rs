//! Rates, budgets and a hold in one decision, and its settlement afterwards.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{timeout_at, Instant};

use crate::budget::{has_ended, server_time, BudgetLimiter, Way};
use crate::client::{Client, Shared};
use crate::clock::ms_up;
use crate::decision::{Decision, Decisions, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::hold::{Hold, HoldLimiter, HoldRequest, Keeper, Moment, PendingHold, Settlement, Taken};
use crate::limiter::{Limiter, Policy, Strategy};
use crate::link::{Batch, Link, Settle, Settled};
use crate::protocol::{Clause, Command, Counted};
use crate::request::Request;
use crate::statistics::Count;
use crate::transport::{Failure, Reply};

/// The most limits of one decision.
const MOST: usize = 64;

/// One of several limits that [`Client::admit`] decides together; made of a limiter and a request:
/// `(&limiter, "user:1").into()`.
#[derive(Clone)]
pub struct Member<'a>(Kind<'a>);

#[derive(Clone)]
enum Kind<'a> {
    Rate(&'a Limiter, Request<'a>),
    Budget(&'a BudgetLimiter, Request<'a>),
    Hold(&'a HoldLimiter, HoldRequest<'a>),
}

impl<'a, R: Into<Request<'a>>> From<(&'a Limiter, R)> for Member<'a> {
    fn from((limiter, request): (&'a Limiter, R)) -> Self {
        Self(Kind::Rate(limiter, request.into()))
    }
}

impl<'a, R: Into<Request<'a>>> From<(&'a BudgetLimiter, R)> for Member<'a> {
    fn from((limiter, request): (&'a BudgetLimiter, R)) -> Self {
        Self(Kind::Budget(limiter, request.into()))
    }
}

impl<'a, R: Into<HoldRequest<'a>>> From<(&'a HoldLimiter, R)> for Member<'a> {
    fn from((limiter, request): (&'a HoldLimiter, R)) -> Self {
        Self(Kind::Hold(limiter, request.into()))
    }
}

/// A member, checked: what is asked of which key.
struct Asking {
    key: Vec<u8>,
    of: Of,
}

/// What a member takes of, for as long as the admission lasts.
#[derive(Clone)]
enum Of {
    Rate(Limiter, Demand),
    /// And its cost.
    Budget(BudgetLimiter, u64),
    Hold(HoldLimiter, PendingHold),
}

/// One decision of several limits. It is granted only if each of them is.
///
/// Where one of them is a hold, it is held until this is settled or dropped, and the other units are reserved under
/// it. Dropped without being settled, the hold ends and the units stay counted as they were reserved.
#[must_use = "a denied request is to be turned away, and a granted one to be settled"]
pub struct Admission {
    decisions: Decisions,
    hold: Option<Hold>,
    reserved: Vec<Reserved>,
    /// When the decision was sent.
    sent: Moment,
    client: Arc<Shared>,
    by_server: bool,
    is_settled: bool,
}

/// What was taken of a limit beside the hold.
struct Reserved {
    key: Vec<u8>,
    of: Of,
    units: u64,
    /// Of a budget, the end of its period in Unix ms, by this machine's clock.
    until: Option<u64>,
}

impl Client {
    /// Rates, budgets and one hold in one decision, of at most 64 limits: all are granted, or nothing is counted and
    /// nothing held. The server decides, unless a rate among them is known to be denied. In a cluster all keys need the
    /// same hash tag.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), swlimit_client::Error> {
    /// use swlimit_client::{Calendar, Client, Period, Quota, Request};
    ///
    /// let client = Client::connect("redis://127.0.0.1/").await?;
    /// let requests = client.limiter(Quota::new(60, "1m")?).build()?;
    /// let tokens = client.budget(1_000_000, Calendar::of(Period::Month)).build()?;
    /// let streams = client.holds(5).build()?;
    /// let reserved = Request::of("{ann}:tokens").cost(2_000);
    /// let members = [(&streams, "{ann}:streams").into(), (&requests, "{ann}:requests").into(), (&tokens, reserved).into()];
    /// let mut admission = client.admit(members).await?;
    /// if admission.granted() {
    ///     // … 1,250 tokens later
    ///     admission.settle(&[1, 1_250]).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range, partial requests, a key named twice, a hold that waits, two holds, or
    /// limiters of which only some are strict, or only some decided in this process; [`Error::Refused`] and
    /// [`Error::ModuleMissing`] as the server says; [`Error::Away`] where a limiter has
    /// [`OnFailure::Error`](crate::OnFailure::Error).
    pub async fn admit<'a>(&self, members: impl IntoIterator<Item = Member<'a>>) -> Result<Admission, Error> {
        let members: Vec<Member<'a>> = members.into_iter().collect();
        let deadline = members.iter().filter_map(Member::deadline).min();
        let asking = checked(&members)?;
        let admission = self.decided(asking, deadline).await?;
        let decisions = &admission.decisions;
        for decision in decisions.each().iter().filter(|decision| decision.granted() == decisions.granted()) {
            self.0.counters.decided(decision);
        }
        Ok(admission)
    }

    /// Corrects what a hold has reserved, by its key and id, for whoever holds for others: units that were used of each
    /// key, in the order in which they were reserved. How each count changed; `None` where the hold had ended before. An
    /// [`Admission`] settles itself.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn settle<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        id: &[u8],
        used: &[(&[u8], u64)],
    ) -> Result<Option<Vec<i64>>, Error> {
        let reserved = used.iter().map(|(key, units)| (self.0.key(key).as_ref().into(), *units)).collect();
        let command = Command::Settle { key: self.0.key(key.as_ref()).as_ref().into(), id: id.into(), reserved };
        self.ask("settle", command).await?.changes()
    }

    async fn decided(&self, asking: Vec<Asking>, deadline: Option<Instant>) -> Result<Admission, Error> {
        let keeper = self.0.keeper.as_ref().filter(|_| !asking.iter().any(Asking::is_local));
        let Some(keeper) = keeper else { return self.here(asking, None).await };
        if let Some(decisions) = self.known_denials(&asking) {
            return Ok(self.admission(decisions, None, Vec::new(), Moment::now(), true));
        }
        match self.there(keeper, &asking, deadline).await {
            Err(Error::Away(reason)) => self.here(asking, Some(reason)).await,
            decided => decided,
        }
    }

    fn admission(
        &self,
        decisions: Decisions,
        hold: Option<Hold>,
        reserved: Vec<Reserved>,
        sent: Moment,
        by_server: bool,
    ) -> Admission {
        let client = Arc::clone(&self.0);
        Admission { decisions, hold, reserved, sent, client, by_server, is_settled: false }
    }

    /// The decisions of limits of which one is known to be denied.
    fn known_denials(&self, asking: &[Asking]) -> Option<Decisions> {
        let now = Instant::now();
        let known: Vec<_> = asking.iter().map(|one| one.known_denial(&self.0, now)).collect();
        known.iter().any(Option::is_some).then(|| {
            let not_asked = |one: &Asking| Source::Cache.unknown(one.units(), one.limit(), Some(0));
            let each = known.into_iter().zip(asking).map(|(known, one)| known.unwrap_or_else(|| not_asked(one)));
            Decisions { granted: false, each: each.collect() }
        })
    }

    /// The server's decision.
    async fn there(&self, keeper: &Keeper, asking: &[Asking], deadline: Option<Instant>) -> Result<Admission, Error> {
        let link = keeper.link();
        let deadline = link.deadline(deadline)?;
        let tickets: Vec<_> = asking.iter().map(|one| self.0.deny_cache.ticket(&one.key)).collect();
        let sent = Moment::now();
        let reply = match asked(keeper, asking, None, deadline).await {
            Err(Error::Refused(text)) if has_ended(&text) => {
                let ahead = Ahead(server_time(link, deadline).await);
                asked(keeper, asking, Some(ahead), deadline).await?
            }
            reply => reply?,
        };
        let (granted, replies) = reply.clauses()?;
        let (mut each, mut hold, mut reserved) = (Vec::new(), None, Vec::new());
        for ((one, reply), ticket) in asking.iter().zip(replies).zip(tickets) {
            let decision = match &one.of {
                Of::Hold(_, asked) => {
                    let held = reply.hold()?;
                    let decision = asked.decision(&held);
                    hold = Some(match granted {
                        true => asked.clone().kept(keeper, &held, sent),
                        false => Hold::denied(Decision { granted: 0, ..decision }),
                    });
                    decision
                }
                Of::Rate(_, demand) => {
                    let exact = reply.decision()?;
                    if exact.granted == 0 {
                        self.0.deny_cache.denied(link, &one.key, demand, &exact, sent.instant, ticket);
                    }
                    Source::Server.decided(exact)
                }
                Of::Budget(..) => Source::Server.decided(reply.decision()?),
            };
            if granted && !matches!(one.of, Of::Hold(..)) {
                reserved.push(Reserved::new(one.key.clone(), one.of.clone(), decision.granted));
            }
            each.push(decision);
        }
        Ok(self.admission(Decisions { granted, each }, hold, reserved, sent, true))
    }

    /// Decided in this process, by the failure policies where there is a reason for them: all, or nothing.
    async fn here(&self, asking: Vec<Asking>, reason: Option<String>) -> Result<Admission, Error> {
        let (mut each, mut hold, mut reserved) = (Vec::new(), None, Vec::new());
        let wait = self.0.wait(Instant::now());
        for one in asking {
            let decision = match &one.of {
                Of::Rate(limiter, demand) => match limiter.policy(demand, reason.clone().unwrap_or_default())? {
                    Policy::Decided(decision) => decision,
                    Policy::Window(windows, share, source) => {
                        source.decided(windows.allow(&one.key, &share)?).of(demand)
                    }
                },
                Of::Budget(limiter, cost) => {
                    let request = Request::of(&one.key).cost(*cost);
                    match &reason {
                        Some(reason) => limiter.by_policy(&one.key, &request, reason.clone(), Way::Allow)?,
                        None => limiter.locally(&one.key, &request, limiter.limit(), Source::Local, Way::Allow)?,
                    }
                }
                Of::Hold(limiter, asked) => {
                    let held = match &reason {
                        Some(reason) => limiter.by_policy(asked, reason.clone(), &wait).await?,
                        None => limiter.sit(asked, limiter.limit(), &wait, Source::Local).await,
                    };
                    let decision = *held.decision();
                    hold = Some(held);
                    decision
                }
            };
            if decision.granted() && !matches!(one.of, Of::Hold(..)) {
                reserved.push(Reserved::new(one.key, one.of, decision.granted));
            }
            each.push(decision);
        }
        let granted = each.iter().all(Decision::granted);
        if !granted {
            reserved.drain(..).for_each(|one| drop(one.settle_here(0, None)));
            hold = None;
        }
        Ok(self.admission(Decisions { granted, each }, hold, reserved, Moment::now(), false))
    }
}

/// # Errors
/// [`Error::Invalid`] for what no server would decide together.
fn checked(members: &[Member<'_>]) -> Result<Vec<Asking>, Error> {
    let invalid = |text: &str| Err(Error::Invalid(text.into()));
    if members.is_empty() || members.len() > MOST {
        return invalid("an admission has 1 to 64 limits");
    }
    let asking = members.iter().map(Member::checked).collect::<Result<Vec<_>, _>>()?;
    if (1..asking.len()).any(|at| asking[..at].iter().any(|other| other.key == asking[at].key)) {
        return invalid("key named twice");
    }
    if asking.iter().filter(|one| matches!(one.of, Of::Hold(..))).count() > 1 {
        return invalid("an admission has one hold at most");
    }
    let strict: Vec<bool> = asking.iter().filter_map(Asking::is_strict).collect();
    if strict.windows(2).any(|two| two[0] != two[1]) {
        return invalid("several limits at once are all strict, or none of them is");
    }
    let is_local = asking.iter().any(Asking::is_local);
    if is_local && asking.iter().any(|one| !one.is_local()) {
        return invalid("several limits at once are all decided in this process, or none of them is");
    }
    Ok(asking)
}

impl Member<'_> {
    fn deadline(&self) -> Option<Instant> {
        match &self.0 {
            Kind::Rate(_, request) | Kind::Budget(_, request) => request.deadline,
            Kind::Hold(_, request) => request.own_deadline(),
        }
    }

    fn checked(&self) -> Result<Asking, Error> {
        let whole = |request: &Request<'_>| match request.partial {
            true => Err(Error::Invalid("several limits at once grant the whole cost or nothing".into())),
            false => Ok(()),
        };
        Ok(match &self.0 {
            Kind::Rate(limiter, request) => {
                let request = request.checked()?;
                whole(&request)?;
                let demand = Demand { block: None, ..limiter.demand(&request) };
                Asking { key: limiter.key(request.key).into_owned(), of: Of::Rate((*limiter).clone(), demand) }
            }
            Kind::Budget(limiter, request) => {
                let request = limiter.checked(*request)?;
                whole(&request)?;
                Asking { key: limiter.key(request.key), of: Of::Budget((*limiter).clone(), request.cost) }
            }
            Kind::Hold(_, request) if request.waits() => {
                return Err(Error::Invalid("an admission does not wait".into()));
            }
            Kind::Hold(limiter, request) => {
                let asked = limiter.asked(request)?;
                Asking { key: asked.name.key.to_vec(), of: Of::Hold((*limiter).clone(), asked) }
            }
        })
    }
}

impl Asking {
    fn is_local(&self) -> bool {
        match &self.of {
            Of::Rate(limiter, _) => matches!(limiter.strategy(), Strategy::Local(_)),
            Of::Budget(limiter, _) => !limiter.has_server(),
            Of::Hold(limiter, _) => !limiter.has_server(),
        }
    }

    fn is_strict(&self) -> Option<bool> {
        match &self.of {
            Of::Rate(_, demand) => Some(demand.exact.strict),
            _ => None,
        }
    }

    fn units(&self) -> u64 {
        match &self.of {
            Of::Rate(_, demand) => demand.exact.cost,
            Of::Budget(_, cost) => *cost,
            Of::Hold(_, asked) => asked.cost,
        }
    }

    fn limit(&self) -> u64 {
        match &self.of {
            Of::Rate(_, demand) => demand.exact.quota.limit,
            Of::Budget(limiter, _) => limiter.limit(),
            Of::Hold(limiter, _) => limiter.limit(),
        }
    }

    fn known_denial(&self, client: &Shared, now: Instant) -> Option<Decision> {
        match &self.of {
            Of::Rate(limiter, demand) if !matches!(limiter.strategy(), Strategy::Direct(_)) => {
                client.deny_cache.find(&self.key, demand, now)
            }
            _ => None,
        }
    }

    /// As it is sent; of budgets with the end of the server's period where its clock is ahead.
    fn clause(&self, ahead: Option<Ahead>) -> Result<Clause, Error> {
        Ok(match &self.of {
            Of::Rate(_, demand) => Clause::Rate(*demand),
            Of::Hold(_, asked) => Clause::Hold(asked.clause()),
            Of::Budget(limiter, cost) => {
                let until = match ahead {
                    None => limiter.until()?,
                    Some(Ahead(server_time)) => limiter.until_there(server_time)?,
                };
                Clause::Budget(limiter.clause(until, *cost))
            }
        })
    }
}

/// A server whose clock is ahead of this machine's, with its time if it tells.
#[derive(Clone, Copy)]
struct Ahead(Option<u64>);

/// The server's reply. What it grants to nobody is given back, as far as a hold has reserved it.
async fn asked(keeper: &Keeper, asking: &[Asking], ahead: Option<Ahead>, deadline: Instant) -> Result<Reply, Error> {
    let members = asking.iter().map(|one| Ok((one.key.as_slice().into(), one.clause(ahead)?)));
    let members = members.collect::<Result<Vec<_>, Error>>()?;
    let strict = asking.iter().any(|one| one.is_strict() == Some(true));
    let command = Command::Admit { members, strict };
    let link = keeper.link();
    let mut tries = 0;
    loop {
        let unsettled = unsettled(&command, asking);
        // Without a hold of its own, the exchange undoes itself.
        let late = unsettled.map(|unsettled| {
            let (keeper, link) = (keeper.clone(), Arc::clone(link));
            Box::new(move |settled: Settled| undo(&keeper, &link, Some(unsettled), &settled.reply)) as Settle
        });
        let settled = link.exchange(Batch::One(command.clone()), deadline, late).await?;
        tries += 1;
        match settled.reply {
            // A hold that is live is not counted again, nor is what it has reserved.
            Err(_) if tries == 1 && asking.iter().any(|one| matches!(one.of, Of::Hold(..))) => {}
            Err(failure) => {
                let why = failure.to_string();
                undo(keeper, link, self::unsettled(&command, asking), &Err(failure));
                return Err(Error::Away(why));
            }
            reply => return link.understood(reply, &asking[0].key),
        }
    }
}

/// How to give back all that an admission takes; `None` without a hold, and of one whose id its caller chose.
fn unsettled(admit: &Command, asking: &[Asking]) -> Option<Settlement> {
    let asked = asking.iter().find_map(|one| match &one.of {
        Of::Hold(_, asked) if asked.is_own => Some(asked),
        _ => None,
    })?;
    let command = admit.undo(None, 0, 0).pop()?;
    Some(Settlement { name: asked.name.clone(), command, beyond: Vec::new(), done: oneshot::channel().0 })
}

fn undo(keeper: &Keeper, link: &Link, unsettled: Option<Settlement>, reply: &Result<Reply, Failure>) {
    let granted = match reply {
        Ok(reply) => reply.clauses().is_ok_and(|(granted, _)| granted),
        Err(_) => true,
    };
    match unsettled {
        Some(unsettled) if granted => keeper.settle(unsettled),
        None if granted => link.count(Count::InDoubt, 1),
        _ => {}
    }
}

impl Admission {
    /// Whether all limits granted. Otherwise nothing is counted or held anywhere.
    pub fn granted(&self) -> bool {
        self.decisions.granted()
    }

    /// The decision of each limit, in the order of the members. Where the whole is denied, a limit that did not deny
    /// shows as granted.
    pub fn each(&self) -> &[Decision] {
        self.decisions.each()
    }

    /// The longest wait of those that denied; zero when granted, `None` when one can never be granted.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decisions.retry_after()
    }

    /// The hold, if one was asked for and all was granted.
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref().filter(|hold| hold.granted())
    }

    /// Takes the hold out, such as to [detach](Hold::detach) it: whoever has it settles what it has reserved, by
    /// [`Client::settle`]. `None` without a hold, or denied.
    pub fn take_hold(&mut self) -> Option<Hold> {
        self.is_settled |= self.hold().is_some();
        self.hold.take().filter(Hold::granted)
    }

    /// Says what was really used: units of each member but the hold, in their order. Unused ones are given back, those
    /// beyond are counted, and the hold ends. How each count changed; `None` where the hold had ended before: then what
    /// was reserved stays counted, and what was used beyond is recorded. Only the first call does anything.
    ///
    /// Dropped, it is settled all the same, as soon as the server can be asked, as long as the hold would live; without
    /// a hold it is tried once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of units than of members; [`Error::Away`] and [`Error::Refused`].
    pub async fn settle(&mut self, used: &[u64]) -> Result<Option<Vec<i64>>, Error> {
        if self.is_settled || !self.granted() {
            return Ok(None);
        }
        if used.len() != self.reserved.len() {
            return Err(Error::Invalid(format!("used must be {} numbers: of all but the hold", self.reserved.len())));
        }
        self.is_settled = true;
        let taken = self.hold.as_mut().map(Hold::hand_over);
        match (taken, &self.client.link) {
            (Some(Taken::There(keeper, name, _life)), _) => self.settle_hold(keeper, name, used).await,
            (_, Some(link)) if self.by_server => self.settle_each(link, used).await,
            _ => {
                let age = Some(self.sent.instant.elapsed());
                let each = self.reserved.iter().zip(used).map(|(one, used)| one.settle_here(*used, age));
                Ok(Some(each.collect::<Result<_, _>>()?))
            }
        }
    }

    async fn settle_hold(
        &self,
        keeper: Keeper,
        name: crate::hold::Name,
        used: &[u64],
    ) -> Result<Option<Vec<i64>>, Error> {
        let reserved = self.reserved.iter().zip(used).map(|(one, used)| (one.key.as_slice().into(), *used)).collect();
        let command = Command::Settle { key: Arc::clone(&name.key), id: Arc::clone(&name.id), reserved };
        let each = self.reserved.iter().zip(used);
        let beyond = each.filter(|(one, used)| **used > one.units).map(|(one, used)| one.record(*used - one.units));
        let beyond = beyond.collect::<Result<Vec<Command>, Error>>()?;
        let (done, settled) = oneshot::channel();
        let deadline = Instant::now() + keeper.link().timeout();
        keeper.settle(Settlement { name, command, beyond, done });
        match timeout_at(deadline, settled).await {
            Ok(Ok(settled)) => settled,
            _ => Err(Error::Away("the settlement goes on".into())),
        }
    }

    /// Each by itself, where no hold has reserved it. A request is never sent twice.
    async fn settle_each(&self, link: &Link, used: &[u64]) -> Result<Option<Vec<i64>>, Error> {
        let mut changes = Vec::with_capacity(used.len());
        for (one, &used) in self.reserved.iter().zip(used) {
            let deadline = Instant::now() + link.timeout();
            if used >= one.units {
                let beyond = used - one.units;
                if beyond > 0 {
                    link.ask(one.record(beyond)?, deadline).await?;
                }
                changes.push(signed(beyond));
            } else {
                // With the way there, or it takes others' younger units.
                let age = ms_up(self.sent.instant.elapsed() + link.timeout());
                let refunded = match one.until {
                    Some(_) if !one.is_in_force() => 0,
                    until => {
                        let age = until.is_none().then_some(age);
                        let refund = Command::refund(&one.key, one.units - used, Counted::of(None, age));
                        link.ask(refund, deadline).await?.natural()?
                    }
                };
                self.client.deny_cache.forget(&one.key);
                changes.push(-signed(refunded));
            }
        }
        Ok(Some(changes))
    }
}

impl Reserved {
    fn new(key: Vec<u8>, of: Of, units: u64) -> Self {
        let until = match &of {
            Of::Budget(limiter, _) => limiter.until().ok(),
            _ => None,
        };
        Self { key, of, units, until }
    }

    /// Whether the period of a budget in which it was taken has not ended.
    fn is_in_force(&self) -> bool {
        matches!(&self.of, Of::Budget(limiter, _) if limiter.until().ok() == self.until)
    }

    /// Counts units whatever the limit is.
    fn record(&self, units: u64) -> Result<Command, Error> {
        Ok(match &self.of {
            Of::Rate(_, demand) => {
                let exact = swlimit_window::Request { cost: units, partial: false, ..demand.exact };
                Command::record(&self.key, &Demand { exact, block: None }, 0)
            }
            Of::Budget(limiter, _) => {
                let budget = limiter.clause(limiter.until()?, units);
                Command::Budget { key: self.key.as_slice().into(), budget, partial: false, force: true }
            }
            Of::Hold(..) => return Err(Error::Invalid("a hold has no usage".into())),
        })
    }

    /// Corrects what was taken in this process.
    fn settle_here(&self, used: u64, age: Option<Duration>) -> Result<i64, Error> {
        let (age, beyond) = (age.map(ms_up), used.saturating_sub(self.units));
        let unused = self.units.saturating_sub(used);
        match &self.of {
            Of::Rate(limiter, demand) => match limiter.policy(demand, String::new()) {
                Ok(Policy::Window(windows, _, _)) if unused > 0 => {
                    return Ok(-signed(windows.refund(&self.key, unused, age)));
                }
                Ok(Policy::Window(windows, share, _)) if beyond > 0 => {
                    let exact = swlimit_window::Request { cost: beyond, ..share.exact };
                    let _ = windows.record(&self.key, &Demand { exact, ..share }, None)?;
                }
                _ => return Ok(0),
            },
            Of::Budget(limiter, _) if unused > 0 && self.is_in_force() => {
                return Ok(-signed(limiter.give_back(&self.key, unused, None)));
            }
            Of::Budget(limiter, _) if beyond > 0 => {
                let request = Request::of(&self.key).cost(beyond);
                let _ = limiter.locally(&self.key, &request, limiter.limit(), Source::Local, Way::Record)?;
            }
            Of::Budget(..) | Of::Hold(..) => {}
        }
        Ok(signed(beyond))
    }
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
