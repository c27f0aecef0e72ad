//! Things under way, budgets, and one decision of everything, for callers that bring their own limits.

use std::time::Duration;

use swlimit_client::{BudgetLimiter, Hold, HoldLimiter, HoldRequest, Holder, Limiter, Member, Quota, Request};

use super::answer::Answer;
use super::limiters::Limiters;
use super::refusal::Refusal;
use crate::config::limits::Periods;
use crate::config::policy::OnFailure;

/// A hold that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct HoldKind<'a> {
    pub limit: u64,
    pub ttl: Duration,
    /// A fresh one, unless the caller has chosen it.
    pub id: Option<&'a [u8]>,
    pub cost: u64,
    pub wait: Duration,
    pub on_failure: OnFailure,
}

/// A budget of the calendar, as its caller writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BudgetKind {
    pub limit: u64,
    pub periods: Periods,
    pub on_failure: Option<OnFailure>,
}

/// One of the limits that are decided together.
#[derive(Debug)]
pub enum AdmitPart<'a> {
    Rate {
        key: String,
        limit: u64,
        window: Duration,
        resolution: Option<Duration>,
        strict: bool,
        cost: u64,
        on_failure: Option<OnFailure>,
    },
    Hold {
        key: String,
        kind: HoldKind<'a>,
    },
    Budget {
        key: String,
        kind: BudgetKind,
        cost: u64,
    },
}

/// A hold that was asked for. Granted, it is the caller's.
#[derive(Debug)]
pub struct Taken {
    pub answer: Answer,
    pub token: Option<u64>,
    pub expires_after: Option<Duration>,
    /// `None` where it was denied, or the server did not grant it.
    pub id: Option<Vec<u8>>,
}

/// Several limits that were asked for together.
#[derive(Debug)]
pub struct Admitted {
    pub granted: bool,
    pub each: Vec<Answer>,
    /// The hold, if there was one and all was granted.
    pub hold: Option<Taken>,
}

impl Taken {
    /// Hands a hold to its caller: nothing here renews or releases it any more.
    fn of(hold: Hold) -> Self {
        let (answer, token, expires_after) = (Answer::from(hold.decision()), hold.token(), hold.expires_after());
        Self { answer, token, expires_after, id: hold.detach() }
    }
}

enum Part<'a> {
    Rate(Limiter, Request<'a>),
    Hold(HoldLimiter, HoldRequest<'a>),
    Budget(BudgetLimiter, Request<'a>),
}

impl Limiters {
    /// Takes units of a key, and leaves them to the caller.
    pub async fn hold(&self, key: &str, kind: &HoldKind<'_>) -> Result<Taken, Refusal> {
        let limiter = self.hold_limiter(kind)?;
        Ok(Taken::of(limiter.hold(request(key, kind)).await?))
    }

    /// Units that were freed.
    pub async fn release(&self, key: &str, ids: &[&[u8]]) -> Result<u64, Refusal> {
        Ok(self.client.release(key, ids).await?)
    }

    /// Whether each hold is live.
    pub async fn renew(&self, key: &str, ttl: Duration, ids: &[&[u8]]) -> Result<Vec<bool>, Refusal> {
        Ok(self.client.renew(key, ttl, ids).await?)
    }

    /// Who holds units of a key.
    pub async fn holders(&self, key: &str, count: usize) -> Result<Vec<Holder>, Refusal> {
        Ok(self.client.holders(key, count).await?)
    }

    /// Units of a period.
    pub async fn budget(
        &self,
        key: &str,
        kind: BudgetKind,
        cost: u64,
        is_partial: bool,
        is_recorded: bool,
    ) -> Result<Answer, Refusal> {
        let budget = self.budget_limiter(kind)?;
        let request = Request::of(key).cost(cost);
        let decision = match (is_recorded, is_partial) {
            (true, _) => budget.record(request).await,
            (false, true) => budget.allow(request.partial()).await,
            (false, false) => budget.allow(request).await,
        };
        Ok(Answer::from(&decision?))
    }

    /// All parts are granted, or nothing is.
    pub async fn admit(&self, parts: Vec<AdmitPart<'_>>) -> Result<Admitted, Refusal> {
        if !self.client.has_server() {
            return Err(Refusal::NeedsServer);
        }
        let asked = parts.iter().map(|part| self.part(part)).collect::<Result<Vec<_>, _>>()?;
        let members = asked.iter().map(|part| match part {
            Part::Rate(limiter, request) => Member::from((limiter, *request)),
            Part::Hold(limiter, request) => Member::from((limiter, *request)),
            Part::Budget(limiter, request) => Member::from((limiter, *request)),
        });
        let mut admission = self.client.admit(members).await?;
        let each = admission.each().iter().map(Answer::from).collect();
        Ok(Admitted { granted: admission.granted(), each, hold: admission.take_hold().map(Taken::of) })
    }

    fn part<'a>(&self, part: &'a AdmitPart<'a>) -> Result<Part<'a>, Refusal> {
        Ok(match part {
            AdmitPart::Rate { key, limit, window, resolution, strict, cost, on_failure } => {
                let quota = Quota::of(*limit, *window, *resolution)?;
                let limiter = self.client.limiter(quota).on_failure(on_failure.unwrap_or(OnFailure::Error));
                let limiter = if *strict { limiter.strict() } else { limiter };
                Part::Rate(limiter.build()?, Request::of(key).cost(*cost))
            }
            AdmitPart::Hold { key, kind } => Part::Hold(self.hold_limiter(kind)?, request(key, kind)),
            AdmitPart::Budget { key, kind, cost } => {
                Part::Budget(self.budget_limiter(kind.clone())?, Request::of(key).cost(*cost))
            }
        })
    }

    /// What was really used of what a hold has reserved; `None` where it had ended.
    pub async fn settle(&self, key: &str, id: &[u8], used: &[(String, u64)]) -> Result<Option<Vec<i64>>, Refusal> {
        let used: Vec<_> = used.iter().map(|(key, units)| (key.as_bytes(), *units)).collect();
        Ok(self.client.settle(key, id, &used).await?)
    }

    fn budget_limiter(&self, kind: BudgetKind) -> Result<BudgetLimiter, Refusal> {
        let BudgetKind { limit, periods, on_failure } = kind.clone();
        let new = || {
            let budget = self.client.budget(limit, periods.calendar()?);
            budget.on_failure(on_failure.unwrap_or(OnFailure::Error)).build()
        };
        Ok(self.budgets.of(kind, new)?)
    }

    fn hold_limiter(&self, kind: &HoldKind<'_>) -> Result<HoldLimiter, Refusal> {
        if !self.client.has_server() {
            return Err(Refusal::NeedsServer);
        }
        Ok(self.client.holds(kind.limit).ttl(kind.ttl).on_failure(kind.on_failure).build()?)
    }
}

fn request<'a>(key: &'a str, kind: &HoldKind<'a>) -> HoldRequest<'a> {
    let request = HoldRequest::of(key).cost(kind.cost).wait(kind.wait);
    kind.id.map_or(request, |id| request.id(id))
}
