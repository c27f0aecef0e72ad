//! Sliding-window rate limiting with [swlimit]: decisions by the server, or near the request.
//!
//! [swlimit]: https://github.com/swlimit/swlimit

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod background;
mod circuit;
mod client;
mod clock;
mod commands;
mod deciding;
mod decision;
mod demand;
mod denials;
mod error;
#[cfg(test)]
mod fake;
pub mod headers;
mod keys;
mod leases;
mod limiter;
mod local;
mod operating;
mod quota;
mod request;
mod server;
mod statistics;
#[cfg(test)]
mod tests;
#[cfg(feature = "tower")]
pub mod tower;
mod turns;
pub mod wire;

pub use client::{Client, ClientBuilder};
pub use deciding::{Deciding, WhenAway};
pub use decision::{Decision, Decisions, Way};
pub use error::Error;
pub use limiter::{Limiter, LimiterBuilder};
pub use operating::{Denied, Held};
pub use quota::Quota;
pub use request::Request;
pub use statistics::Statistics;
