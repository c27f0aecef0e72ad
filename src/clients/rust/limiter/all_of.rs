//! Several limits in one decision: all grant, or nothing is counted anywhere.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use ahash::RandomState;
use tokio::time::Instant;

use super::{DecidingMode, Limiter, Policy};
use crate::client::Client;
use crate::deciding::leased::{decided, from_flights, from_hand, from_landed, land, together, Leases, Part};
use crate::deciding::local::Windows;
use crate::decision::{Decision, Decisions, Source};
use crate::demand::Demand;
use crate::error::{Cause, Error};
use crate::protocol::Command;
use crate::reason::Reason;
use crate::request::Request;
use crate::shared::Shared;
use crate::transport::Reply;
use crate::upstream::{told_of_all, Batch, Outcome, Owner, Settled, Upstream};

/// The requests, checked.
struct AllOf<'a>(Vec<Member<'a>>);

struct Member<'a> {
    limiter: &'a Limiter,
    key: Cow<'a, [u8]>,
    demand: Demand,
}

impl<'a> AllOf<'a> {
    /// # Errors
    /// [`Error::Invalid`] for what no server would decide together.
    pub fn checked(requests: &[(&'a Limiter, Request<'a>)]) -> Result<Self, Error> {
        let invalid = |text: &str| Err(Error::Invalid(text.into()));
        let mut members: Vec<Member> = Vec::with_capacity(requests.len());
        let mut keys = HashSet::with_capacity_and_hasher(requests.len(), RandomState::new());
        for (limiter, request) in requests {
            let request = request.checked()?;
            let key = limiter.key(request.key);
            if request.partial {
                return invalid("several limits at once grant the whole cost or nothing");
            }
            if !keys.insert(key.clone()) {
                return invalid("key named twice");
            }
            let demand = Demand { block: None, ..limiter.demand(&request) };
            members.push(Member { limiter, key, demand });
        }
        let Some(first) = members.first() else { return invalid("several limits at once are at least one") };
        let strict = first.demand.exact.strict;
        if members.iter().any(|member| member.demand.exact.strict != strict) {
            return invalid("several limits at once are all strict, or none of them is");
        }
        let local = members.iter().filter(|member| matches!(member.limiter.deciding(), DecidingMode::Local(_))).count();
        if local != 0 && local != members.len() {
            return invalid("several limits at once are all decided in this process, or none of them is");
        }
        Ok(Self(members))
    }

    /// The decision of the server, of what is known of it, or of the failure policies.
    pub async fn decide(
        &self,
        client: &Arc<Shared>,
        deadline: Option<Instant>,
        outcome: &Outcome,
    ) -> Result<Decisions, Error> {
        match self.ask(client, deadline, outcome).await.map_err(|error| client.failure(error)) {
            Err(Error::Unavailable(reason)) => {
                let decided = self.decide_by_policy(reason);
                match &decided {
                    Ok(decisions) => outcome.decided(told_of_all(decisions.granted)),
                    Err(_) => outcome.failed(),
                }
                decided
            }
            decided => decided,
        }
    }

    /// The decision of the server, or of what is known of it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while the server is unavailable.
    async fn ask(
        &self,
        client: &Arc<Shared>,
        deadline: Option<Instant>,
        outcome: &Outcome,
    ) -> Result<Decisions, Error> {
        let Ok(upstream) = self.0[0].limiter.deciding().upstream() else {
            return self.decide_by_policy(Reason::Other.because(""));
        };
        let is_direct = |member: &Member| matches!(member.limiter.deciding(), DecidingMode::Direct(_));
        let mut parts = together(self.0.iter().map(|member| (member.leases(), &*member.key, &member.demand)));
        let mut is_reserved = false;
        if !self.0.iter().any(is_direct) {
            let near = from_hand(&mut parts).or_else(|| self.known_denials(client, &parts));
            if let Some(decisions) = near.or_else(|| self.dry_denials(&parts)) {
                return Ok(decisions);
            }
            is_reserved = from_flights(&mut parts);
            if let Some(decisions) = (!is_reserved).then(|| self.known_denials(client, &parts)).flatten() {
                return Ok(decisions);
            }
        }
        let deadline = upstream.time_to_decide(&self.0[0].key, upstream.timeout(), deadline)?;
        match is_reserved {
            true => from_landed(parts, deadline).await,
            false => self.decide_by_server(client, upstream, parts, deadline, outcome).await,
        }
    }

    /// The decisions of requests of which one is known to be denied, and has no units in hand.
    fn known_denials(&self, client: &Shared, parts: &[Option<Part>]) -> Option<Decisions> {
        let now = Instant::now();
        let find = |(member, part): (&Member, &Option<Part>)| {
            if part.as_ref().is_some_and(Part::is_reserved) {
                return None;
            }
            let known = client.denial_cache.find(&member.key, &member.demand, now)?;
            part.iter().for_each(Part::knew);
            Some(known)
        };
        self.denied(self.0.iter().zip(parts).map(find).collect())
    }

    /// The decisions of requests of which one is for a key that is dry, and has no units in hand.
    fn dry_denials(&self, parts: &[Option<Part>]) -> Option<Decisions> {
        self.denied(parts.iter().map(|part| part.as_ref().filter(|part| !part.is_reserved())?.dry_denial()).collect())
    }

    /// The decisions of requests of which some are denied.
    fn denied(&self, denials: Vec<Option<Decision>>) -> Option<Decisions> {
        denials.iter().any(Option::is_some).then(|| {
            let each = denials.into_iter().zip(&self.0);
            let each = each.map(|(denial, member)| denial.unwrap_or_else(|| member.demand.not_asked())).collect();
            Decisions { granted: false, each }
        })
    }

