//! swlimit: server-side sliding-window rate limiting for Redis and Valkey.
//!
//! The arithmetic is the crate `swlimit_window`, a function of state and instant. [`arguments`] and [`error`] are the
//! language clients speak. [`commands`] has one file a command; [`waiting`] is the order of those who wait for their
//! turn, and [`denials`] remembers who was denied it. [`server`] is the boundary to the server and holds all
//! that is `unsafe`. Only this file knows both of them.
//!
//! `#[inline(always)]` stands where every decision passes through: merged into its command, it takes a quarter fewer
//! instructions of the module's own, 2 to 4 % of the whole command's time (`make bench` counts them).

#![deny(unsafe_code)]

mod arguments;
mod commands;
mod configuration;
mod denials;
mod error;
#[allow(unsafe_code)]
mod server;
mod statistics;
mod waiting;

use commands::{Acquire, Allow, Block, Info, Mallow, Peek, Record, Refund, Top, Unblock};
use server::Loading;

/// Tell the server what the module brings. On an error it is not loaded.
fn load(loading: &Loading) -> Result<(), String> {
    let settings = configuration::from_load_arguments(loading.arguments())?;
    loading.register_type()?;
    loading.register::<Allow>()?;
    loading.register::<Acquire>()?;
    loading.register::<Peek>()?;
    loading.register::<Record>()?;
    loading.register::<Refund>()?;
    loading.register::<Block>()?;
    loading.register::<Unblock>()?;
    loading.register::<Info>()?;
    loading.register::<Mallow>()?;
    loading.register::<Top>()?;
    loading.configure(settings)
}
