//! Files put together: those with limits, then those that are laid over them.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_saphyr::{Location, Spanned};
use swlimit_window::{Geometry, GeometryError, Quota};

use super::document::{self, Descriptor, Document, Duration, RateLimit, Share};
use super::policy::Policy;
use super::rule::{default_geometry, Level, Limit, Manner, Rule};
use crate::fault::Fault;

/// Where something is written.
#[derive(Clone, Debug)]
struct Place {
    file: Rc<str>,
    location: Location,
}

impl Place {
    fn fault(&self, message: impl std::fmt::Display) -> Fault {
        Fault::at(&self.file, self.location, message)
    }
}

/// A domain as the files read so far have it.
#[derive(Debug, Default)]
pub struct Draft {
    pub hash_tag: Option<String>,
    pub top: Drafts,
    pub policies: Vec<DraftPolicy>,
}

/// A policy, and where it is written.
#[derive(Debug)]
pub struct DraftPolicy {
    place: Place,
    written: document::Policy,
}

/// A level of descriptors, in the order of the files.
#[derive(Debug, Default)]
pub struct Drafts {
    all: Vec<DraftRule>,
    by_key_and_value: HashMap<(String, String), usize>,
}

/// A descriptor without its descriptors, and these.
#[derive(Debug)]
pub struct DraftRule {
    place: Place,
    written: Descriptor,
    rate_limits: Vec<(Place, RateLimit)>,
    pub below: Drafts,
}

/// The domains of all files, by name.
pub type Domains = BTreeMap<String, Draft>;

/// Add a file's limits.
pub fn add(domains: &mut Domains, file: &str, document: Document) -> Result<(), Fault> {
    let domain = domains.entry(name(file, &document)?.into()).or_default();
    domain.hash_tag = document.hash_tag.or(domain.hash_tag.take());
    let file: Rc<str> = file.into();
    for Spanned { value: written, referenced: location, .. } in document.policies {
        let place = Place { file: file.clone(), location };
        if domain.policies.iter().any(|other| other.written.name == written.name) {
            return Err(place.fault(format!("the policy '{}' is there twice", written.name)));
        }
        domain.policies.push(DraftPolicy { place, written });
    }
    domain.top.add(&file, document.descriptors)
}

/// Lay a file over the limits that are there: what it says goes before what they say.
pub fn lay_over(domains: &mut Domains, file: &str, document: Document) -> Result<(), Fault> {
    let named = name(file, &document)?;
    let Some(domain) = domains.get_mut(named) else {
        return Err(Fault::in_file(file, format!("no other file has limits of the domain '{named}'")));
    };
    if let Some(policy) = document.policies.first() {
        return Err(Fault::at(file, policy.referenced, "a policy cannot be laid over others"));
    }
    domain.hash_tag = document.hash_tag.or(domain.hash_tag.take());
    domain.top.lay_over(&file.into(), document.descriptors)
}

fn name<'a>(file: &str, document: &'a Document) -> Result<&'a str, Fault> {
    match &document.domain {
        Some(domain) if !domain.value.is_empty() => Ok(&domain.value),
        Some(domain) => Err(Fault::at(file, domain.referenced, "the domain is empty")),
        None => Err(Fault::in_file(file, "there is no domain")),
    }
}

impl Drafts {
    fn add(&mut self, file: &Rc<str>, descriptors: Vec<Spanned<Descriptor>>) -> Result<(), Fault> {
        for Spanned { mut value, referenced: location, .. } in descriptors {
            let place = Place { file: file.clone(), location };
            if value.key.is_empty() {
                return Err(place.fault("the descriptor has no key"));
            }
            if value.key.contains('*') {
                return Err(place.fault("a key cannot have a '*', only a value can"));
            }
            let names = (value.key.clone(), value.value.clone());
            if self.by_key_and_value.insert(names, self.all.len()).is_some() {
                return Err(place.fault(format!("{} is there twice", described(&value))));
            }
            let mut below = Self::default();
            below.add(file, std::mem::take(&mut value.descriptors))?;
            let rate_limits =
                rate_limits(&place, value.rate_limit.take(), value.rate_limits.take())?.unwrap_or_default();
            self.all.push(DraftRule { place, written: value, rate_limits, below });
        }
        Ok(())
    }

