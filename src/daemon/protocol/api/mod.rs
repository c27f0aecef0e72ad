//! The HTTP API: every operation as JSON, with limits that callers bring along.

mod decode;
mod encode;
mod holds;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{header, StatusCode, Uri};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

pub use encode::{denied, unix};

use super::access::Barred;
use super::explain::{self, ExplainRequest};
use super::object::Object;
use super::peer::Peer;
use crate::config::limits::Limit;
use crate::config::policy::OnFailure;
use crate::core::{self, Explanation, Operation, Plan, Question, Role, Verb};
use crate::observe::labels::{Api, Outcome};
use crate::observe::traces;
use crate::service::{refused, Live, Service};
use decode::{BlockRequest, Command, KeyRequest, LimitRequest, RefundRequest, TopRequest};
use encode::{DecisionReply, ErrorReply};

const OPENAPI: &str = include_str!("openapi.json");

/// The most limits of one decision, and so the most keys of one command.
const MAX_TOGETHER: usize = 1000;

/// The most keys of a reply about denied keys.
const MAX_TOP: usize = 10_000;

/// How much of a body is read that nobody needs, and for how long.
const MAX_DRAINED: usize = 64 * 1024;
const DRAINING: Duration = Duration::from_secs(1);

/// The limit of each path under `/demo/`.
const DEMO: &str = r#"{"key": "", "limit": 5, "window": "10s"}"#;
const MAX_DEMO_PATH: usize = 200;

/// All paths of the API, behind the access check.
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
        ("/v1/hold", Api::Hold, post(holds::hold)),
        ("/v1/release", Api::Release, post(holds::release)),
        ("/v1/renew", Api::Renew, post(holds::renew)),
        ("/v1/budget", Api::Budget, post(holds::budget)),
        ("/v1/admit", Api::Admit, post(holds::admit)),
        ("/v1/settle", Api::Settle, post(holds::settle)),
        ("/demo/{*path}", Api::Demo, any(demo)),
    ];
    let commands = commands.into_iter().map(|(path, api, handler)| {
        let guarded = Router::new().route(path, handler).route_layer(from_fn_with_state(service.clone(), guard));
        guarded.route_layer(from_fn_with_state((service.clone(), api), observe))
    });
    let views = Router::new()
        .route("/v1/info", get(info))
        .route("/v1/top", get(top))
        .route("/v1/holders", get(holds::holders))
        .route("/explain", post(explain))
        .route_layer(from_fn_with_state(service.clone(), guard));
    let openapi = get(|| async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI) });
    commands.fold(views, Router::merge).route("/v1/openapi.json", openapi)
}

/// Checks access.
pub async fn guard(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let checked = service.live().configuration.access.check(peer, request.uri(), request.headers());
    let Err(barred) = checked else { return next.run(request).await };
    drain(request.into_body()).await;
    match barred {
        Barred::NeedsToken => {
            let error = ErrorReply::new(StatusCode::UNAUTHORIZED, "a valid token is needed");
            ([(header::WWW_AUTHENTICATE, "Bearer")], error).into_response()
        }
        Barred::NotLocal => {
            ErrorReply::new(StatusCode::FORBIDDEN, "without tokens only this machine has access").into_response()
        }
        Barred::CrossSite => {
            ErrorReply::new(StatusCode::FORBIDDEN, "pages of other sites have no access").into_response()
        }
    }
}

/// Reads a small body to its end. Over HTTP/2 an answer before that resets the stream, and some clients, such as curl
/// 7.88, then do not read the answer.
async fn drain(body: axum::body::Body) {
    let _ = timeout(DRAINING, to_bytes(body, MAX_DRAINED)).await;
}

/// Counts the outcome and duration of a request.
async fn observe(State((service, api)): State<(Arc<Service>, Api)>, request: Request, next: Next) -> Response {
    let span = traces::span(api, request.headers());
    let outcome = |response: &Response| match response.status() {
        StatusCode::TOO_MANY_REQUESTS => Outcome::OverLimit,
        status if status.is_success() => Outcome::Ok,
        _ => Outcome::Error,
    };
    service.observed(api, span, next.run(request), outcome).await
}

/// A JSON body. Other content types are refused, which makes browsers ask before a page of another site may send one.
type Body<T> = Result<Json<T>, JsonRejection>;

fn read<T: DeserializeOwned>(body: Body<T>) -> Result<T, ErrorReply> {
    let Json(read) = body?;
    Ok(read)
}

fn limit(live: &Live, request: &LimitRequest, command: Command) -> Result<Limit, ErrorReply> {
    let settings = &live.configuration.settings;
    request.limit(command, settings.policy(), settings.defaults(OnFailure::Error))
}

fn prefix(live: &Live) -> &str {
    &live.configuration.settings.prefix
}

async fn decide(
    service: &Service,
    request: &LimitRequest,
    command: Command,
    api: Api,
) -> Result<DecisionReply, ErrorReply> {
    let live = service.live();
    let limit = limit(&live, request, command)?;
    let key = request.key(prefix(&live))?;
    let verb = request.verb(command)?;
    let _waiting = matches!(verb, Verb::Acquire(_)).then(|| service.metrics.waiting.begin(&key));
    let decided = live.limiters.decide_one(&limit, verb, request.demand(&key)).await;
    let answer = decided.map_err(refused)?;
    if !answer.granted && command != Command::Peek {
        service.metrics.denied_here.count(&key);
    }
    let hits = if command == Command::Peek { 0 } else { request.cost()? };
    service.metrics.rules.count_command(api, hits, &[answer]);
    Ok(DecisionReply::from(&answer))
}

