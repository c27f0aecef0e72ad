//! Metrics for Prometheus, and the recent counts for the page.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram, Counter, Histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::Span;

use super::denied::DeniedHere;
use super::recent::Recent;
use super::throttle::Throttle;
use super::traces;
use crate::core::{Answer, Refusal, Source, Statistics};

/// Maximum distinct rule labels; the rest share `(other)`.
const MAX_RULES: usize = 10_000;

/// The longest label in bytes; longer ones are cut, and share what is left.
const MAX_LABEL: usize = 200;

const OTHER: &str = "(other)";

/// The domain label of the HTTP API. Its rule label is the command.
const API_DOMAIN: &str = "(api)";

/// A key that has used this part of its limit is near it.
const NEAR: f64 = 0.8;

/// 50 µs … 1 s.
pub const SECONDS: [f64; 13] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0];

/// The protocol of a request, or its command in the HTTP API.
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

/// The result of a request.
#[derive(Clone, Copy)]
pub enum Outcome {
    Ok,
    OverLimit,
    Error,
    /// The caller gave up first.
    Cancelled,
}

impl Outcome {
    const NAMES: [&str; 4] = ["ok", "over_limit", "error", "cancelled"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl<E> From<Result<bool, E>> for Outcome {
    /// From whether the request was denied.
    fn from(denied: Result<bool, E>) -> Self {
        match denied {
            Ok(true) => Self::OverLimit,
            Ok(false) => Self::Ok,
            Err(_) => Self::Error,
        }
    }
}

/// Why a request or descriptor has no limit.
#[derive(Clone, Copy)]
pub enum Unmatched {
    Domain,
    Rule,
    Policy,
}

/// Why a connection or request was rejected before any protocol.
#[derive(Clone, Copy)]
pub enum Rejection {
    Malformed,
    TooLarge,
    Slow,
    Connections,
    Tls,
}

impl Rejection {
    const NAMES: [&str; 5] = ["malformed", "too_large", "slow", "connections", "tls"];
}

/// All metrics.
pub struct Metrics {
    prometheus: PrometheusHandle,
    rules: RwLock<Rules>,
    requests: [[Counter; Outcome::NAMES.len()]; Api::NAMES.len()],
    durations: [OnceLock<Histogram>; Api::NAMES.len()],
    unmatched: [Counter; 3],
    /// Requests by duration: the buckets of `SECONDS`, and longer.
    pub recent_durations: Recent<{ SECONDS.len() + 1 }>,
    /// The client's decisions by source.
    pub recent_sources: Recent<{ Source::ALL.len() }>,
    /// Requests without a decision: errors, and those whose callers gave up.
    pub recent_errors: Recent<1>,
    /// Descriptors and requests without a limit, by [`Unmatched`].
    pub recent_unmatched: Recent<3>,
    /// Steps in which a server was away.
    pub recent_outages: Recent<1>,
    pub denied_here: DeniedHere,
}

#[derive(Default)]
struct Rules {
    by_domain: HashMap<String, HashMap<String, Arc<RuleMetrics>>>,
    count: usize,
}

/// A request under way.
pub struct Running<'a> {
    metrics: &'a Metrics,
    api: Api,
    span: Span,
    began: Instant,
    outcome: Outcome,
}

/// The metrics of one rule.
pub struct RuleMetrics {
    labels: [(&'static str, String); 2],
    hits: Counter,
    near_limit: Counter,
    shadowed: Counter,
    decisions: [[OnceLock<Counter>; 2]; Source::ALL.len()],
    /// Denied and granted requests, whatever the number of limits.
    recent: Recent<2>,
}

impl Metrics {
    /// Installs the recorder, once in a process.
    pub fn install() -> Self {
        let buckets = Matcher::Full("swlimitd_request_duration_seconds".into());
        let builder =
            PrometheusBuilder::new().set_buckets_for_metric(buckets, &SECONDS).expect("the buckets are not empty");
        let prometheus = builder.install_recorder().expect("no other recorder is installed");
        describe();
        let requests = Api::NAMES.map(|api| {
            Outcome::NAMES.map(|outcome| counter!("swlimitd_requests_total", "api" => api, "result" => outcome))
        });
        let unmatched = ["domain", "rule", "policy"].map(|why| counter!("swlimitd_unmatched_total", "why" => why));
        Self {
            prometheus,
            rules: RwLock::default(),
            requests,
            durations: Default::default(),
            unmatched,
            recent_durations: Recent::default(),
            recent_sources: Recent::default(),
            recent_errors: Recent::default(),
            recent_unmatched: Recent::default(),
            recent_outages: Recent::default(),
            denied_here: DeniedHere::default(),
        }
    }

    /// All metrics in Prometheus's text format.
    pub fn render(&self) -> String {
        self.prometheus.render()
    }

    /// Ends a step of the recent counts; to be called every [`STEP`](super::recent::STEP).
    pub fn end_step(&self, client: &Statistics) {
        self.prometheus.run_upkeep();
        self.recent_durations.step();
        self.count_sources(client);
        self.recent_sources.step();
        self.recent_errors.step();
        self.recent_unmatched.step();
        self.recent_outages.step();
        for rule in self.rules().by_domain.values().flat_map(HashMap::values) {
            rule.recent.step();
        }
    }

    /// Takes over the client's counts of decisions.
    pub fn count_sources(&self, client: &Statistics) {
        for source in Source::ALL {
            self.recent_sources.set(source as usize, client.granted(source) + client.denied(source));
        }
    }

    /// Domain and name of the rules that decided lately, with their denials and grants by step.
    pub fn recent_rules(&self) -> Vec<([String; 2], Vec<[u32; 2]>)> {
        let rules = self.rules();
        let all = rules.by_domain.values().flat_map(HashMap::values);
        all.filter_map(|rule| Some((rule.labels.clone().map(|(_, name)| name), rule.recent.steps()?))).collect()
    }

    /// A request that begins; dropped before its outcome is known, it was cancelled.
    pub fn began(&self, api: Api, span: Span) -> Running<'_> {
        Running { metrics: self, api, span, began: Instant::now(), outcome: Outcome::Cancelled }
    }

    fn rules(&self) -> RwLockReadGuard<'_, Rules> {
        self.rules.read().expect("no code panics while it holds this lock")
    }

