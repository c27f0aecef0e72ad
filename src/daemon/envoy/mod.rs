//! Envoy's rate limit protocol, `envoy.service.ratelimit.v3`.

pub mod grpc;
pub mod json;
mod plan;
mod reply;
#[cfg(test)]
mod tests;

pub use plan::{Invalid, Planning};
pub use reply::{reply, Telling};
