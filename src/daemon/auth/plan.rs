//! From a request to what the server is asked.

use std::borrow::Cow;
use std::iter::once;

use crate::deciding::{Ask, Descriptor, How, Plan, Role};
use crate::keys;
use crate::limits::{Asked, Limits, Told};
use crate::settings::Settings;

/// The plan for a request: all policies that it matches are decided together. With the domain of each.
pub fn plan<'a>(limits: &'a Limits, settings: &Settings, asked: &Asked) -> Told<(Plan<'a>, Vec<&'a str>)> {
    let mut plan = Plan::default();
    let mut domains = Vec::new();
    for (domain, policy) in limits.policies() {
        if !policy.matching.matches(asked)? {
            continue;
        }
        let (name, value) = (&*policy.rule.name, policy.key.filled(asked)?);
        let asks = policy.rule.limits.iter().map(|limit| {
            let pair = once((name, &*value));
            let window = limit.quota.geometry.window();
            let key = keys::spell(&settings.key_prefix, &domain.name, domain.hash_tag.as_deref(), pair, window);
            let how = if limit.record { How::Record } else { How::Allow };
            let role = if policy.rule.shadow_mode { Role::Shadow } else { Role::Decides };
            plan.asks.push(Ask { how, role, limit: Cow::Borrowed(limit), key, hits: policy.cost });
            plan.asks.len() - 1
        });
        let asks = asks.collect();
        let (rule, measured) = (Some(&policy.rule), Cow::Borrowed(name));
        plan.descriptors.push(Descriptor { rule, measured, hits: policy.cost, asks });
        domains.push(&*domain.name);
    }
    Ok((plan, domains))
}
