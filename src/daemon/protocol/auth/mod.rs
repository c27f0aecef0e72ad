//! `/auth`, which proxies ask before they forward a request: nginx's `auth_request`, Caddy's `forward_auth`, Envoy's
//! `ext_authz`.

mod encode;
mod original;
mod plan;
mod trusted_proxies;

use axum::http::request::Parts;

pub use encode::Permission;
pub use original::WrittenRequest;
pub use plan::plan;

use super::peer::Peer;
use crate::config::limits::{Limits, MissingHeader, NetworkDecision, OriginalRequest};
use crate::config::settings::Settings;
use crate::core::Refusal;
use crate::observe::labels::{Api, Outcome, Unmatched};
use crate::observe::traces;
use crate::service::Service;

/// The path of the endpoint. The original request's path may follow it.
pub const PATH: &str = "/auth";

/// Decides whether the proxy may forward the original request.
pub async fn authorize(service: &Service, parts: &Parts, peer: Peer) -> Result<Permission, Refusal> {
    let span = traces::span(Api::Auth, &parts.headers);
    let outcome = |permission: &Result<Permission, _>| Outcome::from(permission.as_ref().map(|it| it.is_denied()));
    service.metrics.observe(Api::Auth, span, decide(service, parts, peer), outcome).await
}

async fn decide(service: &Service, parts: &Parts, peer: Peer) -> Result<Permission, Refusal> {
    let live = service.live();
    let configuration = &live.configuration;
    let original = original::original(parts, PATH, peer, &configuration.settings.auth);
    let missing = |MissingHeader(header)| Refusal::invalid(format!("the proxy does not send {header}"));
    let (settings, limits) = (&configuration.settings, &configuration.limits);
    if let Some(decision) = by_network(limits, settings, &original).map_err(missing)? {
        return Ok(encode::of_network(decision));
    }
    let plan = plan(limits, &settings.prefix, &original).map_err(missing)?;
    if plan.descriptors.is_empty() {
        service.metrics.unmatched(Unmatched::Policy);
    }
    let answers = service.decide(&live, &plan, Unmatched::Policy).await?;
    Ok(encode::permission(&plan, &answers, settings))
}

/// What the client's network decides; `None` if limits decide.
pub fn by_network(
    limits: &Limits,
    settings: &Settings,
    request: &OriginalRequest,
) -> Result<Option<NetworkDecision>, MissingHeader> {
    let decision = limits.networks.decide(request)?;
    Ok(decision.filter(|decision| *decision != NetworkDecision::Denied || !settings.shadow_mode))
}
