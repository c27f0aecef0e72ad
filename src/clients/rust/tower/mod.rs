//! Layers for tower, and so for axum, tonic and hyper: what is over a limit never reaches the service.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use http::{Request, Response};
//! use swlimit_client::tower::{Limit, RateLimitLayer};
//! use swlimit_client::{Client, Quota};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! let limiter = Client::local().limiter(Quota::new(2, "1m")?).build()?;
//! let by_path = Limit::new(&limiter, |request| Some(format!("path:{}", request.uri.path())));
//! let service = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new([by_path]))
//!     .service_fn(|_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new("hello")) });
//!
//! for expected in [200, 200, 429] {
//!     let response = service.clone().oneshot(Request::get("/hello").body(())?).await?;
//!     assert_eq!(response.status(), expected);
//!     assert!(response.headers().contains_key("ratelimit"));
//! }
//! # Ok(())
//! # }
//! ```

mod adaptive;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::decision::Decisions;
use crate::error::Error;
use crate::limiter::Limiter;

pub use adaptive::{AdaptiveLimit, AdaptiveLimitLayer};

/// A limit on requests: a limiter, the key of it that a request counts for, and how much it costs.
pub struct Limit {
    limiter: Limiter,
    name: String,
    key: Box<KeyOf>,
    cost: Box<CostOf>,
}

impl Limit {
    /// A limit of one unit a request. A request that has no key, `None`, is not limited by it.
    pub fn new<K: Into<Vec<u8>>>(limiter: &Limiter, key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static) -> Self {
        let key = Box::new(move |request: &Parts| key(request).map(Into::into));
        Self { limiter: limiter.clone(), name: "default".into(), key, cost: Box::new(|_| 1) }
    }

    /// How many units a request costs: 1 … 2^53 − 1.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Box::new(cost), ..self }
    }

    /// What responses call it: `default` unless set.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limiter, name, .. } = self;
        f.debug_struct("Limit").field("name", name).field("limiter", limiter).finish_non_exhaustive()
    }
}

type KeyOf = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;
type CostOf = dyn Fn(&Parts) -> u64 + Send + Sync;
type OnDenial<B> = dyn Fn(&Parts, &Decisions) -> Response<B> + Send + Sync;
type OnError<B> = dyn Fn(&Parts, &Error) -> Option<Response<B>> + Send + Sync;

/// A layer that limits requests to a service whose responses have bodies of type `B`.
///
/// For each request, in this order:
///
/// 1. Each limit computes the request's key. Limits without a key for it do not count.
/// 2. One decision is made of all that have one: [`Limiter::allow`] of one limit,
///    [`Client::allow_all`](crate::Client::allow_all) of several.
/// 3. A granted request goes on to the service. A denied one gets status 429 and an empty body, or what
///    [`on_denial`](Self::on_denial) makes.
/// 4. If nobody could decide, the request gets status 500, or what [`on_error`](Self::on_error) makes.
/// 5. The response gets the fields `RateLimit-Policy` and `RateLimit`, and a denial `Retry-After`, as
///    [`Decisions::headers`] has them. They are added to those that another layer has set.
pub struct RateLimitLayer<B> {
    limits: Arc<[Limit]>,
    on_denial: Arc<OnDenial<B>>,
    on_error: Arc<OnError<B>>,
}

impl<B: Default> RateLimitLayer<B> {
    /// A layer of one limit, or of several, by limiters of one client. Of several, those for which a request has a key
    /// decide together, as [`Client::allow_all`](crate::Client::allow_all) does: so their keys have to differ.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self {
            limits: limits.into_iter().collect(),
            on_denial: Arc::new(|_, _| empty(StatusCode::TOO_MANY_REQUESTS)),
            on_error: Arc::new(|request, error| {
                tracing::error!(%error, path = request.uri.path(), "a request could not be limited");
                Some(empty(StatusCode::INTERNAL_SERVER_ERROR))
            }),
        }
    }
}

impl<B> RateLimitLayer<B> {
    /// What a denied request is answered. The fields of the limits are added to it.
    #[must_use]
    pub fn on_denial(self, response: impl Fn(&Parts, &Decisions) -> Response<B> + Send + Sync + 'static) -> Self {
        Self { on_denial: Arc::new(response), ..self }
    }

