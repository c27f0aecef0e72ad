//! Merges files: those with limits, then overlays.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use serde_saphyr::{Location, Spanned};
use swlimit_client::{HoldLimiter, Period};
use swlimit_window::{Geometry, GeometryError};

use super::document::{self, Descriptor, Document, RateLimit};
use super::matching::MatchConditions;
use super::networks::NetworkRules;
use super::periods::Periods;
use super::rule::{default_geometry, warm_up, Level, Lifetime, Limit, Per, Policy, Rule};
use crate::config::duration::Duration;
use crate::config::error::ConfigError;
use crate::config::path::PathRules;
use crate::config::policy::{DecisionPolicy, Defaults, Mode, OnFailure, PolicyKeys};
use crate::config::settings::Settings;

/// A position in a file.
#[derive(Clone, Debug)]
struct Position {
    file: Rc<str>,
    location: Location,
}

impl Position {
    fn error(&self, message: impl std::fmt::Display) -> ConfigError {
        ConfigError::at(&self.file, self.location, message)
    }
}

/// A domain, merged from the files read so far.
#[derive(Debug, Default)]
pub struct MergedDomain {
    pub hash_tag: Option<String>,
    pub top: Levels,
    pub policies: Vec<MergedPolicy>,
    pub networks: NetworkRules,
    policy_names: HashSet<String>,
}

/// A policy and its position.
#[derive(Debug)]
pub struct MergedPolicy {
    position: Position,
    written: document::Policy,
}

/// The descriptors of one level, in file order.
#[derive(Debug, Default)]
pub struct Levels {
    all: Vec<MergedRule>,
    by_key_and_value: HashMap<(String, String), usize>,
}

/// A descriptor, and the level below it.
#[derive(Debug)]
pub struct MergedRule {
    position: Position,
    written: Descriptor,
    rate_limits: Vec<(Position, RateLimit)>,
    pub below: Levels,
}

/// The domains of all files, by name.
pub type Domains = BTreeMap<String, MergedDomain>;

/// Adds a file's limits.
pub fn add(domains: &mut Domains, file: &str, document: Document) -> Result<(), ConfigError> {
    let domain = domains.entry(name(file, &document)?.into()).or_default();
    domain.hash_tag = document.hash_tag.or(domain.hash_tag.take());
    if let Some(networks) = document.networks {
        domain.networks.extend(networks.value);
    }
    let file: Rc<str> = file.into();
    for Spanned { value: written, referenced: location, .. } in document.policies {
        let position = Position { file: file.clone(), location };
        if !domain.policy_names.insert(written.name.clone()) {
            return Err(position.error(format!("duplicate policy '{}'", written.name)));
        }
        domain.policies.push(MergedPolicy { position, written });
    }
    domain.top.add(&file, document.descriptors)
}

/// Merges an overlay, whose keys override those of earlier files.
pub fn overlay(domains: &mut Domains, file: &str, document: Document) -> Result<(), ConfigError> {
    let named = name(file, &document)?;
    let Some(domain) = domains.get_mut(named) else {
        return Err(ConfigError::in_file(file, format!("no other file has the domain '{named}'")));
    };
    if let Some(policy) = document.policies.first() {
        return Err(ConfigError::at(file, policy.referenced, "an overlay cannot have policies"));
    }
    if let Some(networks) = document.networks {
        return Err(ConfigError::at(file, networks.referenced, "an overlay cannot have networks"));
    }
    domain.hash_tag = document.hash_tag.or(domain.hash_tag.take());
    domain.top.overlay(&file.into(), document.descriptors)
}

fn name<'a>(file: &str, document: &'a Document) -> Result<&'a str, ConfigError> {
    match &document.domain {
        Some(domain) if !domain.value.is_empty() => Ok(&domain.value),
        Some(domain) => Err(ConfigError::at(file, domain.referenced, "the domain is empty")),
        None => Err(ConfigError::in_file(file, "there is no domain")),
    }
}

