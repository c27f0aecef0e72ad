//! Traces: a span for each decision, in the caller's trace.

use axum::http::HeaderMap;
use tracing::field::Empty;
use tracing::Span;

use super::labels::{shortened, Api, Outcome, TRACES};
use super::opentelemetry;
use crate::core::{Answer, Descriptor, Plan, Refusal};

/// The span of a request with these headers. It is free without traces.
pub fn span(api: Api, headers: &HeaderMap) -> Span {
    let span = tracing::trace_span!(
        target: TRACES,
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
        opentelemetry::set_parent(&span, headers);
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
