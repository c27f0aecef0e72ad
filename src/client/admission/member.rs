//! The limits of one admission, each with its request.

use tokio::time::Instant;

use crate::budget::BudgetLimiter;
use crate::decision::Decision;
use crate::demand::Demand;
use crate::error::Error;
use crate::hold::{HoldLimiter, HoldRequest, PendingHold};
use crate::limiter::{DecidingMode, Limiter};
use crate::protocol::Clause;
use crate::request::Request;
use crate::shared::Shared;

/// The most limits of one decision.
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

/// # Errors
/// [`Error::Invalid`] for what no server would decide together.
pub(super) fn checked(members: &[Member<'_>]) -> Result<Vec<CheckedMember>, Error> {
    let invalid = |text: &str| Err(Error::Invalid(text.into()));
    if members.is_empty() || members.len() > MOST {
        return invalid("an admission has 1 to 64 limits");
    }
    let members = members.iter().map(Member::checked).collect::<Result<Vec<_>, _>>()?;
    if (1..members.len()).any(|at| members[..at].iter().any(|other| other.key == members[at].key)) {
        return invalid("key named twice");
    }
    if members.iter().filter(|one| matches!(one.of, Resource::Hold(..))).count() > 1 {
        return invalid("an admission has one hold at most");
    }
    let strict: Vec<bool> = members.iter().filter_map(CheckedMember::is_strict).collect();
    if strict.windows(2).any(|two| two[0] != two[1]) {
        return invalid("several limits at once are all strict, or none of them is");
    }
    let is_local = members.iter().any(CheckedMember::is_local);
    if is_local && members.iter().any(|one| !one.is_local()) {
        return invalid("several limits at once are all decided in this process, or none of them is");
    }
    Ok(members)
}

impl Member<'_> {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.0 {
            Kind::Rate(_, request) | Kind::Budget(_, request) => request.deadline,
            Kind::Hold(_, request) => request.own_deadline(),
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
                limiter.check_not_warming("admit")?;
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
                client.deny_cache.find(&self.key, demand, now)
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
