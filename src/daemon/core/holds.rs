//! Holds for callers of the HTTP API. This process neither renews nor releases them.

use std::time::Duration;

use swlimit_client::{Error, Hold};

use super::answer::Answer;
use super::limiter::AnyLimiter;
use super::limiters::Limiters;
use super::question::Question;
use super::refusal::Refusal;

/// The outcome of a request for a hold.
#[derive(Debug)]
pub struct TakenHold {
    pub answer: Answer,
    pub token: Option<u64>,
    pub expires_after: Option<Duration>,
    /// `None` if it was denied, or the server did not grant it.
    pub id: Option<Vec<u8>>,
}

/// The outcome of a request for several limits.
#[derive(Debug)]
pub struct Admitted {
    pub granted: bool,
    pub each: Vec<Answer>,
    /// The holds in their order; none if the whole was denied.
    pub holds: Vec<TakenHold>,
}

impl TakenHold {
    /// Leaves a hold to its caller.
    fn of(hold: Hold) -> Self {
        let (answer, token, expires_after) = (Answer::from(hold.decision()), hold.token(), hold.expires_after());
        Self { answer, token, expires_after, id: hold.detach() }
    }
}

impl Limiters {
    /// Takes units of a key, and leaves them to the caller.
    pub async fn hold(&self, question: &Question<'_>) -> Result<TakenHold, Refusal> {
        self.check_server()?;
        match &*self.of(&question.limit)? {
            AnyLimiter::Hold(limiter) => Ok(TakenHold::of(limiter.hold(question.hold_request(None)).await?)),
            AnyLimiter::Window(_) | AnyLimiter::Budget(_) => Err(Error::Invalid("only holds are held".into()).into()),
        }
    }

    /// All questions are granted, or nothing is.
    pub async fn admit(&self, questions: &[&Question<'_>]) -> Result<Admitted, Refusal> {
        self.check_server()?;
        let (decisions, holds) = self.admitted(questions, None).await?;
        let each = decisions.each().iter().map(Answer::from).collect();
        Ok(Admitted { granted: decisions.granted(), each, holds: holds.into_iter().map(TakenHold::of).collect() })
    }

    fn check_server(&self) -> Result<(), Refusal> {
        match self.client.has_server() {
            true => Ok(()),
            false => Err(Refusal::NeedsServer),
        }
    }
}
