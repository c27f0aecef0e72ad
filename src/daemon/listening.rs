//! Where the protocols are spoken.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tls_listener::TlsListener;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic_health::server::HealthReporter;

use crate::envoy::grpc::RateLimit;
use crate::http::{router, Peer, LARGEST};
use crate::service::Service;
use crate::settings::{Address, Tls};

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
pub async fn grpc(
    service: Arc<Service>,
    listener: Listener,
    tls: Option<ServerTlsConfig>,
    mut end: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let (reporter, checks) = tonic_health::server::health_reporter();
    let health = Health(reporter);
    health.set(true).await;
    let mut server = Server::builder().http2_keepalive_interval(Some(KEEPALIVE));
    if let Some(tls) = tls {
        server = server.tls_config(tls)?;
    }
    let limiting = RateLimitServiceServer::new(RateLimit(service.clone())).max_decoding_message_size(LARGEST);
    let router = server.add_service(checks).add_service(limiting);
    let mut notice = service.notice();
    tokio::spawn(async move {
        let _ = notice.wait_for(|is_ending| *is_ending).await;
        health.set(false).await;
    });
    let end = async move { drop(end.wait_for(|is_end| *is_end).await) };
    match listener {
        Listener::Tcp(listener) => {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            router.serve_with_incoming_shutdown(incoming, end).await?;
        }
        Listener::Unix(listener) => {
            router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), end).await?;
        }
    }
    Ok(())
}

/// Speak HTTP until the end is told; then until what has begun is answered.
pub async fn http(
    service: Arc<Service>,
    listener: Listener,
    tls: Option<TlsAcceptor>,
    mut end: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let service = router(service).into_make_service_with_connect_info::<Peer>();
    let end = async move { drop(end.wait_for(|is_end| *is_end).await) };
    match (listener, tls) {
        (Listener::Tcp(listener), None) => axum::serve(listener, service).with_graceful_shutdown(end).await?,
        (Listener::Tcp(listener), Some(tls)) => {
            axum::serve(TlsListener::new(tls, listener), service).with_graceful_shutdown(end).await?;
        }
        (Listener::Unix(listener), None) => axum::serve(listener, service).with_graceful_shutdown(end).await?,
        (Listener::Unix(_), Some(_)) => return Err("a socket of this machine needs no TLS: http has both".into()),
    }
    Ok(())
}

/// What a server of gRPC shows, and asks of its clients.
pub fn tls(tls: &Tls) -> io::Result<ServerTlsConfig> {
    let mut config = ServerTlsConfig::new().identity(Identity::from_pem(read(&tls.certificate)?, read(&tls.key)?));
    if let Some(authority) = &tls.client_authority {
        config = config.client_ca_root(Certificate::from_pem(read(authority)?));
    }
    Ok(config)
}

/// The same of a server of HTTP.
pub fn https(tls: &Tls) -> Result<TlsAcceptor, Failure> {
    let certificates = |path: &Path| -> Result<Vec<_>, Failure> {
        let all = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>();
        all.map_err(|error| format!("{}: {error}", path.display()).into())
    };
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key)?);
    let key = key.map_err(|error| format!("{}: {error}", tls.key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &tls.client_authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authority)? {
                roots.add(certificate)?;
            }
            builder
                .with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build()?)
        }
    };
    let mut config = builder.with_single_cert(certificates(&tls.certificate)?, key)?;
    config.alpn_protocols = vec!["h2".into(), "http/1.1".into()];
    Ok(Arc::new(config).into())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::read(path).map_err(named)
}
