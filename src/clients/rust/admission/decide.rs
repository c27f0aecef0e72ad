//! One decision of several limits of any kind.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::member::{checked, Ahead, Asked, CheckedMember, Member, Resource};
use super::settle::Reserved;
use super::{Admission, Granted};
use crate::budget::{has_ended, server_time, Way};
use crate::client::Client;
use crate::decision::{Decision, Decisions, Source};
use crate::error::{Cause, Error};
use crate::hold::{Hold, PendingHold};
use crate::limiter::Policy;
use crate::protocol::{Clause, Command};
use crate::reason::Reason;
use crate::request::Request;
use crate::statistics::Count;
use crate::transport::{Failure, Reply};
use crate::upstream::{told_of_all, Batch, HoldRenewer, Moment, Outcome, Owner, Settled, Settlement};
use crate::wait::Wait;

impl Client {
    /// Rates, budgets and holds in one decision, of at most 64 limits: all are granted, or nothing is counted and nothing
    /// held. The server decides, unless a rate among them is known to be denied and no id was chosen. In a cluster all
    /// keys need the same hash tag. Holds whose id nobody chose have one id: that of the first hold whose id was
    /// [chosen](crate::HoldRequest::id).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), swlimit_client::Error> {
    /// use swlimit_client::{Calendar, Client, Period, Quota, Request};
    ///
    /// let client = Client::connect("redis://127.0.0.1/").await?;
    /// let requests = client.limiter(Quota::new(60, "1m")?).build()?;
    /// let tokens = client.budget(1_000_000, Calendar::new(Period::Month)).build()?;
    /// let (streams, places) = (client.holds(5).build()?, client.holds(200).build()?);
    /// let reserved = Request::new("{ann}:tokens").cost(2_000);
    /// let mut admission = client
    ///     .admit([
    ///         (&streams, "{ann}:streams").into(),
    ///         (&places, "{ann}:small").into(),
    ///         (&requests, "{ann}:requests").into(),
    ///         (&tokens, reserved).into(),
    ///     ])
    ///     .await?;
    /// if admission.granted() {
    ///     // … 1,250 tokens later, for as long as all of admission.holds() are live
    ///     admission.settle(&[1, 1_250]).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range, partial requests, a key named twice, a hold that waits, or limiters
    /// of which only some are strict, or only some decided in this process; [`Error::Refused`] and
    /// [`Error::ModuleMissing`] as the server says; [`Error::Unavailable`] where a limiter has
    /// [`OnFailure::Error`](crate::OnFailure::Error).
    pub async fn admit<'a>(&self, members: impl IntoIterator<Item = Member<'a>>) -> Result<Admission, Error> {
        self.admitted(members.into_iter().collect(), true).await
    }

    /// Decides as [`admit`](Self::admit) does, for a caller that holds for others: there is no further key, and the first
    /// hold reserves the other limits. [Detach](Hold::detach) the holds, which come in the order of the members, or they
    /// end when they are dropped. Who knows key and id of the first settles all, by [`settle`](Self::settle).
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub async fn admit_for_others<'a>(
        &self,
        members: impl IntoIterator<Item = Member<'a>>,
    ) -> Result<(Decisions, Vec<Hold>), Error> {
        let admission = self.admitted(members.into_iter().collect(), false).await?;
        Ok((admission.decisions, admission.granted.holds))
    }

    async fn admitted(&self, members: Vec<Member<'_>>, reserves: bool) -> Result<Admission, Error> {
        let deadline = members.iter().filter_map(Member::deadline).min();
        let outcome = Outcome::keeping(members.iter().any(Member::keeps_late_grant));
        let admission = self.decided(checked(&members, reserves)?, deadline, &outcome).await?;
        let decisions = &admission.decisions;
        for decision in decisions.each().iter().filter(|decision| decision.granted() == decisions.granted()) {
            self.0.counters.decided(decision);
        }
        Ok(admission)
    }

    async fn decided(&self, asked: Asked, deadline: Option<Instant>, outcome: &Outcome) -> Result<Admission, Error> {
        let renewer = self.0.renewer.as_ref().filter(|_| !asked.members.iter().any(CheckedMember::is_local));
        let Some(renewer) = renewer else { return self.here(asked.members, None).await };
        if let Some(decisions) = self.known_denials(&asked) {
            return Ok(self.admission(decisions, Granted::default(), Moment::now(), true));
        }
        match self.there(renewer, &asked, deadline, outcome).await.map_err(|error| self.0.failure(error)) {
            Err(Error::Unavailable(reason)) => {
                let here = self.here(asked.members, Some(reason)).await;
                match &here {
                    Ok(admission) => outcome.decided(told_of_all(admission.granted())),
                    Err(_) => outcome.failed(),
                }
                here
            }
            decided => decided,
        }
    }

    fn admission(&self, decisions: Decisions, granted: Granted, sent: Moment, by_server: bool) -> Admission {
        Admission { decisions, granted, sent, client: Arc::clone(&self.0), by_server, is_settled: false }
    }

    /// The decisions of limits of which one is known to be denied. Under an id that the caller chose it may be granted
    /// all the same, as it was before: only the server knows.
    fn known_denials(&self, asked: &Asked) -> Option<Decisions> {
        if asked.holds().any(|pending| !pending.is_own) {
            return None;
        }
        let members = &asked.members;
        let now = Instant::now();
        let known: Vec<_> = members.iter().map(|one| one.known_denial(&self.0, now)).collect();
        known.iter().any(Option::is_some).then(|| {
            let not_asked = |one: &CheckedMember| Source::Cache.unknown(one.units(), one.limit(), Some(0));
            let each = known.into_iter().zip(members).map(|(known, one)| known.unwrap_or_else(|| not_asked(one)));
            Decisions { granted: false, each: each.collect() }
        })
    }

    /// The server's decision.
    async fn there(
        &self,
        renewer: &HoldRenewer,
        asked: &Asked,
        deadline: Option<Instant>,
        outcome: &Outcome,
    ) -> Result<Admission, Error> {
        let upstream = renewer.upstream();
        let longest = asked.holds().map(|pending| pending.timeout).max().unwrap_or_default();
        let deadline = upstream.time_to_decide(&asked.members[0].key, longest.max(upstream.timeout()), deadline)?;
        let tickets: Vec<_> = asked.members.iter().map(|one| self.0.denial_cache.ticket(&one.key)).collect();
        let sent = Moment::now();
        let reply = match answered(renewer, asked, None, deadline, outcome).await {
            Err(Error::Refused(text)) if has_ended(&text) => {
                let ahead = Ahead(server_time(upstream, deadline).await);
                answered(renewer, asked, Some(ahead), deadline, outcome).await?
            }
            reply => reply?,
        };
        let (is_granted, replies) = reply.clauses()?;
        let (mut replies, mut each, mut granted) = (replies.iter(), Vec::new(), Granted::default());
        let kept = |pending: &PendingHold, reply: &Reply| {
            let held = reply.hold()?;
            let hold = is_granted.then(|| pending.clone().kept(renewer, &held, sent));
            Ok::<_, Error>((pending.decision(&held), hold))
        };
        if let Some(pending) = &asked.reservation {
            granted.reservation = kept(pending, replies.next().unwrap_or(&Reply::Array(Vec::new())))?.1;
        }
        for ((one, reply), ticket) in asked.members.iter().zip(replies).zip(tickets) {
            let decision = match &one.of {
                Resource::Hold(_, pending) => {
                    let (decision, hold) = kept(pending, reply)?;
                    granted.holds.extend(hold);
                    decision
                }
                Resource::Rate(_, demand) => {
                    let exact = reply.decision()?;
                    if exact.granted == 0 {
                        self.0.denial_cache.denied(upstream, &one.key, demand, &exact, sent.instant, ticket);
                    }
                    Source::Server.decided(exact)
                }
                Resource::Budget(..) => Source::Server.decided(reply.decision()?),
            };
            if is_granted {
                granted.reserved.push(Reserved::new(one.key.clone(), one.of.clone(), decision.granted));
            }
            each.push(decision);
        }
        Ok(self.admission(Decisions { granted: is_granted, each }, granted, sent, true))
    }

    /// Decided in this process, by the failure policies where there is a reason for them: all, or nothing.
    async fn here(&self, members: Vec<CheckedMember>, reason: Option<Cause>) -> Result<Admission, Error> {
        let (mut each, mut granted) = (Vec::new(), Granted::default());
        let wait = self.0.wait(Instant::now());
        for one in members {
            let (decision, hold) = match one.here(reason.as_ref(), &wait).await {
                Ok(decided) => decided,
                Err(error) => {
                    granted.give_back();
                    return Err(error);
                }
            };
            if decision.granted() {
                granted.holds.extend(hold);
                granted.reserved.push(Reserved::new(one.key, one.of, decision.granted));
            }
            each.push(decision);
        }
        let is_granted = each.iter().all(Decision::granted);
        if !is_granted {
            granted.give_back();
        }
        Ok(self.admission(Decisions { granted: is_granted, each }, granted, Moment::now(), false))
    }
}

