//! The HTTP server: all paths and their handlers.

use std::fmt::Write;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::request::Parts;
use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::Router;
use tokio::sync::watch;

use super::connections;
use super::listen::Listener;
use super::tls::Acceptor;
use super::FatalError;
use crate::page;
use crate::protocol::peer::Peer;
use crate::protocol::{api, auth, envoy};
use crate::service::Service;

/// The largest request in bytes.
const MAX_REQUEST: usize = 1024 * 1024;

/// Serves HTTP until `end`, and then completes running requests.
pub async fn serve(service: Arc<Service>, listener: Listener, end: watch::Receiver<bool>) -> Result<(), FatalError> {
    let tls = Acceptor::new(&service, |configuration| configuration.http_tls.as_ref());
    connections::serve(service.clone(), router(service), listener, tls, end).await;
    Ok(())
}

fn router(service: Arc<Service>) -> Router {
    Router::new()
        .merge(api::router(&service))
        .merge(page::router())
        .route(auth::PATH, any(authorize))
        .route(&format!("{}/", auth::PATH), any(authorize))
        .route(&format!("{}/{{*path}}", auth::PATH), any(authorize))
        .route("/healthcheck", get(healthcheck))
        .route("/json", post(json))
        .route("/metrics", get(metrics))
        .route("/rlconfig", get(rlconfig))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state(service)
}

async fn healthcheck(State(service): State<Arc<Service>>) -> Response {
    match service.is_stopping() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response(),
        false => match service.unusable() {
            None => "OK\n".into_response(),
            Some(reason) => format!("OK, but no limit is counted: {reason}\n").into_response(),
        },
    }
}

async fn metrics(State(service): State<Arc<Service>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], service.render_metrics())
}

async fn json(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    envoy::json::answer(&service, &headers, &body).await
}

/// The question of a proxy, with any method.
async fn authorize(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    parts: Parts,
) -> Response {
    auth::authorize(&service, &parts, peer).await.into_response()
}

/// The current limits, one a line.
async fn rlconfig(State(service): State<Arc<Service>>) -> String {
    let live = service.live();
    let mut text = String::new();
    for (domain, rule) in live.configuration.limits.rules() {
        let mut line = |limit: String| {
            let modes = [(rule.shadow_mode, ", shadow_mode"), (rule.quota_mode, ", quota_mode")];
            let modes: String = modes.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
            writeln!(text, "{}.{}: {limit}{modes}", domain.name, rule.name).expect("a string accepts all text");
        };
        if rule.unlimited {
            line("unlimited".into());
        }
        for limit in &rule.limits {
            line(limit.to_string());
        }
    }
    text
}
