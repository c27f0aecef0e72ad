//! OpenTelemetry traces: a span for each decision, in the caller's trace.

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, WithExportConfig};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use opentelemetry_sdk::Resource;
use tracing::field::Empty;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::Layer;

use super::labels::{shortened, Api, Outcome};
use super::process;
use crate::config::settings::Traces;
use crate::core::{Answer, Descriptor, Plan, Refusal};

/// The target that separates spans from logs.
const TARGET: &str = "swlimitd::traces";

/// The provider of the configured collector.
pub fn provider(traces: &Traces) -> Result<SdkTracerProvider, ExporterBuildError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(&traces.endpoint).build()?;
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(traces.share.fraction()))))
        .with_resource(resource())
        .build())
}

/// This process, to tell it from others. `OTEL_RESOURCE_ATTRIBUTES` adds to it.
fn resource() -> Resource {
    let instance = format!("{}:{}", process::host(), std::process::id());
    let attributes =
        [KeyValue::new("service.version", env!("CARGO_PKG_VERSION")), KeyValue::new("service.instance.id", instance)];
    Resource::builder().with_service_name("swlimitd").with_attributes(attributes).build()
}

/// The layer that sends spans to the provider.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(provider: &SdkTracerProvider) -> impl Layer<S> {
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("swlimitd"));
    layer.with_filter(filter_fn(|metadata| metadata.target() == TARGET))
}

/// The span of a request with these headers. Without traces it costs nothing.
pub fn span(api: Api, headers: &HeaderMap) -> Span {
    let span = tracing::trace_span!(
        target: TARGET,
        "request",
        otel.name = api.name(),
        otel.kind = "server",
        otel.status_code = Empty,
        domain = Empty,
        descriptors = Empty,
        rules = Empty,
        denied_by = Empty,
        result = Empty
    );
    if !span.is_disabled() {
        let caller = TraceContextPropagator::new().extract(&Headers(headers));
        let _ = span.set_parent(caller); // fails if the trace is not sampled
    }
    span
}

/// Records the descriptors or the proxy's request, the rules that match, and those that deny, in the current span.
pub fn decided(plan: &Plan, answers: &Result<Vec<Answer>, Refusal>) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    let name = |descriptor: &Descriptor| format!("{}.{}", descriptor.domain, descriptor.label);
    let names = |chosen: &dyn Fn(&Descriptor) -> bool| {
        let chosen = plan.descriptors.iter().filter(|descriptor| descriptor.rule.is_some() && chosen(descriptor));
        shortened(&chosen.map(name).collect::<Vec<_>>().join(" ")).into_owned()
    };
    span.record("descriptors", &*shortened(&plan.request()));
    span.record("rules", names(&|_| true));
    if let Ok(answers) = answers {
        let denied_by = plan.denied_by(|at| !answers[at].granted);
        if !denied_by.is_empty() {
            let denies = |descriptor: &Descriptor| descriptor.questions.iter().any(|at| denied_by.contains(at));
            span.record("denied_by", names(&denies));
        }
    }
}

/// Records the outcome in a request's span.
pub fn finished(span: &Span, outcome: Outcome) {
    span.record("result", outcome.name());
    if let Outcome::Error = outcome {
        span.record("otel.status_code", "ERROR");
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}
