//! Answers a request: plans it, lets the core decide, and encodes the reply.

use std::pin::pin;

use axum::http::HeaderMap;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use tokio::time::Instant;

use super::encode::{self, ReplyOptions};
use super::plan::Planner;
use super::request::Request;
use crate::config::policy::OnFailure;
use crate::config::Configuration;
use crate::core::{Plan, Refusal};
use crate::observe::labels::{Api, Unmatched};
use crate::observe::traces;
use crate::service::Service;

/// Decides a request with these headers, before its caller gives up.
pub async fn answer(
    service: &Service,
    api: Api,
    headers: &HeaderMap,
    request: &Request,
    deadline: Option<Instant>,
) -> Result<RateLimitResponse, Refusal> {
    let span = traces::span(api, headers);
    span.record("domain", &request.domain);
    let is_denied = |reply: &RateLimitResponse| reply.overall_code() == Code::OverLimit;
    let deciding = pin!(decide(service, request, deadline)); // large to move
    service.metrics.observe(api, span, deciding, |reply| reply.as_ref().map(is_denied).into()).await
}

async fn decide(service: &Service, request: &Request, deadline: Option<Instant>) -> Result<RateLimitResponse, Refusal> {
    let live = service.live();
    let settings = &live.configuration.settings;
    let (plan, unmatched) = plan(&live.configuration, request)?;
    let plan = Plan { deadline, ..plan };
    let answers = service.decide(&live, &plan, unmatched).await?;
    let options = ReplyOptions {
        shadow_mode: settings.shadow_mode,
        rate_limit_headers: settings.rate_limit_headers.as_ref(),
        dynamic_metadata: settings.dynamic_metadata,
    };
    Ok(encode::reply(request, &plan, &answers, options))
}

/// The plan of a request, and why descriptors without a rule have none.
pub fn plan<'a>(configuration: &'a Configuration, request: &'a Request) -> Result<(Plan<'a>, Unmatched), Refusal> {
    let (settings, limits) = (&configuration.settings, &configuration.limits);
    let policy = settings.policy().policy(settings.defaults(OnFailure::Error)).map_err(Refusal::invalid)?;
    let plan = Planner { limits, prefix: &settings.prefix, policy }.plan(request)?;
    let unmatched = if limits.domain(&request.domain).is_some() { Unmatched::Rule } else { Unmatched::Domain };
    Ok((plan, unmatched))
}
