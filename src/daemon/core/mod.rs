//! Decisions, of whatever protocol: a plan of questions about keys goes in, answers come out.
//!
//! This is the only part that asks the crate `swlimit_client`.

mod answer;
mod caches;
mod check;
mod client;
mod decide;
mod explanation;
mod holds;
pub mod keys;
mod limiter;
mod limiters;
mod plan;
mod question;
mod refusal;
pub mod rights;

pub use answer::{Answer, Source};
pub use check::{check, fastest_trip, Checked};
pub use client::{checker, client};
pub use explanation::{Explanation, Mismatch};
pub use holds::TakenHold;
pub use limiters::Limiters;
pub use plan::{retry_after, Descriptor, Plan};
#[cfg(test)]
pub use question::COMPARISONS;
pub use question::{Operation, Question, Role};
pub use refusal::Refusal;
pub use swlimit_client::{headers, Backend, Client, DeniedKey, Error, KeyInfo, ServerState, State, Statistics};
