//! A layer for tower that limits how many requests are under way, by how long they take.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::{empty, Denied, Limited};
use crate::adaptive::{Adaptive, Permit};

/// A layer that lets so many requests go on to a service at once as an [`Adaptive`] has permits.
///
/// A request without a permit is answered with status 503 and an empty body, at once. A permit ends with the response's
/// head; a body may stream on. How it ends:
///
/// | response | counts as |
/// |---|---|
/// | status 200 … 399, without gRPC's status or with `OK` | an answer, whose time counts |
/// | 429, 503, 504; gRPC's `UNAVAILABLE`, `RESOURCE_EXHAUSTED`, `DEADLINE_EXCEEDED`; what [`drops`](Self::drops) says | a drop |
/// | another status or error, a request that is cancelled, a denial of a [`RateLimitLayer`](super::RateLimitLayer) | nothing |
///
/// So put it before a `RateLimitLayer`, and before a layer of time-outs, which would only cancel it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
///
/// use http::{Request, Response};
/// use swlimit_client::tower::AdaptiveLimitLayer;
/// use swlimit_client::Adaptive;
/// use tower::{timeout::error::Elapsed, BoxError, ServiceBuilder, ServiceExt};
///
/// let adaptive = Adaptive::default();
/// let service = ServiceBuilder::new()
///     .layer(AdaptiveLimitLayer::new(&adaptive).drops(|error: &BoxError| error.is::<Elapsed>()))
///     .timeout(Duration::from_secs(5))
///     .service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new("hello")) });
/// assert_eq!(service.oneshot(Request::new(())).await?.status(), 200);
/// # Ok(())
/// # }
/// ```
pub struct AdaptiveLimitLayer<E> {
    adaptive: Adaptive,
    is_drop: Arc<IsDrop<E>>,
}

type IsDrop<E> = dyn Fn(&E) -> bool + Send + Sync;

impl<E> AdaptiveLimitLayer<E> {
    /// A layer for a service whose errors, of type `E`, say nothing of the load.
    pub fn new(adaptive: &Adaptive) -> Self {
        Self { adaptive: adaptive.clone(), is_drop: Arc::new(|_| false) }
    }

    /// Which errors of the service say that it is overloaded, such as time-outs: none unless set.
    #[must_use]
    pub fn drops(self, is_drop: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        Self { is_drop: Arc::new(is_drop), ..self }
    }
}

// Derived, it would ask the same of `E`.
impl<E> Clone for AdaptiveLimitLayer<E> {
    fn clone(&self) -> Self {
        Self { adaptive: self.adaptive.clone(), is_drop: Arc::clone(&self.is_drop) }
    }
}

impl<E> fmt::Debug for AdaptiveLimitLayer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveLimitLayer").field("adaptive", &self.adaptive).finish_non_exhaustive()
    }
}

impl<S, E> Layer<S> for AdaptiveLimitLayer<E> {
    type Service = AdaptiveLimit<S, E>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited { inner, layer: self.clone() }
    }
}

/// A service behind an [`AdaptiveLimitLayer`].
pub type AdaptiveLimit<S, E> = Limited<S, AdaptiveLimitLayer<E>>;

impl<S, A, B, E> Service<Request<A>> for Limited<S, AdaptiveLimitLayer<E>>
where
    S: Service<Request<A>, Response = Response<B>, Error = E>,
    S::Future: Send + 'static,
    B: Default + Send + 'static,
    E: Send + 'static,
{
    type Response = Response<B>;
    type Error = E;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, E>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), E>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let Some(permit) = self.layer.adaptive.permit() else {
            return Box::pin(std::future::ready(Ok(empty(StatusCode::SERVICE_UNAVAILABLE))));
        };
        let (answer, is_drop) = (self.inner.call(request), Arc::clone(&self.layer.is_drop));
        Box::pin(async move {
            let answer = answer.await;
            match &answer {
                Ok(response) => end(permit, response),
                Err(error) if is_drop(error) => permit.overloaded(),
                Err(_) => drop(permit),
            }
            answer
        })
    }
}

fn end<B>(permit: Permit, response: &Response<B>) {
    let grpc = response.headers().get("grpc-status").map(|status| status.as_bytes());
    match (response.status().as_u16(), grpc) {
        _ if response.extensions().get::<Denied>().is_some() => drop(permit),
        (429 | 503 | 504, _) | (200..=399, Some(b"4" | b"8" | b"14")) => permit.overloaded(),
        (200..=399, None | Some(b"0")) => permit.done(),
        _ => drop(permit),
    }
}
