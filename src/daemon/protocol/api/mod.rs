//! The HTTP API: every operation as JSON, with limits that callers bring along.

mod decisions;
mod decode;
mod encode;
mod error;
mod keys;
mod questions;

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{header, StatusCode};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use tokio::time::timeout;

pub use encode::{denied, unix};

use super::access::AccessError;
use super::explain::{self, ExplainRequest};
use super::peer::Peer;
use crate::core::Explanation;
use crate::observe::labels::{Api, Outcome};
use crate::observe::traces;
use crate::service::Service;
use decode::{read, Body};
use error::ErrorReply;

const OPENAPI: &str = include_str!("openapi.json");

/// Maximum size and time of a body that is read and dropped.
const MAX_DRAINED: usize = 64 * 1024;
const DRAINING: Duration = Duration::from_secs(1);

/// All paths of the API, behind the access check.
pub fn router(service: &Arc<Service>) -> Router<Arc<Service>> {
    let commands = [
        ("/v1/allow", Api::Allow, post(decisions::allow)),
        ("/v1/allow_all", Api::AllowAll, post(decisions::allow_all)),
        ("/v1/peek", Api::Peek, post(decisions::peek)),
        ("/v1/record", Api::Record, post(decisions::record)),
        ("/v1/acquire", Api::Acquire, post(decisions::acquire)),
        ("/v1/refund", Api::Refund, post(keys::refund)),
        ("/v1/block", Api::Block, post(keys::block)),
        ("/v1/unblock", Api::Unblock, post(keys::unblock)),
        ("/v1/hold", Api::Hold, post(decisions::hold)),
        ("/v1/release", Api::Release, post(keys::release)),
        ("/v1/renew", Api::Renew, post(keys::renew)),
        ("/v1/budget", Api::Budget, post(decisions::budget)),
        ("/v1/admit", Api::Admit, post(decisions::admit)),
        ("/v1/settle", Api::Settle, post(keys::settle)),
        ("/demo/{*path}", Api::Demo, any(decisions::demo)),
    ];
    let commands = commands.into_iter().map(|(path, api, handler)| {
        let guarded = Router::new().route(path, handler).route_layer(from_fn_with_state(service.clone(), guard));
        guarded.route_layer(from_fn_with_state((service.clone(), api), observe))
    });
    let views = Router::new()
        .route("/v1/info", get(keys::info))
        .route("/v1/top", get(keys::top))
        .route("/v1/holders", get(keys::holders))
        .route_layer(from_fn_with_state(service.clone(), guard));
    let openapi = get(|| async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI) });
    commands.fold(views, Router::merge).route("/v1/openapi.json", openapi)
}

/// Explanations, behind the access check.
pub fn explaining(service: &Arc<Service>) -> Router<Arc<Service>> {
    Router::new().route("/explain", post(explain)).route_layer(from_fn_with_state(service.clone(), guard))
}

/// Checks access.
pub async fn guard(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let checked = service.live().configuration.access.check(peer, request.uri(), request.headers());
    let Err(barred) = checked else { return next.run(request).await };
    drain(request.into_body()).await;
    match barred {
        AccessError::NeedsToken => {
            let error = ErrorReply::new(StatusCode::UNAUTHORIZED, "a valid token is required");
            ([(header::WWW_AUTHENTICATE, "Bearer")], error).into_response()
        }
        AccessError::NotLocal => {
            ErrorReply::new(StatusCode::FORBIDDEN, "without tokens, only local requests are accepted").into_response()
        }
        AccessError::CrossSite => {
            ErrorReply::new(StatusCode::FORBIDDEN, "cross-site requests are refused").into_response()
        }
    }
}

/// Reads a small body to its end. Over HTTP/2 an earlier answer resets the stream, and some clients, such as curl 7.88,
/// then do not read it.
async fn drain(body: axum::body::Body) {
    let _ = timeout(DRAINING, to_bytes(body, MAX_DRAINED)).await;
}

/// Counts the outcome and duration of a request.
async fn observe(State((service, api)): State<(Arc<Service>, Api)>, request: Request, next: Next) -> Response {
    let span = traces::span(api, request.headers());
    let outcome = |response: &Response| match response.status() {
        StatusCode::TOO_MANY_REQUESTS => Outcome::OverLimit,
        status if status.is_success() => Outcome::Ok,
        _ => Outcome::Error,
    };
    service.metrics.observe(api, span, next.run(request), outcome).await
}

/// Why a request would be granted or denied now.
async fn explain(
    State(service): State<Arc<Service>>,
    body: Body<ExplainRequest>,
) -> Result<Json<Explanation>, ErrorReply> {
    Ok(Json(explain::explain(&service.live(), read(body)?).await?))
}
