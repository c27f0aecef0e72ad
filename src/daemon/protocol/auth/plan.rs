//! Plans the decision of the policies that match a request.

use std::borrow::Cow;

use crate::config::limits::{Limits, MissingHeader, OriginalRequest};
use crate::core::{keys, Descriptor, Operation, Plan, Question, Role};

/// The plan of a request: all matching policies are one decision.
pub fn plan<'a>(limits: &'a Limits, prefix: &str, request: &'a OriginalRequest<'a>) -> Result<Plan<'a>, MissingHeader> {
    let mut plan = Plan { original: Some(request), ..Plan::default() };
    for (domain, policy) in limits.policies() {
        let Some(key) = policy.key_of(request)? else { continue };
        let rule = &policy.rule;
        let questions = rule.limits.iter().map(|limit| {
            let name = if limit.is_shared { "" } else { &rule.name };
            let question = Question {
                operation: if limit.record { Operation::Record } else { Operation::Allow },
                role: if rule.shadow_mode { Role::Shadow } else { Role::Decides },
                limit: Cow::Borrowed(limit),
                key: keys::of_policy(prefix, &domain.name, name, &key, &limit.suffix),
                id: None,
                hits: policy.cost,
            };
            add(&mut plan, question)
        });
        let questions = questions.collect();
        plan.descriptors.push(Descriptor {
            rule: Some(rule),
            entries: &[],
            domain: &domain.name,
            label: Cow::Borrowed(&rule.name),
            hits: policy.cost,
            questions,
        });
    }
    Ok(plan)
}

/// Adds a question to a plan, and returns its index. Policies with priorities may ask about one key: the request counts
/// once, and all of them have to grant.
fn add<'a>(plan: &mut Plan<'a>, question: Question<'a>) -> usize {
    let Question { operation, role, .. } = question;
    let equals = |other: &Question| (&other.key, other.operation, other.role) == (&question.key, operation, role);
    let Some(at) = plan.questions.iter().position(equals) else {
        plan.questions.push(question);
        return plan.questions.len() - 1;
    };
    let merged = &mut plan.questions[at];
    merged.hits = merged.hits.max(question.hits);
    if question.limit.units < merged.limit.units {
        merged.limit = question.limit;
    }
    at
}
