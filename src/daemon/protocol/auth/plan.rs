//! Plans the decision of the policies that match a request.

use std::borrow::Cow;
use std::iter::once;

use crate::config::limits::{Limits, MissingHeader, OriginalRequest};
use crate::core::{keys, Descriptor, Operation, Plan, Question, Role};

/// The plan of a request: all matching policies are one decision.
pub fn plan<'a>(limits: &'a Limits, prefix: &str, request: &OriginalRequest) -> Result<Plan<'a>, MissingHeader> {
    let mut plan = Plan::default();
    for (domain, policy) in limits.policies() {
        let Some(key) = policy.key_of(request)? else { continue };
        let rule = &policy.rule;
        let first = plan.questions.len();
        plan.questions.extend(rule.limits.iter().map(|limit| {
            let pair = once((rule.name.as_bytes(), key.as_bytes()));
            let window = limit.quota.geometry.window();
            Question {
                operation: if limit.record { Operation::Record } else { Operation::Allow },
                role: if rule.shadow_mode { Role::Shadow } else { Role::Decides },
                limit: Cow::Borrowed(limit),
                key: keys::name(prefix, &domain.name, domain.hash_tag.as_deref(), pair, window),
                hits: policy.cost,
            }
        }));
        plan.descriptors.push(Descriptor {
            rule: Some(rule),
            domain: &domain.name,
            label: Cow::Borrowed(&rule.name),
            hits: policy.cost,
            questions: (first..plan.questions.len()).collect(),
        });
    }
    Ok(plan)
}
