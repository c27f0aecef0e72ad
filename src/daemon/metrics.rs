//! What is counted and measured, for Prometheus.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram, Counter, Histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use swlimit_client::{Statistics, Way};

use crate::deciding::Answer;
use crate::recent::Recent;

/// Rules that are told apart; of further ones, and of values beyond, is told as of one.
const MOST_RULES: usize = 10_000;
const OTHER: &str = "(other)";

/// The domain of what is decided for the HTTP API. The rule is the command then.
const API_DOMAIN: &str = "(api)";

/// From this share of the limit on, a key is near it.
const NEAR: f64 = 0.8;

/// 50 µs … 1 s.
pub const SECONDS: [f64; 13] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0];

/// How a request came: over which protocol, or for which command of the HTTP API.
#[derive(Clone, Copy)]
pub enum Api {
    Grpc,
    Json,
    Auth,
    Allow,
    AllowAll,
    Peek,
    Record,
    Acquire,
    Refund,
    Block,
    Unblock,
    Demo,
}

impl Api {
    const NAMES: [&str; 12] = [
        "grpc",
        "json",
        "auth",
        "v1/allow",
        "v1/allow_all",
        "v1/peek",
        "v1/record",
        "v1/acquire",
        "v1/refund",
        "v1/block",
        "v1/unblock",
        "demo",
    ];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// How a request ended.
#[derive(Clone, Copy)]
pub enum Ending {
    Ok,
    OverLimit,
    Error,
}

impl Ending {
    const NAMES: [&str; 3] = ["ok", "over_limit", "error"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl<E> From<Result<bool, E>> for Ending {
    /// Of whether the request was denied, or of what went wrong.
    fn from(denied: Result<bool, E>) -> Self {
        match denied {
            Ok(true) => Self::OverLimit,
            Ok(false) => Self::Ok,
            Err(_) => Self::Error,
        }
    }
}

/// Why something has no limit.
#[derive(Clone, Copy)]
pub enum Unmatched {
    Domain,
    Rule,
    Policy,
}

/// Everything that is counted.
pub struct Metrics {
    prometheus: PrometheusHandle,
    rules: RwLock<Rules>,
    requests: [[Counter; Ending::NAMES.len()]; Api::NAMES.len()],
    durations: [OnceLock<Histogram>; Api::NAMES.len()],
    unmatched: [Counter; 3],
    /// Requests by how long they took: by the bounds of `SECONDS`, and longer.
    pub recent_durations: Recent<{ SECONDS.len() + 1 }>,
    /// The client's decisions by way.
    pub recent_ways: Recent<{ Way::ALL.len() }>,
}

#[derive(Default)]
struct Rules {
    by_domain: HashMap<String, HashMap<String, Arc<RuleMetrics>>>,
    count: usize,
}

/// What is counted of one rule.
pub struct RuleMetrics {
    labels: [(&'static str, String); 2],
    hits: Counter,
    near_limit: Counter,
    shadowed: Counter,
    decisions: [[OnceLock<Counter>; 2]; Way::ALL.len()],
    /// What was denied, and what was granted, whatever the number of limits.
    recent: Recent<2>,
}

impl Metrics {
    /// Begin to count. Once in a process.
    pub fn install() -> Self {
        let buckets = Matcher::Full("swlimitd_request_duration_seconds".into());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(buckets, &SECONDS).expect("there are buckets");
        let prometheus = builder.install_recorder().expect("it is the first one");
        describe();
        let requests = Api::NAMES.map(|api| {
            Ending::NAMES.map(|ending| counter!("swlimitd_requests_total", "api" => api, "result" => ending))
        });
        let unmatched = ["domain", "rule", "policy"].map(|why| counter!("swlimitd_unmatched_total", "why" => why));
        Self {
            prometheus,
            rules: RwLock::default(),
            requests,
            durations: Default::default(),
            unmatched,
            recent_durations: Recent::default(),
            recent_ways: Recent::default(),
        }
    }

    /// All of it, as Prometheus reads it.
    pub fn render(&self, client: &Statistics) -> String {
        client.publish();
        self.prometheus.render()
    }

    /// Put what was measured in order, and end a step of what is remembered; every [`STEP`](crate::recent::STEP).
    pub fn tidy(&self, client: &Statistics) {
        self.prometheus.run_upkeep();
        self.recent_durations.step();
        self.count_ways(client);
        self.recent_ways.step();
        for rule in self.rules().by_domain.values().flat_map(HashMap::values) {
            rule.recent.step();
        }
    }

    /// Take over how often the client decided.
    pub fn count_ways(&self, client: &Statistics) {
        for way in Way::ALL {
            self.recent_ways.set(way as usize, client.granted(way) + client.denied(way));
        }
    }

    /// The rules that decided lately, with their domains, and how often they denied and granted in each step.
    pub fn recent_rules(&self) -> Vec<([String; 2], Vec<[u32; 2]>)> {
        let rules = self.rules();
        let all = rules.by_domain.values().flat_map(HashMap::values);
        all.filter_map(|rule| Some((rule.labels.clone().map(|(_, name)| name), rule.recent.steps()?))).collect()
    }

    pub fn ended(&self, api: Api, ending: Ending, began: Instant) {
        let took = began.elapsed();
        self.requests[api as usize][ending as usize].increment(1);
        let durations = self.durations[api as usize]
            .get_or_init(|| histogram!("swlimitd_request_duration_seconds", "api" => api.name()));
        durations.record(took);
        self.recent_durations.count(SECONDS.partition_point(|bound| *bound < took.as_secs_f64()));
    }

    fn rules(&self) -> RwLockReadGuard<'_, Rules> {
        self.rules.read().expect("nobody panics with it")
    }

    /// A descriptor has no limit, or a request no policy.
    pub fn unmatched(&self, why: Unmatched) {
        self.unmatched[why as usize].increment(1);
    }

    /// What is counted of the decisions for a command of the HTTP API.
    pub fn command(&self, api: Api) -> Arc<RuleMetrics> {
        self.rule(API_DOMAIN, api.name())
    }

    /// What is counted of a rule, by the name that metrics have for it.
    pub fn rule(&self, domain: &str, name: &str) -> Arc<RuleMetrics> {
        if let Some(known) = self.rules().find(domain, name) {
            return known;
        }
        let mut rules = self.rules.write().expect("nobody panics with it");
        let (domain, name) = if rules.count < MOST_RULES { (domain, name) } else { (OTHER, OTHER) };
        if let Some(known) = rules.find(domain, name) {
            return known;
        }
        rules.count += 1;
        let new = Arc::new(RuleMetrics::new(domain, name));
        rules.by_domain.entry(domain.into()).or_default().insert(name.into(), new.clone());
        new
    }
}

impl Rules {
    fn find(&self, domain: &str, name: &str) -> Option<Arc<RuleMetrics>> {
        self.by_domain.get(domain)?.get(name).cloned()
    }
}

impl RuleMetrics {
    fn new(domain: &str, name: &str) -> Self {
        let labels = [("domain", domain.into()), ("rule", name.into())];
        Self {
            hits: counter!("swlimitd_hits_total", &labels),
            near_limit: counter!("swlimitd_near_limit_total", &labels),
            shadowed: counter!("swlimitd_shadowed_total", &labels),
            decisions: Default::default(),
            recent: Recent::default(),
            labels,
        }
    }

    /// A request had so many hits for this rule. Each of its limits decided, with how much it admits.
    pub fn decided<'a>(&self, hits: u64, decisions: impl Iterator<Item = (&'a Answer, u64)>, in_shadow: bool) {
        self.hits.increment(hits);
        let mut granted = true;
        for (answer, limit) in decisions {
            granted &= answer.granted;
            self.one_decided(answer, limit, in_shadow);
        }
        self.recent.count(usize::from(granted));
    }

    fn one_decided(&self, answer: &Answer, limit: u64, in_shadow: bool) {
        let counter = self.decisions[answer.way as usize][usize::from(answer.granted)].get_or_init(|| {
            let [domain, rule] = self.labels.clone();
            let decision = if answer.granted { "granted" } else { "denied" };
            let labels = [domain, rule, ("decision", decision.into()), ("way", answer.way.name().into())];
            counter!("swlimitd_decisions_total", &labels)
        });
        counter.increment(1);
        if answer.granted && (answer.remaining as f64) < (1.0 - NEAR) * limit as f64 {
            self.near_limit.increment(1);
        }
        if !answer.granted && in_shadow {
            self.shadowed.increment(1);
        }
    }
}

/// A configuration was read, and is in force or was refused.
pub fn loaded(is_valid: bool) {
    let result = if is_valid { "valid" } else { "invalid" };
    counter!("swlimitd_configurations_total", "result" => result).increment(1);
    if is_valid {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        gauge!("swlimitd_configuration_timestamp_seconds").set(now.as_secs_f64());
    }
}

/// There was no decision.
pub fn failed(why: &'static str) {
    counter!("swlimitd_server_errors_total", "why" => why).increment(1);
}

fn describe() {
    describe_counter!("swlimitd_requests_total", "Requests, by protocol or command, and result");
    describe_histogram!("swlimitd_request_duration_seconds", "How long requests took");
    describe_counter!("swlimitd_hits_total", "Hits that requests asked for, by rule");
    describe_counter!("swlimitd_decisions_total", "Decisions, by rule, result and who made them");
    describe_counter!("swlimitd_near_limit_total", "Decisions that granted with less than 20 % of the limit left");
    describe_counter!("swlimitd_shadowed_total", "Denials of rules in shadow mode");
    describe_counter!("swlimitd_unmatched_total", "What has no limit: an unknown domain, no rule, no policy");
    describe_counter!("swlimitd_server_errors_total", "Requests without a decision: the server was away, or refused");
    describe_counter!("swlimitd_configurations_total", "Configurations that were read, by whether they were valid");
    describe_gauge!("swlimitd_configuration_timestamp_seconds", "When the configuration in force was read");
}
