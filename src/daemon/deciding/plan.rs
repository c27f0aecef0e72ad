//! The questions that a request of any protocol comes down to, and what their answers mean for it.

use std::borrow::Cow;
use std::time::Duration;

use swlimit_client::{Decision, Way};

use crate::limits::{Limit, Rule};

/// What is asked of the server for a request, and which of it is for which of the request's descriptors.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    pub asks: Vec<Ask<'a>>,
    pub descriptors: Vec<Descriptor<'a>>,
}

/// One question about one key.
#[derive(Debug, PartialEq)]
pub struct Ask<'a> {
    pub how: How,
    pub role: Role,
    pub limit: Cow<'a, Limit>,
    pub key: String,
    /// Units; of a PEEK, the one that would be asked for.
    pub hits: u64,
}

/// What the question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Count the hits if all limits of the request grant theirs.
    Allow,
    /// Count nothing.
    Peek,
    /// Count the hits whatever the limit says.
    Record,
    /// Give the hits back.
    Refund,
}

/// What a denial means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The request is denied.
    Decides,
    /// The request is denied if all of this role deny it.
    Quota,
    /// Nothing.
    Shadow,
}

/// A descriptor of the request: the rule that it matched, and which asks are its own.
#[derive(Debug)]
pub struct Descriptor<'a> {
    /// None if nothing matched.
    pub rule: Option<&'a Rule>,
    /// What metrics call the rule.
    pub measured: Cow<'a, str>,
    pub hits: u64,
    /// Places in the plan's `asks`; empty without limit.
    pub asks: Vec<usize>,
}

impl Descriptor<'_> {
    /// What its denial means; none without limit.
    fn role(&self, plan: &Plan) -> Option<Role> {
        self.asks.first().map(|ask| plan.asks[*ask].role)
    }
}

/// What became of one question of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub granted: bool,
    pub remaining: u64,
    /// None if such a request is never granted.
    pub retry_after: Option<Duration>,
    pub reset_after: Duration,
    pub way: Way,
}

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        Self {
            granted: decision.granted(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            way: decision.way(),
        }
    }
}

impl<'a> Plan<'a> {
    /// Whether the request is denied, where these questions are: by one limit, or by all of those that only deny
    /// together.
    pub fn is_denied(&self, denied: impl Fn(usize) -> bool) -> bool {
        let of = |role| self.descriptors.iter().filter(move |descriptor| descriptor.role(self) == Some(role));
        let is_denied = |descriptor: &Descriptor| descriptor.asks.iter().any(|ask| denied(*ask));
        let mut quotas = of(Role::Quota).peekable();
        of(Role::Decides).any(is_denied) || (quotas.peek().is_some() && quotas.all(is_denied))
    }

    /// Places of the questions that are asked and answered as one: all of them grant, or nothing is counted.
    pub fn together(&self) -> impl Iterator<Item = usize> + '_ {
        self.places(|ask| ask.how == How::Allow && ask.role == Role::Decides)
    }

    /// Places of the questions that go before those, since they count nothing, or whatever the answer is.
    pub fn before(&self) -> impl Iterator<Item = usize> + '_ {
        self.places(|ask| ask.how != How::Allow)
    }

    /// Places of the questions that go behind them, since they count only what was granted.
    pub fn behind(&self) -> impl Iterator<Item = usize> + '_ {
        self.places(|ask| ask.how == How::Allow && ask.role != Role::Decides)
    }

    fn places(&self, is: impl Fn(&Ask) -> bool + 'a) -> impl Iterator<Item = usize> + '_ {
        (0..self.asks.len()).filter(move |at| is(&self.asks[*at]))
    }
}

/// The longest wait of what denied the request; `None` where one is for ever.
pub fn retry_after(plan: &Plan, answers: &[Answer]) -> Option<Duration> {
    let asked = plan.asks.iter().zip(answers);
    let denied = asked.filter(|(ask, answer)| ask.role != Role::Shadow && !answer.granted);
    denied.map(|(_, answer)| answer.retry_after).try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?)))
}
