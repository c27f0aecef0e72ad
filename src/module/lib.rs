//! swlimit: server-side sliding-window rate limiting for Redis and Valkey.
//!
//! The arithmetic is the crate `swlimit_window`, a function of state and instant. [`arguments`] and [`error`] are the language clients
//! speak. [`commands`] has one file a command. [`server`] is the boundary to the server and holds all that is `unsafe`.
//!
//! `#[inline(always)]` stands where every decision passes through: merged into its command, it takes a quarter fewer
//! instructions of the module's own, 2 to 4 % of the whole command's time (`make bench` counts them).

#![deny(unsafe_code)]

mod arguments;
mod commands;
mod configuration;
mod error;
#[allow(unsafe_code)]
mod server;
mod statistics;
