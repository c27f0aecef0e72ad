//! Plans the decision of the policies that match a request.

use std::borrow::Cow;

use crate::config::limits::{Limits, MissingHeader, OriginalRequest};
use crate::core::{keys, Descriptor, Operation, Plan, Question, Role};

/// The plan of a request: all matching policies are one decision.
pub fn plan<'a>(limits: &'a Limits, prefix: &str, request: &'a OriginalRequest<'a>) -> Result<Plan<'a>, MissingHeader> {
    let mut plan = Plan { original: Some(request), ..Plan::default() };
    for (domain, policy) in limits.policies_for(request) {
        let Some(key) = policy.key_of(request)? else { continue };
        let rule = &policy.rule;
        let questions = rule.limits.iter().map(|limit| {
            let name = if limit.is_shared { "" } else { &rule.name };
            let key = keys::of_policy(prefix, &domain.name, name, &key, &limit.suffix);
            let question = Question {
                operation: if limit.record { Operation::Record } else { Operation::Allow },
                role: if rule.shadow_mode { Role::Shadow } else { Role::Decides },
                is_proxys: true,
                ..Question::new(Cow::Borrowed(limit), key, policy.cost)
            };
            // Policies with priorities may ask about one key: the request counts once.
            plan.ask(question, |own, others| Ok(own.max(others)))
        });
        let questions = questions.collect::<Result<_, _>>()?;
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
