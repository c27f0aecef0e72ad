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
mod reaper;
mod rights;
mod topology;
mod tracking;
mod waiting;

pub(crate) use batch::Batch;
pub(crate) use exchange::{Settle, Settled};
pub(crate) use health::is_failure;
pub(crate) use hold_renewer::{HoldName, HoldRenewer, Lifetime, Settlement};
pub(crate) use line::Identity;
pub(crate) use link::{Link, WAITS_ELSEWHERE};
pub(crate) use moment::Moment;
pub(crate) use node::Node;
pub(crate) use rights::Right;