    /// What a request is answered of which nobody could decide; `None` lets it pass to the service. Unless set, the
    /// error is logged and the answer is status 500: a limit that does not hold should be noticed.
    ///
    /// A server that is unavailable is no error: then the limiter's failure policy decides. What remains are mistakes, such as
    /// a server without the module, a user without the right to a command, a key of another type, or a cost of 0.
    #[must_use]
    pub fn on_error(self, response: impl Fn(&Parts, &Error) -> Option<Response<B>> + Send + Sync + 'static) -> Self {
        Self { on_error: Arc::new(response), ..self }
    }

    /// What the limits say of a request, each with its limit: those for which it has a key.
    async fn decide(&self, request: &Parts) -> Result<(Vec<&Limit>, Decisions), Error> {
        let keyed = self.limits.iter().filter_map(|limit| Some((limit, (limit.key)(request)?)));
        let (limits, keys): (Vec<&Limit>, Vec<Vec<u8>>) = keyed.unzip();
        let asked = limits.iter().zip(&keys);
        let asked = asked.map(|(limit, key)| (&limit.limiter, crate::Request::new(key).cost((limit.cost)(request))));
        let decisions = match asked.collect::<Vec<_>>().as_slice() {
            [] => Decisions { granted: true, each: Vec::new() },
            [(limiter, request)] => {
                let decision = limiter.allow(*request).await?;
                Decisions { granted: decision.granted(), each: vec![decision] }
            }
            several @ [(limiter, _), ..] => limiter.client().allow_all(several).await?,
        };
        Ok((limits, decisions))
    }
}

/// Marks the response to a request that the service did not get, which says nothing of the load.
#[derive(Clone)]
struct Denied;

fn marked<B>(mut response: Response<B>) -> Response<B> {
    response.extensions_mut().insert(Denied);
    response
}

fn empty<B: Default>(status: StatusCode) -> Response<B> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// Add what was decided to a response.
fn tell<B>(limits: &[&Limit], decisions: &Decisions, response: &mut Response<B>) {
    let policies = limits.iter().map(|limit| (limit.name.as_str(), limit.limiter.quota()));
    for (name, value) in decisions.headers(policies) {
        let Ok(value) = HeaderValue::try_from(value) else { continue };
        if name == RETRY_AFTER {
            response.headers_mut().insert(name, value);
        } else {
            // Lists: other layers may have limits of their own.
            response.headers_mut().append(name, value);
        }
    }
}

// Derived, it would ask the same of `B`.
impl<B> Clone for RateLimitLayer<B> {
    fn clone(&self) -> Self {
        let Self { limits, on_denial, on_error } = self;
        Self { limits: Arc::clone(limits), on_denial: Arc::clone(on_denial), on_error: Arc::clone(on_error) }
    }
}

impl<B> fmt::Debug for RateLimitLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<S, B> Layer<S> for RateLimitLayer<B> {
    type Service = RateLimit<S, B>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited { inner, layer: self.clone() }
    }
}

/// A service behind a [`RateLimitLayer`].
pub type RateLimit<S, B> = Limited<S, RateLimitLayer<B>>;

/// A service behind a layer.
#[derive(Clone, Debug)]
pub struct Limited<S, L> {
    inner: S,
    layer: L,
}

impl<S, L> Limited<S, L> {
    /// The service behind the layer.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service behind the layer, to change it.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Takes the service out of the layer.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, A, B> Service<Request<A>> for Limited<S, RateLimitLayer<B>>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The one that is ready, not its clone, which may not be.
        let clone = self.inner.clone();
        let (mut inner, layer) = (std::mem::replace(&mut self.inner, clone), self.layer.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let (limits, decisions) = match layer.decide(&parts).await {
                Ok(decided) => decided,
                Err(error) => {
                    return match (layer.on_error)(&parts, &error) {
                        Some(response) => Ok(marked(response)),
                        None => inner.call(Request::from_parts(parts, body)).await,
                    }
                }
            };
            let mut response = match decisions.granted() {
                true => inner.call(Request::from_parts(parts, body)).await?,
                false => marked((layer.on_denial)(&parts, &decisions)),
            };
            tell(&limits, &decisions, &mut response);
            Ok(response)
        })
    }
}
