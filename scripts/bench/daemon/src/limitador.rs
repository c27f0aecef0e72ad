//! limitador as the service that it is used as, with its counters in Redis.

use std::collections::HashMap;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use limitador::limit::{Context, Limit};
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorage};
use limitador::storage::AsyncCounterStorage;
use limitador::AsyncRateLimiter;
use tonic::{Request, Response, Status};

pub struct Limitador(AsyncRateLimiter);

impl Limitador {
    /// `limits` is JSON: of each kind of key its limit, and the window in seconds.
    pub async fn new(mode: &str, url: &str, limits: &str) -> Self {
        let storage: Box<dyn AsyncCounterStorage> = match mode {
            "redis" => Box::new(AsyncRedisStorage::new(url).await.expect("a server")),
            "redis_cached" => Box::new(CachedRedisStorage::new(url).await.expect("a server")),
            _ => panic!("limitador has no storage {mode}"),
        };
        let limiter = AsyncRateLimiter::new_with_storage(storage);
        let limits: HashMap<String, (u64, u64)> = serde_json::from_str(limits).expect("limits");
        for (kind, (limit, window)) in limits {
            let condition = format!("'{kind}' in descriptors[0]").try_into().expect("a condition");
            let variable = format!("descriptors[0].{kind}").try_into().expect("an expression");
            limiter.add_limit(Limit::new("bench", limit, window, vec![condition], vec![variable]));
        }
        Self(limiter)
    }
}

#[tonic::async_trait]
impl RateLimitService for Limitador {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let entries = |entries: Vec<Entry>| entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
        let descriptors = request.descriptors.into_iter().map(|descriptor| entries(descriptor.entries));
        let mut context = Context::default();
        context.list_binding("descriptors".into(), descriptors.collect());
        let hits = u64::from(request.hits_addend.max(1));
        let decided = self.0.check_rate_limited_and_update(&request.domain.into(), &context, hits).await;
        let decided = decided.map_err(|error| Status::unavailable(error.to_string()))?;
        let code = if decided.limited { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(RateLimitResponse { overall_code: code.into(), ..RateLimitResponse::default() }))
    }
}
