//! With a client without a server: decisions depend on nothing else.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::tower::timeout::error::Elapsed;
use ::tower::util::ServiceExt;
use ::tower::{service_fn, BoxError, ServiceBuilder};
use tower_test::mock;

use super::*;
use crate::{Adaptive, Client, Quota};

fn limiter(limit: u64) -> Limiter {
    Client::local().limiter(Quota::with_resolution(limit, "1h", "1h").unwrap()).build().unwrap()
}

/// By the path, but not that of the root.
fn by_path(limiter: &Limiter) -> Limit {
    Limit::new(limiter, |request| Some(request.uri.path()).filter(|path| *path != "/").map(str::to_owned))
}

/// What comes of a request to a service behind a layer that answers 200 with what it was sent.
async fn answer(layer: &RateLimitLayer<String>, request: Request<String>) -> Response<String> {
    let echo = service_fn(|request: Request<String>| async { Ok::<_, Infallible>(Response::new(request.into_body())) });
    layer.layer(echo).oneshot(request).await.unwrap()
}

async fn get(layer: &RateLimitLayer<String>, path: &str) -> Response<String> {
    answer(layer, Request::get(path).body("hello".into()).unwrap()).await
}

fn values<'a>(response: &'a Response<String>, name: &str) -> Vec<&'a str> {
    response.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn what_is_granted_passes_and_what_is_denied_is_answered() {
    let layer = RateLimitLayer::new([by_path(&limiter(2))]);
    for left in [1, 0] {
        let response = get(&layer, "/a").await;
        assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, "hello"));
        assert_eq!(values(&response, "ratelimit-policy"), [r#""default";q=2;w=3600"#]);
        assert!(values(&response, "ratelimit")[0].starts_with(&format!(r#""default";r={left};t="#)));
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
    let response = get(&layer, "/a").await;
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::TOO_MANY_REQUESTS, ""));
    assert_eq!(values(&response, "ratelimit-policy"), [r#""default";q=2;w=3600"#]);
    assert!(values(&response, "retry-after")[0].parse::<u64>().unwrap() > 0);
    assert_eq!(get(&layer, "/b").await.status(), StatusCode::OK, "another key");
}

#[tokio::test]
async fn without_a_key_nothing_is_limited() {
    let layer = RateLimitLayer::new([by_path(&limiter(0))]);
    let response = get(&layer, "/").await;
    assert_eq!((response.status(), response.headers().len()), (StatusCode::OK, 0));
    assert_eq!(get(&layer, "/a").await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn what_never_fits_is_not_to_be_tried_again() {
    let layer = RateLimitLayer::new([by_path(&limiter(2)).cost(|_| 3)]);
    let response = get(&layer, "/a").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!response.headers().contains_key(RETRY_AFTER));
}

#[tokio::test]
async fn costs() {
    let by_length = |request: &Parts| request.headers["content-length"].to_str().unwrap().parse().unwrap();
    let layer = RateLimitLayer::new([by_path(&limiter(10)).cost(by_length)]);
    let post = |length| Request::post("/a").header("content-length", length).body(String::new()).unwrap();
    assert_eq!(answer(&layer, post(8)).await.status(), StatusCode::OK);
    assert_eq!(answer(&layer, post(3)).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer(&layer, post(2)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn several_limits_decide_together() {
    let client = Client::local();
    let limiter = |limit| client.limiter(Quota::with_resolution(limit, "1h", "1h").unwrap()).build().unwrap();
    let user = |request: &Parts| request.headers.get("user").map(|user| user.as_bytes().to_vec());
    let (paths, users) = (limiter(2), limiter(1));
    let layer = RateLimitLayer::new([by_path(&paths).named("path"), Limit::new(&users, user).named("user")]);
    let by = |user: &str| Request::get("/a").header("user", user).body(String::new()).unwrap();

    let response = answer(&layer, by("ann")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(values(&response, "ratelimit-policy"), [r#""path";q=2;w=3600, "user";q=1;w=3600"#]);
    let response = answer(&layer, by("ann")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(values(&response, "ratelimit-policy"), [r#""user";q=1;w=3600"#], "the one that denies");
    assert!(response.headers().contains_key(RETRY_AFTER));
    // What one limit denied, no limit counted.
    assert_eq!(paths.peek("/a").await.unwrap().remaining(), Some(1));
    // Of those without a key nothing is asked.
    assert_eq!(values(&get(&layer, "/a").await, "ratelimit-policy"), [r#""path";q=2;w=3600"#]);
    assert_eq!(answer(&layer, by("bob")).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_response_of_ones_own() {
    let layer = RateLimitLayer::new([by_path(&limiter(0)).cost(|_| 1)]).on_denial(|request, decisions| {
        assert!(!decisions.granted());
        let response = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
        response.header("content-type", "text/plain").body(format!("no more of {}", request.uri)).unwrap()
    });
    let response = get(&layer, "/a").await;
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "no more of /a"));
    assert_eq!(values(&response, "content-type"), ["text/plain"]);
    assert_eq!(values(&response, "ratelimit-policy"), [r#""default";q=0;w=3600"#]);
}

#[tokio::test]
async fn errors() {
    let mistaken = || RateLimitLayer::new([by_path(&limiter(1)).cost(|_| 0)]);
    let response = get(&mistaken(), "/a").await;
    assert_eq!((response.status(), response.headers().len()), (StatusCode::INTERNAL_SERVER_ERROR, 0));
    let passing = mistaken().on_error(|request, error| {
        assert_eq!((request.uri.path(), matches!(error, Error::Invalid(_))), ("/a", true));
        None
    });
    let response = get(&passing, "/a").await;
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, "hello"));
}

#[tokio::test]
async fn layers_upon_layers_tell_of_all_their_limits() {
    let layer = |name: &str| RateLimitLayer::new([by_path(&limiter(1)).named(name)]);
    let service = ServiceBuilder::new().layer(layer("outer")).layer(layer("inner"));
    let service = service.service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::<String>::default()) });
    let response = service.oneshot(Request::get("/a").body(()).unwrap()).await.unwrap();
    assert_eq!(values(&response, "ratelimit-policy"), [r#""inner";q=1;w=3600"#, r#""outer";q=1;w=3600"#]);
}

#[tokio::test]
async fn the_service_is_called_when_it_is_ready_and_not_for_what_is_denied() {
    let layer = RateLimitLayer::<String>::new([by_path(&limiter(1))]);
    let (mut service, mut behind) = mock::spawn_layer::<Request<()>, Response<String>, _>(layer);
    behind.allow(0);
    assert!(service.poll_ready().is_pending());
    behind.allow(1);
    assert!(service.poll_ready().is_ready());
    let asked = tokio::spawn(service.call(Request::get("/a").body(()).unwrap()));
    let (_, reply) = behind.next_request().await.unwrap();
    reply.send_response(Response::new("hello".into()));
    assert_eq!(asked.await.unwrap().unwrap().body(), "hello");

    behind.allow(1);
    assert!(service.poll_ready().is_ready());
    let denied = service.call(Request::get("/a").body(()).unwrap()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(service);
    assert!(behind.next_request().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_ask_at_once() {
    let called = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&called);
    let service = RateLimitLayer::new([by_path(&limiter(50))]).layer(service_fn(move |_: Request<()>| {
        counting.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(Response::<String>::default()) }
    }));
    let all = (0..200).map(|_| tokio::spawn(service.clone().oneshot(Request::get("/a").body(()).unwrap())));
    let mut granted = 0;
    for one in all.collect::<Vec<_>>() {
        granted += usize::from(one.await.unwrap().unwrap().status() == StatusCode::OK);
    }
    assert_eq!((granted, called.load(Ordering::Relaxed)), (50, 50));
}

/// How a permit ends before a service that takes 1 ms: how often it counted, and whether as a drop.
async fn ended<S, E: Send + 'static>(layer: AdaptiveLimitLayer<E>, adaptive: &Adaptive, service: S) -> (u64, bool)
where
    S: Service<Request<()>, Response = Response<String>, Error = E>,
    S::Future: Send + 'static,
{
    let _ = layer.layer(service).oneshot(Request::get("/a").body(()).unwrap()).await;
    assert_eq!(adaptive.in_flight(), 0);
    adaptive.sampled()
}

#[tokio::test(start_paused = true)]
async fn what_counts_for_an_adaptive_limit() {
    let statuses = [(200, "", (1, false)), (302, "", (1, false)), (404, "", (0, false)), (500, "", (0, false))];
    let drops = [(429, "", (1, true)), (503, "", (1, true)), (504, "", (1, true))];
    let grpc = [(200, "0", (1, false)), (200, "5", (0, false)), (200, "4", (1, true)), (200, "8", (1, true))];
    for (status, code, expected) in [&statuses[..], &drops, &grpc, &[(200, "14", (1, true))]].concat() {
        let adaptive = Adaptive::default();
        let service = service_fn(move |_| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let response = Response::builder().status(status);
            let response = if code.is_empty() { response } else { response.header("grpc-status", code) };
            Ok::<_, Infallible>(response.body(String::new()).unwrap())
        });
        assert_eq!(ended(AdaptiveLimitLayer::new(&adaptive), &adaptive, service).await, expected, "{status} {code}");
    }
    for (timeout, expected) in [(1, (1, true)), (5, (0, false))] {
        let adaptive = Adaptive::default();
        let failing = ServiceBuilder::new().timeout(Duration::from_millis(timeout)).service_fn(|_| async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Err::<Response<String>, BoxError>("broken".into())
        });
        let layer = AdaptiveLimitLayer::new(&adaptive).drops(|error: &BoxError| error.is::<Elapsed>());
        assert_eq!(ended(layer, &adaptive, failing).await, expected, "{timeout}");
    }
}

#[tokio::test(start_paused = true)]
async fn denials_of_a_rate_say_nothing_of_the_load() {
    let denying = RateLimitLayer::new([by_path(&limiter(0))]);
    let mistaken = RateLimitLayer::new([by_path(&limiter(1)).cost(|_| 0)]);
    let busy = |_: &Parts, _: &Error| Some(empty(StatusCode::SERVICE_UNAVAILABLE));
    for rates in [denying, mistaken.on_error(busy)] {
        let adaptive = Adaptive::default();
        let service = ServiceBuilder::new().map_future(|answer| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            answer.await
        });
        let service = service.layer(rates).service_fn(|_| async { Ok::<_, Infallible>(Response::<String>::default()) });
        assert_eq!(ended(AdaptiveLimitLayer::new(&adaptive), &adaptive, service).await, (0, false));
    }
}

#[tokio::test]
async fn without_a_permit_the_service_is_not_called() {
    let adaptive = Adaptive::builder().min(1).max(1).build().unwrap();
    let layer = AdaptiveLimitLayer::new(&adaptive);
    let (mut service, mut behind) = mock::spawn_layer::<Request<()>, Response<String>, _>(layer);
    let call = |service: &mut mock::Spawn<_>| service.call(Request::get("/a").body(()).unwrap());
    behind.allow(2);
    assert!(service.poll_ready().is_ready());
    let first = call(&mut service);
    assert!(service.poll_ready().is_ready());
    assert_eq!(call(&mut service).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(adaptive.in_flight(), 1);
    drop(first); // as a time-out in front of it would
    assert_eq!((adaptive.in_flight(), adaptive.sampled()), (0, (0, false)));
}
