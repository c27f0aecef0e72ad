//! Decisions, of whatever protocol: a plan of questions about keys goes in, answers come out.
//!
//! This is the only part that asks the crate `swlimit_client`.

mod answer;
mod brought;
mod decide;
mod explanation;
mod holds;
pub mod keys;
mod limiter;
mod limiters;
mod plan;
mod refusal;
mod rights;
mod single;

pub use answer::{Answer, Source};
pub use explanation::{Explanation, Mismatch};
pub use holds::{AdmitPart, BudgetKind, HoldKind, Taken};
pub use limiters::{check, checker, client, Checked, Limiters};
#[cfg(test)]
pub use plan::COMPARISONS;
pub use plan::{retry_after, Descriptor, Operation, Plan, Question, Role};
pub use refusal::Refusal;
pub use single::{info, top, Demand, Verb};
pub use swlimit_client::{headers, Backend, Client, DeniedKey, Error, KeyInfo, State, Statistics};
