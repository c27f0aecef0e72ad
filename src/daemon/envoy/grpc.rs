//! The protocol over gRPC.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use crate::metrics::Api;
use crate::service::{Refusal, Service, AWAY};

/// Answers `ShouldRateLimit`.
pub struct RateLimit(pub Arc<Service>);

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let reply = self.0.should_rate_limit(Api::Grpc, request.metadata().as_ref(), request.get_ref()).await;
        reply.map(Response::new).map_err(|refusal| match refusal {
            Refusal::Invalid(why) => Status::invalid_argument(why),
            Refusal::Away => Status::unavailable(AWAY),
            Refusal::Refused(why) => Status::failed_precondition(why),
        })
    }
}
