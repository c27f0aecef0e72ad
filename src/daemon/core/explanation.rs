//! Why a request was decided as it was: for people, logs and programs.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::plan::{Descriptor, Plan};
use super::question::{Operation, Question, Role};
use super::refusal::Refusal;
use crate::config::limits::{NetworkDecision, OriginalRequest};

/// What was decided about a request, and why.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explanation {
    pub result: Verdict,
    /// The configuration denies nothing, whatever limits say.
    pub shadow_mode: bool,
    /// The request of a proxy as policies match it, or the descriptors.
    pub request: String,
    /// What the client's network decided, so that no limit decided.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub network: Option<NetworkDecision>,
    /// The rules that matched, and descriptors that none did.
    pub rules: Vec<ExplainedRule>,
    /// Policies that do not match.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_matching: Vec<Mismatch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Granted,
    Denied,
    /// A limit cannot be decided.
    Error,
}

/// A rule that matched, or a descriptor that no rule matches.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExplainedRule {
    /// `key=value,key=value`, escaped as in keys; empty for policies.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub descriptor: String,
    /// The domain and the rule's name in metrics; `None` if no rule matches.
    pub rule: Option<[String; 2]>,
    /// There is no limit.
    pub unlimited: bool,
    /// Empty if the rule has none, or another rule replaces them.
    pub limits: Vec<ExplainedLimit>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ExplainedLimit {
    pub key: String,
    /// Such as `5 per 15m, resolution 75s`.
    pub limit: String,
    /// `allow`, `peek`, `record` or `refund`.
    pub operation: String,
    pub hits: u64,
    /// What a denial means: `decides`, `quota` or `shadow`.
    pub role: String,
    /// This limit denied the request.
    pub denied_request: bool,
    /// `None` without a decision.
    pub answer: Option<ExplainedAnswer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The fields of a decision. Durations are in ms.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExplainedAnswer {
    pub granted: bool,
    /// `None` where it is unknown.
    pub remaining: Option<u64>,
    /// `None` if such a request is never granted.
    pub retry_after: Option<u64>,
    /// `None` where it is unknown.
    pub reset_after: Option<u64>,
    pub source: String,
}

/// A policy that does not match, and the first condition that fails: `host`, `path` or `method`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Mismatch {
    pub domain: String,
    pub rule: String,
    pub condition: String,
}

impl Explanation {
    /// Explains the answers to a plan.
    pub fn new(plan: &Plan, answers: &[Result<Answer, Refusal>], shadow_mode: bool) -> Self {
        let denied_by = plan.denied_by(|at| matches!(answers[at], Ok(Answer { granted: false, .. })));
        let result = match () {
            _ if answers.iter().any(Result::is_err) => Verdict::Error,
            _ if denied_by.is_empty() || shadow_mode => Verdict::Granted,
            _ => Verdict::Denied,
        };
        let rules = plan.descriptors.iter().map(|descriptor| ExplainedRule {
            limits: descriptor
                .questions
                .iter()
                .map(|at| ExplainedLimit::new(&plan.questions[*at], &answers[*at], denied_by.contains(at)))
                .collect(),
            ..ExplainedRule::new(descriptor)
        });
        let rules = rules.collect();
        Self { result, shadow_mode, request: plan.request(), network: None, rules, not_matching: Vec::new() }
    }
}

impl Explanation {
    /// Explains a request that the client's network decided.
    pub fn of_network(request: &OriginalRequest, decision: NetworkDecision, shadow_mode: bool) -> Self {
        let result = match decision {
            NetworkDecision::Denied => Verdict::Denied,
            NetworkDecision::Allowed => Verdict::Granted,
        };
        let (request, network) = (request.to_string(), Some(decision));
        Self { result, shadow_mode, request, network, rules: Vec::new(), not_matching: Vec::new() }
    }
}

