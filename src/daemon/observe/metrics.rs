//! Metrics for Prometheus, and the recent counts for the page.

use std::future::Future;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram, Counter, Gauge, Histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use metrics_util::MetricKindMask;
use tracing::{Instrument, Span};

use super::configuration::ConfigurationMetrics;
use super::denied::DeniedHere;
use super::descriptions::{describe, DURATIONS, WAITING, WAITS};
use super::labels::{Api, Outcome, Rejection, Unmatched};
use super::recent::Recent;
use super::refusals::SERVER_ERRORS;
use super::rules::Rules;
use super::throttle::Throttle;
use super::traces;
use super::waiting::Waiting;
use crate::config::policy::Module;
use crate::core::{Answer, Backend, Client, Operation, Question, ServerState, Source, State, Statistics};

/// 50 µs … 1 s.
pub const SECONDS: [f64; 13] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0];

/// 1 ms … 1 h.
pub const WAIT_SECONDS: [f64; 13] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];

/// All metrics.
pub struct Metrics {
    prometheus: PrometheusHandle,
    process: Collector,
    pub rules: Rules,
    pub configuration: ConfigurationMetrics,
    requests: [[Counter; Outcome::NAMES.len()]; Api::NAMES.len()],
    durations: [Histogram; Api::NAMES.len()],
    unmatched: [Counter; Unmatched::NAMES.len()],
    /// Counters of server errors and rejections.
    others: Vec<Counter>,
    /// Requests by duration: the buckets of `SECONDS`, and longer.
    pub recent_durations: Recent<{ SECONDS.len() + 1 }>,
    /// Requests that may wait, by duration: the buckets of `WAIT_SECONDS`, and longer.
    pub recent_waits: Recent<{ WAIT_SECONDS.len() + 1 }>,
    pub waiting: Waiting,
    /// The client's decisions by source.
    pub recent_sources: Recent<{ Source::ALL.len() }>,
    /// Requests without a decision: errors, and those whose callers gave up.
    pub recent_errors: Recent<1>,
    /// Descriptors and requests without a limit, by [`Unmatched`].
    pub recent_unmatched: Recent<3>,
    /// Steps in which a server was unavailable.
    pub recent_outages: Recent<1>,
    pub denied_here: DeniedHere,
}

/// A request under way.
struct Running<'a> {
    metrics: &'a Metrics,
    api: Api,
    span: Span,
    began: Instant,
    outcome: Outcome,
}

impl Metrics {
    /// Installs the recorder, once in a process.
    pub fn install() -> Self {
        let builder = [(DURATIONS, SECONDS), (WAITS, WAIT_SECONDS)].into_iter().fold(
            PrometheusBuilder::new(),
            |builder, (name, buckets)| {
                let builder = builder.set_buckets_for_metric(Matcher::Full(name.into()), &buckets);
                builder.expect("the buckets are not empty")
            },
        );
        let builder = builder
            // Frees counters and gauges that have not changed since they were last rendered.
            .idle_timeout(MetricKindMask::COUNTER | MetricKindMask::GAUGE, Some(Duration::ZERO));
        let prometheus = builder.install_recorder().expect("no other recorder is installed");
        describe();
        let requests = Api::NAMES.map(|api| {
            Outcome::NAMES.map(|outcome| counter!("swlimitd_requests_total", "api" => api, "result" => outcome))
        });
        let waiting = Api::WAITING.map(Api::name);
        let durations = Api::NAMES.map(|api| {
            let name = if waiting.contains(&api) { WAITS } else { DURATIONS };
            histogram!(name, "api" => api)
        });
        let why = |name: &'static str, why: &'static str| counter!(name, "why" => why);
        let others = SERVER_ERRORS.iter().map(|it| why("swlimitd_server_errors_total", it));
        let others = others.chain(Rejection::NAMES.iter().map(|it| why("swlimitd_rejected_total", it)));
        let process = Collector::default();
        process.describe();
        Self {
            prometheus,
            process,
            rules: Rules::default(),
            configuration: ConfigurationMetrics::new(),
            requests,
            durations,
            unmatched: Unmatched::NAMES.map(|it| why("swlimitd_unmatched_total", it)),
            others: others.collect(),
            recent_durations: Recent::default(),
            recent_waits: Recent::default(),
            waiting: Waiting::default(),
            recent_sources: Recent::default(),
            recent_errors: Recent::default(),
            recent_unmatched: Recent::default(),
            recent_outages: Recent::default(),
            denied_here: DeniedHere::default(),
        }
    }

