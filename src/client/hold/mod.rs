//! Things under way: how many at once.

mod guard;
mod info;
mod limiter;
mod local;
mod request;
mod take;

pub(crate) use guard::Taken;
pub use guard::{Hold, Lost};
pub use info::Holder;
pub use limiter::{HoldLimiter, HoldLimiterBuilder};
pub use request::HoldRequest;
pub(crate) use request::PendingHold;
