//! One decision of several limits of any kind.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::member::{checked, Ahead, CheckedMember, Member, Resource};
use super::settle::Reserved;
use super::Admission;
use crate::budget::{has_ended, server_time, Way};
use crate::client::Client;
use crate::decision::{Decision, Decisions, Source};
use crate::error::{Cause, Error};
use crate::hold::Hold;
use crate::limiter::Policy;
use crate::protocol::Command;
use crate::request::Request;
use crate::statistics::Count;
use crate::transport::{Failure, Reply};
use crate::upstream::{Batch, HoldRenewer, Link, Moment, Settle, Settled, Settlement};

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
    /// let tokens = client.budget(1_000_000, Calendar::new(Period::Month)).build()?;
    /// let streams = client.holds(5).build()?;
    /// let reserved = Request::new("{ann}:tokens").cost(2_000);
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
    /// [`Error::ModuleMissing`] as the server says; [`Error::Unavailable`] where a limiter has
    /// [`OnFailure::Error`](crate::OnFailure::Error).
    pub async fn admit<'a>(&self, members: impl IntoIterator<Item = Member<'a>>) -> Result<Admission, Error> {
        let members: Vec<Member<'a>> = members.into_iter().collect();
        let deadline = members.iter().filter_map(Member::deadline).min();
        let members = checked(&members)?;
        let admission = self.decided(members, deadline).await?;
        let decisions = &admission.decisions;
        for decision in decisions.each().iter().filter(|decision| decision.granted() == decisions.granted()) {
            self.0.counters.decided(decision);
        }
        Ok(admission)
    }

    async fn decided(&self, members: Vec<CheckedMember>, deadline: Option<Instant>) -> Result<Admission, Error> {
        let renewer = self.0.renewer.as_ref().filter(|_| !members.iter().any(CheckedMember::is_local));
        let Some(renewer) = renewer else { return self.here(members, None).await };
        if let Some(decisions) = self.known_denials(&members) {
            return Ok(self.admission(decisions, None, Vec::new(), Moment::now(), true));
        }
        match self.there(renewer, &members, deadline).await {
            Err(Error::Unavailable(reason)) => self.here(members, Some(reason)).await,
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
    fn known_denials(&self, members: &[CheckedMember]) -> Option<Decisions> {
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
        members: &[CheckedMember],
        deadline: Option<Instant>,
    ) -> Result<Admission, Error> {
        let link = renewer.link();
        let deadline = link.deadline(deadline)?;
        let tickets: Vec<_> = members.iter().map(|one| self.0.deny_cache.ticket(&one.key)).collect();
        let sent = Moment::now();
        let reply = match asked(renewer, members, None, deadline).await {
            Err(Error::Refused(text)) if has_ended(&text) => {
                let ahead = Ahead(server_time(link, deadline).await);
                asked(renewer, members, Some(ahead), deadline).await?
            }
            reply => reply?,
        };
        let (granted, replies) = reply.clauses()?;
        let (mut each, mut hold, mut reserved) = (Vec::new(), None, Vec::new());
        for ((one, reply), ticket) in members.iter().zip(replies).zip(tickets) {
            let decision = match &one.of {
                Resource::Hold(_, pending) => {
                    let held = reply.hold()?;
                    let decision = pending.decision(&held);
                    hold = Some(match granted {
                        true => pending.clone().kept(renewer, &held, sent),
                        false => Hold::denied(Decision { granted: 0, ..decision }),
                    });
                    decision
                }
                Resource::Rate(_, demand) => {
                    let exact = reply.decision()?;
                    if exact.granted == 0 {
                        self.0.deny_cache.denied(link, &one.key, demand, &exact, sent.instant, ticket);
                    }
                    Source::Server.decided(exact)
                }
                Resource::Budget(..) => Source::Server.decided(reply.decision()?),
            };
            if granted && !matches!(one.of, Resource::Hold(..)) {
                reserved.push(Reserved::new(one.key.clone(), one.of.clone(), decision.granted));
            }
            each.push(decision);
        }
        Ok(self.admission(Decisions { granted, each }, hold, reserved, sent, true))
    }

    /// Decided in this process, by the failure policies where there is a reason for them: all, or nothing.
    async fn here(&self, members: Vec<CheckedMember>, reason: Option<Cause>) -> Result<Admission, Error> {
        let (mut each, mut hold, mut reserved) = (Vec::new(), None, Vec::new());
        let wait = self.0.wait(Instant::now());
        for one in members {
            let decision = match &one.of {
                Resource::Rate(limiter, demand) => match limiter.policy(demand, reason.clone().unwrap_or("".into()))? {
                    Policy::Decided(decision) => decision,
                    Policy::Window(windows, share, source) => {
                        source.decided(windows.allow(&one.key, &share)?).of(demand)
                    }
                },
                Resource::Budget(limiter, cost) => {
                    let request = Request::new(&one.key).cost(*cost);
                    match &reason {
                        Some(reason) => limiter.by_policy(&one.key, &request, reason.clone(), Way::Allow)?,
                        None => limiter.locally(&one.key, &request, limiter.limit(), Source::Local, Way::Allow)?,
                    }
                }
                Resource::Hold(limiter, pending) => {
                    let held = match &reason {
                        Some(reason) => limiter.by_policy(pending, reason.clone(), &wait).await?,
                        None => limiter.take_here(pending, limiter.limit(), &wait, Source::Local).await,
                    };
                    let decision = *held.decision();
                    hold = Some(held);
                    decision
                }
            };
            if decision.granted() && !matches!(one.of, Resource::Hold(..)) {
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

/// The server's reply. What it grants to nobody is given back, as far as a hold has reserved it.
async fn asked(
    renewer: &HoldRenewer,
    members: &[CheckedMember],
    ahead: Option<Ahead>,
    deadline: Instant,
) -> Result<Reply, Error> {
    let clauses = members.iter().map(|one| Ok((one.key.as_slice().into(), one.clause(ahead)?)));
    let clauses = clauses.collect::<Result<Vec<_>, Error>>()?;
    let strict = members.iter().any(|one| one.is_strict() == Some(true));
    let command = Command::Admit { members: clauses, strict };
    let link = renewer.link();
    let mut tries = 0;
    loop {
        let unsettled = unsettled(&command, members);
        // Without a hold of its own, the exchange undoes itself.
        let late = unsettled.map(|unsettled| {
            let (renewer, link) = (renewer.clone(), Arc::clone(link));
            Box::new(move |settled: Settled| undo(&renewer, &link, Some(unsettled), &settled.reply)) as Settle
        });
        let settled = link.exchange(Batch::One(command.clone()), deadline, late).await?;
        tries += 1;
        match settled.reply {
            // A hold that is live is not counted again, nor is what it has reserved.
            Err(_) if tries == 1 && members.iter().any(|one| matches!(one.of, Resource::Hold(..))) => {}
            Err(failure) => {
                undo(renewer, link, self::unsettled(&command, members), &Err(failure.clone()));
                return Err(Error::Unavailable(failure.into()));
            }
            reply => return link.understood(reply, &members[0].key),
        }
    }
}

/// How to give back all that an admission takes; `None` without a hold, and of one whose id its caller chose.
fn unsettled(admit: &Command, members: &[CheckedMember]) -> Option<Settlement> {
    let pending = members.iter().find_map(|one| match &one.of {
        Resource::Hold(_, pending) if pending.is_own => Some(pending),
        _ => None,
    })?;
    let command = admit.undo(None, 0).pop()?;
    Some(Settlement { name: pending.name.clone(), command, beyond: Vec::new(), done: oneshot::channel().0 })
}

fn undo(renewer: &HoldRenewer, link: &Link, unsettled: Option<Settlement>, reply: &Result<Reply, Failure>) {
    let granted = match reply {
        Ok(reply) => reply.clauses().is_ok_and(|(granted, _)| granted),
        Err(_) => true,
    };
    match unsettled {
        Some(unsettled) if granted => renewer.settle(unsettled),
        None if granted => link.count(Count::InDoubt, 1),
        _ => {}
    }
}
