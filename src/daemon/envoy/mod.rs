//! Envoy's rate limit protocol, `envoy.service.ratelimit.v3`.

mod plan;
#[cfg(test)]
mod tests;

pub use plan::{Ask, How, Invalid, Plan, Role};
