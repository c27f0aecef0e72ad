//! Envoy's rate limit protocol, `envoy.service.ratelimit.v3`.

mod answer;
mod encode;
pub mod grpc;
pub mod json;
mod messages;
mod plan;
mod request;
#[cfg(test)]
mod tests;

pub use answer::plan;
pub use request::Request;
