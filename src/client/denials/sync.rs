//! What is shared between threads is made of these; a model of all interleavings is made of others.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use parking_lot::Mutex;
