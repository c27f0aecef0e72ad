//! What operators see: metrics, traces, and logs that stay readable.

pub mod denied;
pub mod metrics;
pub mod process;
pub mod recent;
mod throttle;
pub mod traces;
