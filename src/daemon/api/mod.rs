//! Every decision of the client as JSON, for whoever has no client: `POST /v1/allow` and the others.

mod question;
mod reply;

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{header, StatusCode, Uri};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use swlimit_client::{Limiter, Way};
use swlimit_window::Quota;

use crate::access::Barred;
use crate::deciding::{Answer, Ask, Descriptor, How, Plan, Role};
use crate::http::Peer;
use crate::limits::{default_geometry, Limit, Manner, WhenAway};
use crate::metrics::{Api, Ending};
use crate::service::Service;
use crate::traces;
use question::{Back, Block, Key, Question, Top, What};
pub use reply::denied;
use reply::{Decision, Failure};

/// What the API is, for machines.
const OPENAPI: &str = include_str!("openapi.json");

/// More than anybody needs, and few enough for one command.
const MOST_TOGETHER: usize = 1000;

/// What holds for each path under `/demo/`.
const DEMO: &str = r#"{"key": "", "limit": 5, "window": "10s"}"#;
const LONGEST_DEMO: usize = 200;

/// Every path of the API, for those who may use it.
pub fn router(service: &Arc<Service>) -> Router<Arc<Service>> {
    let commands = [
        ("/v1/allow", Api::Allow, post(allow)),
        ("/v1/allow_all", Api::AllowAll, post(allow_all)),
        ("/v1/peek", Api::Peek, post(peek)),
        ("/v1/record", Api::Record, post(record)),
        ("/v1/acquire", Api::Acquire, post(acquire)),
        ("/v1/refund", Api::Refund, post(refund)),
        ("/v1/block", Api::Block, post(block)),
        ("/v1/unblock", Api::Unblock, post(unblock)),
        ("/demo/{*path}", Api::Demo, any(demo)),
    ];
    let commands = commands.into_iter().map(|(path, api, answer)| {
        let guarded = Router::new().route(path, answer).route_layer(from_fn_with_state(service.clone(), guard));
        guarded.route_layer(from_fn_with_state((service.clone(), api), count))
    });
    let views = Router::new()
        .route("/v1/info", get(info))
        .route("/v1/top", get(top))
        .route_layer(from_fn_with_state(service.clone(), guard));
    let openapi = get(|| async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI) });
    commands.fold(views, Router::merge).route("/v1/openapi.json", openapi)
}

/// Let pass who may.
async fn guard(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let checked = service.live().configuration.access.check(peer, request.uri(), request.headers());
    match checked {
        Ok(()) => next.run(request).await,
        Err(Barred::NeedsToken) => {
            let failure = Failure::new(StatusCode::UNAUTHORIZED, "a token is needed that is known here");
            ([(header::WWW_AUTHENTICATE, "Bearer")], failure).into_response()
        }
        Err(Barred::NotFromThere) => {
            Failure::new(StatusCode::FORBIDDEN, "without tokens only this machine may use this").into_response()
        }
        Err(Barred::OfAnotherPage) => {
            Failure::new(StatusCode::FORBIDDEN, "without tokens no other host's page may use this").into_response()
        }
    }
}

/// Count how a request ends, and how long it took.
async fn count(State((service, api)): State<(Arc<Service>, Api)>, request: Request, next: Next) -> Response {
    let span = traces::span(api, request.headers());
    let ending = |response: &Response| match response.status() {
        StatusCode::TOO_MANY_REQUESTS => Ending::OverLimit,
        status if status.is_success() => Ending::Ok,
        _ => Ending::Error,
    };
    service.observed(api, span, next.run(request), ending).await
}

/// A body in JSON. Another content type is refused, so that no page of a browser can send one without asking.
type Body<T> = Result<Json<T>, JsonRejection>;

fn read<T: DeserializeOwned>(body: Body<T>) -> Result<T, Failure> {
    let Json(read) = body?;
    Ok(read)
}

/// Ask a question of the limiter that it is about.
async fn asked(service: &Service, question: &Question, what: What, api: Api) -> Result<Decision, Failure> {
    let live = service.live();
    let settings = &live.configuration.settings;
    let limit = question.limit(what, settings.manner())?;
    let limiter = live.limiters.of(&limit);
    let key = question.key(&settings.key_prefix)?;
    let request = question.request(&key);
    let decided = match what {
        What::Allow => limiter.allow(request).await,
        What::Peek => limiter.peek(request).await,
        What::Record => limiter.record(request).await,
        What::Acquire => limiter.acquire(request, question.timeout()?).await,
    }?;
    if decided.way() == Way::Away && limit.manner.when_away == WhenAway::Error {
        return Err(Failure::away());
    }
    let hits = if what == What::Peek { 0 } else { question.cost()? };
    service.metrics.command(api).decided(hits, [(&Answer::from(&decided), limit.quota.limit)].into_iter(), false);
    Ok(Decision::from(&decided))
}

async fn allow(State(service): State<Arc<Service>>, body: Body<Question>) -> Result<Response, Failure> {
    let question = read(body)?;
    Ok(asked(&service, &question, What::Allow, Api::Allow).await?.response(question.window()))
}

async fn acquire(State(service): State<Arc<Service>>, body: Body<Question>) -> Result<Response, Failure> {
    let question = read(body)?;
    Ok(asked(&service, &question, What::Acquire, Api::Acquire).await?.response(question.window()))
}