impl ExplainedRule {
    fn new(descriptor: &Descriptor) -> Self {
        Self {
            descriptor: descriptor.spelled(),
            rule: descriptor.rule.map(|_| [descriptor.domain.into(), descriptor.label.to_string()]),
            unlimited: descriptor.rule.is_some_and(|rule| rule.unlimited),
            limits: Vec::new(),
        }
    }
}

impl ExplainedLimit {
    fn new(question: &Question, answer: &Result<Answer, Refusal>, denied_request: bool) -> Self {
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            key: question.key.clone(),
            limit: question.limit.to_string(),
            operation: match question.operation {
                Operation::Allow => "allow",
                Operation::Peek => "peek",
                Operation::Record => "record",
                Operation::Refund => "refund",
            }
            .into(),
            hits: question.hits,
            role: match question.role {
                Role::Decides => "decides",
                Role::Quota => "quota",
                Role::Shadow => "shadow",
            }
            .into(),
            denied_request,
            answer: answer.as_ref().ok().map(|answer| ExplainedAnswer {
                granted: answer.granted,
                remaining: answer.remaining,
                retry_after: answer.retry_after.map(ms),
                reset_after: answer.reset_after.map(ms),
                source: answer.source.as_str().into(),
            }),
            error: answer.as_ref().err().map(|refusal| refusal.message().into()),
        }
    }
}

/// A line for the result, then one for each rule and limit.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.result {
            Verdict::Granted => "granted",
            Verdict::Denied => "denied",
            Verdict::Error => "not decided",
        };
        write!(f, "{result}: {}", self.request)?;
        if self.shadow_mode {
            write!(f, " (shadow_mode denies nothing)")?;
        }
        match self.network {
            Some(NetworkDecision::Denied) => write!(f, "\nthe client's network is denied")?,
            Some(NetworkDecision::Allowed) => write!(f, "\nthe client's network is allowed")?,
            None if self.rules.is_empty() => write!(f, "\nno policy matches")?,
            None => {}
        }
        for rule in &self.rules {
            write!(f, "\n{rule}")?;
        }
        for Mismatch { domain, rule, condition } in &self.not_matching {
            write!(f, "\n{domain} {rule}: does not match the {condition}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ExplainedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (&self.rule, &*self.descriptor) {
            (None, descriptor) => return write!(f, "no rule matches {descriptor}"),
            (Some([domain, rule]), "") => format!("{domain} {rule}"),
            (Some([domain, rule]), descriptor) => format!("{domain} {rule} for {descriptor}"),
        };
        match &*self.limits {
            [] if self.unlimited => write!(f, "{name}: unlimited"),
            [] => write!(f, "{name}: no limit, or another rule replaces it"),
            limits => {
                let lines: Vec<_> = limits.iter().map(|limit| format!("{name}: {limit}")).collect();
                write!(f, "{}", lines.join("\n"))
            }
        }
    }
}

impl fmt::Display for ExplainedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, limit, operation, hits, role, denied_request, answer, error } = self;
        write!(f, "{limit}: {operation} {hits} ")?;
        match answer {
            None => write!(f, "failed: {}", error.as_deref().unwrap_or_default())?,
            Some(ExplainedAnswer { granted, remaining, retry_after, source, .. }) => {
                let decision = if *granted { "granted" } else { "denied" };
                write!(f, "{decision} by {source}")?;
                if let Some(remaining) = remaining {
                    write!(f, ", {remaining} left")?;
                }
                match retry_after {
                    _ if *granted => {}
                    Some(ms) if *ms < 1000 => write!(f, ", retry after {ms}ms")?,
                    Some(ms) => write!(f, ", retry after {}s", ms.div_ceil(1000))?,
                    None => write!(f, ", never granted")?,
                }
            }
        }
        if *denied_request {
            write!(f, ", which denies the request")?;
        } else if role == "shadow" {
            write!(f, ", in shadow mode")?;
        }
        write!(f, "; key {key}")
    }
}
