//! How requests are decided near themselves: a module for each mode except `direct`.

pub(crate) mod cached;
pub(crate) mod eventual;
pub(crate) mod leased;
pub(crate) mod local;
