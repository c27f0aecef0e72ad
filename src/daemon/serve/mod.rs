//! Listening, TLS, reload and shutdown.

mod addresses;
mod connections;
pub mod grpc;
pub mod http;
pub mod listen;
mod read_timeout;
pub mod reload;
pub mod shutdown;
mod tls;
mod xds;

/// An error that ends the daemon.
pub type FatalError = Box<dyn std::error::Error + Send + Sync>;