impl Levels {
    fn add(&mut self, file: &Rc<str>, descriptors: Vec<Spanned<Descriptor>>) -> Result<(), ConfigError> {
        for Spanned { mut value, referenced: location, .. } in descriptors {
            let position = Position { file: file.clone(), location };
            if value.key.is_empty() {
                return Err(position.error("the descriptor has no key"));
            }
            if value.key.contains('*') {
                return Err(position.error("a key cannot have a '*', only a value can"));
            }
            let names = (value.key.clone(), value.value.clone());
            if self.by_key_and_value.insert(names, self.all.len()).is_some() {
                return Err(position.error(format!("{} is defined twice", described(&value))));
            }
            let mut below = Self::default();
            below.add(file, std::mem::take(&mut value.descriptors))?;
            let rate_limits =
                rate_limits(&position, value.rate_limit.take(), value.rate_limits.take())?.unwrap_or_default();
            self.all.push(MergedRule { position, written: value, rate_limits, below });
        }
        Ok(())
    }

    fn overlay(&mut self, file: &Rc<str>, descriptors: Vec<Spanned<Descriptor>>) -> Result<(), ConfigError> {
        for Spanned { mut value, referenced: location, .. } in descriptors {
            let position = Position { file: file.clone(), location };
            let names = (value.key.clone(), value.value.clone());
            let Some(below) = self.by_key_and_value.get(&names).map(|at| &mut self.all[*at]) else {
                return Err(position.error(format!("no other file has {} here", described(&value))));
            };
            below.below.overlay(file, std::mem::take(&mut value.descriptors))?;
            below.overlay(position, value)?;
        }
        Ok(())
    }

    /// Builds the rules of this level. Each keeps the level below it.
    pub fn build(self, above: &[Level], context: &mut Context) -> Result<Vec<MergedLevel>, ConfigError> {
        self.all.into_iter().map(|merged| merged.build(above, context)).collect()
    }
}

/// The limits of a descriptor or policy, each with its position: from `rate_limits`, or the one of `rate_limit`.
fn rate_limits(
    position: &Position,
    one: Option<Spanned<RateLimit>>,
    several: Option<Vec<Spanned<RateLimit>>>,
) -> Result<Option<Vec<(Position, RateLimit)>>, ConfigError> {
    let all = match (one, several) {
        (Some(_), Some(_)) => return Err(position.error("rate_limit and rate_limits exclude each other")),
        (None, None) => return Ok(None),
        (Some(one), None) => vec![one],
        (None, Some(all)) => all,
    };
    let limits = all.into_iter().map(|one| (Position { location: one.referenced, ..position.clone() }, one.value));
    Ok(Some(limits.collect()))
}

fn described(descriptor: &Descriptor) -> String {
    match &*descriptor.value {
        "" => format!("the descriptor '{}'", descriptor.key),
        value => format!("the descriptor '{}' with the value '{value}'", descriptor.key),
    }
}

/// What rules depend on besides their own keys.
pub struct Context {
    /// The policy at the top of the configuration.
    top: PolicyKeys,
    pub defaults: Defaults,
    /// All descriptors are in quota mode.
    quota_mode: bool,
    paths: PathRules,
    /// The number of limits so far, which is the next one's id.
    limits: usize,
    pub warnings: Vec<ConfigError>,
}

impl Context {
    pub fn new(settings: &Settings, defaults: Defaults) -> Self {
        let (top, quota_mode, paths) = (settings.policy(), settings.quota_mode, settings.auth.paths);
        Self { top, defaults, quota_mode, paths, limits: 0, warnings: Vec::new() }
    }
}

/// A level, its rule if it has limits, and the level below it.
pub struct MergedLevel {
    pub level: Level,
    pub rule: Option<Rule>,
    pub below: Levels,
}

