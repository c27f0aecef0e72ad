//! The client on a simulated server and network, on a simulated clock.

mod counts;
pub(crate) mod exchanges;
pub(crate) mod fake;
mod hold_tests;
mod holds;
mod leases;
mod runs;
mod tests;
mod warming;