    fn lay_over(&mut self, file: &Rc<str>, descriptors: Vec<Spanned<Descriptor>>) -> Result<(), Fault> {
        for Spanned { mut value, referenced: location, .. } in descriptors {
            let place = Place { file: file.clone(), location };
            let names = (value.key.clone(), value.value.clone());
            let Some(below) = self.by_key_and_value.get(&names).map(|at| &mut self.all[*at]) else {
                return Err(place.fault(format!("no other file has {} here", described(&value))));
            };
            below.below.lay_over(file, std::mem::take(&mut value.descriptors))?;
            below.lay_over(place, value)?;
        }
        Ok(())
    }

    /// The rules of this level, each with the drafts of the level below it.
    pub fn into_rules(self, above: &[Level], making: &mut Making) -> Result<Vec<Made>, Fault> {
        self.all.into_iter().map(|draft| draft.into_rule(above, making)).collect()
    }
}

/// The limits of a descriptor or policy, each with its place: those of `rate_limits`, or the one of `rate_limit`.
fn rate_limits(
    place: &Place,
    one: Option<Spanned<RateLimit>>,
    several: Option<Vec<Spanned<RateLimit>>>,
) -> Result<Option<Vec<(Place, RateLimit)>>, Fault> {
    let all = match (one, several) {
        (Some(_), Some(_)) => return Err(place.fault("rate_limit and rate_limits exclude each other")),
        (None, None) => return Ok(None),
        (Some(one), None) => vec![one],
        (None, Some(all)) => all,
    };
    let placed = all.into_iter().map(|one| (Place { location: one.referenced, ..place.clone() }, one.value));
    Ok(Some(placed.collect()))
}

fn described(descriptor: &Descriptor) -> String {
    match &*descriptor.value {
        "" => format!("the descriptor '{}'", descriptor.key),
        value => format!("the descriptor '{}' with the value '{value}'", descriptor.key),
    }
}

/// What the rules are made with, besides what is written in them.
pub struct Making {
    /// How limits are decided that do not say it.
    pub manner: Manner,
    /// Whether all descriptors' rules are in quota mode.
    pub quota_mode: bool,
    /// How many limits there are so far.
    pub limits: usize,
}

/// A level, its rule if it has limits, and what is below it.
pub struct Made {
    pub level: Level,
    pub rule: Option<Rule>,
    pub below: Drafts,
}

impl DraftRule {
    fn lay_over(&mut self, place: Place, mut over: Descriptor) -> Result<(), Fault> {
        let is_one = over.rate_limit.is_some();
        if let Some(mut limits) = rate_limits(&place, over.rate_limit.take(), over.rate_limits.take())? {
            if let (true, [(_, below)], [(_, over)]) = (is_one, &*self.rate_limits, &mut *limits) {
                *over = over.clone().over(below);
            }
            self.rate_limits = limits;
        }
        let below = &mut self.written;
        below.shadow_mode = over.shadow_mode.or(below.shadow_mode);
        below.quota_mode = over.quota_mode.or(below.quota_mode);
        below.detailed_metric = over.detailed_metric.or(below.detailed_metric);
        below.value_to_metric = over.value_to_metric.or(below.value_to_metric);
        below.share_threshold = over.share_threshold.or(below.share_threshold);
        below.metadata = over.metadata.or(below.metadata.take());
        self.place = place;
        Ok(())
    }

    fn into_rule(self, above: &[Level], making: &mut Making) -> Result<Made, Fault> {
        let Descriptor { key, value, metadata, .. } = self.written;
        let shared = self.written.share_threshold.unwrap_or_default();
        if shared && !value.contains('*') {
            return Err(self.place.fault("share_threshold is for values with a '*'"));
        }
        let value_to_metric = self.written.value_to_metric.unwrap_or_default();
        let level = Level { key, value, shared, value_to_metric };
        if self.rate_limits.is_empty() {
            return Ok(Made { level, rule: None, below: self.below });
        }
        let levels = [above, std::slice::from_ref(&level)].concat();
        let mut rule = Rule {
            name: Rule::name_of(&levels),
            shadow_mode: self.written.shadow_mode.unwrap_or_default(),
            quota_mode: making.quota_mode || self.written.quota_mode.unwrap_or_default(),
            detailed_metric: self.written.detailed_metric.unwrap_or_default(),
            metadata,
            levels,
            ..Rule::default()
        };
        rule.limit(self.rate_limits, making)?;
        Ok(Made { level, rule: Some(rule), below: self.below })
    }
}