impl MergedRule {
    fn overlay(&mut self, position: Position, mut over: Descriptor) -> Result<(), ConfigError> {
        let is_one = over.rate_limit.is_some();
        if let Some(mut limits) = rate_limits(&position, over.rate_limit.take(), over.rate_limits.take())? {
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
        self.position = position;
        Ok(())
    }

    fn build(self, above: &[Level], context: &mut Context) -> Result<MergedLevel, ConfigError> {
        let Descriptor { key, value, metadata, .. } = self.written;
        let shared = self.written.share_threshold.unwrap_or_default();
        if shared && !value.contains('*') {
            return Err(self.position.error("share_threshold needs a value with a '*'"));
        }
        let value_to_metric = self.written.value_to_metric.unwrap_or_default();
        let level = Level { key, value, shared, value_to_metric };
        if self.rate_limits.is_empty() {
            return Ok(MergedLevel { level, rule: None, below: self.below });
        }
        let levels = [above, std::slice::from_ref(&level)].concat();
        let mut rule = Rule {
            name: Rule::name_of(&levels),
            shadow_mode: self.written.shadow_mode.unwrap_or_default(),
            quota_mode: context.quota_mode || self.written.quota_mode.unwrap_or_default(),
            detailed_metric: self.written.detailed_metric.unwrap_or_default(),
            metadata,
            levels,
            ..Rule::default()
        };
        rule.add_limits(self.rate_limits, context)?;
        Ok(MergedLevel { level, rule: Some(rule), below: self.below })
    }
}

impl MergedPolicy {
    pub fn build(self, context: &mut Context) -> Result<Policy, ConfigError> {
        let document::Policy { name, conditions, key, cost, rate_limit, rate_limits: several, shadow_mode } =
            self.written;
        let error = |message: &str| Err(self.position.error(message));
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
            return error("a policy's name has letters, digits, dots, dashes and underscores");
        }
        let Some(limits) = rate_limits(&self.position, rate_limit, several)? else {
            return error("the policy has no limit");
        };
        let mut rule = Rule { name, shadow_mode, ..Rule::default() };
        rule.add_limits(limits, context)?;
        if !rule.replaces.is_empty() {
            return error("a policy cannot replace limits");
        }
        if conditions.method_exact && conditions.method.is_empty() {
            return error("method_exact needs a method");
        }
        if let Some(ways) = conditions.bypass() {
            let warning = format!("policy '{}' can be bypassed: {ways}", rule.name);
            context.warnings.push(self.position.error(warning));
        }
        let conditions = MatchConditions::new(conditions, context.paths);
        Ok(Policy { rule, conditions, key, cost })
    }
}

impl Rule {
    fn add_limits(
        &mut self,
        rate_limits: Vec<(Position, RateLimit)>,
        context: &mut Context,
    ) -> Result<(), ConfigError> {
        let is_only = rate_limits.len() == 1;
        for (position, written) in rate_limits {
            let error = |message: String| position.error(message);
            self.replaces.extend(written.replaced().map_err(error)?);
            match written.limit(&self.levels, context).map_err(error)? {
                None if is_only => self.unlimited = true,
                None => return Err(position.error("`unlimited` excludes other limits")),
                Some(limit) => {
                    if self.limits.iter().any(|other| other.suffix == limit.suffix) {
                        let kind = match limit.per {
                            Per::Window(_) => "window",
                            Per::Period(_) => "period",
                            Per::Hold(_) => "concurrency",
                        };
                        return Err(position.error(format!("two limits of one rule have the same {kind}")));
                    }
                    self.limits.push(limit);
                }
            }
        }
        Ok(())
    }
}