    /// Counts a descriptor without a limit, or a request without a policy.
    pub fn unmatched(&self, why: Unmatched) {
        self.unmatched[why as usize].increment(1);
        self.recent_unmatched.count(why as usize);
    }

    /// The metrics of a command of the HTTP API.
    pub fn command(&self, api: Api) -> Arc<RuleMetrics> {
        self.rule(API_DOMAIN, api.name())
    }

    /// The metrics of a rule, by its label.
    pub fn rule(&self, domain: &str, name: &str) -> Arc<RuleMetrics> {
        let name = &*shortened(name);
        if let Some(known) = self.rules().find(domain, name) {
            return known;
        }
        let mut rules = self.rules.write().expect("no code panics while it holds this lock");
        let (domain, name) = if rules.count < MAX_RULES { (domain, name) } else { (OTHER, OTHER) };
        if let Some(known) = rules.find(domain, name) {
            return known;
        }
        rules.count += 1;
        let new = Arc::new(RuleMetrics::new(domain, name));
        rules.by_domain.entry(domain.into()).or_default().insert(name.into(), new.clone());
        new
    }
}

impl Running<'_> {
    /// Ends the request.
    pub fn finished(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Self { metrics, api, span, began, outcome } = self;
        let took = began.elapsed();
        traces::finished(span, *outcome);
        metrics.requests[*api as usize][*outcome as usize].increment(1);
        let durations = metrics.durations[*api as usize]
            .get_or_init(|| histogram!("swlimitd_request_duration_seconds", "api" => api.name()));
        durations.record(took);
        if matches!(outcome, Outcome::Error | Outcome::Cancelled) {
            metrics.recent_errors.count(0);
        }
        metrics.recent_durations.count(SECONDS.partition_point(|bound| *bound < took.as_secs_f64()));
    }
}

