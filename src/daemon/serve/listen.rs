//! Listening sockets.

use std::io;
use std::path::Path;

use tokio::net::{TcpListener, UnixListener};

use crate::config::address::Address;

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds an address.
    pub async fn bind(address: &Address) -> Result<Self, String> {
        let bound = match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => remove_stale(path).and_then(|()| UnixListener::bind(path).map(Self::Unix)),
        };
        bound.map_err(|error| format!("cannot listen at {address}: {error}"))
    }
}

/// Removes the socket of a process that has ended.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}
