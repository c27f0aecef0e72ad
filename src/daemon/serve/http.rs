//! The HTTP server: all paths and their handlers.

use std::error::Error;
use std::fmt::Write;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::request::Parts;
use axum::http::{header, HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tower_service::Service as _;

use super::addresses::{Addresses, ConnectionSlot};
use super::connections::{self, drive, until_given_up, Protocol};
use super::in_flight::InFlight;
use super::listen::Listener;
use super::timeouts::Timeouts;
use super::tls::Acceptor;
use super::transfer::{TransferLimits, Transfers};
use crate::config::settings;
use crate::observe::health;
use crate::observe::labels::Rejection;
use crate::observe::snapshots::Snapshots;
use crate::page;
use crate::protocol::peer::Peer;
use crate::protocol::{api, auth, envoy};
use crate::service::Service;

/// The largest request in bytes.
const MAX_REQUEST: usize = 1024 * 1024;

/// Serves HTTP until `end`, and then completes running requests.
pub async fn serve(
    service: Arc<Service>,
    views: Arc<Views>,
    in_flight: Arc<InFlight>,
    (listener, paths): (Listener, Paths),
    end: watch::Receiver<bool>,
) {
    let tls = Acceptor::new(&service, |configuration| configuration.http_tls.as_ref());
    let http = {
        let live = service.live();
        let settings = &live.configuration.settings.http;
        let (builder, timeout) = (builder(settings), settings.header_timeout.into());
        let router = router(service.clone(), views, paths);
        let (body_timeout, reply_timeout) = (settings.body_timeout.into(), settings.reply_timeout.into());
        let limits = TransferLimits { in_flight, body_timeout, reply_timeout };
        Http { service, router, builder, timeout, limits, addresses: Arc::default() }
    };
    connections::serve(http, listener, tls, end).await;
}

/// HTTP/1 and HTTP/2, with bounds on what clients may hold: time, header size, and connections by address.
struct Http {
    service: Arc<Service>,
    router: Router,
    builder: Builder<TokioExecutor>,
    timeout: Duration,
    limits: TransferLimits,
    addresses: Arc<Addresses>,
}

impl Protocol for Http {
    type ConnectionSlot = ConnectionSlot;

    fn admit(&self, peer: Peer) -> Option<ConnectionSlot> {
        self.addresses.admit(&self.service, peer)
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
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            let (request, receiving) = transfers.request(request);
            let (answering, transfers) = (self.router.clone().call(request), transfers.clone());
            async move { answering.await.map(|reply| transfers.reply(receiving, reply, rejected)) }
        });
        let stream = TokioIo::new(Timeouts::new(stream, self.timeout, self.limits.reply_timeout));
        let driving = drive(self.builder.serve_connection(stream, service), over);
        until_given_up(driving, &transfers, peer).await
    }
}

/// The reply to a request that was rejected while it came.
fn rejected(rejection: Rejection) -> Response {
    match rejection {
        Rejection::Memory => (StatusCode::SERVICE_UNAVAILABLE, "too many bytes in progress\n").into_response(),
        _ => (StatusCode::REQUEST_TIMEOUT, "the body took too long\n").into_response(),
    }
}

fn builder(settings: &settings::Http) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let max_header_bytes = settings.max_header_bytes.max(8192); // hyper's minimum
    let mut http1 = builder.http1();
    http1.timer(TokioTimer::new()).header_read_timeout(Duration::from(settings.header_timeout));
    http1.max_buf_size(max_header_bytes);
    if settings.max_headers != 100 {
        http1.max_headers(settings.max_headers); // any number but hyper's own needs an allocation for each request
    }
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_header_list_size(u32::try_from(max_header_bytes).unwrap_or(u32::MAX));
    http2.keep_alive_interval(Duration::from(settings.header_timeout));
    builder
}

/// The paths that an address has, beside the API and health checks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Paths {
    All,
    /// What proxies ask.
    Decisions,
    /// What operators read.
    Monitoring,
}

fn router(service: Arc<Service>, views: Arc<Views>, paths: Paths) -> Router {
    let mut router =
        Router::new().merge(api::router(&service)).route("/healthcheck", get(healthcheck)).route("/ready", get(ready));
    if paths != Paths::Monitoring {
        router = router
            .route(auth::PATH, any(authorize))
            .route(&format!("{}/", auth::PATH), any(authorize))
            .route(&format!("{}/{{*path}}", auth::PATH), any(authorize))
            .route("/json", post(json));
    }
    if paths != Paths::Decisions {
        let page = page::router(views.page.clone());
        let texts = Router::new().route("/metrics", get(metrics)).route("/rlconfig", get(rlconfig));
        router = router.merge(page).merge(api::explaining(&service)).merge(texts.layer(Extension(views)));
    }
    router.layer(DefaultBodyLimit::max(MAX_REQUEST)).with_state(service)
}

/// Whether the process is alive, and what is wrong with its servers.
async fn healthcheck(State(service): State<Arc<Service>>) -> Response {
    match service.is_stopping() {
        true => stopping(),
        false => health::text(service.checked().as_ref(), &service.servers()).into_response(),
    }
}

/// Whether the process may get requests.
async fn ready(State(service): State<Arc<Service>>) -> Response {
    match service.is_ready() {
        true => "OK\n".into_response(),
        false if service.is_stopping() => stopping(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "waiting for the server\n").into_response(),
    }
}

fn stopping() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response()
}

async fn metrics(Extension(views): Extension<Arc<Views>>) -> Response {
    text("text/plain; version=0.0.4", views.metrics.show(()).await)
}

/// The current limits, one a line.
async fn rlconfig(Extension(views): Extension<Arc<Views>>) -> Response {
    text("text/plain; charset=utf-8", views.limits.show(()).await)
}

fn text(media: &'static str, shown: Option<Bytes>) -> Response {
    match shown {
        Some(text) => ([(header::CONTENT_TYPE, media)], text).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn json(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    envoy::json::answer(&service, &headers, &body).await
}

/// The question of a proxy, with any method.
async fn authorize(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    parts: Parts,
) -> Response {
    auth::authorize(&service, &parts, peer).await.into_response()
}

/// Views that are slow to render.
pub struct Views {
    metrics: Snapshots<(), Bytes>,
    limits: Snapshots<(), Bytes>,
    page: Arc<page::States>,
}

impl Views {
    pub fn new(service: &Arc<Service>) -> Self {
        let of_service = |text: fn(&Service) -> String| {
            let service = service.clone();
            move || {
                let text = Bytes::from(text(&service));
                move |(): &()| text.clone()
            }
        };
        Self {
            metrics: Snapshots::new("metrics", of_service(Service::render_metrics)),
            limits: Snapshots::new("limits", of_service(limits)),
            page: Arc::new(page::states(service.clone())),
        }
    }
}

/// A line for each limit.
fn limits(service: &Service) -> String {
    let live = service.live();
    let mut text = String::new();
    for (domain, rule) in live.configuration.limits.rules() {
        let mut line = |limit: String| {
            let modes = [(rule.shadow_mode, ", shadow_mode"), (rule.quota_mode, ", quota_mode")];
            let modes: String = modes.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
            writeln!(text, "{}.{}: {limit}{modes}", domain.name, rule.name).expect("a string accepts all text");
        };
        if rule.unlimited {
            line("unlimited".into());
        }
        for limit in &rule.limits {
            line(limit.to_string());
        }
    }
    text
}
