//! All that is spoken over HTTP, in one place.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::Router;

use crate::service::Service;

/// Every path, and who answers it.
pub fn router(service: Arc<Service>) -> Router {
    Router::new().route("/healthcheck", get(healthcheck)).with_state(service)
}

async fn healthcheck(State(_service): State<Arc<Service>>) -> &'static str {
    "OK"
}
