//! A service that decides nothing: what any service of this protocol takes.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use tonic::{Request, Response, Status};

pub struct Floor;

#[tonic::async_trait]
impl RateLimitService for Floor {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        let limit = RateLimit { requests_per_unit: 1, unit: Unit::Hour.into(), ..RateLimit::default() };
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(limit),
            duration_until_reset: Some(Duration { seconds: 3600, nanos: 0 }),
            ..DescriptorStatus::default()
        };
        let (overall_code, statuses) = (Code::Ok.into(), vec![status]);
        Ok(Response::new(RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() }))
    }
}
