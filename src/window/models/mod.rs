//! Models that are explored completely: of windows, and of what leases do with them.

mod leases;
mod windows;

/// What the models' bounds and numbers of states are published in.
const PROMISES: &str = include_str!("../../../docs/understand/promises.md");
