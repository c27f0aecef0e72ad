//! The primitives that threads share; the model of all interleavings has its own.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use parking_lot::Mutex;
