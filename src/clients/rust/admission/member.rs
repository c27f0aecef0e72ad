//! The limits of one admission, each with its request.

use std::sync::Arc;

use swlimit_window::MAX_EXACT;
use tokio::time::Instant;

use crate::budget::BudgetLimiter;
use crate::decision::Decision;
use crate::demand::Demand;
use crate::error::Error;
use crate::hold::{HoldLimiter, HoldRequest, PendingHold};
use crate::limiter::{has_hash_tag, DecidingMode, Limiter};
use crate::protocol::Clause;
use crate::request::Request;
use crate::shared::Shared;
use crate::upstream::HoldName;

/// The most limits of one decision, its reservation among them.
pub(super) const MOST: usize = 64;

/// One of several limits that [`Client::admit`](crate::Client::admit) decides together; made of a limiter and a
/// request: `(&limiter, "user:1").into()`.
#[derive(Clone, Debug)]
pub struct Member<'a>(Kind<'a>);

#[derive(Clone, Debug)]
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
pub(super) struct CheckedMember {
    pub key: Vec<u8>,
    pub of: Resource,
}

/// What a member takes of, for as long as the admission lasts.
#[derive(Clone)]
pub(super) enum Resource {
    Rate(Limiter, Demand),
    /// And its cost.
    Budget(BudgetLimiter, u64),
    Hold(HoldLimiter, PendingHold),
}

/// What one command asks for.
pub(super) struct Asked {
    pub members: Vec<CheckedMember>,
    /// A hold under a key of its own, which remembers what the members take until that is settled: the first of the
    /// command. Without it that is the first hold among the members.
    pub reservation: Option<PendingHold>,
}

/// What members ask for; `reserves`: with a reservation, where there are holds, and others that one could settle.
///
/// # Errors
/// [`Error::Invalid`] for what no server would decide together.
pub(super) fn checked(members: &[Member<'_>], reserves: bool) -> Result<Asked, Error> {
    let invalid = |text: &str| Err(Error::Invalid(text.into()));
    if members.is_empty() || members.len() > MOST {
        return invalid("an admission has 1 to 64 limits");
    }
    let mut members = members.iter().map(Member::checked).collect::<Result<Vec<_>, _>>()?;
    if (1..members.len()).any(|at| members[..at].iter().any(|other| other.key == members[at].key)) {
        return invalid("key named twice");
    }
    let strict: Vec<bool> = members.iter().filter_map(CheckedMember::is_strict).collect();
    if strict.windows(2).any(|two| two[0] != two[1]) {
        return invalid("several limits at once are all strict, or none of them is");
    }
    let is_local = members.iter().any(CheckedMember::is_local);
    if is_local && members.iter().any(|one| !one.is_local()) {
        return invalid("several limits at once are all decided in this process, or none of them is");
    }
    share_id(&mut members);
    let reservation = if reserves { reservation(&members) } else { None };
    if reservation.is_some() && members.len() == MOST {
        return invalid("an admission of holds and other limits has at most 63, for its reservation is one, too");
    }
    Ok(Asked { members, reservation })
}

/// Gives all holds whose id nobody chose one id: the first that somebody chose for another, or else one that was drawn.
/// With that id, a caller that asks again takes none of them twice.
fn share_id(members: &mut [CheckedMember]) {
    let holds = || members.iter().filter_map(CheckedMember::pending);
    let Some(named) = holds().find(|pending| !pending.is_own).or_else(|| holds().next()) else { return };
    let (id, is_own) = (Arc::clone(&named.name.id), named.is_own);
    for one in members {
        if let Resource::Hold(_, PendingHold { name, is_own: is_drawn @ true, .. }) = &mut one.of {
            (name.id, *is_drawn) = (Arc::clone(&id), is_own);
        }
    }
}

/// The reservation, as long as the longest of the holds; `None` without holds, or of holds alone.
fn reservation(members: &[CheckedMember]) -> Option<PendingHold> {
    let holds = || members.iter().filter_map(CheckedMember::pending);
    let first = holds().next().filter(|_| holds().count() < members.len())?;
    let ttl = holds().map(|pending| pending.name.ttl).max()?;
    let name = HoldName { key: beside(&members[0].key).into(), id: Arc::clone(&first.name.id), ttl };
    Some(PendingHold { name, is_own: first.is_own, limit: MAX_EXACT, cost: 1, timeout: first.timeout })
}

/// The key of a reservation: beside that of the first member, and in its slot.
pub(crate) fn beside(key: &[u8]) -> Vec<u8> {
    match has_hash_tag(key) {
        true => [key, b":reserved"].concat(),
        false => [b"{", key, b"}:reserved"].concat(),
    }
}

impl Asked {
    /// The holds in the order of the command. The first remembers all others.
    pub fn holds(&self) -> impl Iterator<Item = &PendingHold> {
        self.reservation.iter().chain(self.members.iter().filter_map(CheckedMember::pending))
    }
}

impl Member<'_> {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.0 {
            Kind::Rate(_, request) | Kind::Budget(_, request) => request.deadline,
            Kind::Hold(_, request) => request.own_deadline(),
        }
    }

    pub(super) fn keeps_late_grant(&self) -> bool {
        match &self.0 {
            Kind::Rate(_, request) | Kind::Budget(_, request) => request.keeps_late_grant,
            Kind::Hold(..) => false,
        }
    }

    fn checked(&self) -> Result<CheckedMember, Error> {
        let whole = |request: &Request<'_>| match request.partial {
            true => Err(Error::Invalid("several limits at once grant the whole cost or nothing".into())),
            false => Ok(()),
        };
        Ok(match &self.0 {
            Kind::Rate(limiter, request) => {
                let request = request.checked()?;
                whole(&request)?;
                let demand = Demand { block: None, ..limiter.demand(&request) };
                CheckedMember {
                    key: limiter.key(request.key).into_owned(),
                    of: Resource::Rate((*limiter).clone(), demand),
                }
            }
            Kind::Budget(limiter, request) => {
                let request = limiter.checked(*request)?;
                whole(&request)?;
                CheckedMember { key: limiter.key(request.key), of: Resource::Budget((*limiter).clone(), request.cost) }
            }
            Kind::Hold(_, request) if request.waits() => {
                return Err(Error::Invalid("an admission does not wait".into()));
            }
            Kind::Hold(limiter, request) => {
                let pending = limiter.pending(request)?;
                CheckedMember { key: pending.name.key.to_vec(), of: Resource::Hold((*limiter).clone(), pending) }
            }
        })
    }
}

