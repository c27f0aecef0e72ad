//! Listening, TLS, reload and shutdown.

mod addresses;
mod check;
mod connections;
pub mod grpc;
pub mod http;
mod in_flight;
pub mod listen;
pub mod reload;
pub mod shutdown;
mod timeouts;
mod tls;
mod transfer;
mod xds;

/// An error that ends the daemon.
pub type FatalError = Box<dyn std::error::Error + Send + Sync>;