    /// All metrics in Prometheus's text format, with those of the client, its servers and the process. It takes long.
    pub fn render(&self, client: &Client, servers: &[ServerState], can_decide: Option<bool>, module: Module) -> String {
        client.publish_metrics();
        self.process.collect();
        gauge!("swlimitd_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        self.configuration.publish();
        gauge!(WAITING).set(self.waiting.count() as f64);
        CONTROL_PLANE.get().into_iter().for_each(|gauge| gauge.increment(0.0));
        if let Some(can_decide) = can_decide {
            gauge!("swlimitd_server_can_decide").set(u8::from(can_decide));
        }
        for server in servers {
            let lacks = module == Module::Auto && server.backend == Some(Backend::Script);
            gauge!("swlimitd_server_lacks_module", "server" => server.address.clone()).set(u8::from(lacks));
        }
        for server in servers.iter().filter(|server| server.state == State::Unavailable) {
            let address = server.address.clone();
            let (unavailable, reason) = (server.since.elapsed().unwrap_or_default(), server.reason);
            let reason = reason.map_or("other", |reason| reason.as_str());
            // Its client's own gauge, of a server that no request has asked yet.
            gauge!("swlimit_client_server_unavailable", "server" => address.clone()).set(1.0);
            gauge!("swlimitd_server_unavailable_seconds", "server" => address, "reason" => reason)
                .set(unavailable.as_secs_f64());
        }
        let fixed = self.requests.iter().flatten().chain(&self.unmatched).chain(&self.others);
        fixed.for_each(|counter| counter.increment(0));
        self.rules.touch();
        self.prometheus.render()
    }

    /// Ends a step of the recent counts; call it every [`STEP`](super::recent::STEP).
    pub fn end_step(&self, client: &Statistics) {
        self.prometheus.run_upkeep();
        self.recent_durations.step();
        self.recent_waits.step();
        self.count_sources(client);
        self.recent_sources.step();
        self.recent_errors.step();
        self.recent_unmatched.step();
        self.recent_outages.step();
        self.rules.end_step();
        self.denied_here.turn();
    }

    /// Takes over the client's counts of decisions.
    pub fn count_sources(&self, client: &Statistics) {
        for source in Source::ALL {
            self.recent_sources.set(source as usize, client.granted(source) + client.denied(source));
        }
    }

    /// Answers a request in its span, and counts its outcome and duration. Dropped before it has ended, it counts as
    /// cancelled.
    pub async fn observe<T>(
        &self,
        api: Api,
        span: Span,
        answering: impl Future<Output = T>,
        outcome: impl FnOnce(&T) -> Outcome,
    ) -> T {
        let mut running = Running { metrics: self, api, span, began: Instant::now(), outcome: Outcome::Cancelled };
        let answer = answering.instrument(running.span.clone()).await;
        running.outcome = outcome(&answer);
        answer
    }

    /// Counts a decision of the HTTP API.
    pub fn command(&self, api: Api, questions: &[&Question<'_>], answers: &[Answer]) {
        let counted = questions.iter().zip(answers).filter(|(question, _)| question.operation != Operation::Peek);
        let denied = counted.clone().filter(|(_, answer)| !answer.granted);
        denied.for_each(|(question, _)| self.denied_here.count(&question.key));
        self.rules.count_command(api, counted.map(|(question, _)| question.hits).sum(), answers);
    }

    /// Counts a descriptor without a limit, or a request without a policy.
    pub fn unmatched(&self, why: Unmatched) {
        self.unmatched[why as usize].increment(1);
        self.recent_unmatched.count(why as usize);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Self { metrics, api, span, began, outcome } = self;
        let took = began.elapsed();
        traces::finished(span, *outcome);
        metrics.requests[*api as usize][*outcome as usize].increment(1);
        metrics.durations[*api as usize].record(took);
        if matches!(outcome, Outcome::Error | Outcome::Cancelled) {
            metrics.recent_errors.count(0);
        }
        let bucket = |bounds: &[f64]| bounds.partition_point(|bound| *bound < took.as_secs_f64());
        match api.waits() {
            true => metrics.recent_waits.count(bucket(&WAIT_SECONDS)),
            false => metrics.recent_durations.count(bucket(&SECONDS)),
        }
    }
}

/// Exists where there is a control plane.
static CONTROL_PLANE: OnceLock<Gauge> = OnceLock::new();

/// Whether the control plane that sends limits is connected.
pub fn control_plane(is_connected: bool) {
    CONTROL_PLANE.get_or_init(|| gauge!("swlimitd_control_plane_connected")).set(u8::from(is_connected));
}

/// Counts a rejected connection or request, and logs the first of each minute.
pub fn rejected(rejection: Rejection, peer: &Option<IpAddr>) {
    static REJECTIONS: Throttle = Throttle::new();
    let why = rejection.name();
    counter!("swlimitd_rejected_total", "why" => why).increment(1);
    if matches!(rejection, Rejection::Slow) {
        return; // idle connections end like this, too
    }
    if let Some(count) = REJECTIONS.count(Instant::now()) {
        let peer = peer.map(|address| address.to_string());
        tracing::warn!(why, peer, count, "connections or requests were rejected, counted since the last such line");
    }
}
