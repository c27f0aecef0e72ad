//! Operations on a single key, for callers that bring their own limit.

use std::time::{Duration, SystemTime};

use swlimit_client::{Client, DeniedKey, KeyInfo, Request};

use super::answer::{Answer, Source};
use super::limiters::Limiters;
use super::refusal::Refusal;
use crate::config::limits::Limit;
use crate::config::policy::OnFailure;

/// What to do with the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Allow,
    Peek,
    Record,
    /// Wait at most this long.
    Acquire(Duration),
}

/// Units of a key.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    pub key: &'a str,
    pub cost: u64,
    pub partial: bool,
    /// The units were used this long ago.
    pub age: Option<Duration>,
}

impl<'a> Demand<'a> {
    fn request(&self) -> Request<'a> {
        let request = Request::of(self.key).cost(self.cost);
        let request = if self.partial { request.partial() } else { request };
        self.age.map_or(request, |age| request.age(age))
    }
}

impl Limiters {
    /// Decides one demand.
    pub async fn decide_one(&self, limit: &Limit, verb: Verb, demand: Demand<'_>) -> Result<Answer, Refusal> {
        match self.decide_demand(limit, verb, demand).await {
            Err(refusal) => Err(Box::pin(refusal.explained(&self.client, [demand.key].into_iter())).await),
            answer => answer,
        }
    }

    async fn decide_demand(&self, limit: &Limit, verb: Verb, demand: Demand<'_>) -> Result<Answer, Refusal> {
        let (limiter, request) = (self.of(limit), demand.request());
        let limiter = limiter.window()?;
        let decision = match verb {
            Verb::Allow => limiter.allow(request).await,
            Verb::Peek => limiter.peek(request).await,
            Verb::Record => limiter.record(request).await,
            Verb::Acquire(timeout) => limiter.acquire(request, timeout).await,
        }?;
        let answer = Answer::from(&decision);
        if answer.source == Source::Failure && limit.policy.on_failure == OnFailure::Error {
            return Err(Refusal::Unavailable);
        }
        Ok(answer)
    }

    /// Gives units back; how many.
    pub async fn refund(&self, demand: Demand<'_>) -> Result<u64, Refusal> {
        Ok(self.client.refund(demand.request()).await?)
    }

    /// Blocks a key; until when it is blocked.
    pub async fn block(&self, key: &str, duration: Duration, unless_blocked: bool) -> Result<SystemTime, Refusal> {
        Ok(match unless_blocked {
            true => self.client.block_unless_blocked(key, duration).await,
            false => self.client.block(key, duration).await,
        }?)
    }

    /// Lifts a key's block; whether it was blocked.
    pub async fn unblock(&self, key: &str) -> Result<bool, Refusal> {
        Ok(self.client.unblock(key).await?)
    }
}

/// The keys with the most denied requests on the server.
pub async fn top(client: &Client, count: usize) -> Result<Vec<DeniedKey>, Refusal> {
    Ok(client.top(count).await?)
}

/// What the server holds of a key.
pub async fn info(client: &Client, key: &str) -> Result<Option<KeyInfo>, Refusal> {
    Ok(client.info(key).await?)
}
