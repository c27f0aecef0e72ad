//! Budgets: a number of units until an instant that each request names; then counting starts again.
//!
//! There is no calendar here. The first unit that is counted decides the end that is in force; until then another end
//! changes nothing. Everything is a function of the state and an instant: no clock, no I/O, no `unsafe`.
//!
//! ```
//! use swlimit_budget::{Budget, Request};
//!
//! let now = 1_700_000_000_000;
//! let request = Request { limit: 10, until: now + 1_000, cost: 8, partial: false };
//! let (count, decision) = Budget::decide(None, now, &request);
//! let budget = count.unwrap().budget();
//! assert_eq!((decision.granted, decision.remaining, decision.reset_after), (8, 2, 1_000));
//! assert_eq!(Budget::decide(Some(&budget), now, &request).1.retry_after, Some(1_000));
//! assert_eq!(Budget::decide(Some(&budget), now + 1_000, &Request { until: now + 2_000, ..request }).1.granted, 8);
//! ```

#![forbid(unsafe_code)]

mod budget;
mod codec;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

pub use budget::{Budget, Count, Request};
pub use codec::{decode, encode, VERSION};
