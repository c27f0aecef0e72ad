//! Where the protocols are spoken.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use futures_util::stream::{unfold, Stream};
use tls_listener::TlsListener;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::Server;
use tonic_health::server::HealthReporter;

use crate::envoy::grpc::RateLimit;
use crate::http::{router, Peer, LARGEST};
use crate::service::Service;
use crate::settings::{Address, Configuration};
use crate::tls::Acceptor;

/// What health checks call the rate limit service, as they do envoyproxy/ratelimit's.
const HEALTH_NAME: &str = "ratelimit";

/// A client that is gone without a word is noticed after this.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Why something cannot go on.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// An address that is listened at.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => {
                remove_left_over(path)?;
                UnixListener::bind(path).map(Self::Unix)
            }
        }
    }
}

/// Remove the socket of a process that is gone, which nobody answers at.
fn remove_left_over(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Tells health checks of gRPC how the service is.
pub struct Health(HealthReporter);

impl Health {
    pub async fn set(&self, is_serving: bool) {
        use tonic_health::ServingStatus::{NotServing, Serving};
        for name in ["", HEALTH_NAME] {
            self.0.set_service_status(name, if is_serving { Serving } else { NotServing }).await;
        }
    }
}

/// Speak gRPC until the end is told; then until what has begun is answered.
pub async fn grpc(service: Arc<Service>, listener: Listener, mut end: watch::Receiver<bool>) -> Result<(), Failure> {
    let (reporter, checks) = tonic_health::server::health_reporter();
    let health = Health(reporter);
    health.set(true).await;
    let limiting = RateLimitServiceServer::new(RateLimit(service.clone())).max_decoding_message_size(LARGEST);
    let mut server = Server::builder().http2_keepalive_interval(Some(KEEPALIVE));
    let router = server.add_service(checks).add_service(limiting);
    let mut notice = service.notice();
    tokio::spawn(async move {
        let _ = notice.wait_for(|is_ending| *is_ending).await;
        health.set(false).await;
    });
    let end = async move { drop(end.wait_for(|is_end| *is_end).await) };
    match (listener, Acceptor::new(&service, Configuration::grpc_tls)) {
        (Listener::Tcp(listener), None) => {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            router.serve_with_incoming_shutdown(incoming, end).await?;
        }
        (Listener::Tcp(listener), Some(tls)) => {
            router.serve_with_incoming_shutdown(connections(TlsListener::new(tls, listener)), end).await?;
        }
        (Listener::Unix(listener), _) => {
            router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), end).await?;
        }
    }
    Ok(())
}

/// Those who connect, for ever; what goes wrong with one of them is logged.
fn connections<L: axum::serve::Listener>(listener: L) -> impl Stream<Item = io::Result<L::Io>> {
    unfold(listener, |mut listener| async {
        let (connection, _) = listener.accept().await;
        Some((Ok(connection), listener))
    })
}

/// Speak HTTP until the end is told; then until what has begun is answered.
pub async fn http(service: Arc<Service>, listener: Listener, mut end: watch::Receiver<bool>) -> Result<(), Failure> {
    let tls = Acceptor::new(&service, Configuration::http_tls);
    let service = router(service).into_make_service_with_connect_info::<Peer>();
    let end = async move { drop(end.wait_for(|is_end| *is_end).await) };
    match (listener, tls) {
        (Listener::Tcp(listener), None) => axum::serve(listener, service).with_graceful_shutdown(end).await?,
        (Listener::Tcp(listener), Some(tls)) => {
            axum::serve(TlsListener::new(tls, listener), service).with_graceful_shutdown(end).await?;
        }
        (Listener::Unix(listener), _) => axum::serve(listener, service).with_graceful_shutdown(end).await?,
    }
    Ok(())
}
