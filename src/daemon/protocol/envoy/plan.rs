//! Plans the decision of a request.

use std::borrow::Cow;
use std::collections::HashSet;

use ahash::RandomState;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use swlimit_window::MAX_EXACT;

use super::request::{self, Request};
use crate::config::limits::{default_geometry, Domain, Limit, Limits, Per, Rule, Unit};
use crate::config::policy::DecisionPolicy;
use crate::core::{keys, Descriptor, Operation, Plan, Question, Refusal, Role};

/// The most descriptors of a request, and so the most keys of one command.
const MAX_DESCRIPTORS: usize = 1000;

/// The longest id of a hold, in bytes.
const MAX_ID: usize = 128;

/// Makes plans.
#[derive(Debug)]
pub struct Planner<'a> {
    pub limits: &'a Limits,
    pub prefix: &'a str,
    /// The policy of limits from requests.
    pub policy: DecisionPolicy,
}

impl<'a> Planner<'a> {
    /// The plan for a request.
    pub fn plan(&self, request: &'a Request) -> Result<Plan<'a>, Refusal> {
        if request.domain.is_empty() {
            return Err(Refusal::invalid("the domain is empty"));
        }
        if request.descriptors.is_empty() {
            return Err(Refusal::invalid("there are no descriptors"));
        }
        if request.descriptors.len() > MAX_DESCRIPTORS {
            return Err(Refusal::invalid("there are more than 1000 descriptors"));
        }
        let domain = self.limits.domain(&request.domain);
        let matched: Vec<_> = request
            .descriptors
            .iter()
            .map(|descriptor| domain.and_then(|domain| self.matched(domain, descriptor).transpose()).transpose())
            .collect::<Result<_, _>>()?;
        let replaced: HashSet<&String, RandomState> =
            matched.iter().flatten().flat_map(|matched| &matched.rule.replaces).collect();
        // A single rule in quota mode denies by itself, like any other rule.
        let several_quotas = matched.iter().flatten().filter(|matched| matched.rule.quota_mode).count() > 1;

        let mut plan = Plan { descriptors: Vec::with_capacity(request.descriptors.len()), ..Plan::default() };
        for (descriptor, matched) in request.descriptors.iter().zip(matched) {
            let (hits, entries) = (hits(request, descriptor)?, &*descriptor.entries);
            let Some(matched) = matched else {
                plan.descriptors.push(Descriptor { hits, entries, ..Descriptor::unmatched() });
                continue;
            };
            let role = match (matched.rule.shadow_mode, matched.rule.quota_mode && several_quotas) {
                (true, _) => Role::Shadow,
                (false, true) => Role::Quota,
                (false, false) => Role::Decides,
            };
            let limits =
                matched.rule.limits.iter().map(Cow::Borrowed).chain(matched.brought.map(|limit| Cow::Owned(*limit)));
            let in_force = limits.filter(|limit| !replaced.contains(&limit.name));
            let questions = in_force
                .map(|limit| {
                    let operation = match () {
                        _ if hits == 0 => Operation::Peek,
                        _ if descriptor.is_negative_hits => Operation::Refund,
                        _ if limit.record => Operation::Record,
                        _ => Operation::Allow,
                    };
                    let key = self.key(matched.domain, matched.rule, descriptor, &limit);
                    let id = limit.per.id().map(|level| id_of(descriptor, level)).transpose()?.map(Cow::Borrowed);
                    let question = Question::new(limit, key, hits.max(1));
                    let question = Question { operation, role, id, is_proxys: true, ..question };
                    plan.ask(question, |own, others| match operation {
                        Operation::Peek => Ok(own),
                        _ if own + others > MAX_EXACT => {
                            Err(Refusal::invalid("the hits of equal descriptors are above 2^53 - 1"))
                        }
                        _ => Ok(own + others),
                    })
                })
                .collect::<Result<_, _>>()?;
            let (rule, domain) = (matched.rule, &*matched.domain.name);
            let label = rule.label(entries);
            plan.descriptors.push(Descriptor { rule: Some(rule), entries, domain, label, hits, questions });
        }
        Ok(plan)
    }

    /// The rule that a descriptor matches, with its limits or the descriptor's own limit.
    fn matched(&self, domain: &'a Domain, descriptor: &'a request::Descriptor) -> Result<Option<Matched<'a>>, Refusal> {
        let Some(limit) = &descriptor.limit else {
            let rule = domain.find(&descriptor.entries);
            return Ok(rule.map(|rule| Matched { domain, rule, brought: None }));
        };
        let unit = match limit.unit() {
            RateLimitUnit::Second => Unit::Second,
            RateLimitUnit::Minute => Unit::Minute,
            RateLimitUnit::Hour => Unit::Hour,
            RateLimitUnit::Day => Unit::Day,
            RateLimitUnit::Month => Unit::Month,
            RateLimitUnit::Year => Unit::Year,
            RateLimitUnit::Unknown => return Err(Refusal::invalid("the unit of a descriptor's limit is unknown")),
        };
        let geometry = default_geometry(unit.window()).expect("units are windows");
        let units = limit.requests_per_unit.into();
        let brought = Some(Box::new(Limit::from_request(units, Per::Window(geometry), self.policy)));
        Ok(Some(Matched { domain, rule: &domain.from_requests, brought }))
    }

    fn key(&self, domain: &Domain, rule: &Rule, descriptor: &request::Descriptor, limit: &Limit) -> String {
        let id = limit.per.id();
        let count = descriptor.entries.len() - usize::from(limit.is_shared); // the last one is the priority
        let entries = descriptor.entries.iter().enumerate().take(count).filter(|(at, _)| Some(*at) != id);
        keys::name(
            self.prefix,
            &domain.name,
            domain.hash_tag.as_deref(),
            entries.map(|(at, entry)| (&*entry.key, rule.key_value(at, entry))),
            &limit.suffix,
        )
    }
}

struct Matched<'a> {
    domain: &'a Domain,
    rule: &'a Rule,
    /// The limit of the descriptor itself; its rule has none.
    brought: Option<Box<Limit>>,
}

/// The hits of a descriptor: its own number, or the request's, where 0 means 1.
fn hits(request: &Request, descriptor: &request::Descriptor) -> Result<u64, Refusal> {
    match descriptor.hits_addend {
        Some(own) if own > MAX_EXACT => Err(Refusal::invalid("a descriptor's hits_addend is above 2^53 - 1")),
        Some(own) => Ok(own),
        None => Ok(request.hits_addend.max(1).into()),
    }
}

/// The entry that identifies the request.
fn id_of(descriptor: &request::Descriptor, level: usize) -> Result<&[u8], Refusal> {
    match descriptor.entries.get(level) {
        Some(entry) if (1..=MAX_ID).contains(&entry.value.len()) => Ok(&entry.value),
        _ => Err(Refusal::invalid("the id of a request is 1 to 128 bytes")),
    }
}
