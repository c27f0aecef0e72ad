//! What operators see: metrics, traces, and logs that stay readable.

pub mod configuration;
pub mod decisions;
pub mod denied;
mod descriptions;
pub mod health;
pub mod labels;
pub mod metrics;
#[cfg_attr(not(feature = "opentelemetry"), path = "no_opentelemetry.rs")]
pub mod opentelemetry;
pub mod process;
pub mod recent;
pub mod refusals;
pub mod rules;
pub mod snapshots;
mod throttle;
pub mod traces;
pub mod waiting;
