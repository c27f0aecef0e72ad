//! What is limited: configuration, and which of it holds for a request.

mod document;
mod draft;
mod policy;
mod rule;
mod template;
#[cfg(test)]
mod tests;
mod wildcard;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

pub use document::{Deciding, Duration, Metadata, Share, Unit, WhenAway};
use draft::{Drafts, Making};
pub use policy::{Asked, Missing, Policy, Told};
use rule::Level;
pub use rule::{default_geometry, Limit, Manner, Rule};
pub use template::joined;
use wildcard::Wildcard;

use crate::fault::{parse, Fault};

/// A file's name and text.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    pub file: String,
    pub text: String,
}

impl Source {
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { file, text }),
            Err(error) => Err(Fault::in_file(&file, error)),
        }
    }
}

/// All limits.
#[derive(Debug, Default)]
pub struct Limits {
    domains: BTreeMap<String, Domain>,
}

/// The limits of one domain.
#[derive(Debug)]
pub struct Domain {
    pub name: String,
    /// The entry of each descriptor that its keys have for a hash tag, in place of the domain.
    pub hash_tag: Option<String>,
    /// What stands for limits that come with a request.
    pub from_requests: Rule,
    top: Descriptors,
    policies: Vec<Policy>,
}

/// The descriptors of one level, by key.
#[derive(Debug, Default)]
struct Descriptors(HashMap<String, Values>);

/// The descriptors of one key: with a value, with a `*` in it, in the order of the files, and with none.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<String, Descriptor>,
    wild: Vec<(Wildcard, Descriptor)>,
    any: Option<Descriptor>,
}

#[derive(Debug)]
struct Descriptor {
    rule: Option<Rule>,
    below: Descriptors,
}

impl Limits {
    /// The limits of all files. `overlays` are laid over `files`; `manner` is for limits that do not say theirs, and
    /// `quota_mode` for all descriptors' rules.
    pub fn load(files: &[Source], overlays: &[Source], manner: Manner, quota_mode: bool) -> Result<Self, Fault> {
        let mut drafts = draft::Domains::new();
        for Source { file, text } in files {
            draft::add(&mut drafts, file, parse(file, text)?)?;
        }
        for Source { file, text } in overlays {
            draft::lay_over(&mut drafts, file, parse(file, text)?)?;
        }
        let mut making = Making { manner, quota_mode, limits: 0 };
        let mut domains = BTreeMap::new();
        for (name, draft) in drafts {
            let top = Descriptors::new(draft.top, &[], &mut making)?;
            let from_requests = Rule { name: "(from requests)".into(), quota_mode, ..Rule::default() };
            let policies = draft.policies.into_iter().map(|draft| draft.into_policy(&mut making));
            let policies = policies.collect::<Result<_, _>>()?;
            domains.insert(name.clone(), Domain { name, hash_tag: draft.hash_tag, from_requests, top, policies });
        }
        Ok(Self { domains })
    }

    /// The domain of a request.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All rules, each with its domain.
    pub fn rules(&self) -> Vec<(&Domain, &Rule)> {
        let mut found = Vec::new();
        for domain in self.domains.values() {
            domain.top.each(&mut |rule| found.push((domain, rule)));
            found.extend(domain.policies.iter().map(|policy| (domain, &policy.rule)));
        }
        found.sort_by_key(|(domain, rule)| (&domain.name, &rule.name));
        found
    }

    /// All policies, each with its domain.
    pub fn policies(&self) -> impl Iterator<Item = (&Domain, &Policy)> {
        self.domains.values().flat_map(|domain| domain.policies.iter().map(move |policy| (domain, policy)))
    }

    /// All limits, by their ids.
    pub fn by_id(&self) -> Vec<&Limit> {
        let mut limits: Vec<_> = self.rules().into_iter().flat_map(|(_, rule)| &rule.limits).collect();
        limits.sort_by_key(|limit| limit.id);
        limits
    }
}

impl Domain {
    /// The rule that a descriptor's entries match: of all levels, none left over here or there.
    pub fn find(&self, entries: &[Entry]) -> Option<&Rule> {
        let (last, before) = entries.split_last()?;
        let level = before.iter().try_fold(&self.top, |level, entry| Some(&level.find(entry)?.below))?;
        level.find(last)?.rule.as_ref()
    }
}

impl Descriptors {
    fn new(drafts: Drafts, above: &[Level], making: &mut Making) -> Result<Self, Fault> {
        let mut all = Self::default();
        for draft::Made { level, rule, below } in drafts.into_rules(above, making)? {
            let below = Self::new(below, &[above, std::slice::from_ref(&level)].concat(), making)?;
            let values = all.0.entry(level.key).or_default();
            let descriptor = Descriptor { rule, below };
            match Wildcard::new(&level.value) {
                Some(wildcard) => values.wild.push((wildcard, descriptor)),
                None if level.value.is_empty() => values.any = Some(descriptor),
                None => drop(values.exact.insert(level.value, descriptor)),
            }
        }
        Ok(all)
    }

    fn find(&self, entry: &Entry) -> Option<&Descriptor> {
        let values = self.0.get(&entry.key)?;
        let wild = || values.wild.iter().find(|(wildcard, _)| wildcard.matches(&entry.value)).map(|(_, found)| found);
        values.exact.get(&entry.value).or_else(wild).or(values.any.as_ref())
    }

    fn each<'a>(&'a self, tell: &mut impl FnMut(&'a Rule)) {
        for values in self.0.values() {
            let wild = values.wild.iter().map(|(_, descriptor)| descriptor);
            for descriptor in values.exact.values().chain(wild).chain(&values.any) {
                if let Some(rule) = &descriptor.rule {
                    tell(rule);
                }
                descriptor.below.each(tell);
            }
        }
    }
}