/// A label of at most [`MAX_LABEL`] bytes.
pub fn shortened(label: &str) -> Cow<'_, str> {
    if label.len() <= MAX_LABEL {
        return Cow::Borrowed(label);
    }
    let end = (0..=MAX_LABEL).rev().find(|at| label.is_char_boundary(*at)).unwrap_or_default();
    Cow::Owned(format!("{}…", &label[..end]))
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

    /// Counts a request with the answers of the rule's limits.
    pub fn decided<'a>(&self, hits: u64, answers: impl Iterator<Item = &'a Answer>, in_shadow: bool) {
        self.hits.increment(hits);
        let mut granted = true;
        for answer in answers {
            granted &= answer.granted;
            self.answered(answer, in_shadow);
        }
        self.recent.count(usize::from(granted));
    }

    fn answered(&self, answer: &Answer, in_shadow: bool) {
        let counter = self.decisions[answer.source as usize][usize::from(answer.granted)].get_or_init(|| {
            let [domain, rule] = self.labels.clone();
            let decision = if answer.granted { "granted" } else { "denied" };
            let labels = [domain, rule, ("decision", decision.into()), ("source", answer.source.name().into())];
            counter!("swlimitd_decisions_total", &labels)
        });
        counter.increment(1);
        let is_near = |remaining: u64| (remaining as f64) < (1.0 - NEAR) * answer.limit as f64;
        if answer.granted && answer.remaining.is_some_and(is_near) {
            self.near_limit.increment(1);
        }
        if !answer.granted && in_shadow {
            self.shadowed.increment(1);
        }
    }
}

/// Counts a configuration that was read.
pub fn loaded(is_valid: bool) {
    let result = if is_valid { "valid" } else { "invalid" };
    counter!("swlimitd_configurations_total", "result" => result).increment(1);
    if is_valid {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        gauge!("swlimitd_configuration_timestamp_seconds").set(now.as_secs_f64());
    }
}

/// Whether the control plane that sends limits is connected.
pub fn control_plane(is_connected: bool) {
    gauge!("swlimitd_control_plane_connected").set(u8::from(is_connected));
}

/// Counts a rejected connection or request, and logs the first of each minute.
pub fn rejected(rejection: Rejection, peer: &Option<IpAddr>) {
    static REJECTIONS: Throttle = Throttle::new();
    let why = Rejection::NAMES[rejection as usize];
    counter!("swlimitd_rejected_total", "why" => why).increment(1);
    if matches!(rejection, Rejection::Slow) {
        return; // idle connections end like this, too
    }
    if let Some(count) = REJECTIONS.count(Instant::now()) {
        tracing::warn!(why, ?peer, count, "connections or requests were rejected, counted since the last such line");
    }
}

/// Counts a request without a decision.
pub fn refused(refusal: &Refusal) {
    let why = match refusal {
        Refusal::Unavailable => "away",
        Refusal::Refused(_) => "refused",
        Refusal::Invalid(_) | Refusal::NeedsServer => return,
    };
    counter!("swlimitd_server_errors_total", "why" => why).increment(1);
    static REFUSALS: Throttle = Throttle::new();
    if let (Refusal::Refused(error), Some(count)) = (refusal, REFUSALS.count(Instant::now())) {
        tracing::error!(%error, count, "the server refuses commands, counted since the last such line");
    }
}

fn describe() {
    describe_counter!("swlimitd_requests_total", "Requests, by protocol or command, and result");
    describe_histogram!("swlimitd_request_duration_seconds", "Duration of requests in seconds");
    describe_counter!("swlimitd_hits_total", "Hits of requests, by rule");
    describe_counter!("swlimitd_decisions_total", "Decisions of limits, by rule, decision and source");
    describe_counter!("swlimitd_near_limit_total", "Grants that left less than 20 % of the limit");
    describe_counter!("swlimitd_shadowed_total", "Denials of rules in shadow mode");
    describe_counter!(
        "swlimitd_unmatched_total",
        "Descriptors and requests without a limit: unknown domain, no rule, no policy"
    );
    describe_counter!(
        "swlimitd_server_errors_total",
        "Requests without a decision: the server was away, or refused the command"
    );
    describe_counter!("swlimitd_rejected_total", "Connections and requests rejected before any protocol");
    describe_counter!("swlimitd_configurations_total", "Configurations read, valid or invalid");
    describe_gauge!("swlimitd_control_plane_connected", "1 while the control plane that sends limits is connected");
    describe_gauge!(
        "swlimitd_configuration_timestamp_seconds",
        "Unix time at which the current configuration was read"
    );
}