async fn peek(State(service): State<Arc<Service>>, body: Body<Question>) -> Result<Json<Decision>, Failure> {
    asked(&service, &read(body)?, What::Peek, Api::Peek).await.map(Json)
}

async fn record(State(service): State<Arc<Service>>, body: Body<Question>) -> Result<Json<Decision>, Failure> {
    asked(&service, &read(body)?, What::Record, Api::Record).await.map(Json)
}

/// Several limits at once: granted and counted only if each of them is.
async fn allow_all(State(service): State<Arc<Service>>, body: Body<Vec<Question>>) -> Result<Response, Failure> {
    let questions = read(body)?;
    let live = service.live();
    let settings = &live.configuration.settings;
    if questions.is_empty() || questions.len() > MOST_TOGETHER {
        return Err(Failure::invalid(format!("several limits at once are 1 to {MOST_TOGETHER}")));
    }
    let mut plan = Plan::default();
    for (at, question) in questions.iter().enumerate() {
        let limit = question.limit(What::Allow, settings.manner())?;
        let (key, hits) = (question.key(&settings.key_prefix)?, question.cost()?);
        if question.is_partial() {
            return Err(Failure::invalid("several limits at once grant the whole cost or nothing"));
        }
        if plan.asks.iter().any(|other| other.key == key) {
            return Err(Failure::invalid("a key is named twice"));
        }
        plan.asks.push(Ask { how: How::Allow, role: Role::Decides, limit: Cow::Owned(limit), key, hits });
        plan.descriptors.push(Descriptor { rule: None, measured: "".into(), hits, asks: vec![at] });
    }
    let answers = live.limiters.answers(&plan).await?;
    let hits = plan.asks.iter().map(|ask| ask.hits).sum();
    let decisions = plan.asks.iter().zip(&answers).map(|(ask, answer)| (answer, ask.limit.quota.limit));
    service.metrics.command(Api::AllowAll).decided(hits, decisions, false);
    let each = plan.asks.iter().zip(&answers).map(|(ask, answer)| Decision::of(ask, answer)).collect();
    Ok(reply::together(each))
}

/// What is upon a key and no quota is asked by any limiter; one without a server knows nothing of the others' keys.
fn any_limiter(service: &Service) -> Result<Limiter, Failure> {
    if !service.has_server {
        return Err(Failure::new(StatusCode::NOT_IMPLEMENTED, "this needs a server"));
    }
    let quota = Quota { limit: 1, geometry: default_geometry(1000).expect("a second is a window") };
    Ok(service.live().limiters.of(&Limit::from_request(quota, Manner::default())))
}

async fn refund(State(service): State<Arc<Service>>, body: Body<Back>) -> Result<Response, Failure> {
    let back = read(body)?;
    let key = back.key.spelled(&service.live().configuration.settings.key_prefix)?;
    let refunded = any_limiter(&service)?.refund(back.request(&key)).await?;
    Ok(Json(serde_json::json!({ "refunded": refunded })).into_response())
}

async fn block(State(service): State<Arc<Service>>, body: Body<Block>) -> Result<Response, Failure> {
    let Block { key, duration, unless_blocked } = read(body)?;
    let key = key.spelled(&service.live().configuration.settings.key_prefix)?;
    let limiter = any_limiter(&service)?;
    let until = match unless_blocked {
        true => limiter.block_unless_blocked(&key, duration.into()).await,
        false => limiter.block(&key, duration.into()).await,
    }?;
    Ok(Json(serde_json::json!({ "blocked_until": reply::unix(until) })).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfKey {
    key: Key,
}

async fn unblock(State(service): State<Arc<Service>>, body: Body<OfKey>) -> Result<Response, Failure> {
    let key = read(body)?.key.spelled(&service.live().configuration.settings.key_prefix)?;
    let unblocked = any_limiter(&service)?.unblock(&key).await?;
    Ok(Json(serde_json::json!({ "unblocked": unblocked })).into_response())
}

/// What the server holds of a key, by its name there.
async fn info(
    State(service): State<Arc<Service>>,
    asked: Result<Query<OfKey>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(OfKey { key }) = asked?;
    match service.client().info(&key.spelled("")?).await? {
        Some(held) => Ok(Json(reply::held(&held)).into_response()),
        None => Err(Failure::new(StatusCode::NOT_FOUND, "no such key")),
    }
}

/// Who is being limited.
async fn top(
    State(service): State<Arc<Service>>,
    asked: Result<Query<Top>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(Top { count }) = asked?;
    let all = service.client().top(count).await?;
    Ok(Json(all.iter().map(denied).collect::<Vec<_>>()).into_response())
}

/// Something to try: every path is limited by itself.
async fn demo(State(service): State<Arc<Service>>, uri: Uri) -> Result<Response, Failure> {
    if uri.path().len() > LONGEST_DEMO {
        return Err(Failure::new(StatusCode::URI_TOO_LONG, "the path is too long to be a key"));
    }
    let mut question: Question = serde_json::from_str(DEMO).expect("it is one");
    question.name(uri.path());
    Ok(asked(&service, &question, What::Allow, Api::Demo).await?.response(question.window()))
}
