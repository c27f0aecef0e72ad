//! TLS handshakes with the current certificates.

use std::io;
use std::sync::Arc;

use tls_listener::AsyncTls;
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::config::Configuration;
use crate::service::Service;

/// Accepts each connection with the certificates of the current configuration.
#[derive(Clone)]
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
}

impl AsyncTls<TcpStream> for Acceptor {
    type Stream = TlsStream<TcpStream>;
    type Error = io::Error;
    type AcceptFuture = Accept<TcpStream>;

    fn accept(&self, stream: TcpStream) -> Self::AcceptFuture {
        let _ = stream.set_nodelay(true); // otherwise small replies wait for the ACK of the one before
        let live = self.service.live();
        let config = (self.config)(&live.configuration).expect("reloads keep a listener's TLS");
        TlsAcceptor::from(config.clone()).accept(stream)
    }
}
