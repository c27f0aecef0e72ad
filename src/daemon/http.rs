//! All that is spoken over HTTP, in one place.

use std::fmt::Write;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::envoy::json;
use crate::keys;
use crate::metrics::Api;
use crate::service::{Refusal, Service};

/// No request is larger.
pub const LARGEST: usize = 1024 * 1024;

/// Every path, and who answers it.
pub fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/healthcheck", get(healthcheck))
        .route("/json", post(should_rate_limit))
        .route("/metrics", get(metrics))
        .route("/rlconfig", get(rlconfig))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(service)
}

async fn healthcheck(State(service): State<Arc<Service>>) -> Response {
    match service.is_ending() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "ending\n").into_response(),
        false => "OK\n".into_response(),
    }
}

async fn metrics(State(service): State<Arc<Service>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], service.measured())
}

/// Envoy's protocol in JSON, whatever content type it says it has.
async fn should_rate_limit(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    let request = match serde_json::from_slice::<json::Request>(&body) {
        Ok(request) => request.into(),
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match service.should_rate_limit(Api::Json, &headers, &request).await {
        Ok(reply) if reply.overall_code() == Code::OverLimit => {
            (StatusCode::TOO_MANY_REQUESTS, Json(json::response(reply))).into_response()
        }
        Ok(reply) => Json(json::response(reply)).into_response(),
        Err(Refusal::Invalid(why)) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
        Err(Refusal::Away) => (StatusCode::SERVICE_UNAVAILABLE, "the counting server is away\n").into_response(),
        Err(Refusal::Refused(why)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response(),
    }
}

/// The limits in force, one a line.
async fn rlconfig(State(service): State<Arc<Service>>) -> String {
    let live = service.live();
    let mut told = String::new();
    for (domain, rule) in live.configuration.limits.rules() {
        let mut tell = |what: String| {
            let modes = [(rule.shadow_mode, ", shadow_mode"), (rule.quota_mode, ", quota_mode")];
            let modes: String = modes.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
            writeln!(told, "{}.{}: {what}{modes}", domain.name, rule.name).expect("a string takes it");
        };
        if rule.unlimited {
            tell("unlimited".into());
        }
        for limit in &rule.limits {
            let geometry = limit.quota.geometry;
            let (window, resolution) = (keys::duration(geometry.window()), keys::duration(geometry.resolution()));
            tell(format!("{} per {window}, resolution {resolution}", limit.quota.limit));
        }
    }
    told
}
