//! Sliding-window rate limiting with [swlimit]: decisions by the server, or near the request.
//!
//! [swlimit]: https://github.com/swlimit/swlimit

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod admission;
mod budget;
mod calendar;
mod client;
mod clock;
mod decision;
mod demand;
mod error;
#[cfg(test)]
mod fake;
pub mod headers;
mod hold;
mod keyed;
mod limiter;
mod link;
mod mode;
mod permissions;
mod protocol;
mod quota;
mod request;
mod servers;
mod several;
#[cfg(test)]
mod sim;
mod statistics;
mod strategy;
#[cfg(test)]
mod tests;
#[cfg(feature = "tower")]
pub mod tower;
pub mod transport;
mod wait;

pub use admission::{Admission, Member};
pub use budget::{BudgetLimiter, BudgetLimiterBuilder};
pub use calendar::{Calendar, Period};
pub use client::{Client, ClientBuilder};
pub use decision::{Decision, Decisions, Source};
pub use error::Error;
pub use hold::{Hold, HoldLimiter, HoldLimiterBuilder, HoldRequest, Holder, Lost};
pub use limiter::{Limiter, LimiterBuilder};
pub use mode::{Mode, Module, OnFailure};
pub use protocol::{DeniedKey, KeyInfo};
pub use quota::Quota;
pub use request::Request;
pub use servers::{Backend, Reason, ServerState, State};
pub use statistics::Statistics;
pub use transport::ConnectionOptions;
