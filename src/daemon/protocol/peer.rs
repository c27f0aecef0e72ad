//! The peer of a connection.

use std::net::IpAddr;

/// The peer's address; `None` on a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub Option<IpAddr>);
