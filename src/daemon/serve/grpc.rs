//! The gRPC server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{unfold, Stream};
use tls_listener::TlsListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::Server;
use tonic_health::server::HealthReporter;
use tonic_health::ServingStatus;

use super::listen::Listener;
use super::tls::Acceptor;
use super::{FatalError, MAX_REQUEST};
use crate::protocol::envoy::grpc::RateLimitServer;
use crate::service::Service;

/// The service's name in health checks, as in envoyproxy/ratelimit.
const HEALTH_NAME: &str = "ratelimit";

/// The interval of HTTP/2 pings, which find dead peers.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Serves gRPC until `end`, and then completes running requests.
pub async fn serve(
    service: Arc<Service>,
    listener: Listener,
    mut end: watch::Receiver<bool>,
) -> Result<(), FatalError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    report(&reporter, ServingStatus::Serving).await;
    let rate_limit = RateLimitServer { service: service.clone(), max_request: MAX_REQUEST };
    let mut server = {
        let live = service.live();
        let grpc = &live.configuration.settings.grpc;
        let server = Server::builder().http2_keepalive_interval(Some(KEEPALIVE));
        let server = server.max_connection_age(grpc.max_connection_age.into());
        match grpc.max_connection_age_grace {
            Some(grace) => server.max_connection_age_grace(grace.into()),
            None => server,
        }
    };
    let router = server.add_service(health).add_service(rate_limit);
    let stopping = service.clone();
    tokio::spawn(async move {
        stopping.until_stopping().await;
        report(&reporter, ServingStatus::NotServing).await;
    });
    let end = async move { drop(end.wait_for(|is_end| *is_end).await) };
    match (listener, Acceptor::new(&service, |configuration| configuration.grpc_tls.as_ref())) {
        (Listener::Tcp(listener), None) => {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            router.serve_with_incoming_shutdown(incoming, end).await?;
        }
        (Listener::Tcp(listener), Some(tls)) => {
            router.serve_with_incoming_shutdown(accepted(TlsListener::new(tls, listener)), end).await?;
        }
        (Listener::Unix(listener), _) => {
            router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), end).await?;
        }
    }
    Ok(())
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
