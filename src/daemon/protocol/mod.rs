//! The protocols. Each decodes a request, plans, lets the core decide, and encodes the reply.

pub mod access;
pub mod api;
pub mod auth;
pub mod envoy;
pub mod explain;
mod headers;
mod object;
pub mod peer;