    async fn decide_by_server(
        &self,
        client: &Arc<Shared>,
        upstream: &Arc<Upstream>,
        mut parts: Vec<Option<Part>>,
        deadline: Instant,
        outcome: &Outcome,
    ) -> Result<Decisions, Error> {
        let members: Vec<_> = self.0.iter().map(|member| (&*member.key, member.demand)).collect();
        let tickets: Vec<_> = members.iter().map(|(key, _)| client.denial_cache.ticket(key)).collect();
        let sent = Instant::now();
        let strict = members.iter().any(|(_, demand)| demand.exact.strict);
        let mallow =
            Command::Mallow { members: members.iter().map(|(key, demand)| ((*key).into(), *demand)).collect(), strict };
        let reply = if parts.iter().any(Option::is_none) {
            let reply = upstream.ask_for(outcome, mallow, deadline).await?;
            for (part, decision) in parts.iter().zip(&reply.decisions()?.1) {
                part.iter().for_each(|part| part.heard(decision));
            }
            reply
        } else {
            let ahead: Vec<Command> = parts.iter_mut().flatten().flat_map(Part::beside).collect();
            let batch = match ahead.is_empty() {
                true => Batch::One(mallow),
                false => Batch::Several([vec![Command::TIME, mallow], ahead].concat()),
            };
            let parts = Arc::<[_]>::from(parts);
            let (late, counting) = (Arc::clone(&parts), Arc::clone(upstream));
            let settle = Box::new(move |settled| drop(kept(&counting, &late, &settled, true)));
            let settled = upstream.exchange(batch, deadline, Owner::Settle(settle)).await?;
            upstream.understood(Ok(kept(upstream, &parts, &settled, false)?), members[0].0)?
        };
        let (granted, each) = reply.decisions()?;
        for ((ticket, exact), (key, demand)) in tickets.into_iter().zip(&each).zip(&members) {
            if exact.granted == 0 {
                client.denial_cache.denied(upstream, key, demand, exact, sent, ticket);
            }
        }
        Ok(Decisions { granted, each: each.into_iter().map(|exact| Source::Server.decided(exact)).collect() })
    }

    /// Decided where the server does not: counted only if all are granted.
    fn decide_by_policy(&self, reason: Cause) -> Result<Decisions, Error> {
        let policies = self.0.iter().map(|member| member.limiter.policy(&member.demand, reason.clone()));
        let policies: Vec<Policy> = policies.collect::<Result<_, _>>()?;
        let windows = policies.iter().zip(&self.0).filter_map(|(policy, member)| match policy {
            Policy::Window(windows, share, _) => Some((*windows, &*member.key, *share)),
            Policy::Decided(_) => None,
        });
        let windows: Vec<_> = windows.collect();
        let is_denied = policies.iter().any(|policy| matches!(policy, Policy::Decided(denied) if !denied.granted()));
        let decided = match is_denied {
            true => windows.iter().map(|(windows, key, share)| windows.peek(key, share)).collect(),
            false => Windows::allow_all(&windows),
        };
        let mut decided = decided?.into_iter();
        let each = policies.iter().zip(&self.0).map(|(policy, Member { demand, .. })| match policy {
            Policy::Decided(decision) => *decision,
            Policy::Window(.., source) => {
                decided.next().map_or_else(|| demand.denied(), |exact| source.decided(exact).of(demand))
            }
        });
        Ok(Decisions::of(each.collect()))
    }
}

impl Member<'_> {
    fn leases(&self) -> Option<&Leases> {
        match self.limiter.deciding() {
            DecidingMode::Leased(_, leases) => Some(leases),
            _ => None,
        }
    }
}

/// Keeps what was leased beside, and where nobody waits any more what was granted itself; the reply to the decision.
fn kept(upstream: &Upstream, parts: &[Option<Part>], settled: &Settled, is_abandoned: bool) -> Result<Reply, Error> {
    let (decision, since, ahead) = decided(upstream, settled)?;
    land(parts, since, ahead, settled);
    if let Ok((is_granted, each)) = decision.decisions() {
        for (part, decision) in parts.iter().flatten().zip(&each) {
            match is_abandoned && is_granted {
                true => part.keep(decision, since, settled),
                false => part.heard(decision),
            }
        }
    }
    Ok(decision.clone())
}

impl Client {
    /// Several limits in one decision: granted only if each of them is; otherwise nothing is counted anywhere. Each
    /// request goes to a limiter of this client; a block that its limiter begins after a denial is not begun. The server
    /// decides (`MALLOW`), unless one of them is known to be denied, or all are leased. In a cluster all keys need the
    /// same hash tag. The earliest [deadline](Request::deadline) holds for all.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range, partial requests, a key named twice, or limiters of which only some
    /// are strict, or only some decided in this process; [`Error::Refused`] and [`Error::ModuleMissing`] as the server
    /// says; [`Error::Unavailable`] where a limiter has [`OnFailure::Error`](crate::OnFailure::Error).
    pub async fn allow_all(&self, requests: &[(&Limiter, Request<'_>)]) -> Result<Decisions, Error> {
        let deadline = requests.iter().filter_map(|(_, request)| request.deadline).min();
        let members = AllOf::checked(requests)?;
        let outcome = Outcome::keeping(requests.iter().any(|(_, request)| request.keeps_late_grant));
        let decisions = members.decide(&self.0, deadline, &outcome).await?;
        // A decision that was denied as a whole granted nothing.
        for decision in decisions.each().iter().filter(|decision| decision.granted() == decisions.granted()) {
            self.0.counters.decided(decision);
        }
        Ok(decisions)
    }
}
