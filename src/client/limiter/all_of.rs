//! Several limits in one decision: all grant, or nothing is counted anywhere.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use ahash::RandomState;
use tokio::time::Instant;

use super::{DecidingMode, Limiter, Policy};
use crate::client::Client;
use crate::deciding::leased::{Beside, Leases};
use crate::deciding::local::Windows;
use crate::decision::{Decision, Decisions, Source};
use crate::demand::Demand;
use crate::error::{Cause, Error};
use crate::protocol::Command;
use crate::request::Request;
use crate::shared::Shared;
use crate::statistics::Count;
use crate::transport::{joined, Reply};
use crate::upstream::{Batch, Link, Settled};

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
            members.push(Member { limiter, key, demand: Demand { block: None, ..limiter.demand(&request) } });
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
    pub async fn decide(&self, client: &Arc<Shared>, deadline: Option<Instant>) -> Result<Decisions, Error> {
        let Ok(link) = self.0[0].limiter.deciding().link() else { return self.decide_by_policy("".into()) };
        let is_direct = |member: &Member| matches!(member.limiter.deciding(), DecidingMode::Direct(_));
        if !self.0.iter().any(is_direct) {
            if let Some(decisions) = self.leased().or_else(|| self.known_denials(client)) {
                return Ok(decisions);
            }
        }
        let decided = match link.deadline(deadline) {
            Ok(deadline) => self.decide_by_server(client, link, deadline).await,
            Err(error) => Err(error),
        };
        match decided {
            Err(Error::Unavailable(reason)) => self.decide_by_policy(reason),
            decided => decided,
        }
    }

    /// All from leases, or none.
    fn leased(&self) -> Option<Decisions> {
        let leases: Option<Vec<&Leases>> = self.0.iter().map(Member::leases).collect();
        let leases = leases?;
        let mut each: Vec<Decision> = Vec::with_capacity(self.0.len());
        for (member, of) in self.0.iter().zip(&leases) {
            match of.take(&member.key, &member.demand) {
                Some(decision) => each.push(decision),
                None => {
                    for ((member, of), taken) in self.0.iter().zip(&leases).zip(&each) {
                        of.put_back(&member.key, taken);
                    }
                    return None;
                }
            }
        }
        Some(Decisions { granted: true, each })
    }

    /// The decisions of requests of which one is known to be denied.
    fn known_denials(&self, client: &Shared) -> Option<Decisions> {
        let now = Instant::now();
        let find = |member: &Member| client.deny_cache.find(&member.key, &member.demand, now);
        let known: Vec<_> = self.0.iter().map(find).collect();
        known.iter().any(Option::is_some).then(|| {
            let each = known.into_iter().zip(&self.0);
            let each = each.map(|(known, member)| known.unwrap_or_else(|| member.demand.not_asked())).collect();
            Decisions { granted: false, each }
        })
    }

    async fn decide_by_server(
        &self,
        client: &Arc<Shared>,
        link: &Arc<Link>,
        deadline: Instant,
    ) -> Result<Decisions, Error> {
        let members: Vec<_> = self.0.iter().map(|member| (&*member.key, member.demand)).collect();
        let tickets: Vec<_> = members.iter().map(|(key, _)| client.deny_cache.ticket(key)).collect();
        let sent = Instant::now();
        let strict = members.iter().any(|(_, demand)| demand.exact.strict);
        let mallow =
            Command::Mallow { members: members.iter().map(|(key, demand)| ((*key).into(), *demand)).collect(), strict };
        let reply = if self.0.iter().all(|member| member.leases().is_none()) {
            link.ask(mallow, deadline).await?
        } else {
            let mut several = vec![Command::TIME, mallow];
            let holders = self.0.iter().map(|member| {
                let (ahead, beside) = member.leases()?.beside(&member.key, &member.demand);
                let is_ahead = ahead.is_some();
                several.extend(ahead);
                Some(Holder { beside, is_ahead })
            });
            let holders: Arc<[_]> = holders.collect();
            let (late, counting) = (Arc::clone(&holders), Arc::clone(link));
            let settle = Box::new(move |settled| drop(kept(&counting, &late, &settled, true)));
            let settled = link.exchange(Batch::Several(several), deadline, Some(settle)).await?;
            link.understood(Ok(kept(link, &holders, &settled, false)?), members[0].0)?
        };
        let (granted, each) = reply.decisions()?;
        for (((member, ticket), exact), (key, demand)) in self.0.iter().zip(tickets).zip(&each).zip(&members) {
            if exact.granted == 0 {
                client.deny_cache.denied(link, key, demand, exact, sent, ticket);
            } else if let Some(leases) = member.leases().filter(|_| granted) {
                leases.used(key, exact.granted);
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
        let each: Vec<Decision> = each.collect();
        Ok(Decisions { granted: each.iter().all(Decision::granted), each })
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

/// Keeps what is granted for one of several limits that is leased.
struct Holder {
    beside: Beside,
    /// Units were asked for beside the decision.
    is_ahead: bool,
}

/// Keeps what was leased beside, and where nobody waits any more what was granted itself; the reply to the decision.
fn kept(link: &Link, holders: &[Option<Holder>], settled: &Settled, is_abandoned: bool) -> Result<Reply, Error> {
    let replies = match &settled.reply {
        Ok(Reply::Array(replies)) => replies.as_slice(),
        Ok(reply) => return Err(Error::Answer(reply.to_string())),
        Err(failure) => {
            link.count(Count::InDoubt, 1);
            return Err(Error::Unavailable(failure.clone().into()));
        }
    };
    let [time, decision, ahead @ ..] = replies else { return Err(Error::Answer(joined(replies))) };
    let with_ahead = holders.iter().flatten().filter(|holder| holder.is_ahead);
    for (holder, reply) in with_ahead.zip(ahead) {
        if let Ok(decision) = reply.decision() {
            holder.beside.keep(&decision, time, settled);
        }
    }
    if let (true, Ok((true, each))) = (is_abandoned, decision.decisions()) {
        for (holder, decision) in holders.iter().zip(&each) {
            match holder {
                Some(holder) => holder.beside.keep(decision, time, settled),
                None => link.count(Count::Unclaimed, decision.granted),
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
        let decisions = AllOf::checked(requests)?.decide(&self.0, deadline).await?;
        // A decision that was denied as a whole granted nothing.
        for decision in decisions.each().iter().filter(|decision| decision.granted() == decisions.granted()) {
            self.0.counters.decided(decision);
        }
        Ok(decisions)
    }
}
