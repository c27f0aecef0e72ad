//! HTTP connections, with bounds on what clients may hold: time, header size, and connections by address.

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tls_listener::AsyncTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower_service::Service as _;

use super::listen::Listener;
use super::read_timeout::ReadTimeout;
use super::tls::Acceptor;
use crate::config::settings::Http;
use crate::observe::metrics::{self, Rejection};
use crate::protocol::peer::Peer;
use crate::service::Service;

const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long accepting pauses when the process has no file left.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `end`, and then completes running requests.
pub async fn serve(
    service: Arc<Service>,
    router: Router,
    listener: Listener,
    tls: Option<Acceptor>,
    mut end: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let connections = {
        let live = service.live();
        let http = &live.configuration.settings.http;
        Arc::new(Connections { router, builder: builder(http), timeout: http.header_timeout.into(), tls })
    };
    let addresses = Arc::new(Addresses::default());
    let end = end.wait_for(|is_end| *is_end);
    tokio::pin!(end);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = &mut end => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Some(place) = addresses.admit(&service, peer) else {
            metrics::rejected(Rejection::Connections, &peer.0);
            continue;
        };
        let (connections, watcher) = (connections.clone(), graceful.watcher());
        tokio::spawn(async move {
            connections.serve(stream, peer, watcher).await;
            drop(place);
        });
    }
    graceful.shutdown().await;
}

enum Stream {
    Tcp(TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<(Stream, Peer)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            Ok((Stream::Tcp(stream), Peer(Some(address.ip()))))
        }
        Listener::Unix(listener) => Ok((Stream::Unix(listener.accept().await?.0), Peer(None))),
    }
}

fn builder(http: &Http) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let max_header_bytes = http.max_header_bytes.max(8192); // hyper's minimum
    let mut http1 = builder.http1();
    http1.timer(TokioTimer::new()).header_read_timeout(Duration::from(http.header_timeout));
    http1.max_buf_size(max_header_bytes);
    if http.max_headers != 100 {
        http1.max_headers(http.max_headers); // any number but hyper's own needs an allocation for each request
    }
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_header_list_size(u32::try_from(max_header_bytes).unwrap_or(u32::MAX));
    http2.keep_alive_interval(Duration::from(http.header_timeout));
    builder
}

struct Connections {
    router: Router,
    builder: Builder<TokioExecutor>,
    timeout: Duration,
    tls: Option<Acceptor>,
}

impl Connections {
    async fn serve(&self, stream: Stream, peer: Peer, watcher: Watcher) {
        match (stream, &self.tls) {
            (Stream::Unix(stream), _) => self.serve_stream(stream, peer, watcher).await,
            (Stream::Tcp(stream), None) => {
                let _ = stream.set_nodelay(true); // otherwise small replies wait for the ACK of the one before
                self.serve_stream(stream, peer, watcher).await;
            }
            (Stream::Tcp(stream), Some(tls)) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.serve_stream(stream, peer, watcher).await,
                Ok(Err(_)) | Err(_) => metrics::rejected(Rejection::Tls, &peer.0),
            },
        }
    }

    async fn serve_stream<S>(&self, stream: S, peer: Peer, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            self.router.clone().call(request)
        });
        let stream = TokioIo::new(ReadTimeout::of_preface(stream, self.timeout));
        let connection = self.builder.serve_connection(stream, service);
        if let Err(error) = watcher.watch(connection).await {
            if let Some(rejection) = rejection(&*error) {
                metrics::rejected(rejection, &peer.0);
            }
        }
    }
}

/// Why hyper ended a connection, if it refused what the client sent.
fn rejection(error: &(dyn Error + 'static)) -> Option<Rejection> {
    let hyper = error.downcast_ref::<hyper::Error>();
    match hyper {
        Some(error) if error.is_parse_too_large() => Some(Rejection::TooLarge),
        Some(error) if error.is_parse() => Some(Rejection::Malformed),
        Some(error) if error.is_timeout() => Some(Rejection::Slow),
        Some(_) => None,
        None => {
            error.downcast_ref::<io::Error>().filter(|it| it.kind() == io::ErrorKind::TimedOut).map(|_| Rejection::Slow)
        }
    }
}

/// The number of open connections by address. Trusted proxies and Unix sockets have no bound.
#[derive(Default)]
struct Addresses(Mutex<HashMap<IpAddr, usize>>);

/// The place of a connection, until it is dropped.
struct Place {
    addresses: Arc<Addresses>,
    address: Option<IpAddr>,
}

impl Addresses {
    /// A place for a connection; `None` if its address has too many.
    fn admit(self: &Arc<Self>, service: &Service, peer: Peer) -> Option<Place> {
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
        Some(Place { addresses: self.clone(), address })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

impl Drop for Place {
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
