//! A limiter of either kind: a window, or a budget of the calendar.

use std::time::{Duration, SystemTime};

use swlimit_client::{BudgetLimiter, Client, Decision, Error, Limiter, Member, Quota, Request};
use swlimit_window::Geometry;

use crate::config::limits::{Limit, Per, Periods};
use crate::config::policy::{DecisionPolicy, Mode};

/// Decides a limit. Cheap to clone.
#[derive(Clone)]
pub enum AnyLimiter {
    Window(Limiter),
    Budget(BudgetLimiter),
}

impl AnyLimiter {
    /// The limiter of a valid limit.
    pub fn new(client: &Client, limit: &Limit) -> Self {
        let built = match &limit.per {
            Per::Window(geometry) => window(client, limit, *geometry).map(Self::Window),
            Per::Period(periods) => budget(client, limit, periods).map(Self::Budget),
        };
        built.expect("the configuration is valid")
    }

    pub async fn allow(&self, request: Request<'_>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.allow(request).await,
            Self::Budget(limiter) => limiter.allow(request).await,
        }
    }

    pub async fn peek(&self, request: Request<'_>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.peek(request).await,
            Self::Budget(limiter) => limiter.peek(request).await,
        }
    }

    pub async fn record(&self, request: Request<'_>) -> Result<Decision, Error> {
        match self {
            Self::Window(limiter) => limiter.record(request).await,
            Self::Budget(limiter) => limiter.record(request).await,
        }
    }

    pub async fn refund(&self, request: Request<'_>) -> Result<u64, Error> {
        match self {
            Self::Window(limiter) => limiter.refund(request).await,
            Self::Budget(limiter) => limiter.refund(request).await,
        }
    }

    pub async fn acquire(&self, request: Request<'_>, timeout: Duration) -> Result<Decision, Error> {
        self.window()?.acquire(request, timeout).await
    }

    pub async fn block(&self, key: &str, duration: Duration) -> Result<SystemTime, Error> {
        self.window()?.block(key, duration).await
    }

    pub async fn block_unless_blocked(&self, key: &str, duration: Duration) -> Result<SystemTime, Error> {
        self.window()?.block_unless_blocked(key, duration).await
    }

    pub async fn unblock(&self, key: &str) -> Result<bool, Error> {
        self.window()?.unblock(key).await
    }

    /// What only windows can do.
    pub fn window(&self) -> Result<&Limiter, Error> {
        match self {
            Self::Window(limiter) => Ok(limiter),
            Self::Budget(_) => Err(Error::Invalid("a budget neither waits nor blocks".into())),
        }
    }

    /// A request of it, as one of several in one decision.
    pub fn member<'a>(&'a self, request: Request<'a>) -> Member<'a> {
        match self {
            Self::Window(limiter) => (limiter, request).into(),
            Self::Budget(limiter) => (limiter, request).into(),
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
