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
mod deciding;
mod decision;
mod demand;
mod error;
pub mod headers;
mod hold;
mod keyed;
mod keys;
mod limiter;
mod mode;
mod permissions;
mod protocol;
mod quota;
mod request;
mod servers;
mod shared;
#[cfg(test)]
mod simulation;
mod statistics;
#[cfg(feature = "tower")]
pub mod tower;
pub mod transport;
mod upstream;
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