async fn allow(State(service): State<Arc<Service>>, body: Body<Object<LimitRequest>>) -> Result<Response, ErrorReply> {
    let Object(request) = read(body)?;
    Ok(decide(&service, &request, Command::Allow, Api::Allow).await?.response(request.window()))
}

async fn acquire(
    State(service): State<Arc<Service>>,
    body: Body<Object<LimitRequest>>,
) -> Result<Response, ErrorReply> {
    let Object(request) = read(body)?;
    Ok(decide(&service, &request, Command::Acquire, Api::Acquire).await?.response(request.window()))
}

async fn peek(
    State(service): State<Arc<Service>>,
    body: Body<Object<LimitRequest>>,
) -> Result<Json<DecisionReply>, ErrorReply> {
    decide(&service, &read(body)?.0, Command::Peek, Api::Peek).await.map(Json)
}

async fn record(
    State(service): State<Arc<Service>>,
    body: Body<Object<LimitRequest>>,
) -> Result<Json<DecisionReply>, ErrorReply> {
    decide(&service, &read(body)?.0, Command::Record, Api::Record).await.map(Json)
}

/// Several limits in one decision.
async fn allow_all(
    State(service): State<Arc<Service>>,
    body: Body<Vec<Object<LimitRequest>>>,
) -> Result<Response, ErrorReply> {
    let requests = read(body)?;
    let live = service.live();
    if requests.is_empty() || requests.len() > MAX_TOGETHER {
        return Err(ErrorReply::invalid(format!("a decision has 1 to {MAX_TOGETHER} limits")));
    }
    let mut plan = Plan::default();
    for (at, Object(request)) in requests.iter().enumerate() {
        let limit = limit(&live, request, Command::Allow)?;
        let (key, hits) = (request.key(prefix(&live))?, request.cost()?);
        if request.is_partial() {
            return Err(ErrorReply::invalid("several limits grant the whole cost or nothing"));
        }
        let (operation, role, limit) = (Operation::Allow, Role::Decides, Cow::Owned(limit));
        let question = Question { operation, role, limit, key, id: None, hits };
        plan.ask(question, |_, _| Err(ErrorReply::invalid("duplicate key")))?;
        plan.descriptors.push(core::Descriptor { hits, questions: vec![at], ..core::Descriptor::unmatched() });
    }
    let answers = live.limiters.decide(&plan).await.map_err(refused)?;
    let hits = plan.questions.iter().map(|question| question.hits).sum();
    service.metrics.rules.count_command(Api::AllowAll, hits, &answers);
    Ok(encode::several(answers.iter().map(DecisionReply::from).collect()))
}

async fn refund(
    State(service): State<Arc<Service>>,
    body: Body<Object<RefundRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let key = request.key.name(prefix(&live))?;
    let refunded = live.limiters.refund(request.demand(&key)).await.map_err(refused)?;
    Ok(Json(serde_json::json!({ "refunded": refunded })).into_response())
}

async fn block(State(service): State<Arc<Service>>, body: Body<Object<BlockRequest>>) -> Result<Response, ErrorReply> {
    let (Object(BlockRequest { key, duration, unless_blocked }), live) = (read(body)?, service.live());
    let key = key.name(prefix(&live))?;
    let until = live.limiters.block(&key, duration.into(), unless_blocked).await.map_err(refused)?;
    Ok(Json(serde_json::json!({ "blocked_until": encode::unix(until) })).into_response())
}

async fn unblock(State(service): State<Arc<Service>>, body: Body<Object<KeyRequest>>) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let key = request.key.name(prefix(&live))?;
    let unblocked = live.limiters.unblock(&key).await.map_err(refused)?;
    Ok(Json(serde_json::json!({ "unblocked": unblocked })).into_response())
}

/// What the server holds of a key, by its full name.
async fn info(
    State(service): State<Arc<Service>>,
    query: Result<Query<KeyRequest>, QueryRejection>,
) -> Result<Response, ErrorReply> {
    let Query(KeyRequest { key }) = query?;
    match core::info(service.client(), &key.name("")?).await.map_err(refused)? {
        Some(held) => Ok(Json(encode::held(&held)).into_response()),
        None => Err(ErrorReply::new(StatusCode::NOT_FOUND, "no such key")),
    }
}

/// The keys with the most denied requests.
async fn top(
    State(service): State<Arc<Service>>,
    query: Result<Query<TopRequest>, QueryRejection>,
) -> Result<Response, ErrorReply> {
    let Query(TopRequest { count }) = query?;
    if !(1..=MAX_TOP).contains(&count) {
        return Err(ErrorReply::invalid(format!("count is 1 to {MAX_TOP}")));
    }
    let all = core::top(service.client(), count).await.map_err(refused)?;
    Ok(Json(all.iter().map(denied).collect::<Vec<_>>()).into_response())
}

/// Why a request would be granted or denied now.
async fn explain(
    State(service): State<Arc<Service>>,
    body: Body<ExplainRequest>,
) -> Result<Json<Explanation>, ErrorReply> {
    Ok(Json(explain::explain(&service.live(), read(body)?).await?))
}

/// A limit to try: each path has its own.
async fn demo(State(service): State<Arc<Service>>, uri: Uri) -> Result<Response, ErrorReply> {
    if uri.path().len() > MAX_DEMO_PATH {
        return Err(ErrorReply::new(StatusCode::URI_TOO_LONG, "the path is too long for a key"));
    }
    let request: LimitRequest = serde_json::from_str(DEMO).expect("the demo's limit is valid");
    let request = request.with_key(uri.path());
    Ok(decide(&service, &request, Command::Allow, Api::Demo).await?.response(request.window()))
}
