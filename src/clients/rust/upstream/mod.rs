//! The servers: every exchange with them, what is known of their health, and the connections.
//!
//! No request owns what is known of a server. A request may be dropped at any moment; what it sent is executed all the
//! same, and the reply still comes. So every exchange outlives its request ([`exchange`], [`reaper`]), and its outcome
//! goes to the health ([`node_health`], [`breaker`]) of the node ([`node`]) that has the key ([`topology`]).

mod batch;
mod breaker;
mod connector;
mod exchange;
mod health;
mod hold_renewer;
mod line;
mod link;
mod moment;
mod node;
mod node_health;
mod outcome;
mod reaper;
mod rights;
mod topology;
mod tracking;
mod trips;
mod waiting;

pub(crate) use batch::Batch;
pub(crate) use exchange::{Owner, Settled};
pub(crate) use health::is_failure;
pub(crate) use hold_renewer::{HoldName, HoldRenewer, Lifetime, Settlement};
pub(crate) use line::Identity;
#[cfg(test)]
pub(crate) use link::{refused, time_to_wait};
pub(crate) use link::{Link, WAITS_ELSEWHERE};
pub(crate) use moment::Moment;
pub(crate) use node::Node;
pub(crate) use outcome::{told_of_all, Outcome};
pub(crate) use rights::Right;

/// Numbers of `tests/conformance/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] = &[
    ("silence", line::SILENCE.as_millis() as u64),
    ("silence", tracking::SILENCE.as_millis() as u64),
    ("connect", node_health::CONNECTING.as_millis() as u64),
    ("late", exchange::GIVEN_UP.as_millis() as u64),
    ("max_unanswered", line::MOST_UNANSWERED as u64),
    ("loop_turns", exchange::TURNS as u64),
    ("ids_per_renewal", hold_renewer::MOST_IDS as u64),
    ("renewals_per_ttl", hold_renewer::RENEWALS as u64),
    ("retries_per_ttl", hold_renewer::RETRIES as u64),
    ("drift", hold_renewer::DRIFT as u64),
    ("failures", breaker::FAILURES as u64),
    ("silent_timeouts", breaker::SILENT_TIMEOUTS as u64),
    ("first_probe", breaker::FIRST_PAUSE.as_millis() as u64),
    ("last_probe", breaker::LONGEST_PAUSE.as_millis() as u64),
    ("probe_timeout", node_health::PROBING.as_millis() as u64),
];
