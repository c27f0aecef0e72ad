//! Envoy's rate limit protocol, `envoy.service.ratelimit.v3`.

pub mod grpc;
pub mod json;
mod plan;
mod reply;
#[cfg(test)]
mod tests;

pub use plan::{Ask, How, Invalid, Plan, Planning};
pub use reply::{reply, Answer, Telling};
