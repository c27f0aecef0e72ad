//! Metrics by rule.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};

use ahash::RandomState;
use metrics::{counter, Counter};
use serde::Serialize;

use super::labels::{shortened, Api};
use super::recent::{Recent, TimeRange};
use crate::config::limits::{Limits, Rule};
use crate::config::policy::Mode;
use crate::core::{Answer, Plan, Refusal, Source};

/// Maximum distinct rule labels; the rest share `(other)`.
const MAX_RULES: usize = 10_000;

const OTHER: &str = "(other)";

/// The domain label of the HTTP API. Its rule label is the command.
const API_DOMAIN: &str = "(api)";

/// A key that has used this part of its limit is near it.
const NEAR: f64 = 0.8;

/// The outcome of a request for one of its rules.
#[derive(Clone, Copy)]
enum Outcome {
    Denied,
    Granted,
    /// The rule would have denied, but is in shadow mode.
    Shadowed,
    /// The rule granted, and another one denied the request.
    DeniedElsewhere,
    Error,
    Cancelled,
}

impl Outcome {
    const NAMES: [&str; 6] = ["denied", "granted", "shadowed", "denied_elsewhere", "error", "cancelled"];
}

/// The outcomes that the page shows, which come first.
pub const SHOWN_OUTCOMES: usize = 3;

/// The metrics of all rules.
#[derive(Default)]
pub struct Rules(RwLock<Known>);

#[derive(Default)]
struct Known {
    by_domain: HashMap<String, HashMap<String, Arc<RuleMetrics>, RandomState>, RandomState>,
    count: usize,
}

/// The metrics of one rule.
struct RuleMetrics {
    labels: [(&'static str, String); 2],
    hits: Counter,
    near_limit: Counter,
    shadowed: Counter,
    requests: [Counter; Outcome::NAMES.len()],
    decisions: [[OnceLock<Counter>; 2]; Source::ALL.len()],
    /// Denied, granted and shadowed requests, whatever the number of limits.
    recent: Recent<SHOWN_OUTCOMES>,
}

/// What a rule decided lately.
#[derive(Debug, Serialize)]
pub struct RecentRule {
    pub domain: String,
    #[serde(rename = "rule")]
    pub name: String,
    /// Denied, granted and shadowed requests by step.
    pub steps: Vec<[u32; SHOWN_OUTCOMES]>,
    /// All requests of the last minute.
    pub last_minute: u64,
}

/// Counts a request for each of its rules; as cancelled, if this is dropped before it ends.
pub struct Counting<'a> {
    rules: &'a Rules,
    plan: &'a Plan<'a>,
    /// All rules are in shadow mode.
    shadow_mode: bool,
    is_over: bool,
}

impl Rules {
    /// Keeps series for the rules of a configuration. Other rules, whose names depend on values, have series again when
    /// they decide.
    pub fn keep(&self, limits: &Limits) {
        let known = |domain: &str, name: &str| self.known().find(domain, name);
        let mut kept = Known::default();
        for api in Api::DECIDING {
            kept.add(API_DOMAIN, api.name(), known(API_DOMAIN, api.name()));
        }
        for (domain, rule) in limits.rules().into_iter().filter(|(_, rule)| !rule.has_detailed_label()) {
            let name = &*shortened(&rule.name);
            kept.add(&domain.name, name, known(&domain.name, name)).prepare(rule);
        }
        // Decisions wait for this lock.
        *self.0.write().expect("no code panics while it holds this lock") = kept;
    }

    /// Marks all series as used.
    pub fn touch(&self) {
        for rule in self.all() {
            let fixed = rule.requests.iter().chain([&rule.hits, &rule.near_limit, &rule.shadowed]);
            let decisions = rule.decisions.iter().flatten().filter_map(OnceLock::get);
            fixed.chain(decisions).for_each(|counter| counter.increment(0));
        }
    }

    /// Begins to count a request, with all rules in shadow mode or only those that say so.
    pub fn count<'a>(&'a self, plan: &'a Plan<'a>, shadow_mode: bool) -> Counting<'a> {
        Counting { rules: self, plan, shadow_mode, is_over: false }
    }

    /// Counts a decision of the HTTP API.
    pub fn count_command(&self, api: Api, hits: u64, answers: &[Answer]) {
        if let Some(rule) = self.rule(API_DOMAIN, api.name(), true) {
            let is_denied = answers.iter().any(|answer| !answer.granted);
            rule.decided(hits, answers.iter(), is_denied, false);
        }
    }

    /// Ends a step of the recent counts.
    pub fn end_step(&self) {
        for rule in self.all() {
            rule.recent.step();
        }
    }

    /// The rules that decided lately.
    pub fn recent(&self, range: TimeRange) -> Vec<RecentRule> {
        let all = self.all();
        let recent = all.iter().filter_map(|rule| {
            let [domain, name] = rule.labels.clone().map(|(_, label)| label);
            Some(RecentRule { domain, name, steps: rule.recent.steps(range)?, last_minute: rule.recent.last_minute() })
        });
        recent.collect()
    }

    fn all(&self) -> Vec<Arc<RuleMetrics>> {
        self.known().by_domain.values().flat_map(HashMap::values).cloned().collect()
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().expect("no code panics while it holds this lock")
    }

    /// The metrics of a rule by its label; `None` if it has none and may add none.
    fn rule(&self, domain: &str, name: &str, adds: bool) -> Option<Arc<RuleMetrics>> {
        let name = &*shortened(name);
        let known = self.known().find(domain, name);
        if known.is_some() || !adds {
            return known;
        }
        let mut rules = self.0.write().expect("no code panics while it holds this lock");
        let known = rules.find(domain, name); // by now, perhaps
        Some(rules.add(domain, name, known))
    }
}

