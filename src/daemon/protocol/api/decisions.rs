//! Decisions by limits that callers bring along.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::Json;
use serde_json::json;

use super::decode::{read, Body};
use super::encode::{self, DecisionReply};
use super::error::ErrorReply;
use super::questions::{units, AdmitRequest, BudgetRequest, HoldRequest, LimitRequest};
use crate::config::limits::Per;
use crate::core::{Answer, Descriptor, Operation, Plan, Question};
use crate::observe::labels::Api;
use crate::observe::refusals::refused;
use crate::protocol::object::Object;
use crate::service::{Live, Service};

/// Maximum limits of one decision, and so keys of one command.
const MAX_TOGETHER: usize = 1000;

/// The limit of each path under `/demo/`.
const DEMO: &str = r#"{"key": "", "limit": 5, "window": "10s"}"#;
const MAX_DEMO_PATH: usize = 200;

/// The answer to one question.
async fn ask(service: &Service, live: &Live, api: Api, question: &Question<'_>) -> Result<Answer, ErrorReply> {
    let _waiting = question.wait.map(|_| service.metrics.waiting.begin(&question.key));
    let answer = live.limiters.ask(question).await.map_err(refused)?;
    service.metrics.command(api, &[question], &[answer]);
    Ok(answer)
}

async fn decide(service: &Service, request: &LimitRequest, api: Api) -> Result<DecisionReply, ErrorReply> {
    let live = service.live();
    let question = request.question(api, &live.configuration.settings)?;
    Ok(DecisionReply::from(&ask(service, &live, api, &question).await?))
}

pub async fn allow(
    State(service): State<Arc<Service>>,
    body: Body<Object<LimitRequest>>,
) -> Result<Response, ErrorReply> {
    let Object(request) = read(body)?;
    Ok(decide(&service, &request, Api::Allow).await?.response(request.window()))
}

pub async fn acquire(
    State(service): State<Arc<Service>>,
    body: Body<Object<LimitRequest>>,
) -> Result<Response, ErrorReply> {
    let Object(request) = read(body)?;
    Ok(decide(&service, &request, Api::Acquire).await?.response(request.window()))
}

pub async fn peek(
    State(service): State<Arc<Service>>,
    body: Body<Object<LimitRequest>>,
) -> Result<Json<DecisionReply>, ErrorReply> {
    decide(&service, &read(body)?.0, Api::Peek).await.map(Json)
}

pub async fn record(
    State(service): State<Arc<Service>>,
    body: Body<Object<LimitRequest>>,
) -> Result<Json<DecisionReply>, ErrorReply> {
    decide(&service, &read(body)?.0, Api::Record).await.map(Json)
}

/// Several rates in one decision.
pub async fn allow_all(
    State(service): State<Arc<Service>>,
    body: Body<Vec<Object<LimitRequest>>>,
) -> Result<Response, ErrorReply> {
    let (requests, live) = (read(body)?, service.live());
    if requests.is_empty() || requests.len() > MAX_TOGETHER {
        return Err(ErrorReply::invalid(format!("a decision has 1 to {MAX_TOGETHER} limits")));
    }
    let mut plan = Plan::default();
    for (at, Object(request)) in requests.iter().enumerate() {
        let question = request.question(Api::AllowAll, &live.configuration.settings)?;
        let hits = units(question.hits)?;
        if question.partial {
            return Err(ErrorReply::invalid("several limits grant the whole cost or nothing"));
        }
        plan.ask(question, |_, _| Err(ErrorReply::invalid("duplicate key")))?;
        plan.descriptors.push(Descriptor { hits, questions: vec![at], ..Descriptor::unmatched() });
    }
    let answers = live.limiters.decide(&plan).await.map_err(refused)?;
    service.metrics.command(Api::AllowAll, &plan.questions.iter().collect::<Vec<_>>(), &answers);
    let is_granted = answers.iter().all(|answer| answer.granted);
    Ok(encode::several(is_granted, answers.iter().map(DecisionReply::from).collect()))
}

/// Takes units until they are released, or their time to live has passed.
pub async fn hold(
    State(service): State<Arc<Service>>,
    body: Body<Object<HoldRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let question = request.question(&live.configuration.settings)?;
    let _waiting = question.wait.map(|_| service.metrics.waiting.begin(&question.key));
    let taken = live.limiters.hold(&question).await.map_err(refused)?;
    service.metrics.command(Api::Hold, &[&question], &[taken.answer]);
    let reply = DecisionReply::of_hold(&taken.answer, Some(&taken));
    Ok(encode::with_decision(taken.answer.granted, &reply, Json(json!(reply))))
}

/// Units of a period of the calendar.
pub async fn budget(
    State(service): State<Arc<Service>>,
    body: Body<Object<BudgetRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let question = request.question(&live.configuration.settings)?;
    let answer = ask(&service, &live, Api::Budget, &question).await?;
    let reply = DecisionReply::from(&answer);
    // The status of a RECORD is 200, as it is not denied.
    let is_granted = answer.granted || question.operation == Operation::Record;
    Ok(encode::with_decision(is_granted, &reply, Json(json!(reply))))
}

/// Rates, budgets and holds in one decision.
pub async fn admit(
    State(service): State<Arc<Service>>,
    body: Body<Vec<Object<AdmitRequest>>>,
) -> Result<Response, ErrorReply> {
    let (requests, live) = (read(body)?, service.live());
    let settings = &live.configuration.settings;
    let questions = requests.iter().map(|Object(request)| request.question(settings));
    let questions = questions.collect::<Result<Vec<_>, _>>()?;
    let questions: Vec<_> = questions.iter().collect();
    let admitted = live.limiters.admit(&questions).await.map_err(refused)?;
    service.metrics.command(Api::Admit, &questions, &admitted.each);
    let mut holds = admitted.holds.iter();
    let replies = admitted.each.iter().zip(&questions).map(|(answer, question)| match question.limit.per {
        Per::Hold(_) => DecisionReply::of_hold(answer, holds.next()),
        Per::Window(_) | Per::Period(_) => DecisionReply::from(answer),
    });
    Ok(encode::several(admitted.granted, replies.collect()))
}

/// A limit to try: each path has its own.
pub async fn demo(State(service): State<Arc<Service>>, uri: Uri) -> Result<Response, ErrorReply> {
    if uri.path().len() > MAX_DEMO_PATH {
        return Err(ErrorReply::new(StatusCode::URI_TOO_LONG, "the path is too long for a key"));
    }
    let request: LimitRequest = serde_json::from_str(DEMO).expect("the demo's limit is valid");
    let request = request.with_key(uri.path());
    Ok(decide(&service, &request, Api::Demo).await?.response(request.window()))
}
