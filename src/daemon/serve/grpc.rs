//! The gRPC server: all methods and their handlers.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{ready, BoxFuture, FutureExt, TryFutureExt};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::Status;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::HealthReporter;
use tonic_health::ServingStatus;
use tower_service::Service as _;

use super::connections::{self, drive, until_given_up, Protocol};
use super::in_flight::InFlight;
use super::listen::Listener;
use super::timeouts::Timeouts;
use super::tls::Acceptor;
use super::transfer::{ReplyBody, TransferLimits, Transfers};
use crate::observe::labels::Rejection;
use crate::protocol::envoy;
use crate::protocol::peer::Peer;
use crate::service::Service;

/// The service's name in health checks, as in envoyproxy/ratelimit.
const HEALTH_NAME: &str = "ratelimit";

/// Maximum size of a request: gRPC's own default. Proxies that fail open forward refused requests, so a client's 60 kB
/// of headers must fit even if dozens of descriptors repeat them.
const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// How long a client may take for the first bytes of HTTP/2.
const PREFACE: Duration = Duration::from_secs(10);

/// Serves gRPC until `end`, and then completes running requests.
pub async fn serve(service: Arc<Service>, in_flight: Arc<InFlight>, listener: Listener, end: watch::Receiver<bool>) {
    let (reporter, health) = tonic_health::server::health_reporter();
    report(&reporter, if service.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
    let changing = service.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = changing.until_ready() => {
                report(&reporter, ServingStatus::Serving).await;
                changing.until_stopping().await;
            }
            () = changing.until_stopping() => {}
        }
        report(&reporter, ServingStatus::NotServing).await;
    });
    let tls = Acceptor::new(&service, |configuration| configuration.grpc_tls.as_ref());
    let grpc = {
        let live = service.live();
        let settings = &live.configuration.settings.grpc;
        let (age, grace) = (settings.max_connection_age.into(), settings.max_connection_age_grace.map(Into::into));
        let (body_timeout, reply_timeout) = (settings.body_timeout.into(), settings.reply_timeout.into());
        let limits = TransferLimits { in_flight, body_timeout, reply_timeout };
        Grpc { methods: Methods { service, health }, builder: builder(), limits, age, grace }
    };
    connections::serve(grpc, listener, tls, end).await;
}

async fn report(reporter: &HealthReporter, status: ServingStatus) {
    for name in ["", HEALTH_NAME] {
        reporter.set_service_status(name, status).await;
    }
}

/// gRPC, with a bound on the age of connections.
struct Grpc<H> {
    methods: Methods<H>,
    builder: Builder<TokioExecutor>,
    limits: TransferLimits,
    /// After this time a connection takes no more requests.
    age: Duration,
    /// How long it may take for those that it has begun.
    grace: Option<Duration>,
}

impl<H: Health> Protocol for Grpc<H> {
    type ConnectionSlot = ();

    fn admit(&self, _: Peer) -> Option<()> {
        Some(())
    }

    async fn serve<S>(
        &self,
        stream: S,
        peer: Peer,
        over: impl Future<Output = ()> + Send,
    ) -> Result<(), Box<dyn Error + Send + Sync>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let transfers = Transfers::new(self.limits.clone(), peer);
        let service = service_fn(|request| self.methods.call(request, transfers.clone()));
        let stream = TokioIo::new(Timeouts::new(stream, PREFACE, self.limits.reply_timeout));
        let over = async {
            tokio::select! {
                () = over => {}
                () = sleep(self.age) => {}
            }
        };
        let driving = drive(self.builder.serve_connection(stream, service), over);
        let driving = async {
            match self.grace {
                None => driving.await?,
                Some(grace) => timeout(self.age.saturating_add(grace), driving).await.unwrap_or(Ok(()))?,
            }
            Ok(())
        };
        until_given_up(driving, &transfers, peer).await
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(None);
    builder
}

/// All methods by their paths.
struct Methods<H> {
    service: Arc<Service>,
    health: HealthServer<H>,
}

impl<H: Health> Methods<H> {
    fn call(&self, request: Request<Incoming>, transfers: Arc<Transfers>) -> Answering {
        let (request, receiving) = transfers.request(request);
        let reply = move |reply| transfers.reply(receiving, reply, rejected);
        let path = request.uri().path();
        if path == envoy::grpc::PATH {
            let answer = envoy::grpc::should_rate_limit(self.service.clone(), request, MAX_REQUEST);
            return Answering(Box::pin(answer.map(reply).map(Ok)));
        }
        if path.split('/').nth(1) == Some(HealthServer::<H>::NAME) {
            return Answering(Box::pin(self.health.clone().call(request).map_ok(reply)));
        }
        Answering(ready(Ok(reply(Status::unimplemented("").into_http()))).boxed())
    }
}

/// The reply to a request that was rejected while it came.
fn rejected(rejection: Rejection) -> Response<Body> {
    let status = match rejection {
        Rejection::Memory => Status::resource_exhausted("too many bytes in progress"),
        _ => Status::deadline_exceeded("the request took too long"),
    };
    status.into_http()
}

/// The answer to a request. It is boxed because it is moved several times before it is a task, and has a name because
/// the compiler assumes otherwise that it borrows (<https://github.com/rust-lang/rust/issues/110338>).
struct Answering(BoxFuture<'static, Result<Response<ReplyBody<Body>>, Infallible>>);

impl Future for Answering {
    type Output = Result<Response<ReplyBody<Body>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}
