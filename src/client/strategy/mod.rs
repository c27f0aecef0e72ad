//! How requests are decided near themselves: one strategy for each mode but `direct`.

pub(crate) mod deny_cache;
pub(crate) mod eventual;
pub(crate) mod lease;
pub(crate) mod local;
