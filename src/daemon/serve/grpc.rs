//! The gRPC server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{unfold, Stream, StreamExt};
use tls_listener::TlsListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::Server;
use tonic_health::server::HealthReporter;
use tonic_health::ServingStatus;

use super::listen::Listener;
use super::read_timeout::ReadTimeout;
use super::tls::Acceptor;
use super::FatalError;
use crate::protocol::envoy::grpc::RateLimitServer;
use crate::service::Service;

/// The service's name in health checks, as in envoyproxy/ratelimit.
const HEALTH_NAME: &str = "ratelimit";

/// The largest request in bytes: gRPC's own default. A proxy that fails open lets through what is refused, so it has to
/// hold a client's 60 kB of headers even if dozens of descriptors repeat them.
const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// Serves gRPC until `end`, and then completes running requests.
pub async fn serve(
    service: Arc<Service>,
    listener: Listener,
    mut end: watch::Receiver<bool>,
) -> Result<(), FatalError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    report(&reporter, ServingStatus::Serving).await;
    let rate_limit = RateLimitServer { service: service.clone(), max_request: MAX_REQUEST };
    let (age, grace) = {
        let live = service.live();
        let grpc = &live.configuration.settings.grpc;
        (Duration::from(grpc.max_connection_age), grpc.max_connection_age_grace.map(Duration::from))
    };
    let mut server = Server::builder().max_connection_age(age);
    let router = server.add_service(health).add_service(rate_limit);
    // tonic's own grace ends a connection that was never told to take no more requests.
    let longest = grace.map(|grace| age.saturating_add(grace));
    let stopping = service.clone();
    tokio::spawn(async move {
        stopping.until_stopping().await;
        report(&reporter, ServingStatus::NotServing).await;
    });
    let end = async move { drop(end.wait_for(|is_end| *is_end).await) };
    match (listener, Acceptor::new(&service, |configuration| configuration.grpc_tls.as_ref())) {
        (Listener::Tcp(listener), None) => {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            router.serve_with_incoming_shutdown(ending(incoming, longest), end).await?;
        }
        (Listener::Tcp(listener), Some(tls)) => {
            let incoming = accepted(TlsListener::new(tls, listener));
            router.serve_with_incoming_shutdown(ending(incoming, longest), end).await?;
        }
        (Listener::Unix(listener), _) => {
            let incoming = UnixListenerStream::new(listener);
            router.serve_with_incoming_shutdown(ending(incoming, longest), end).await?;
        }
    }
    Ok(())
}

/// Connections that end after this time, if there is one.
fn ending<IO>(
    incoming: impl Stream<Item = io::Result<IO>>,
    longest: Option<Duration>,
) -> impl Stream<Item = io::Result<ReadTimeout<IO>>> {
    incoming.map(move |connection| connection.map(|stream| ReadTimeout::of_all(stream, longest)))
}

async fn report(reporter: &HealthReporter, status: ServingStatus) {
    for name in ["", HEALTH_NAME] {
        reporter.set_service_status(name, status).await;
    }
}

/// The accepted connections of a listener, which logs errors itself.
fn accepted<L: axum::serve::Listener>(listener: L) -> impl Stream<Item = io::Result<L::Io>> {
    unfold(listener, |mut listener| async {
        let (connection, _) = listener.accept().await;
        Some((Ok(connection), listener))
    })
}
