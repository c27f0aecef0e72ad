//! A server and a network for tests, in the time of tokio's paused clock.
//!
//! The [`server`] executes commands with the window crate. The [`network`] carries them, late, twice or never, and goes
//! on when nobody waits any more: what was sent is executed, and its reply thrown away.

mod holds;
mod network;
mod server;

use std::future::Future;

use tokio::runtime::Builder;

pub(crate) use network::{Fake, Fault};

/// Runs in paused time: it passes when everybody waits, and only then.
pub(crate) fn paused<T>(what: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(what)
}
