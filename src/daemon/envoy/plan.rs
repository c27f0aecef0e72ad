//! From a request to what the server is asked.

use std::borrow::Cow;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use swlimit_window::{Quota, MAX_EXACT};

use crate::deciding::{Ask, Descriptor, How, Plan, Role};
use crate::keys;
use crate::limits::{default_geometry, Domain, Limit, Limits, Manner, Rule, Unit};

/// Why a request has no plan.
#[derive(Debug, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

/// More than anybody needs, and few enough for one command.
const MOST_DESCRIPTORS: usize = 1000;

/// What plans are made with, besides limits.
#[derive(Debug)]
pub struct Planning<'a> {
    pub limits: &'a Limits,
    pub key_prefix: &'a str,
    /// How limits are decided that come with requests.
    pub manner: Manner,
}

impl<'a> Planning<'a> {
    /// The plan for a request.
    pub fn plan(&self, request: &'a RateLimitRequest) -> Result<Plan<'a>, Invalid> {
        if request.domain.is_empty() {
            return Err(Invalid("the domain is empty"));
        }
        if request.descriptors.is_empty() {
            return Err(Invalid("there are no descriptors"));
        }
        if request.descriptors.len() > MOST_DESCRIPTORS {
            return Err(Invalid("there are more than 1000 descriptors"));
        }
        let domain = self.limits.domain(&request.domain);
        let matched: Vec<_> = request
            .descriptors
            .iter()
            .map(|descriptor| domain.and_then(|domain| self.matched(domain, descriptor).transpose()).transpose())
            .collect::<Result<_, _>>()?;
        let replaced: Vec<&String> = matched.iter().flatten().flat_map(|matched| &matched.rule.replaces).collect();
        // One limit that is over its quota is all of them, and can be decided upon with the others.
        let several_quotas = matched.iter().flatten().filter(|matched| matched.rule.quota_mode).count() > 1;

        let mut plan = Plan { asks: Vec::new(), descriptors: Vec::with_capacity(request.descriptors.len()) };
        for (descriptor, matched) in request.descriptors.iter().zip(matched) {
            let hits = hits(request, descriptor)?;
            let Some(matched) = matched else {
                plan.descriptors.push(Descriptor { rule: None, measured: "".into(), hits, asks: Vec::new() });
                continue;
            };
            let role = match (matched.rule.shadow_mode, matched.rule.quota_mode && several_quotas) {
                (true, _) => Role::Shadow,
                (false, true) => Role::Quota,
                (false, false) => Role::Decides,
            };
            let in_force = matched.limits.into_iter().filter(|limit| !replaced.contains(&&limit.name));
            let asks = in_force
                .map(|limit| {
                    let how = match () {
                        _ if hits == 0 => How::Peek,
                        _ if descriptor.is_negative_hits => How::Refund,
                        _ if limit.record => How::Record,
                        _ => How::Allow,
                    };
                    let key = self.key(matched.domain, matched.rule, descriptor, &limit);
                    add(&mut plan, Ask { how, role, limit, key, hits: hits.max(1) })
                })
                .collect::<Result<_, _>>()?;
            let measured = matched.rule.measured(&descriptor.entries);
            plan.descriptors.push(Descriptor { rule: Some(matched.rule), measured, hits, asks });
        }
        Ok(plan)
    }

    /// The rule that a descriptor matches, with its limits; or with the limit that it brings along.
    fn matched(&self, domain: &'a Domain, descriptor: &'a RateLimitDescriptor) -> Result<Option<Matched<'a>>, Invalid> {
        let Some(limit) = &descriptor.limit else {
            let rule = domain.find(&descriptor.entries);
            let limits = |rule: &'a Rule| rule.limits.iter().map(Cow::Borrowed).collect();
            return Ok(rule.map(|rule| Matched { domain, rule, limits: limits(rule) }));
        };
        let unit = match limit.unit() {
            RateLimitUnit::Second => Unit::Second,
            RateLimitUnit::Minute => Unit::Minute,
            RateLimitUnit::Hour => Unit::Hour,
            RateLimitUnit::Day => Unit::Day,
            RateLimitUnit::Month => Unit::Month,
            RateLimitUnit::Year => Unit::Year,
            RateLimitUnit::Unknown => return Err(Invalid("the unit of a descriptor's limit is unknown")),
        };
        let geometry = default_geometry(unit.window()).expect("units are windows");
        let quota = Quota { limit: limit.requests_per_unit.into(), geometry };
        let limits = vec![Cow::Owned(Limit::from_request(quota, self.manner))];
        Ok(Some(Matched { domain, rule: &domain.from_requests, limits }))
    }

    fn key(&self, domain: &Domain, rule: &Rule, descriptor: &RateLimitDescriptor, limit: &Limit) -> String {
        let entries = &descriptor.entries;
        keys::spell(
            self.key_prefix,
            &domain.name,
            domain.hash_tag.as_deref(),
            entries.iter().enumerate().map(|(at, entry)| (&*entry.key, rule.counted(at, entry))),
            limit.quota.geometry.window(),
        )
    }
}

struct Matched<'a> {
    domain: &'a Domain,
    rule: &'a Rule,
    limits: Vec<Cow<'a, Limit>>,
}

/// How many hits a descriptor stands for: its own number, or the request's, where 0 is none.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Result<u64, Invalid> {
    match &descriptor.hits_addend {
        Some(own) if own.value > MAX_EXACT => Err(Invalid("a descriptor's hits_addend is above 2^53 - 1")),
        Some(own) => Ok(own.value),
        None => Ok(request.hits_addend.max(1).into()),
    }
}

/// Add a question to a plan, or add its hits to the one that is the same. Returns its place.
fn add<'a>(plan: &mut Plan<'a>, ask: Ask<'a>) -> Result<usize, Invalid> {
    let same = |other: &Ask| (&other.key, other.how, other.role) == (&ask.key, ask.how, ask.role);
    let Some(at) = plan.asks.iter().position(same) else {
        plan.asks.push(ask);
        return Ok(plan.asks.len() - 1);
    };
    let merged = &mut plan.asks[at];
    if ask.how != How::Peek {
        merged.hits += ask.hits;
    }
    if merged.hits > MAX_EXACT {
        return Err(Invalid("the hits of equal descriptors are above 2^53 - 1"));
    }
    if ask.limit.quota.limit < merged.limit.quota.limit {
        merged.limit = ask.limit; // both have to grant
    }
    Ok(at)
}