impl DraftPolicy {
    pub fn into_policy(self, making: &mut Making) -> Result<Policy, Fault> {
        let document::Policy { name, matching, key, cost, rate_limit, rate_limits: several, shadow_mode } =
            self.written;
        let fault = |message: &str| Err(self.place.fault(message));
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
            return fault("the name of a policy is of letters, digits, dots, dashes and underscores");
        }
        let Some(limits) = rate_limits(&self.place, rate_limit, several)? else {
            return fault("the policy has no limit");
        };
        let mut rule = Rule { name, shadow_mode, ..Rule::default() };
        rule.limit(limits, making)?;
        if !rule.replaces.is_empty() {
            return fault("a policy replaces no limit");
        }
        Ok(Policy { rule, matching, key, cost })
    }
}

impl Rule {
    /// Add its limits.
    fn limit(&mut self, rate_limits: Vec<(Place, RateLimit)>, making: &mut Making) -> Result<(), Fault> {
        let is_only = rate_limits.len() == 1;
        for (place, written) in rate_limits {
            let fault = |message: String| place.fault(message);
            self.replaces.extend(written.replaced().map_err(fault)?);
            match written.limit(making).map_err(fault)? {
                None if is_only => self.unlimited = true,
                None => return Err(place.fault("one of several limits cannot be unlimited")),
                Some(limit) => {
                    let window = limit.quota.geometry.window();
                    if self.limits.iter().any(|other| other.quota.geometry.window() == window) {
                        return Err(place.fault("two limits of one rule have the same window"));
                    }
                    self.limits.push(limit);
                }
            }
        }
        Ok(())
    }
}

impl RateLimit {
    /// What this says, and of what it does not say, what another one says.
    fn over(self, below: &Self) -> Self {
        let Self { mut unit, mut window, .. } = below.clone();
        if self.unit.is_some() || self.window.is_some() {
            (unit, window) = (self.unit, self.window);
        }
        Self {
            unit,
            window,
            requests_per_unit: self.requests_per_unit.or(below.requests_per_unit),
            unlimited: self.unlimited.or(below.unlimited),
            name: self.name.or_else(|| below.name.clone()),
            replaces: self.replaces.or_else(|| below.replaces.clone()),
            resolution: self.resolution.or(below.resolution),
            strict: self.strict.or(below.strict),
            block: self.block.or(below.block),
            record: self.record.or(below.record),
            deciding: self.deciding.or(below.deciding),
            share: self.share.or(below.share),
            interval: self.interval.or(below.interval),
            when_away: self.when_away.or(below.when_away),
        }
    }

    /// The names of the limits that this one replaces.
    fn replaced(&self) -> Result<Vec<String>, String> {
        let names: Vec<_> = self.replaces.iter().flatten().map(|replaced| replaced.name.clone()).collect();
        if names.iter().any(String::is_empty) {
            return Err("a limit that is replaced has no name here".into());
        }
        match &self.name {
            Some(own) if names.contains(own) => Err("a limit cannot replace itself".into()),
            _ => Ok(names),
        }
    }

    /// The limit; none if it is unlimited.
    fn limit(&self, making: &mut Making) -> Result<Option<Limit>, String> {
        if self.unlimited == Some(true) {
            return match (self.unit, self.window) {
                (None, None) => Ok(None),
                _ => Err("what is unlimited has no unit or window".into()),
            };
        }
        let window = match (self.unit, self.window) {
            (Some(unit), None) => unit.window(),
            (None, Some(Duration(window))) => window,
            (Some(_), Some(_)) => return Err("unit and window exclude each other".into()),
            (None, None) => return Err("there is neither unit nor window".into()),
        };
        let geometry = match self.resolution {
            None => default_geometry(window).ok_or("the window is out of range")?,
            Some(Duration(resolution)) => Geometry::new(window, resolution).map_err(|error| match error {
                GeometryError::Uneven => "the resolution does not divide the window evenly".into(),
                GeometryError::OutOfRange => "window or resolution is out of range".into(),
                GeometryError::TooMany(n) => format!("window / resolution is {n} subintervals, which is too many"),
            })?,
        };
        let id = Some(making.limits);
        making.limits += 1;
        let usual = making.manner;
        Ok(Some(Limit {
            id,
            name: self.name.clone().unwrap_or_default(),
            quota: Quota { limit: self.requests_per_unit.unwrap_or_default(), geometry },
            strict: self.strict.unwrap_or_default(),
            block: self.block.map(|Duration(ms)| ms),
            record: self.record.unwrap_or_default(),
            manner: Manner {
                deciding: self.deciding.unwrap_or(usual.deciding),
                share: self.share.map_or(usual.share, |Share(share)| share),
                interval: self.interval.map_or(usual.interval, |Duration(ms)| ms),
                when_away: self.when_away.unwrap_or(usual.when_away),
            },
        }))
    }
}
