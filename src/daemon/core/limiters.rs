//! What decides: a client, and its limiters.

use std::borrow::Cow;
use std::time::Duration;

use swlimit_client::{Client, Decisions, Error, Hold};
use tokio::time::Instant;

use super::answer::{Answer, Source};
use super::caches::Caches;
use super::limiter::AnyLimiter;
use super::question::{Operation, Question};
use super::refusal::Refusal;
use crate::config::limits::{Limit, Limits};
use crate::config::policy::OnFailure;
use crate::config::settings::{Server, Settings};

/// The limiters of a configuration.
pub struct Limiters {
    pub(super) client: Client,
    /// The longest time a request waits for the server.
    pub(super) timeout: Duration,
    /// In a cluster one command takes only keys with the same hash tag.
    pub(super) clustered: bool,
    caches: Caches,
}

impl Limiters {
    /// No limiters yet.
    pub fn new(client: Client, settings: &Settings) -> Self {
        let (timeout, clustered) = (settings.timeout.into(), is_cluster(&settings.server));
        Self { client, timeout, clustered, caches: Caches::default() }
    }

    /// The limiters of other limits. Unchanged limits keep their limiters.
    pub fn renewed(&self, limits: &Limits) -> Self {
        Self { client: self.client.clone(), caches: self.caches.renewed(&self.client, limits), ..*self }
    }

    /// The limiter of a limit.
    pub(super) fn of(&self, limit: &Limit) -> Result<Cow<'_, AnyLimiter>, Error> {
        self.caches.of(&self.client, limit)
    }

    /// The answer to one question by itself; an error while the server is unavailable, with `on_failure: error`.
    pub async fn ask(&self, question: &Question<'_>) -> Result<Answer, Refusal> {
        match self.answer(question, question.operation, None).await {
            Ok(answer) if answer.source == Source::Failure && question.limit.policy.on_failure == OnFailure::Error => {
                Err(Refusal::Unavailable)
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(error.into()),
        }
    }

    /// The answer to one question before this deadline, and the client's time-out.
    pub(super) async fn answer(
        &self,
        question: &Question<'_>,
        operation: Operation,
        deadline: Option<Instant>,
    ) -> Result<Answer, Error> {
        Ok(Answer::from(&self.of(&question.limit)?.decide(question, operation, deadline).await?))
    }

    /// One decision of limits of any kind, and the holds among them in their order.
    pub(super) async fn admitted(
        &self,
        questions: &[&Question<'_>],
        deadline: Option<Instant>,
    ) -> Result<(Decisions, Vec<Hold>), Error> {
        let limiters = questions.iter().map(|question| self.of(&question.limit)).collect::<Result<Vec<_>, _>>()?;
        let members = limiters.iter().zip(questions).map(|(limiter, question)| limiter.member(question, deadline));
        self.client.admit_for_others(members).await
    }
}

fn is_cluster(server: &Server) -> bool {
    match server {
        Server::None => false,
        Server::Url(url) => url.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("-cluster")),
    }
}
