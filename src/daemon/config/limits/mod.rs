//! The configured limits, and the lookup of those that match a request.

mod document;
mod entry;
mod index;
mod matching;
mod merge;
mod networks;
mod periods;
mod rule;
mod template;
#[cfg(test)]
mod tests;
mod wildcard;

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;

pub use document::{Metadata, Unit};
pub use entry::Entry;
use index::Index;
use matching::ConditionsIndex;
pub use matching::{MissingHeader, OriginalRequest};
use merge::{Context, Levels, MergedLevel};
pub use networks::{NetworkDecision, NetworkRules};
pub use periods::{Anchor, Periods};
use rule::Level;
pub use rule::{default_geometry, warm_up, Lifetime, Limit, Per, Policy, Rule};
pub use template::joined;
use wildcard::Wildcard;

use super::error::{parse, ConfigError};
use super::policy::OnFailure;
use super::settings::Settings;
use super::source::Source;

/// All limits.
#[derive(Debug, Default)]
pub struct Limits {
    domains: BTreeMap<String, Domain>,
    /// The places of all policies: domain and number.
    policies: Vec<(String, usize)>,
    by_conditions: ConditionsIndex,
    /// The networks of all domains.
    pub networks: NetworkRules,
    /// Policies that clients can bypass.
    pub warnings: Vec<ConfigError>,
}

/// The limits of one domain.
#[derive(Debug)]
pub struct Domain {
    pub name: String,
    /// The descriptor entry that is the keys' hash tag, instead of the domain.
    pub hash_tag: Option<String>,
    /// The rule of limits from requests.
    pub from_requests: Rule,
    top: Descriptors,
    policies: Vec<Policy>,
}

/// The descriptors of one level, by key.
#[derive(Debug, Default)]
struct Descriptors(HashMap<Vec<u8>, Values, RandomState>);

/// The descriptors of one key: with a value, with a wildcard in file order, and without a value.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Vec<u8>, Descriptor, RandomState>,
    wild: Vec<(Wildcard, Descriptor)>,
    wild_index: Index,
    any: Option<Descriptor>,
}

#[derive(Debug)]
struct Descriptor {
    rule: Option<Rule>,
    below: Descriptors,
}

impl Limits {
    /// Parses all files. The keys of `overlays` override those of `files`.
    pub fn load(files: &[Source], overlays: &[Source], settings: &Settings) -> Result<Self, ConfigError> {
        let mut merged = merge::Domains::new();
        for Source { file, text } in files {
            merge::add(&mut merged, file, parse(file, text)?)?;
        }
        for Source { file, text } in overlays {
            merge::overlay(&mut merged, file, parse(file, text)?)?;
        }
        let descriptors = settings.defaults(OnFailure::Error);
        let mut context = Context::new(settings, descriptors);
        let (mut domains, mut networks) = (BTreeMap::new(), NetworkRules::default());
        for (name, domain) in merged {
            networks.extend(domain.networks);
            context.defaults = descriptors;
            let top = Descriptors::new(domain.top, &[], &mut context)?;
            context.defaults = settings.defaults(OnFailure::Local);
            let policies = domain.policies.into_iter().map(|policy| policy.build(&mut context));
            let policies = policies.collect::<Result<_, _>>()?;
            let quota_mode = settings.quota_mode;
            let from_requests = Rule { name: "(from requests)".into(), quota_mode, ..Rule::default() };
            domains.insert(name.clone(), Domain { name, hash_tag: domain.hash_tag, from_requests, top, policies });
        }
        let policies = domains
            .values()
            .flat_map(|domain: &Domain| (0..domain.policies.len()).map(|number| (domain.name.clone(), number)));
        let conditions = domains.values().flat_map(|domain| &domain.policies).map(|policy| &policy.conditions);
        let (policies, by_conditions) = (policies.collect(), ConditionsIndex::new(conditions));
        Ok(Self { domains, policies, by_conditions, networks, warnings: context.warnings })
    }

    /// The domain with this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All rules, each with its domain.
    pub fn rules(&self) -> Vec<(&Domain, &Rule)> {
        let mut found = Vec::new();
        for domain in self.domains.values() {
            domain.top.visit(&mut |rule| found.push((domain, rule)));
            found.extend(domain.policies.iter().map(|policy| (domain, &policy.rule)));
        }
        found.sort_by_key(|(domain, rule)| (&domain.name, &rule.name));
        found
    }

    /// All policies, each with its domain.
    pub fn policies(&self) -> impl Iterator<Item = (&Domain, &Policy)> {
        self.domains.values().flat_map(|domain| domain.policies.iter().map(move |policy| (domain, policy)))
    }

    /// The policies that a request may match, each with its domain.
    pub fn policies_for(&self, request: &OriginalRequest) -> impl Iterator<Item = (&Domain, &Policy)> {
        let found = self.by_conditions.find(request).into_iter().map(|at| &self.policies[at]);
        found.map(|(domain, number)| {
            let domain = &self.domains[domain];
            (domain, &domain.policies[*number])
        })
    }

    /// All limits in the order of their ids.
    pub fn by_id(&self) -> Vec<&Limit> {
        let mut limits: Vec<_> = self.rules().into_iter().flat_map(|(_, rule)| &rule.limits).collect();
        limits.sort_by_key(|limit| limit.id);
        limits
    }
}

impl Domain {
    /// The rule that a descriptor's entries match, at the same depth.
    pub fn find(&self, entries: &[Entry]) -> Option<&Rule> {
        let (last, before) = entries.split_last()?;
        let level = before.iter().try_fold(&self.top, |level, entry| Some(&level.find(entry)?.below))?;
        level.find(last)?.rule.as_ref()
    }
}

impl Descriptors {
    fn new(levels: Levels, above: &[Level], context: &mut Context) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        for MergedLevel { level, rule, below } in levels.build(above, context)? {
            let below = Self::new(below, &[above, std::slice::from_ref(&level)].concat(), context)?;
            let values = all.0.entry(level.key.into_bytes()).or_default();
            let descriptor = Descriptor { rule, below };
            match Wildcard::new(&level.value) {
                Some(wildcard) => values.wild.push((wildcard, descriptor)),
                None if level.value.is_empty() => values.any = Some(descriptor),
                None => drop(values.exact.insert(level.value.into_bytes(), descriptor)),
            }
        }
        for values in all.0.values_mut() {
            values.wild_index = Index::of_patterns(values.wild.iter().map(|(wildcard, _)| wildcard.texts()));
        }
        Ok(all)
    }

    fn find(&self, entry: &Entry) -> Option<&Descriptor> {
        let values = self.0.get(&entry.key)?;
        let wild = || {
            let found = values.wild_index.find(&entry.value);
            let mut found = found.iter().map(|at| &values.wild[*at]);
            found.find(|(wildcard, _)| wildcard.matches(&entry.value)).map(|(_, descriptor)| descriptor)
        };
        values.exact.get(&entry.value).or_else(wild).or(values.any.as_ref())
    }

    fn visit<'a>(&'a self, visit: &mut impl FnMut(&'a Rule)) {
        for values in self.0.values() {
            let wild = values.wild.iter().map(|(_, descriptor)| descriptor);
            for descriptor in values.exact.values().chain(wild).chain(&values.any) {
                if let Some(rule) = &descriptor.rule {
                    visit(rule);
                }
                descriptor.below.visit(visit);
            }
        }
    }
}