impl Known {
    fn find(&self, domain: &str, name: &str) -> Option<Arc<RuleMetrics>> {
        self.by_domain.get(domain)?.get(name).cloned()
    }

    /// Adds a rule, with the metrics it had.
    fn add(&mut self, domain: &str, name: &str, metrics: Option<Arc<RuleMetrics>>) -> Arc<RuleMetrics> {
        let (domain, name) = if self.count < MAX_RULES { (domain, name) } else { (OTHER, OTHER) };
        let rules = self.by_domain.entry(domain.into()).or_default();
        let count = &mut self.count;
        let new = || {
            *count += 1;
            metrics.filter(|_| domain != OTHER).unwrap_or_else(|| Arc::new(RuleMetrics::new(domain, name)))
        };
        rules.entry(name.into()).or_insert_with(new).clone()
    }
}

impl Counting<'_> {
    /// Ends the request. Only a plan of the current configuration adds series. `unmatched` counts descriptors without
    /// a rule.
    pub fn end(mut self, decided: &Result<Vec<Answer>, Refusal>, is_current: bool, mut unmatched: impl FnMut()) {
        self.is_over = true;
        let Ok(answers) = decided else { return self.count_all(Outcome::Error, is_current) };
        let is_denied = !self.shadow_mode && self.plan.is_denied(|at| !answers[at].granted);
        for descriptor in &self.plan.descriptors {
            let Some(rule) = descriptor.rule else {
                unmatched();
                continue;
            };
            if let Some(metrics) = self.rules.rule(descriptor.domain, &descriptor.label, is_current) {
                let answers = descriptor.questions.iter().map(|at| &answers[*at]);
                metrics.decided(descriptor.hits, answers, is_denied, self.shadow_mode || rule.shadow_mode);
            }
        }
    }

    fn count_all(&self, outcome: Outcome, adds: bool) {
        for descriptor in self.plan.descriptors.iter().filter(|descriptor| descriptor.rule.is_some()) {
            if let Some(metrics) = self.rules.rule(descriptor.domain, &descriptor.label, adds) {
                metrics.hits.increment(descriptor.hits);
                metrics.requests[outcome as usize].increment(1);
            }
        }
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.count_all(Outcome::Cancelled, false);
        }
    }
}

impl RuleMetrics {
    fn new(domain: &str, name: &str) -> Self {
        let labels = [("domain", domain.into()), ("rule", name.into())];
        let [domain, rule] = labels.clone();
        let requests = Outcome::NAMES.map(|outcome| {
            let labels = [domain.clone(), rule.clone(), ("outcome", outcome.into())];
            counter!("swlimitd_rule_requests_total", &labels)
        });
        Self {
            hits: counter!("swlimitd_hits_total", &labels),
            near_limit: counter!("swlimitd_near_limit_total", &labels),
            shadowed: counter!("swlimitd_shadowed_total", &labels),
            requests,
            decisions: Default::default(),
            recent: Recent::default(),
            labels,
        }
    }

    /// Makes the series of the sources that may decide the rule's limits.
    fn prepare(&self, rule: &Rule) {
        for limit in &rule.limits {
            let sources: &[Source] = match limit.policy.mode {
                Mode::Local => &[Source::Local],
                Mode::Direct => &[Source::Server, Source::Failure],
                Mode::Leased => &[Source::Server, Source::Cache, Source::Lease, Source::Failure],
                Mode::Eventual => &[Source::Server, Source::Eventual, Source::Failure],
                _ => &[Source::Server, Source::Cache, Source::Failure],
            };
            for source in sources {
                self.decision(*source, false);
                self.decision(*source, true);
            }
        }
    }

    /// Counts a request with the answers of the rule's limits.
    fn decided<'a>(&self, hits: u64, answers: impl Iterator<Item = &'a Answer>, is_denied: bool, in_shadow: bool) {
        self.hits.increment(hits);
        let mut granted = true;
        for answer in answers {
            granted &= answer.granted;
            self.answered(answer, in_shadow);
        }
        let outcome = match granted {
            false if in_shadow => Outcome::Shadowed,
            false => Outcome::Denied,
            true if is_denied => Outcome::DeniedElsewhere,
            true => Outcome::Granted,
        };
        self.requests[outcome as usize].increment(1);
        if (outcome as usize) < SHOWN_OUTCOMES {
            self.recent.count(outcome as usize);
        }
    }

    fn answered(&self, answer: &Answer, in_shadow: bool) {
        self.decision(answer.source, answer.granted).increment(1);
        let is_near = |remaining: u64| (remaining as f64) < (1.0 - NEAR) * answer.limit as f64;
        if answer.granted && answer.remaining.is_some_and(is_near) {
            self.near_limit.increment(1);
        }
        if !answer.granted && in_shadow {
            self.shadowed.increment(1);
        }
    }

    fn decision(&self, source: Source, granted: bool) -> &Counter {
        self.decisions[source as usize][usize::from(granted)].get_or_init(|| {
            let [domain, rule] = self.labels.clone();
            let decision = if granted { "granted" } else { "denied" };
            let labels = [domain, rule, ("decision", decision.into()), ("source", source.as_str().into())];
            counter!("swlimitd_decisions_total", &labels)
        })
    }
}
