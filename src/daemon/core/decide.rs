//! Asks the questions of a plan in their order.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::time::Duration;

use ahash::RandomState;
use futures_util::future::{join_all, try_join_all};
use swlimit_client as client;
use tokio::time::{timeout_at, Instant};

use super::answer::{Answer, Source};
use super::keys;
use super::limiters::Limiters;
use super::plan::Plan;
use super::question::{Operation, Question};
use super::refusal::Refusal;
use crate::config::limits::Per;
use crate::config::policy::{Mode, OnFailure};

/// The most limits of one decision with a budget or a hold among them.
const MAX_ADMITTED: usize = 64;

/// `retry_after` of a budget's denial while the server is unavailable.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A request is decided at least this long before its deadline.
const DEADLINE_MARGIN: Duration = Duration::from_millis(5);

impl Limiters {
    /// The answers to all questions of a plan, in their order.
    pub async fn decide(&self, plan: &Plan<'_>) -> Result<Vec<Answer>, Refusal> {
        match &*plan.questions {
            // The most frequent case; it needs neither a large future nor an order. It is one exchange, which the
            // client's timeout bounds; a refund is two exchanges.
            [only] if only.operation != Operation::Refund => {
                Ok(vec![self.answer_or_fail(only, only.operation, plan.deadline).await?])
            }
            _ => Box::pin(self.deciding(plan).decide_all()).await,
        }
    }

    /// What each limit of a plan would answer now. Nothing is counted.
    pub async fn peek(&self, plan: &Plan<'_>) -> Vec<Result<Answer, Refusal>> {
        let peeks = plan.questions.iter().map(|question| self.answer_or_fail(question, Operation::Peek, plan.deadline));
        let answers = join_all(peeks).await.into_iter().zip(&plan.questions);
        let answers = answers.map(|(answer, question)| match question.operation {
            Operation::Refund => answer.map(|answer| Answer { granted: true, ..answer }), // always
            Operation::Allow | Operation::Peek | Operation::Record => answer,
        });
        answers.collect()
    }

    /// The answer to one question, by `on_failure` while the server is unavailable.
    async fn answer_or_fail(
        &self,
        question: &Question<'_>,
        operation: Operation,
        deadline: Option<Instant>,
    ) -> Result<Answer, Refusal> {
        match self.answer(question, operation, deadline).await {
            Ok(answer) if operation == Operation::Refund => Ok(Answer { granted: true, ..answer }),
            Err(client::Error::Unavailable(_)) => failed(question),
            answer => Ok(answer?),
        }
    }

    fn deciding<'a>(&'a self, plan: &'a Plan<'a>) -> Deciding<'a> {
        let (answers, counted, denies) = (Vec::new(), Vec::new(), false);
        let began = Instant::now();
        // The client decides by `on_failure` a moment before a deadline.
        let deadline = began + self.timeout + DEADLINE_MARGIN;
        let deadline = plan.deadline.map_or(deadline, |callers| callers.min(deadline));
        Deciding { limiters: self, plan, began, deadline, answers, denies, counted }
    }

    /// Groups the questions into commands. Mode `local` comes first (its units can be given back exactly), mode
    /// `eventual` last (its units may already be on their way). One command takes windows with the same strictness, and
    /// in a cluster keys with the same hash tag; with a budget or a hold among them, it takes 64.
    fn groups<'p>(&self, plan: &'p Plan) -> Vec<Vec<usize>> {
        let mut groups: Vec<Group<'p>> = Vec::new();
        let mut by_hash_tag: HashMap<&str, Vec<usize>, RandomState> = HashMap::default();
        for at in plan.together() {
            let Question { limit, key, .. } = &plan.questions[at];
            let stage = match limit.policy.mode {
                Mode::Local => Stage::Local,
                Mode::Eventual => Stage::Eventual,
                _ => Stage::Server,
            };
            let hash_tag = if self.clustered { keys::hash_tag(key) } else { "" };
            let is_window = limit.per.is_window();
            let strict = is_window.then_some(limit.strict);
            let keys = HashSet::from_iter([key.as_str()]);
            let new = Group { stage, strict, is_admitted: !is_window, keys, questions: vec![at] };
            let known = by_hash_tag.entry(hash_tag).or_default();
            match known.iter().find(|at| stage == Stage::Server && groups[**at].accepts(&new)) {
                Some(at) => groups[*at].add(new),
                None => {
                    known.push(groups.len());
                    groups.push(new);
                }
            }
        }
        groups.sort_by_key(|group| group.stage);
        groups.into_iter().map(|group| group.questions).collect()
    }
}

