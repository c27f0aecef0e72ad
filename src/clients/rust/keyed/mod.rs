//! Values by key: a bounded map, and a queue for each key.

mod bounded;
mod fair_queue;

pub(crate) use bounded::{Bounded, Keep};
pub(crate) use fair_queue::{FairQueue, Turn};