impl CheckedMember {
    /// The hold that is asked for, if it is one.
    pub fn pending(&self) -> Option<&PendingHold> {
        match &self.of {
            Resource::Hold(_, pending) => Some(pending),
            _ => None,
        }
    }

    pub fn is_local(&self) -> bool {
        match &self.of {
            Resource::Rate(limiter, _) => matches!(limiter.deciding(), DecidingMode::Local(_)),
            Resource::Budget(limiter, _) => !limiter.has_server(),
            Resource::Hold(limiter, _) => !limiter.has_server(),
        }
    }

    pub fn is_strict(&self) -> Option<bool> {
        match &self.of {
            Resource::Rate(_, demand) => Some(demand.exact.strict),
            _ => None,
        }
    }

    pub fn units(&self) -> u64 {
        match &self.of {
            Resource::Rate(_, demand) => demand.exact.cost,
            Resource::Budget(_, cost) => *cost,
            Resource::Hold(_, pending) => pending.cost,
        }
    }

    pub fn limit(&self) -> u64 {
        match &self.of {
            Resource::Rate(_, demand) => demand.exact.quota.limit,
            Resource::Budget(limiter, _) => limiter.limit(),
            Resource::Hold(limiter, _) => limiter.limit(),
        }
    }

    pub fn known_denial(&self, client: &Shared, now: Instant) -> Option<Decision> {
        match &self.of {
            Resource::Rate(limiter, demand) if !matches!(limiter.deciding(), DecidingMode::Direct(_)) => {
                client.denial_cache.find(&self.key, demand, now)
            }
            _ => None,
        }
    }

    /// As it is sent; of budgets with the end of the server's period where its clock is ahead.
    pub fn clause(&self, ahead: Option<Ahead>) -> Result<Clause, Error> {
        Ok(match &self.of {
            Resource::Rate(_, demand) => Clause::Rate(*demand),
            Resource::Hold(_, pending) => Clause::Hold(pending.clause()),
            Resource::Budget(limiter, cost) => {
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
pub(super) struct Ahead(pub Option<u64>);
