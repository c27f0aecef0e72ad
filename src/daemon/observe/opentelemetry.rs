//! Sends spans to a collector of OpenTelemetry.

use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use opentelemetry_sdk::Resource;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::Layer;

use super::labels::TRACES;
use super::process;
use crate::config::settings::Traces;

/// Sends spans to the configured collector.
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    pub fn new(traces: &Traces) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&traces.endpoint).build()?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(traces.share.fraction())));
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_sampler(sampler);
        Ok(Self(provider.with_resource(resource()).build()))
    }

    /// The layer that hands spans to it.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> {
        let layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer("swlimitd"));
        layer.with_filter(filter_fn(|metadata| metadata.target() == TRACES))
    }

    /// Sends the last spans.
    pub fn shutdown(self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }
}

/// Identifies this process. `OTEL_RESOURCE_ATTRIBUTES` adds to it.
fn resource() -> Resource {
    let instance = format!("{}:{}", process::host(), std::process::id());
    let attributes =
        [KeyValue::new("service.version", env!("CARGO_PKG_VERSION")), KeyValue::new("service.instance.id", instance)];
    Resource::builder().with_service_name("swlimitd").with_attributes(attributes).build()
}

/// Makes a span part of the caller's trace, which these headers name.
pub fn set_parent(span: &Span, headers: &HeaderMap) {
    let caller = TraceContextPropagator::new().extract(&Headers(headers));
    let _ = span.set_parent(caller); // fails if the trace is not sampled
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
