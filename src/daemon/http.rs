//! All that is spoken over HTTP, in one place.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::request::Parts;
use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tls_listener::TlsListener;
use tokio::net::{TcpListener, UnixListener};

use crate::access::is_of_a_page;
use crate::envoy::json;
use crate::metrics::Api;
use crate::service::{Refusal, Service, AWAY};
use crate::tls::Acceptor;
use crate::{api, auth, page};

/// No request is larger.
pub const LARGEST: usize = 1024 * 1024;

/// Every path, and who answers it.
pub fn router(service: Arc<Service>) -> Router {
    Router::new()
        .merge(api::router(&service))
        .merge(page::router())
        .route(auth::PATH, any(authorize))
        .route(&format!("{}/", auth::PATH), any(authorize))
        .route(&format!("{}/{{*path}}", auth::PATH), any(authorize))
        .route("/healthcheck", get(healthcheck))
        .route("/json", post(should_rate_limit))
        .route("/metrics", get(metrics))
        .route("/rlconfig", get(rlconfig))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(service)
}

/// Who asks: an address, or none over a socket of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub Option<IpAddr>);

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(Some(stream.remote_addr().ip()))
    }
}

impl Connected<IncomingStream<'_, TlsListener<TcpListener, Acceptor>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener<TcpListener, Acceptor>>) -> Self {
        Self(Some(stream.remote_addr().ip()))
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(_: IncomingStream<'_, UnixListener>) -> Self {
        Self(None)
    }
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

/// Envoy's protocol in JSON, whatever content type it says it has. So any page could have a browser send it.
async fn should_rate_limit(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    if is_of_a_page(&headers) {
        return (StatusCode::FORBIDDEN, "no page of a browser may use this\n").into_response();
    }
    let request = match serde_json::from_slice::<json::Request>(&body) {
        Ok(request) => request.into(),
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match service.should_rate_limit(Api::Json, &headers, &request).await {
        Ok(reply) if reply.overall_code() == Code::OverLimit => {
            (StatusCode::TOO_MANY_REQUESTS, Json(json::response(reply))).into_response()
        }
        Ok(reply) => Json(json::response(reply)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// What proxies ask, by whatever method.
async fn authorize(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    parts: Parts,
) -> Response {
    service.authorize(&parts, peer).await.into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, why),
            Self::Away => (StatusCode::SERVICE_UNAVAILABLE, AWAY.into()),
            Self::Refused(why) => (StatusCode::INTERNAL_SERVER_ERROR, why.into()),
        };
        (status, format!("{why}\n")).into_response()
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
            tell(limit.to_string());
        }
    }
    told
}
