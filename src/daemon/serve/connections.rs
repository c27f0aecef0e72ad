//! Connections: accepted, with TLS, and ended once the daemon stops.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::listen::Listener;
use super::tls::Acceptor;
use super::transfer::Transfers;
use crate::observe::labels::Rejection;
use crate::observe::metrics;
use crate::protocol::peer::Peer;

/// How long a client may take for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long accepting pauses when the process has no file left.
const PAUSE: Duration = Duration::from_millis(100);

/// The protocol of a listener's connections.
pub trait Protocol: Send + Sync + 'static {
    /// The slot of an open connection.
    type ConnectionSlot: Send;

    /// A slot for a connection; `None` if its peer has too many.
    fn admit(&self, peer: Peer) -> Option<Self::ConnectionSlot>;

    /// Serves a connection. Once it is `over`, it completes what it has begun.
    fn serve<S>(
        &self,
        stream: S,
        peer: Peer,
        over: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;
}

/// Serves connections until `end`, and then completes running requests.
pub async fn serve(protocol: impl Protocol, listener: Listener, tls: Option<Acceptor>, mut end: watch::Receiver<bool>) {
    let connections = Arc::new(Connections { protocol, tls });
    let over = watch::Sender::new(false);
    {
        let listener = listener; // dropped, it refuses further connections
        let mut end = pin!(end.wait_for(|is_end| *is_end));
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener) => accepted,
                _ = &mut end => break,
            };
            match accepted {
                Ok((stream, peer)) => connections.clone().spawn(stream, peer, over.subscribe()),
                Err(error) => {
                    tracing::error!(%error, "cannot accept connections");
                    sleep(PAUSE).await;
                }
            }
        }
    }
    over.send_replace(true);
    over.closed().await;
}

/// Drives a connection to its end. Once it is `over`, it takes no more requests.
pub async fn drive<C: GracefulConnection>(connection: C, over: impl Future<Output = ()>) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = &mut connection => return ended,
        () = over => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

/// Serves a connection until it ends, or one of its replies takes too long.
pub async fn until_given_up(
    serving: impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>>,
    transfers: &Transfers,
    peer: Peer,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    tokio::select! {
        served = serving => served,
        rejection = transfers.given_up() => {
            metrics::rejected(rejection, &peer.0);
            Ok(())
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
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

struct Connections<P> {
    protocol: P,
    tls: Option<Acceptor>,
}

impl<P: Protocol> Connections<P> {
    /// Serves a connection beside the others.
    fn spawn(self: Arc<Self>, stream: Stream, peer: Peer, mut over: watch::Receiver<bool>) {
        let Some(slot) = self.protocol.admit(peer) else {
            return metrics::rejected(Rejection::Connections, &peer.0);
        };
        tokio::spawn(async move {
            let is_over = async { drop(over.wait_for(|is_over| *is_over).await) };
            if let Err(rejection) = self.serve(stream, peer, is_over).await {
                metrics::rejected(rejection, &peer.0);
            }
            drop(slot);
        });
    }

    async fn serve(&self, stream: Stream, peer: Peer, over: impl Future<Output = ()> + Send) -> Result<(), Rejection> {
        let mut over = pin!(over);
        let served = match (stream, &self.tls) {
            (Stream::Unix(stream), _) => self.protocol.serve(stream, peer, over).await,
            (Stream::Tcp(stream), tls) => {
                let _ = stream.set_nodelay(true); // otherwise small replies wait for the ACK of the one before
                match tls {
                    None => self.protocol.serve(stream, peer, over).await,
                    Some(tls) => {
                        let shaken = tokio::select! {
                            shaken = timeout(HANDSHAKE, tls.accept(stream)) => shaken,
                            () = &mut over => return Ok(()), // it has begun nothing
                        };
                        let Ok(Ok(stream)) = shaken else { return Err(Rejection::Tls) };
                        self.protocol.serve(stream, peer, over).await
                    }
                }
            }
        };
        served.or_else(|error| rejection(&*error).map_or(Ok(()), Err))
    }
}

/// Why hyper ended a connection, if the client's bytes were the reason.
fn rejection(error: &(dyn Error + 'static)) -> Option<Rejection> {
    match error.downcast_ref::<hyper::Error>() {
        Some(error) if error.is_parse_too_large() => Some(Rejection::TooLarge),
        Some(error) if error.is_parse() => Some(Rejection::Malformed),
        Some(error) if error.is_timeout() => Some(Rejection::Slow),
        Some(error) => rejection(error.source()?),
        None => {
            error.downcast_ref::<io::Error>().filter(|it| it.kind() == io::ErrorKind::TimedOut).map(|_| Rejection::Slow)
        }
    }
}