/// Questions of one command.
struct Group<'a> {
    stage: Stage,
    /// `None` as long as it has no window.
    strict: Option<bool>,
    /// It has a budget or a hold, which ADMIT decides.
    is_admitted: bool,
    /// A command takes each key once.
    keys: HashSet<&'a str, RandomState>,
    questions: Vec<usize>,
}

/// Stages in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Local,
    Server,
    Eventual,
}

impl Group<'_> {
    fn accepts(&self, other: &Self) -> bool {
        let is_as_strict = self.strict.zip(other.strict).is_none_or(|(own, others)| own == others);
        let has_room = !(self.is_admitted || other.is_admitted) || self.questions.len() < MAX_ADMITTED;
        self.stage == other.stage && is_as_strict && has_room && self.keys.is_disjoint(&other.keys)
    }

    fn add(&mut self, other: Self) {
        self.strict = self.strict.or(other.strict);
        self.is_admitted |= other.is_admitted;
        self.keys.extend(other.keys);
        self.questions.extend(other.questions);
    }
}

/// A plan with the answers so far.
struct Deciding<'a> {
    limiters: &'a Limiters,
    plan: &'a Plan<'a>,
    began: Instant,
    deadline: Instant,
    /// By question, once all are answered.
    answers: Vec<Option<Answer>>,
    /// An answer denies.
    denies: bool,
    /// Questions whose units were counted as part of the whole decision.
    counted: Vec<usize>,
}

