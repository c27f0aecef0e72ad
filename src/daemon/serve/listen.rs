//! Listening sockets.

use std::io;
use std::path::Path;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, UnixListener};

use crate::config::address::Address;

/// Idle time before probes of TCP keepalive, and their interval. HTTP/2's pings would read the clock with each request.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds an address.
    pub async fn bind(address: &Address) -> Result<Self, String> {
        let bound = match address {
            Address::Tcp(address) => TcpListener::bind(address).await.and_then(keeping_alive).map(Self::Tcp),
            Address::Unix(path) => remove_stale(path).and_then(|()| UnixListener::bind(path).map(Self::Unix)),
        };
        bound.map_err(|error| format!("cannot listen at {address}: {error}"))
    }
}

/// Finds dead peers: connections inherit it.
fn keeping_alive(listener: TcpListener) -> io::Result<TcpListener> {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(&listener).set_tcp_keepalive(&keepalive)?;
    Ok(listener)
}

/// Removes the socket of a process that has ended.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}
