//! Envoy's rate limit protocol, `envoy.service.ratelimit.v3`.

pub mod grpc;
pub mod json;
mod plan;
mod reply;
#[cfg(test)]
mod tests;

pub use plan::{Ask, Descriptor, How, Invalid, Plan, Planning, Role};
pub use reply::{reply, retry_after, Answer, Telling};