impl CheckedMember {
    /// The decision of this process, by the failure policy where there is a reason for it; and what is held.
    async fn here(&self, reason: Option<&Cause>, wait: &Wait) -> Result<(Decision, Option<Hold>), Error> {
        Ok(match &self.of {
            Resource::Rate(limiter, demand) => {
                let decision =
                    match limiter.policy(demand, reason.cloned().unwrap_or_else(|| Reason::Other.because("")))? {
                        Policy::Decided(decision) => decision,
                        Policy::Window(windows, share, source) => {
                            source.decided(windows.allow(&self.key, &share)?).of(demand)
                        }
                    };
                (decision, None)
            }
            Resource::Budget(limiter, cost) => {
                let request = Request::new(&self.key).cost(*cost);
                let decision = match reason {
                    Some(reason) => limiter.by_policy(&self.key, &request, reason.clone(), Way::Allow)?,
                    None => limiter.locally(&self.key, &request, limiter.limit(), Source::Local, Way::Allow)?,
                };
                (decision, None)
            }
            Resource::Hold(limiter, pending) => {
                let held = match reason {
                    Some(reason) => limiter.by_policy(pending, reason.clone(), wait).await?,
                    None => limiter.take_here(pending, limiter.limit(), wait, Source::Local).await,
                };
                (*held.decision(), Some(held))
            }
        })
    }
}

