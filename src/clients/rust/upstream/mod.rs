//! The servers: every exchange with them, what is known of their health, and the connections.
//!
//! No request owns what is known of a server. A request may be dropped at any moment; what it sent is executed all the
//! same, and the reply still comes. So every exchange outlives its request ([`exchange`], [`reaper`]), and its outcome
//! goes to the health ([`server_health`], [`breaker`]) of the node ([`server`]) that has the key ([`topology`]).

mod asking;
mod batch;
mod breaker;
mod connection;
mod connector;
mod exchange;
mod health;
mod hold_renewer;
mod moment;
mod outcome;
mod reaper;
mod rights;
mod server;
mod server_health;
mod slow;
mod topology;
mod tracking;
mod trips;
mod waiting;

#[cfg(test)]
pub(crate) use asking::{refused, time_to_wait};
pub(crate) use asking::{Upstream, WAITS_ELSEWHERE};
pub(crate) use batch::Batch;
pub(crate) use connection::Identity;
pub(crate) use exchange::{Owner, Settled};
pub(crate) use health::is_failure;
pub(crate) use hold_renewer::{HoldName, HoldRenewer, Lifetime, Settlement};
pub(crate) use moment::Moment;
pub(crate) use outcome::{told_of_all, Outcome};
pub(crate) use rights::Right;
pub(crate) use server::Server;

/// Numbers of `tests/conformance/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] = &[
    ("silence", connection::SILENCE.as_millis() as u64),
    ("silence", tracking::SILENCE.as_millis() as u64),
    ("connect", server_health::CONNECTING.as_millis() as u64),
    ("late", exchange::GIVEN_UP.as_millis() as u64),
    ("max_unanswered", connection::MOST_UNANSWERED as u64),
    ("loop_turns", exchange::TURNS as u64),
    ("ids_per_renewal", hold_renewer::MOST_IDS as u64),
    ("renewals_per_ttl", hold_renewer::RENEWALS as u64),
    ("retries_per_ttl", hold_renewer::RETRIES as u64),
    ("drift", hold_renewer::DRIFT as u64),
    ("failures", breaker::FAILURES as u64),
    ("silent_timeouts", breaker::SILENT_TIMEOUTS as u64),
    ("first_probe", breaker::FIRST_PAUSE.as_millis() as u64),
    ("last_probe", breaker::LONGEST_PAUSE.as_millis() as u64),
    ("probe_timeout", server_health::PROBING.as_millis() as u64),
];
