//! Sliding-window rate limiting with [swlimit]: decisions by the server, or near the request.
//!
//! # Quick start
//!
//! ```no_run
//! use swlimit_client::{Client, Quota};
//!
//! # async fn example() -> Result<(), swlimit_client::Error> {
//! let client = Client::connect("redis://127.0.0.1/").await?;
//! let limiter = client.limiter(Quota::per_minute(100)).build()?;
//! let decision = limiter.allow("user:1").await?;
//! if !decision.granted() {
//!     println!("come back in {:?}", decision.retry_after());
//! }
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//!
//! - A [`Client`] is the connection to a server, to a primary that sentinels name, or to a cluster. [`Client::local`]
//!   needs no server.
//! - A [`Quota`] is a limit in a window. A [`Limiter`] applies one quota to any number of keys.
//! - A [`Request`] is a key, a cost, and options; a key alone costs one unit. A [`Decision`] says whether it was granted,
//!   what remains, when to retry, and its [`Source`].
//! - A [`HoldLimiter`] limits how many things are under way at once; each has a [`Hold`], which ends when it is dropped.
//! - A [`BudgetLimiter`] counts units of a period of a [`Calendar`]: 10,000 a month, in any time zone.
//! - [`Client::allow_all`] decides several limits at once, [`Client::admit`] limits of all kinds.
//!
//! # Where decisions are made
//!
//! The [`Mode`] of a limiter is a choice between exactness and round trips. [`Mode::Cached`], the default, sends each
//! request to the server, except those that the server is known to deny. [`Mode::Leased`] takes units ahead of the
//! requests and never grants more than the limit; [`Mode::Eventual`] never waits for the server.
//!
//! When the server does not answer within 50 ms, [`OnFailure`] decides: by default a window in this process, with a tenth
//! of the limit. So `allow` returns [`Error::Unavailable`] only with [`OnFailure::Error`].
//!
//! # Without a server
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), swlimit_client::Error> {
//! use swlimit_client::{Client, Quota, Request};
//!
//! let limiter = Client::local().limiter(Quota::per_second(5)).build()?;
//! assert!(limiter.allow(Request::new("user:1").cost(3)).await?.granted());
//! assert!(!limiter.allow(Request::new("user:1").cost(3)).await?.granted());
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `tls` (default): `rediss://` URLs. `tower` (default): the layers in [`tower`]. `metrics`: counters through the crate
//! `metrics`. `serde`: [`Mode`], [`OnFailure`], [`Module`] and [`Cluster`] in configuration files.
//!
//! [swlimit]: https://github.com/swlimit/swlimit

#![deny(missing_docs)]
#![warn(missing_debug_implementations)]
#![forbid(unsafe_code)]

mod adaptive;
mod admission;
mod budget;
mod calendar;
mod client;
mod clock;
mod deciding;
mod decision;
#[cfg(test)]
mod defaults;
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
mod rates;
mod reason;
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

pub use adaptive::{Adaptive, AdaptiveBuilder, Algorithm, Permit};
pub use admission::{Admission, Member};
pub use budget::{BudgetLimiter, BudgetLimiterBuilder};
pub use calendar::{Calendar, Period};
pub use client::{Client, ClientBuilder};
pub use decision::{Decision, Decisions, Source};
pub use error::{Cause, Error};
pub use hold::{Hold, HoldLimiter, HoldLimiterBuilder, HoldRequest, Holder, Lost};
pub use limiter::{Limiter, LimiterBuilder, Limits, LimitsBuilder};
pub use mode::{Cluster, Mode, Module, OnFailure, OnRefused};
pub use protocol::{DeniedKey, KeyInfo};
pub use quota::Quota;
pub use reason::Reason;
pub use request::Request;
pub use servers::{Backend, Eviction, ServerState, State};
pub use statistics::Statistics;
pub use transport::ConnectionOptions;
