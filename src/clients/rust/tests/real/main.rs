//! The client on real servers, which each test starts for itself and ends again.
//!
//! `SWLIMIT_SERVER` names the server (`redis-server`), `SWLIMIT_MODULE` the module (`target/debug/libswlimit.so`).
//! Where one of them is missing nothing is tested, which is said; in CI that fails. Tests that take long are ignored
//! unless asked for.

mod acquire;
mod away;
mod changes;
mod clocks;
mod holds;
mod lost;
mod places;
mod processes;
mod rates;
mod script;
mod support;
mod take_over;
mod warm_up;
