//! Envoy's rate limit protocol, `envoy.service.ratelimit.v3`.

pub mod json;
mod plan;
mod reply;
#[cfg(test)]
mod tests;

pub use plan::{Ask, How, Invalid, Plan, Planning, Role};
pub use reply::{is_over, reply, Answer, Telling};
