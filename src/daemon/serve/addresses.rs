//! The number of open connections by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::protocol::peer::Peer;
use crate::service::Service;

/// Counts connections. Trusted proxies and Unix sockets have no bound.
#[derive(Default)]
pub struct Addresses(Mutex<HashMap<IpAddr, usize>>);

/// The place of a connection, until it is dropped.
pub struct ConnectionSlot {
    addresses: Arc<Addresses>,
    address: Option<IpAddr>,
}

impl Addresses {
    /// A place for a connection; `None` if its address has too many.
    pub fn admit(self: &Arc<Self>, service: &Service, peer: Peer) -> Option<ConnectionSlot> {
        let live = service.live();
        let settings = &live.configuration.settings;
        let address = peer.0.map(|address| address.to_canonical());
        let address = address.filter(|address| !settings.auth.trusted_proxies.contains(*address));
        if let Some(address) = address {
            let mut counts = self.counts();
            let count = counts.entry(address).or_default();
            if *count >= settings.http.max_connections_per_address {
                return None;
            }
            *count += 1;
        }
        Some(ConnectionSlot { addresses: self.clone(), address })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut counts = self.addresses.counts();
        if let Some(count) = counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
            }
        }
    }
}
