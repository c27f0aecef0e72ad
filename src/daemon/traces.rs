//! Traces for OpenTelemetry: a span for each request that is decided, part of the caller's trace.

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use opentelemetry_sdk::Resource;
use tracing::field::Empty;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::Layer;

use crate::listening::Failure;
use crate::metrics::{Api, Ending};
use crate::settings::Traces;

/// What spans are told apart by from what is logged.
const TARGET: &str = "swlimitd::traces";

/// Who sends the spans, as configured.
pub fn provider(traces: &Traces) -> Result<SdkTracerProvider, Failure> {
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(&traces.endpoint).build()?;
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(traces.share.0))))
        .with_resource(Resource::builder().with_service_name("swlimitd").build())
        .build())
}

/// What hands the spans over.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(provider: &SdkTracerProvider) -> impl Layer<S> {
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("swlimitd"));
    layer.with_filter(filter_fn(|metadata| metadata.target() == TARGET))
}

/// The span of a request that came with these headers. It costs nothing where nobody wants it.
pub fn span(api: Api, headers: &HeaderMap) -> Span {
    let span = tracing::trace_span!(
        target: TARGET,
        "request",
        otel.name = api.name(),
        otel.kind = "server",
        otel.status_code = Empty,
        domain = Empty,
        result = Empty
    );
    if !span.is_disabled() {
        let caller = TraceContextPropagator::new().extract(&Headers(headers));
        let _ = span.set_parent(caller); // of a trace that is not sampled
    }
    span
}

/// Tell a span how its request ended.
pub fn ended(span: &Span, ending: Ending) {
    span.record("result", ending.name());
    if let Ending::Error = ending {
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
