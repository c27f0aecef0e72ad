//! TLS handshakes with the current certificates.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::config::Configuration;
use crate::service::Service;

/// Accepts each connection with the certificates of the current configuration.
pub struct Acceptor {
    service: Arc<Service>,
    config: fn(&Configuration) -> Option<&Arc<ServerConfig>>,
}

impl Acceptor {
    /// `None` if the listener has no TLS.
    pub fn new(service: &Arc<Service>, config: fn(&Configuration) -> Option<&Arc<ServerConfig>>) -> Option<Self> {
        config(&service.live().configuration)?;
        Some(Self { service: service.clone(), config })
    }

    /// Begins the handshake.
    pub fn accept(&self, stream: TcpStream) -> Accept<TcpStream> {
        let live = self.service.live();
        let config = (self.config)(&live.configuration).expect("reloads keep a listener's TLS");
        TlsAcceptor::from(config.clone()).accept(stream)
    }
}
