//! Holds: units of a limit that are taken while something is under way.
//!
//! A hold has an id that its holder chooses, a number of units, and an end. It is live until its end: `now < end`. A new
//! one is granted while the units of all live holds and its own are at most the limit. Every grant gets a token, larger
//! than that of any grant before, by which a resource can tell a late holder from the present one.
//!
//! Everything is a function of the state and an instant: no clock, no I/O, no `unsafe`. Deciding changes nothing. What
//! changes something [sweeps](Holds::sweep) what has ended first, so that a replica that repeats them stores the same.
//! All of it takes logarithmic time in the number of holds; to remove or renew more than a quarter of them takes linear
//! time.
//!
//! ```
//! use swlimit_hold::{Request, Holds, Verdict};
//!
//! let mut holds = Holds::default();
//! let now = 1_700_000_000_000;
//! let request = Request { limit: 1, ttl: 30_000, id: b"a", cost: 1 };
//! let Ok(Verdict::Granted(grant)) = Holds::decide(Some(&holds), now, &request, 100) else { panic!() };
//! let decision = grant.apply(&mut holds, None);
//! assert_eq!((decision.granted, decision.remaining, decision.token), (1, 0, now * 1000));
//! let other = Request { id: b"b", ..request };
//! let Ok(Verdict::Denied(decision)) = Holds::decide(Some(&holds), now, &other, 100) else { panic!() };
//! assert_eq!(decision.retry_after, Some(30_000));
//! ```

#![forbid(unsafe_code)]

mod codec;
mod decision;
mod holds;
#[cfg(test)]
mod models;
mod reservation;
#[cfg(test)]
mod tests;
mod tree;
#[cfg(test)]
mod vectors;

pub use codec::{decode, encode, VERSION};
pub use decision::{Decision, Grant, Refusal, Request, Verdict};
pub use holds::{Hold, Holds, Live, Relocate, MAX_ID, MAX_INSTANT};
pub use reservation::{KeyDigest, Reservation, Reserved, MAX_RESERVATIONS};
