//! A server and a network for tests, in the time of tokio's paused clock.
//!
//! The [`server`] executes commands with the window crate. The [`network`] carries them, late, twice or never, and goes
//! on when nobody waits any more: what was sent is executed, and its reply thrown away.

mod holds;
mod network;
mod server;

pub(crate) use network::{Fake, Fault};
