//! A limiter of any kind: a window, a budget of the calendar, or how many at once.

use std::time::Duration;

use swlimit_client::{BudgetLimiter, Client, Decision, Error, HoldLimiter, Limiter, Member, Quota};
use swlimit_window::Geometry;
use tokio::time::Instant;

use super::question::{Operation, Question};
use crate::config::limits::{Lifetime, Limit, Per, Periods};
use crate::config::policy::{DecisionPolicy, Mode};

/// The shortest timeout of holds that callers of the API take: a first connection takes several round trips.
const HOLD_TIMEOUT: Duration = Duration::from_secs(1);

/// Decides a limit. Cheap to clone.
#[derive(Clone)]
pub enum AnyLimiter {
    Window(Limiter),
    Budget(BudgetLimiter),
    Hold(HoldLimiter),
}

impl AnyLimiter {
    /// The limiter of a limit.
    ///
    /// # Errors
    /// A limit from a request is invalid.
    pub fn new(client: &Client, limit: &Limit) -> Result<Self, Error> {
        match &limit.per {
            Per::Window(geometry) => window(client, limit, *geometry).map(Self::Window),
            Per::Period(periods) => budget(client, limit, periods).map(Self::Budget),
            Per::Hold(lifetime) => holds(client, limit, *lifetime).map(Self::Hold),
        }
    }

    /// What it says to a question. All but the most frequent operation are boxed, so that their futures, which are
    /// larger, make no other request's larger.
    pub async fn decide(
        &self,
        question: &Question<'_>,
        operation: Operation,
        deadline: Option<Instant>,
    ) -> Result<Decision, Error> {
        match operation {
            Operation::Allow => self.allow(question, deadline).await,
            Operation::Peek => Box::pin(self.peek(question, question.hits, deadline)).await,
            Operation::Record => Box::pin(self.record(question, deadline)).await,
            Operation::Refund => {
                Box::pin(self.refund(question, deadline)).await?;
                Box::pin(self.peek(question, 1, deadline)).await
            }
        }
    }

    /// A hold is granted to the request, whose end releases it: nothing here does.
    async fn allow(&self, question: &Question<'_>, deadline: Option<Instant>) -> Result<Decision, Error> {
        match (self, question.wait) {
            (Self::Window(limiter), None) => limiter.allow(question.request(deadline)).await,
            (Self::Window(limiter), Some(wait)) => Box::pin(limiter.acquire(question.request(deadline), wait)).await,
            (Self::Budget(limiter), _) => Box::pin(limiter.allow(question.request(deadline))).await,
            (Self::Hold(limiter), _) => {
                let hold = Box::pin(limiter.hold(question.hold_request(deadline))).await?;
                let decision = *hold.decision();
                hold.detach();
                Ok(decision)
            }
        }
    }

    async fn peek(&self, question: &Question<'_>, hits: u64, deadline: Option<Instant>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.peek(question.request(deadline).cost(hits)).await,
            Self::Budget(limiter) => limiter.peek(question.request(deadline).cost(hits)).await,
            Self::Hold(limiter) => limiter.peek(question.hold_request(deadline).cost(hits)).await,
        }
    }

    async fn record(&self, question: &Question<'_>, deadline: Option<Instant>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.record(question.request(deadline)).await,
            Self::Budget(limiter) => limiter.record(question.request(deadline)).await,
            Self::Hold(_) => Err(Error::Invalid("holds cannot be recorded".into())),
        }
    }

    /// Gives units back; of a hold, those of its id.
    pub async fn refund(&self, question: &Question<'_>, deadline: Option<Instant>) -> Result<u64, Error> {
        match self {
            Self::Window(limiter) => limiter.refund(question.request(deadline)).await,
            Self::Budget(limiter) => limiter.refund(question.request(deadline)).await,
            Self::Hold(limiter) => limiter.end(question.hold_request(deadline)).await,
        }
    }

    /// What only windows can do.
    pub fn window(&self) -> Result<&Limiter, Error> {
        match self {
            Self::Window(limiter) => Ok(limiter),
            Self::Budget(_) | Self::Hold(_) => Err(Error::Invalid("only windows can be waited for and blocked".into())),
        }
    }

    /// One of several limits in one decision.
    pub fn member<'a>(&'a self, question: &'a Question<'_>, deadline: Option<Instant>) -> Member<'a> {
        match self {
            Self::Window(limiter) => (limiter, question.request(deadline)).into(),
            Self::Budget(limiter) => (limiter, question.request(deadline)).into(),
            Self::Hold(limiter) => (limiter, question.hold_request(deadline)).into(),
        }
    }
}

fn window(client: &Client, limit: &Limit, geometry: Geometry) -> Result<Limiter, Error> {
    let ms = Duration::from_millis;
    let quota = Quota::of(limit.units, ms(geometry.window()), Some(ms(geometry.resolution())))?;
    let mut builder = client.limiter(quota);
    if limit.strict {
        builder = builder.strict();
    }
    if let Some(block) = limit.block {
        builder = builder.block_for(ms(block));
    }
    if let Some(warm_up) = limit.warm_up {
        builder = builder.warm_up(ms(warm_up.duration())).cold(warm_up.cold());
    }
    if let Some(length) = limit.policy.lease_length {
        builder = builder.lease_length(ms(length.min(geometry.resolution())));
    }
    let DecisionPolicy { mode, on_failure, local_share, lease_share, sync_interval, .. } = limit.policy;
    builder
        // Without a server only this process decides.
        .mode(if client.has_server() { mode } else { Mode::Local })
        .on_failure(on_failure)
        .local_share(local_share.fraction())
        .lease_share(lease_share.fraction())
        .sync_interval(ms(sync_interval))
        .build()
}

fn budget(client: &Client, limit: &Limit, periods: &Periods) -> Result<BudgetLimiter, Error> {
    let DecisionPolicy { on_failure, local_share, .. } = limit.policy;
    let builder = client.budget(limit.units, periods.calendar()?);
    builder.on_failure(on_failure).local_share(local_share.fraction()).build()
}

fn holds(client: &Client, limit: &Limit, lifetime: Lifetime) -> Result<HoldLimiter, Error> {
    let timeout = match lifetime.id {
        // Proxies wait no longer for these than for other limits.
        Some(_) => client.timeout(),
        None => client.timeout().max(HOLD_TIMEOUT),
    };
    let builder = client.holds(limit.units).ttl(Duration::from_millis(lifetime.ttl)).timeout(timeout);
    builder.on_failure(limit.policy.on_failure).build()
}