impl Granted {
    /// Gives back what was taken in this process.
    fn give_back(&mut self) {
        self.holds.clear();
        self.reserved.drain(..).for_each(|one| drop(one.settle_here(0, None)));
    }
}

/// The server's reply. What it grants to nobody is given back, as far as a hold has reserved it.
async fn answered(
    renewer: &HoldRenewer,
    asked: &Asked,
    ahead: Option<Ahead>,
    deadline: Instant,
    outcome: &Outcome,
) -> Result<Reply, Error> {
    let reservation = asked.reservation.iter();
    let reservation = reservation.map(|pending| Ok((Arc::clone(&pending.name.key), Clause::Hold(pending.clause()))));
    let clauses = asked.members.iter().map(|one| Ok((one.key.as_slice().into(), one.clause(ahead)?)));
    let clauses = reservation.chain(clauses).collect::<Result<Vec<_>, Error>>()?;
    let strict = asked.members.iter().any(|one| one.is_strict() == Some(true));
    let command = Command::Admit { members: clauses, strict };
    let (upstream, key) = (renewer.upstream(), &asked.members[0].key);
    let ask = async || {
        let late = match unsettled(&command, asked) {
            Some(unsettled) => {
                let renewer = renewer.clone();
                Owner::Settle(Box::new(move |settled: Settled| {
                    if may_be_granted(&settled.reply) {
                        renewer.settle(unsettled);
                    }
                }))
            }
            None => outcome.owner(),
        };
        upstream.exchange(Batch::One(command.clone()), deadline, late).await.map(|settled| settled.reply)
    };
    let first = ask().await?;
    if first.is_ok() {
        return upstream.understood(first, key);
    }
    let in_doubt = InDoubt { renewer, command: &command, asked, is_over: false };
    let reply = match asked.holds().next() {
        // A hold that is live is not counted again, nor is what it has reserved.
        Some(_) => ask().await?,
        None => first,
    };
    let reply = upstream.understood(reply, key);
    if !matches!(reply, Err(Error::Unavailable(_))) {
        in_doubt.settle();
    }
    reply
}

/// An admission that may have been granted, and that nobody has: dropped, it is given back.
struct InDoubt<'a> {
    renewer: &'a HoldRenewer,
    command: &'a Command,
    asked: &'a Asked,
    is_over: bool,
}

impl InDoubt<'_> {
    fn settle(mut self) {
        self.is_over = true;
    }
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        match unsettled(self.command, self.asked) {
            _ if self.is_over => {}
            Some(unsettled) => self.renewer.settle(unsettled),
            None => self.renewer.upstream().count(Count::InDoubt, 1),
        }
    }
}

/// How to give back all that an admission takes; `None` without a hold, and of one whose id its caller chose.
fn unsettled(admit: &Command, asked: &Asked) -> Option<Settlement> {
    let first = asked.holds().next().filter(|pending| pending.is_own)?;
    let command = admit.undo(None, 0, 0).pop()?;
    let (name, done) = (first.name.clone(), oneshot::channel().0);
    Some(Settlement { name, command, beyond: Vec::new(), holds: Vec::new(), done })
}

fn may_be_granted(reply: &Result<Reply, Failure>) -> bool {
    match reply {
        Ok(reply) => reply.clauses().is_ok_and(|(granted, _)| granted),
        Err(_) => true,
    }
}
