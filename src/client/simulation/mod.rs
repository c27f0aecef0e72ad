//! The client on a simulated server and network, on a simulated clock.

pub(crate) mod fake;
mod hold_tests;
mod holds;
mod runs;
mod tests;
