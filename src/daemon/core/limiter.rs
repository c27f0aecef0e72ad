//! A limiter of any kind: a window, a budget of the calendar, or how many at once.

use std::time::{Duration, SystemTime};

use swlimit_client::{BudgetLimiter, Client, Decision, Error, HoldLimiter, HoldRequest};
use swlimit_client::{Limiter, Member, Quota, Request};
use swlimit_window::Geometry;
use tokio::time::Instant;

use super::plan::{Operation, Question};
use crate::config::limits::{Lifetime, Limit, Per, Periods};
use crate::config::policy::{DecisionPolicy, Mode};

/// Decides a limit. Cheap to clone.
#[derive(Clone)]
pub enum AnyLimiter {
    Window(Limiter),
    Budget(BudgetLimiter),
    Hold(HoldLimiter),
}

/// What is asked of a limiter.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub key: &'a str,
    pub cost: u64,
    /// Which request it is, of a hold.
    pub id: Option<&'a [u8]>,
    /// When the caller gives up, if that is known.
    pub deadline: Option<Instant>,
}

impl<'a> Asked<'a> {
    pub fn of(question: &'a Question<'_>, deadline: Option<Instant>) -> Self {
        Self { key: &question.key, cost: question.hits, id: question.id, deadline }
    }

    pub fn request(self) -> Request<'a> {
        let request = Request::of(self.key).cost(self.cost);
        self.deadline.map_or(request, |deadline| request.deadline(deadline))
    }

    fn hold(self) -> HoldRequest<'a> {
        let request = HoldRequest::of(self.key).cost(self.cost);
        let request = self.deadline.map_or(request, |deadline| request.deadline(deadline));
        self.id.map_or(request, |id| request.id(id))
    }
}

impl AnyLimiter {
    /// The limiter of a valid limit.
    pub fn new(client: &Client, limit: &Limit) -> Self {
        let built = match &limit.per {
            Per::Window(geometry) => window(client, limit, *geometry).map(Self::Window),
            Per::Period(periods) => budget(client, limit, periods).map(Self::Budget),
            Per::Hold(lifetime) => holds(client, limit, *lifetime).map(Self::Hold),
        };
        built.expect("the configuration is valid")
    }

    /// What it says to an operation. All but the most frequent one are boxed, so that their futures, which are larger,
    /// make no other request's larger.
    pub async fn decide(&self, operation: Operation, asked: Asked<'_>) -> Result<Decision, Error> {
        match operation {
            Operation::Allow => self.allow(asked).await,
            Operation::Peek => Box::pin(self.peek(asked)).await,
            Operation::Record => Box::pin(self.record(asked)).await,
            Operation::Refund => {
                Box::pin(self.refund(asked, None)).await?;
                Box::pin(self.peek(Asked { cost: 1, ..asked })).await
            }
        }
    }

    /// A hold is granted to the request, whose end releases it: nothing here does.
    async fn allow(&self, asked: Asked<'_>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.allow(asked.request()).await,
            Self::Budget(limiter) => Box::pin(limiter.allow(asked.request())).await,
            Self::Hold(limiter) => {
                let hold = Box::pin(limiter.hold(asked.hold())).await?;
                let decision = *hold.decision();
                hold.detach();
                Ok(decision)
            }
        }
    }

    async fn peek(&self, asked: Asked<'_>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.peek(asked.request()).await,
            Self::Budget(limiter) => limiter.peek(asked.request()).await,
            Self::Hold(limiter) => limiter.peek(asked.hold()).await,
        }
    }

    async fn record(&self, asked: Asked<'_>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.record(asked.request()).await,
            Self::Budget(limiter) => limiter.record(asked.request()).await,
            Self::Hold(_) => Err(Error::Invalid("what is under way is not recorded".into())),
        }
    }

    /// Gives units back: those of an age, of a window, if one is said; of a hold, those of this request.
    pub async fn refund(&self, asked: Asked<'_>, age: Option<Duration>) -> Result<u64, Error> {
        let request = || age.map_or(asked.request(), |age| asked.request().age(age));
        match self {
            Self::Window(limiter) => limiter.refund(request()).await,
            Self::Budget(limiter) => limiter.refund(asked.request()).await,
            Self::Hold(limiter) => limiter.end(asked.hold()).await,
        }
    }

    pub async fn block_unless_blocked(&self, key: &str, duration: Duration) -> Result<SystemTime, Error> {
        self.window()?.block_unless_blocked(key, duration).await
    }

    /// What only windows can do.
    pub fn window(&self) -> Result<&Limiter, Error> {
        match self {
            Self::Window(limiter) => Ok(limiter),
            Self::Budget(_) | Self::Hold(_) => Err(Error::Invalid("only a window waits and blocks".into())),
        }
    }

    /// One of several in one decision.
    pub fn member<'a>(&'a self, asked: Asked<'a>) -> Member<'a> {
        match self {
            Self::Window(limiter) => (limiter, asked.request()).into(),
            Self::Budget(limiter) => (limiter, asked.request()).into(),
            Self::Hold(limiter) => (limiter, asked.hold()).into(),
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
        builder = builder.blocking(ms(block));
    }
    let DecisionPolicy { mode, on_failure, local_share, lease_share, sync_interval } = limit.policy;
    builder
        // Without a server there is nobody else to decide.
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
    let builder = client.holds(limit.units).ttl(Duration::from_millis(lifetime.ttl));
    builder.on_failure(limit.policy.on_failure).build()
}
