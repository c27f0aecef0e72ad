//! A plan: the questions that decide a request, and what their answers mean for it.

use std::borrow::Cow;
use std::time::Duration;

use ahash::RandomState;
use hashbrown::hash_table::{self, HashTable};
use tokio::time::Instant;

use super::answer::Answer;
use super::keys;
use super::question::{Operation, Question, Role};
use crate::config::limits::{Entry, OriginalRequest, Per, Rule};

/// The questions of a request, and the descriptors that they belong to.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    pub questions: Vec<Question<'a>>,
    pub descriptors: Vec<Descriptor<'a>>,
    /// When the caller gives up.
    pub deadline: Option<Instant>,
    /// The request, if a proxy asks about one.
    pub original: Option<&'a OriginalRequest<'a>>,
    /// Finds equal questions.
    pub index: Index,
}

/// The places of questions, by what makes two of them equal.
#[derive(Debug, Default)]
pub struct Index {
    places: HashTable<usize>,
    hasher: RandomState,
}

/// A descriptor of the request: the rule that it matched, and its questions.
#[derive(Debug)]
pub struct Descriptor<'a> {
    /// `None` if no rule matched.
    pub rule: Option<&'a Rule>,
    /// What Envoy sent; empty for policies.
    pub entries: &'a [Entry],
    /// The domain and name of the rule in metrics.
    pub domain: &'a str,
    pub label: Cow<'a, str>,
    pub hits: u64,
    /// Indices of the plan's questions; empty without a limit.
    pub questions: Vec<usize>,
}

impl Descriptor<'_> {
    /// A descriptor that no rule matches.
    pub fn unmatched() -> Self {
        Self { rule: None, entries: &[], domain: "", label: Cow::Borrowed(""), hits: 0, questions: Vec::new() }
    }

    fn is_denied(&self, denied: &impl Fn(usize) -> bool) -> bool {
        self.questions.iter().any(|at| denied(*at))
    }

    /// Its entries as keys spell them: `key=value,key=value`.
    pub fn spelled(&self) -> String {
        let pair = |Entry { key, value }: &Entry| format!("{}={}", keys::escaped(key), keys::escaped(value));
        self.entries.iter().map(pair).collect::<Vec<_>>().join(",")
    }

    /// What its denial means; `None` without a limit.
    fn role(&self, plan: &Plan) -> Option<Role> {
        self.questions.first().map(|at| plan.questions[*at].role)
    }
}

impl<'a> Plan<'a> {
    /// Adds a question, or merges it into an equal one, of which both limits have to grant. `hits` says how many both
    /// ask for. Returns the question's index.
    pub fn ask<E>(
        &mut self,
        question: Question<'a>,
        hits: impl FnOnce(u64, u64) -> Result<u64, E>,
    ) -> Result<usize, E> {
        let (questions, Index { places, hasher }) = (&mut self.questions, &mut self.index);
        let hash = |question: &Question| hasher.hash_one(question.equality());
        let is_equal = |at: &usize| questions[*at].is_equal(&question);
        let at = match places.entry(hash(&question), is_equal, |at| hash(&questions[*at])) {
            hash_table::Entry::Occupied(equal) => *equal.get(),
            hash_table::Entry::Vacant(vacant) => {
                vacant.insert(questions.len());
                questions.push(question);
                return Ok(questions.len() - 1);
            }
        };
        let merged = &mut questions[at];
        merged.hits = hits(merged.hits, question.hits)?;
        if question.limit.units < merged.limit.units {
            merged.limit = question.limit;
        }
        Ok(at)
    }

    /// What is asked about: a proxy's request, or descriptors.
    pub fn request(&self) -> String {
        match self.original {
            Some(request) => request.to_string(),
            None => self.descriptors.iter().map(Descriptor::spelled).collect::<Vec<_>>().join(" "),
        }
    }

    /// Whether the request is denied if these questions are: by one limit, or by all limits in quota mode.
    pub fn is_denied(&self, denied: impl Fn(usize) -> bool) -> bool {
        self.with_role(Role::Decides).any(|descriptor| descriptor.is_denied(&denied)) || self.quotas_deny(&denied)
    }

    /// Indices of the questions that deny the request; none if it is granted.
    pub fn denied_by(&self, denied: impl Fn(usize) -> bool) -> Vec<usize> {
        let quotas_deny = self.quotas_deny(&denied);
        let decides = |role| role == Role::Decides || (role == Role::Quota && quotas_deny);
        (0..self.questions.len()).filter(|at| denied(*at) && decides(self.questions[*at].role)).collect()
    }

    fn quotas_deny(&self, denied: &impl Fn(usize) -> bool) -> bool {
        let mut quotas = self.with_role(Role::Quota).peekable();
        quotas.peek().is_some() && quotas.all(|descriptor| descriptor.is_denied(denied))
    }

    fn with_role(&self, role: Role) -> impl Iterator<Item = &Descriptor<'a>> {
        self.descriptors.iter().filter(move |descriptor| descriptor.role(self) == Some(role))
    }

    /// Indices of the questions that are one decision: all of them grant, or nothing is counted.
    pub fn together(&self) -> impl Iterator<Item = usize> + '_ {
        self.indices(|question| question.operation == Operation::Allow && question.role == Role::Decides)
    }

    /// Indices of the questions that come first: they count nothing, or count whatever the answer is.
    pub fn before(&self) -> impl Iterator<Item = usize> + '_ {
        self.indices(|question| question.operation != Operation::Allow)
    }

    /// Indices of the questions that come last: they count only requests that were granted.
    pub fn behind(&self) -> impl Iterator<Item = usize> + '_ {
        self.indices(|question| question.operation == Operation::Allow && question.role != Role::Decides)
    }

    fn indices(&self, matches: impl Fn(&Question) -> bool + 'a) -> impl Iterator<Item = usize> + '_ {
        (0..self.questions.len()).filter(move |at| matches(&self.questions[*at]))
    }
}

/// `Retry-After` of a hold's denial: the next hold may end at any time.
const NEXT_PLACE: Duration = Duration::from_secs(1);

/// The longest `retry_after` of the limits that denied; `None` if one of them never grants.
pub fn retry_after(plan: &Plan, answers: &[Answer]) -> Option<Duration> {
    let asked = plan.questions.iter().zip(answers);
    let denied = asked.filter(|(question, answer)| question.role != Role::Shadow && !answer.granted);
    let mut waits = denied.map(|(question, answer)| match question.limit.per {
        Per::Hold(_) => answer.retry_after.map(|wait| wait.min(NEXT_PLACE)),
        Per::Window(_) | Per::Period(_) => answer.retry_after,
    });
    waits.try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?)))
}
