//! Holds for callers of the HTTP API. This process neither renews nor releases them.

use std::time::Duration;

use swlimit_client::{Error, Hold};

use super::answer::Answer;
use super::limiter::AnyLimiter;
use super::limiters::Limiters;
use super::question::Question;
use super::refusal::Refusal;

/// A hold that was asked for.
#[derive(Debug)]
pub struct TakenHold {
    pub answer: Answer,
    pub token: Option<u64>,
    pub expires_after: Option<Duration>,
    /// `None` if it was denied, or the server did not grant it.
    pub id: Option<Vec<u8>>,
}

/// Several limits that were asked for together.
#[derive(Debug)]
pub struct Admitted {
    pub granted: bool,
    pub each: Vec<Answer>,
    /// The hold, if there was one and all was granted.
    pub hold: Option<TakenHold>,
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
        let mut admission = self.admission(questions, None).await?;
        let each = admission.each().iter().map(Answer::from).collect();
        Ok(Admitted { granted: admission.granted(), each, hold: admission.take_hold().map(TakenHold::of) })
    }

    fn check_server(&self) -> Result<(), Refusal> {
        match self.client.has_server() {
            true => Ok(()),
            false => Err(Refusal::NeedsServer),
        }
    }
}
