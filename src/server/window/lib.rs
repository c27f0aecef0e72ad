//! The sliding window: counted units, and decisions about requests.
//!
//! Time is cut into subintervals of the resolution `R`, aligned to the Unix epoch; a window is `N` of them. At an
//! instant in subinterval `c`, `e` ms after its start, the estimate of the units in the window is
//!
//! ```text
//! full     = units of subintervals c−N+1 … c
//! trailing = units of subinterval c−N, the one that is sliding out
//! estimate = full + trailing · (R − e) / R        or, strictly, full + trailing
//! ```
//!
//! This is the sliding-window counter known from Cloudflare's two counters (N = 1), with any number of subintervals.
//! A cost `k` is granted while `estimate + k ≤ limit`. As limits and costs are whole units, that is the same as
//! `⌈estimate⌉ + k ≤ limit`, so everything here is integer arithmetic and exact.
//!
//! Everything is a function of the state and an instant: no clock, no I/O, no `unsafe`. Instants are Unix time in
//! milliseconds, at most [`MAX_EXACT`].
//!
//! ```
//! use swlimit_window::{Request, Entry, Geometry, Quota, Verdict};
//!
//! let quota = Quota { limit: 100, geometry: Geometry::new(60_000, 5_000).unwrap() };
//! let request = Request { quota, cost: 1, partial: false, strict: false, warm_up: None };
//! let mut entry = Entry::default();
//! let Ok(Verdict::Granted(grant)) = Entry::decide(Some(&entry), 1_700_000_000_000, &request) else { panic!() };
//! let decision = grant.apply(&mut entry);
//! assert_eq!((decision.granted, decision.remaining, decision.reset_after), (1, 99, 65_000));
//! ```

#![forbid(unsafe_code)]

mod codec;
mod counts;
mod duration;
mod entry;
mod geometry;
pub mod leb128;
#[cfg(test)]
mod models;
mod quota;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
mod view;
mod warm_up;
mod window;

pub use codec::{decode, encode, VERSION};
pub use counts::Count;
pub use duration::{duration, duration_or_zero, integer, short_digits};
pub use entry::{Entry, Grant, Marked, Record, Recording, Verdict, MAX_BLOCK};
pub use geometry::{Geometry, GeometryError, MAX_EXACT, MAX_SUBINTERVALS, MAX_WINDOW};
pub use quota::{part, Decision, Overflow, Quota, Request};
pub use warm_up::WarmUp;
pub use window::{Invalid, Window};
