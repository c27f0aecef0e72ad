//! Things under way: how many at once.

mod guard;
mod info;
mod limiter;
mod local;
mod poll;
mod request;
mod take;

pub(crate) use guard::Taken;
pub use guard::{Hold, Lost};
pub use info::Holder;
pub use limiter::{HoldLimiter, HoldLimiterBuilder};
pub use request::HoldRequest;
pub(crate) use request::PendingHold;

/// Numbers of `tests/conformance/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] = &[
    ("hold_ttl", limiter::TTL.as_millis() as u64),
    ("min_hold_ttl", request::MIN_TTL.as_millis() as u64),
    ("min_hold_poll", poll::MIN_POLL.as_millis() as u64),
    ("max_hold_poll", poll::MAX_POLL.as_millis() as u64),
    ("max_hold_wait", request::MAX_WAIT.as_millis() as u64),
    ("max_hold_id", request::MAX_ID as u64),
];