impl RateLimit {
    /// These keys, and those of `below` where they are missing here.
    fn over(self, below: &Self) -> Self {
        let Self { mut unit, mut window, mut period, .. } = *below;
        if self.unit.is_some() || self.window.is_some() || self.period.is_some() {
            (unit, window, period) = (self.unit, self.window, self.period);
        }
        Self {
            unit,
            window,
            period,
            time_zone: self.time_zone.or_else(|| below.time_zone.clone()),
            anchor: self.anchor.or_else(|| below.anchor.clone()),
            concurrency: self.concurrency.or(below.concurrency),
            ttl: self.ttl.or(below.ttl),
            id: self.id.or_else(|| below.id.clone()),
            requests_per_unit: self.requests_per_unit.or(below.requests_per_unit),
            unlimited: self.unlimited.or(below.unlimited),
            name: self.name.or_else(|| below.name.clone()),
            replaces: self.replaces.or_else(|| below.replaces.clone()),
            resolution: self.resolution.or(below.resolution),
            strict: self.strict.or(below.strict),
            block: self.block.or(below.block),
            record: self.record.or(below.record),
            warm_up: self.warm_up.or(below.warm_up),
            cold: self.cold.or(below.cold),
            priority: self.priority.or(below.priority),
            mode: self.mode.or(below.mode),
            on_failure: self.on_failure.or(below.on_failure),
            local_share: self.local_share.or(below.local_share),
            lease_share: self.lease_share.or(below.lease_share),
            lease_length: self.lease_length.or(below.lease_length),
            sync_interval: self.sync_interval.or(below.sync_interval),
        }
    }

    /// The names of the limits that this one replaces.
    fn replaced(&self) -> Result<Vec<String>, String> {
        let names: Vec<_> = self.replaces.iter().flatten().map(|replaced| replaced.name.clone()).collect();
        if names.iter().any(String::is_empty) {
            return Err("`replaces` needs the name of a limit".into());
        }
        match &self.name {
            Some(own) if names.contains(own) => Err("a limit cannot replace itself".into()),
            _ => Ok(names),
        }
    }

    fn policy(&self) -> PolicyKeys {
        let Self { mode, on_failure, local_share, lease_share, lease_length, sync_interval, .. } = *self;
        PolicyKeys { mode, on_failure, local_share, lease_share, lease_length, sync_interval }
    }

    /// The limit; `None` if it is unlimited.
    fn limit(&self, levels: &[Level], context: &mut Context) -> Result<Option<Limit>, String> {
        if self.unlimited == Some(true) {
            return match (self.unit, self.window, self.period, self.concurrency) {
                (None, None, None, None) => Ok(None),
                _ => Err("`unlimited` excludes unit, window, period and concurrency".into()),
            };
        }
        if self.concurrency.is_none() && (self.ttl.is_some() || self.id.is_some()) {
            return Err("ttl and id are for concurrency".into());
        }
        let (per, policy) = match (self.concurrency, self.period) {
            (Some(_), _) => (Per::Hold(self.lifetime(levels, context)?), self.policy_of_hold(context)?),
            (None, Some(period)) => (Per::Period(self.periods(period)?), self.direct("a period", context)?),
            (None, None) => (Per::Window(self.geometry()?), self.policy().or(context.top).policy(context.defaults)?),
        };
        let warm_up = match &per {
            Per::Window(geometry) => warm_up(self.warm_up.map(|Duration(ms)| ms), self.cold, geometry)?,
            Per::Period(_) | Per::Hold(_) => None,
        };
        let units = self.concurrency.or(self.requests_per_unit).unwrap_or_default();
        let units = self.priority.map_or(units, |share| share.units(units));
        let id = Some(context.limits);
        context.limits += 1;
        Ok(Some(Limit {
            id,
            name: self.name.clone().unwrap_or_default(),
            units,
            suffix: per.spelled(),
            per,
            strict: self.strict.unwrap_or_default(),
            block: self.block.map(|Duration(ms)| ms),
            record: self.record.unwrap_or_default(),
            warm_up,
            is_shared: self.priority.is_some(),
            policy,
        }))
    }

