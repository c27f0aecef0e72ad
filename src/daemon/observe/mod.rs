//! What operators see: metrics and traces.

pub mod metrics;
pub mod recent;
pub mod traces;
