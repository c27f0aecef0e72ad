//! The protocol over gRPC.

use std::convert::Infallible;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use tonic::codegen::{http, BoxFuture, Context, Poll, Service as HttpService};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{body::Body, Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::messages::RateLimitRequest;
use super::should_rate_limit;
use crate::core::Refusal;
use crate::observe::metrics::Api;
use crate::service::Service;

/// The gRPC service `RateLimitService`, with our own request messages.
#[derive(Clone)]
pub struct RateLimitServer {
    pub service: Arc<Service>,
    /// The largest request in bytes.
    pub max_request: usize,
}

impl NamedService for RateLimitServer {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

impl HttpService<http::Request<Body>> for RateLimitServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(async { Ok(Status::new(Code::Unimplemented, "").into_http()) });
        }
        let (method, max_request) = (ShouldRateLimit(self.service.clone()), self.max_request);
        Box::pin(async move {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(max_request);
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct ShouldRateLimit(Arc<Service>);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let (metadata, _, request) = request.into_parts();
            let reply = should_rate_limit(&service, Api::Grpc, metadata.as_ref(), &request.into()).await;
            reply.map(Response::new).map_err(status)
        })
    }
}

fn status(refusal: Refusal) -> Status {
    let code = match &refusal {
        Refusal::Invalid(_) => Code::InvalidArgument,
        Refusal::Unavailable => Code::Unavailable,
        Refusal::Refused(_) => Code::FailedPrecondition,
        Refusal::NeedsServer => Code::Unimplemented,
    };
    Status::new(code, refusal.message())
}