impl Deciding<'_> {
    /// The answers to all questions. Units counted for a denied request are refunded.
    async fn decide_all(mut self) -> Result<Vec<Answer>, Refusal> {
        self.answers = vec![None; self.plan.questions.len()];
        let result = self.ask_all().await;
        if result.is_err() || self.is_denied() {
            self.give_back().await;
        }
        result?;
        let missing = || Refusal::Refused("the reply has fewer decisions than keys".into());
        self.answers.into_iter().collect::<Option<_>>().ok_or_else(missing)
    }

    /// Asks all questions. Once the request is denied, the rest only peek.
    async fn ask_all(&mut self) -> Result<(), Refusal> {
        self.ask_each(self.plan.before().collect()).await?;
        for group in self.limiters.groups(self.plan) {
            if self.is_denied() {
                self.peek_each(group).await?;
                continue;
            }
            self.ask_together(&group).await?;
            if !self.is_denied() {
                self.counted.extend(group);
            }
        }
        let behind = self.plan.behind().collect();
        if self.is_denied() {
            self.peek_each(behind).await
        } else {
            self.ask_each(behind).await
        }
    }

    /// Whether the answers so far deny the request.
    fn is_denied(&self) -> bool {
        self.denies && self.plan.is_denied(|at| self.answers[at].is_some_and(|answer| !answer.granted))
    }

    /// Asks each question by itself, concurrently.
    async fn ask_each(&mut self, questions: Vec<usize>) -> Result<(), Refusal> {
        let asking = questions.iter().map(|at| &self.plan.questions[*at]);
        let answers = try_join_all(asking.map(|question| self.ask(question, question.operation))).await?;
        self.store(&questions, answers);
        Ok(())
    }

    /// Peeks at each key, without counting.
    async fn peek_each(&mut self, questions: Vec<usize>) -> Result<(), Refusal> {
        let asking = questions.iter().map(|at| self.ask(&self.plan.questions[*at], Operation::Peek));
        let answers = try_join_all(asking).await?;
        self.store(&questions, answers);
        Ok(())
    }

    fn store(&mut self, questions: &[usize], answers: Vec<Answer>) {
        for (at, answer) in questions.iter().zip(answers) {
            self.denies |= !answer.granted;
            self.answers[*at] = Some(answer);
        }
    }

    async fn ask(&self, question: &Question<'_>, operation: Operation) -> Result<Answer, Refusal> {
        self.limiters.answer_or_fail(question, operation, Some(self.deadline)).await
    }

    /// Asks questions as one decision: all grant, or nothing is counted.
    async fn ask_together(&mut self, group: &[usize]) -> Result<(), Refusal> {
        if let [only] = group {
            return self.ask_each(vec![*only]).await;
        }
        let questions: Vec<_> = group.iter().map(|at| &self.plan.questions[*at]).collect();
        let decided = self.decide_together(&questions).await?;
        self.block(questions.iter().copied().zip(&decided)).await;
        self.store(group, decided.iter().map(Answer::from).collect());
        Ok(())
    }

    async fn decide_together(&self, questions: &[&Question<'_>]) -> Result<Vec<client::Decision>, client::Error> {
        let (limiters, deadline) = (self.limiters, Some(self.deadline));
        if questions.iter().any(|question| !question.limit.per.is_window()) {
            let (decisions, holds) = limiters.admitted(questions, deadline).await?;
            holds.into_iter().for_each(|hold| drop(hold.detach()));
            return Ok(decisions.into_iter().collect());
        }
        let known = questions.iter().map(|question| limiters.of(&question.limit)).collect::<Result<Vec<_>, _>>()?;
        let requests = known.iter().zip(questions).map(|(it, question)| Ok((it.window()?, question.request(deadline))));
        let requests = requests.collect::<Result<Vec<_>, client::Error>>()?;
        Ok(limiters.client.allow_all(&requests).await?.each().to_vec())
    }

    /// Begins the blocks of limits that denied, which a decision of several limits does not.
    async fn block<'b>(&self, decided: impl Iterator<Item = (&'b Question<'b>, &'b client::Decision)>) {
        let denied = decided.filter(|(_, decision)| !decision.granted() && decision.source() == Source::Server);
        let blocking =
            denied.filter_map(|(question, _)| Some((question, Duration::from_millis(question.limit.block?))));
        let blocking = blocking.map(|(question, duration)| {
            let (client, key) = (self.limiters.client.clone(), question.key.clone());
            async move {
                if let Err(error) = client.block_unless_blocked(&key, duration).await {
                    tracing::warn!(key, %error, "cannot block the key");
                }
            }
        });
        self.finish(blocking.collect()).await;
    }

    /// Refunds what was counted for a request that other limits denied.
    async fn give_back(&self) {
        let age = self.began.elapsed() + self.limiters.timeout;
        let refunds = self.counted.iter().filter_map(|at| {
            let question = &self.plan.questions[*at];
            let limit = &question.limit;
            let reset_after = self.answers[*at].and_then(|answer| answer.reset_after);
            if matches!(limit.per, Per::Period(_)) && reset_after <= Some(age) {
                return None; // the period of the units has ended
            }
            // In mode `eventual` they are the youngest units, which the server may not have counted yet. Leased units may
            // be older than the request: the lease knows since when they count.
            let has_age = limit.per.is_window() && limit.policy.mode != Mode::Eventual;
            let since = self.answers[*at].and_then(|answer| answer.since);
            let age = (has_age && since.is_none()).then_some(age);
            let limiter = self.limiters.of(limit).ok()?.into_owned();
            let question = Question { age, since, ..question.clone().into_owned() };
            Some(async move {
                if let Err(error) = limiter.refund(&question, None).await {
                    tracing::warn!(key = question.key, %error, "cannot refund the units of a denied request");
                }
            })
        });
        self.finish(refunds.collect()).await;
    }

    /// Completes work even if the request is dropped. The request waits for it until a moment before its deadline.
    async fn finish(&self, work: Vec<impl Future<Output = ()> + Send + 'static>) {
        if !work.is_empty() {
            let _ = timeout_at(self.deadline - DEADLINE_MARGIN, tokio::spawn(join_all(work))).await;
        }
    }
}

/// The answer of RECORD and REFUND by `on_failure`.
fn failed(question: &Question) -> Result<Answer, Refusal> {
    let granted = match question.limit.policy.on_failure {
        OnFailure::Error => return Err(Refusal::Unavailable),
        OnFailure::Deny => false,
        _ => true,
    };
    let window = question.limit.per.window().unwrap_or(RETRY_AFTER);
    Ok(Answer {
        granted,
        units: if granted { question.hits } else { 0 },
        limit: question.limit.units,
        remaining: None,
        retry_after: Some(if granted { Duration::ZERO } else { window }),
        reset_after: None,
        since: None,
        source: Source::Failure,
    })
}
