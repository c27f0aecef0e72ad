//! The protocol over gRPC.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codegen::{http, BoxFuture, StdError};
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::answer::answer;
use super::messages::RateLimitRequest;
use crate::core::Refusal;
use crate::observe::labels::Api;
use crate::service::Service;

/// The path of the only method.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Answers a request of at most this many bytes.
pub async fn should_rate_limit<B>(
    service: Arc<Service>,
    request: http::Request<B>,
    max_request: usize,
) -> http::Response<Body>
where
    B: hyper::body::Body + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    let deadline = timeout(request.headers()).and_then(|timeout| Instant::now().checked_add(timeout));
    let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default(); // our own request messages
    let mut grpc = Grpc::new(codec).max_decoding_message_size(max_request);
    grpc.unary(ShouldRateLimit(service, deadline), request).await
}

/// The method, and when its caller gives up.
struct ShouldRateLimit(Arc<Service>, Option<Instant>);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let (service, deadline) = (self.0.clone(), self.1);
        Box::pin(async move {
            let (metadata, _, request) = request.into_parts();
            let reply = answer(&service, Api::Grpc, metadata.as_ref(), &request.into(), deadline).await;
            reply.map(Response::new).map_err(status)
        })
    }
}

/// How long the caller waits: at most eight digits and a unit.
fn timeout(headers: &http::HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_unit() {
        let of =
            |text: &str| timeout(&[("grpc-timeout".parse().unwrap(), text.parse().unwrap())].into_iter().collect());
        for (text, ns) in [("20m", 20_000_000), ("1500u", 1_500_000), ("7n", 7), ("2S", 2_000_000_000), ("0m", 0)] {
            assert_eq!(of(text), Some(Duration::from_nanos(ns)), "{text}");
        }
        assert_eq!(of("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(of("3M"), Some(Duration::from_secs(180)));
        for text in ["", "m", "20", "20 m", "-1m", "+1m", "123456789m", "20s", "20ms"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(timeout(&http::HeaderMap::new()), None);
    }
}