    fn geometry(&self) -> Result<Geometry, String> {
        if self.time_zone.is_some() || self.anchor.is_some() {
            return Err("time_zone and anchor are for a period".into());
        }
        let window = match (self.unit, self.window) {
            (Some(unit), None) => unit.window(),
            (None, Some(Duration(window))) => window,
            (Some(_), Some(_)) => return Err("unit and window exclude each other".into()),
            (None, None) => return Err("unit, window, period or concurrency is missing".into()),
        };
        match self.resolution {
            None => default_geometry(window).ok_or("the window is out of range".into()),
            Some(Duration(resolution)) => Geometry::new(window, resolution).map_err(|error| match error {
                GeometryError::Uneven => "the resolution does not divide the window evenly".into(),
                GeometryError::OutOfRange => "window or resolution is out of range".into(),
                GeometryError::TooMany(n) => format!("window / resolution is {n} subintervals, which is too many"),
            }),
        }
    }

    fn periods(&self, period: Period) -> Result<Periods, String> {
        self.check_excluded("period", &[])?;
        let periods = Periods { period, time_zone: self.time_zone.clone(), anchor: self.anchor.clone() };
        periods.calendar().map_err(|error| error.to_string())?;
        Ok(periods)
    }

    fn lifetime(&self, levels: &[Level], context: &Context) -> Result<Lifetime, String> {
        let others = [
            (self.requests_per_unit.is_some(), "requests_per_unit"),
            (self.period.is_some(), "period"),
            (self.time_zone.is_some(), "time_zone"),
            (self.anchor.is_some(), "anchor"),
            (self.record == Some(true), "record"),
            (self.local_share.is_some(), "local_share"),
        ];
        self.check_excluded("concurrency", &others)?;
        let Some(id) = &self.id else {
            return Err("concurrency needs an id: the descriptor entry that says which request it is".into());
        };
        let Some(id) = levels.iter().position(|level| level.key == *id) else {
            return Err(match levels {
                [] => "concurrency is for descriptors: nothing tells policies when a request ends".into(),
                _ => format!("no entry of the descriptor is the id '{id}'"),
            });
        };
        match self.ttl {
            _ if !context.defaults.has_server => Err("concurrency needs a server".into()),
            Some(Duration(ttl)) if u128::from(ttl) >= HoldLimiter::MIN_TTL.as_millis() => {
                Ok(Lifetime { ttl, id: Some(id) })
            }
            _ => Err("concurrency needs a ttl of at least 3s: the longest that a request counts".into()),
        }
    }

    /// Rejects keys of windows, and the given others.
    fn check_excluded(&self, by: &str, others: &[(bool, &str)]) -> Result<(), String> {
        let of_windows = [
            (self.unit.is_some(), "unit"),
            (self.window.is_some(), "window"),
            (self.resolution.is_some(), "resolution"),
            (self.strict == Some(true), "strict"),
            (self.block.is_some(), "block"),
            (self.warm_up.is_some(), "warm_up"),
            (self.cold.is_some(), "cold"),
            (self.lease_share.is_some(), "lease_share"),
            (self.lease_length.is_some(), "lease_length"),
            (self.sync_interval.is_some(), "sync_interval"),
        ];
        match of_windows.iter().chain(others).find(|(is_set, _)| *is_set) {
            Some((_, name)) => Err(format!("`{by}` excludes `{name}`")),
            None => Ok(()),
        }
    }

    /// `on_failure: local` is rejected: a process does not see the end of requests that other instances grant.
    fn policy_of_hold(&self, context: &Context) -> Result<DecisionPolicy, String> {
        match self.direct("concurrency", context)? {
            DecisionPolicy { on_failure: OnFailure::Local, .. } => {
                Err("the on_failure of concurrency is allow, deny or error".into())
            }
            policy => Ok(policy),
        }
    }

    /// The policy of a limit that the server always decides.
    fn direct(&self, what: &str, context: &Context) -> Result<DecisionPolicy, String> {
        let (mode, name) = if context.defaults.has_server { (Mode::Direct, "direct") } else { (Mode::Local, "local") };
        match self.mode {
            Some(other) if other != mode => Err(format!("the mode of {what} is {name}")),
            _ => Ok(PolicyKeys { mode: Some(mode), ..self.policy().or(context.top) }.policy(context.defaults)?),
        }
    }
}
