//! Things under way, budgets of the calendar, and one decision of everything.
//!
//! A hold that is taken here is its caller's: nothing in this process renews or releases it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::{Deserialize, Deserializer};
use serde_json::{json, Value};
use swlimit_client::Period;
use swlimit_window::MAX_EXACT;

use super::decode::{Key, Span};
use super::encode::{self, DecisionReply, ErrorReply};
use super::{prefix, read, Body};
use crate::config::limits::{Anchor, Periods};
use crate::config::policy::OnFailure;
use crate::core::{AdmitPart, BudgetKind, HoldKind, Taken};
use crate::observe::labels::Api;
use crate::protocol::object::Object;
use crate::service::{refused, Live, Service};

/// The longest wait of a hold.
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);
/// The most holders of a reply.
const MAX_HOLDERS: usize = 10_000;
/// The most ids of a command.
const MAX_IDS: usize = 1000;

/// An id: its text, or `hex:` and its bytes where it is no text.
#[derive(Clone, Debug)]
struct Id(Vec<u8>);

impl Id {
    const HEX: &'static str = "hex:";

    fn spelled(id: &[u8]) -> String {
        match std::str::from_utf8(id) {
            Ok(text) if !text.starts_with(Self::HEX) && !text.chars().any(char::is_control) => text.into(),
            _ => id.iter().fold(Self::HEX.into(), |text, byte| format!("{text}{byte:02x}")),
        }
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let id = match text.strip_prefix(Self::HEX) {
            None => Some(text.into_bytes()),
            Some(digits) if digits.len() % 2 == 0 => digits.as_bytes().chunks_exact(2).map(byte).collect(),
            Some(_) => None,
        };
        let id = id.filter(|id| (1..=128).contains(&id.len()));
        id.map(Self).ok_or_else(|| serde::de::Error::custom("an id has 1 to 128 bytes"))
    }
}

/// One id, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(Id),
    Several(Vec<Id>),
}

impl Ids {
    fn bytes(&self) -> Result<Vec<&[u8]>, ErrorReply> {
        let ids: Vec<&[u8]> = match self {
            Self::One(id) => vec![&id.0],
            Self::Several(ids) => ids.iter().map(|id| id.0.as_slice()).collect(),
        };
        match (1..=MAX_IDS).contains(&ids.len()) {
            true => Ok(ids),
            false => Err(ErrorReply::invalid(format!("id is one id, or 1 to {MAX_IDS}"))),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    key: Key,
    limit: u64,
    ttl: Span,
    #[serde(default = "one")]
    cost: u64,
    wait: Option<Span>,
    id: Option<Id>,
    on_failure: Option<OnFailure>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    key: Key,
    id: Ids,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    key: Key,
    ttl: Span,
    id: Ids,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldersRequest {
    key: Key,
    #[serde(default = "hundred")]
    count: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetRequest {
    key: Key,
    limit: u64,
    period: Period,
    time_zone: Option<String>,
    anchor: Option<Anchor>,
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    partial: bool,
    #[serde(default)]
    record: bool,
    on_failure: Option<OnFailure>,
}

/// One of the limits that are decided together: a rate has a `window`, a hold a `ttl`, a budget a `period`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitRequest {
    key: Key,
    limit: u64,
    #[serde(default = "one")]
    cost: u64,
    window: Option<Span>,
    resolution: Option<Span>,
    #[serde(default)]
    strict: bool,
    ttl: Option<Span>,
    id: Option<Id>,
    period: Option<Period>,
    time_zone: Option<String>,
    anchor: Option<Anchor>,
    on_failure: Option<OnFailure>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    key: Key,
    id: Id,
    used: Vec<Object<Used>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Used {
    key: Key,
    units: u64,
}

fn one() -> u64 {
    1
}

fn hundred() -> usize {
    100
}

/// Who decides while the server is away. A hold of this process would be nobody's.
fn on_failure(live: &Live, asked: Option<OnFailure>) -> Result<OnFailure, ErrorReply> {
    match asked {
        Some(OnFailure::Local) => Err(ErrorReply::invalid("on_failure of a hold is allow, deny or error")),
        Some(asked) => Ok(asked),
        None => Ok(match live.configuration.settings.policy().on_failure {
            None | Some(OnFailure::Local) => OnFailure::Error,
            Some(configured) => configured,
        }),
    }
}

fn units(cost: u64) -> Result<u64, ErrorReply> {
    match cost {
        1..=MAX_EXACT => Ok(cost),
        _ => Err(ErrorReply::invalid(format!("cost is 1 to {MAX_EXACT}"))),
    }
}

impl HoldRequest {
    fn kind(&self, live: &Live) -> Result<HoldKind<'_>, ErrorReply> {
        let wait = self.wait.map_or(Duration::ZERO, Duration::from);
        if wait > MAX_WAIT {
            return Err(ErrorReply::invalid("wait is at most 1h"));
        }
        let (limit, ttl, id) = (self.limit, self.ttl.into(), self.id.as_ref().map(|id| id.0.as_slice()));
        Ok(HoldKind { limit, ttl, id, cost: units(self.cost)?, wait, on_failure: on_failure(live, self.on_failure)? })
    }
}

/// Takes units until they are released, or their time to live has passed.
pub async fn hold(
    State(service): State<Arc<Service>>,
    body: Body<Object<HoldRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let key = request.key.name(prefix(&live))?;
    let kind = request.kind(&live)?;
    let _waiting = (kind.wait > Duration::ZERO).then(|| service.metrics.waiting.begin(&key));
    let taken = live.limiters.hold(&key, &kind).await.map_err(refused)?;
    if !taken.answer.granted {
        service.metrics.denied_here.count(&key);
    }
    service.metrics.rules.count_command(Api::Hold, request.cost, &[taken.answer]);
    let reply = DecisionReply::from(&taken.answer).of_hold();
    Ok(encode::with_decision(taken.answer.granted, &reply, Json(held(&taken))))
}

fn held(Taken { answer, token, expires_after, id }: &Taken) -> Value {
    let mut reply = json!(DecisionReply::from(answer));
    for (name, value) in [
        ("token", token.map(Value::from)),
        ("expires_after", expires_after.map(|time| encode::ms(time).into())),
        ("id", id.as_deref().map(|id| Id::spelled(id).into())),
    ] {
        if let Some(value) = value {
            reply[name] = value;
        }
    }
    reply
}

/// Ends holds, whoever has them.
pub async fn release(
    State(service): State<Arc<Service>>,
    body: Body<Object<ReleaseRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let key = request.key.name(prefix(&live))?;
    let released = live.limiters.release(&key, &request.id.bytes()?).await.map_err(refused)?;
    Ok(Json(json!({ "released": released })).into_response())
}

/// Renews holds: whether each is live.
pub async fn renew(
    State(service): State<Arc<Service>>,
    body: Body<Object<RenewRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let key = request.key.name(prefix(&live))?;
    let renewed = live.limiters.renew(&key, request.ttl.into(), &request.id.bytes()?).await.map_err(refused)?;
    Ok(Json(json!({ "renewed": renewed })).into_response())
}

/// Who holds units of a key, by its full name.
pub async fn holders(
    State(service): State<Arc<Service>>,
    query: Result<Query<HoldersRequest>, QueryRejection>,
) -> Result<Response, ErrorReply> {
    let Query(HoldersRequest { key, count }) = query?;
    if !(1..=MAX_HOLDERS).contains(&count) {
        return Err(ErrorReply::invalid(format!("count is 1 to {MAX_HOLDERS}")));
    }
    let holders = service.live().limiters.holders(&key.name("")?, count).await.map_err(refused)?;
    let holders = holders.iter().map(|holder| {
        json!({
            "id": Id::spelled(&holder.id),
            "units": holder.units,
            "held_for": encode::ms(holder.held_for),
            "expires_after": encode::ms(holder.expires_after),
            "token": holder.token,
        })
    });
    Ok(Json(holders.collect::<Vec<_>>()).into_response())
}

/// Units of a period of the calendar.
pub async fn budget(
    State(service): State<Arc<Service>>,
    body: Body<Object<BudgetRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    if request.partial && request.record {
        return Err(ErrorReply::invalid("what is recorded is counted whole, never partial"));
    }
    let key = request.key.name(prefix(&live))?;
    let kind = BudgetKind {
        limit: request.limit,
        periods: Periods { period: request.period, time_zone: request.time_zone, anchor: request.anchor },
        on_failure: request.on_failure.or(live.configuration.settings.policy().on_failure),
    };
    let cost = units(request.cost)?;
    let answer = live.limiters.budget(&key, kind, cost, request.partial, request.record).await.map_err(refused)?;
    if !answer.granted {
        service.metrics.denied_here.count(&key);
    }
    service.metrics.rules.count_command(Api::Budget, cost, &[answer]);
    // What is recorded is told like a record: it was not to be decided.
    let reply = DecisionReply::from(&answer);
    Ok(encode::with_decision(answer.granted || request.record, &reply, Json(json!(reply))))
}

impl AdmitRequest {
    fn part(&self, live: &Live) -> Result<AdmitPart<'_>, ErrorReply> {
        let (key, limit, cost) = (self.key.name(prefix(live))?, self.limit, units(self.cost)?);
        let is_rate_only = self.resolution.is_some() || self.strict;
        let is_budget_only = self.time_zone.is_some() || self.anchor.is_some();
        match (self.window, self.ttl, self.period) {
            (Some(window), None, None) if self.id.is_none() && !is_budget_only => Ok(AdmitPart::Rate {
                key,
                limit,
                window: window.into(),
                resolution: self.resolution.map(Into::into),
                strict: self.strict,
                cost,
                on_failure: self.on_failure,
            }),
            (None, Some(ttl), None) if !is_rate_only && !is_budget_only => {
                let id = self.id.as_ref().map(|id| id.0.as_slice());
                let on_failure = on_failure(live, self.on_failure)?;
                let kind = HoldKind { limit, ttl: ttl.into(), id, cost, wait: Duration::ZERO, on_failure };
                Ok(AdmitPart::Hold { key, kind })
            }
            (None, None, Some(period)) if !is_rate_only && self.id.is_none() => {
                let periods = Periods { period, time_zone: self.time_zone.clone(), anchor: self.anchor.clone() };
                let kind = BudgetKind { limit, periods, on_failure: self.on_failure };
                Ok(AdmitPart::Budget { key, kind, cost })
            }
            _ => Err(ErrorReply::invalid(
                "a limit is a rate with window (resolution, strict), a hold with ttl (id), or a budget with period \
                 (time_zone, anchor)",
            )),
        }
    }
}

/// Rates, budgets and a hold in one decision.
pub async fn admit(
    State(service): State<Arc<Service>>,
    body: Body<Vec<Object<AdmitRequest>>>,
) -> Result<Response, ErrorReply> {
    let (requests, live) = (read(body)?, service.live());
    let parts = requests.iter().map(|Object(request)| request.part(&live)).collect::<Result<Vec<_>, _>>()?;
    let admitted = live.limiters.admit(parts).await.map_err(refused)?;
    let hits = requests.iter().map(|Object(request)| request.cost).sum();
    service.metrics.rules.count_command(Api::Admit, hits, &admitted.each);
    let replies = admitted.each.iter().zip(&requests).map(|(answer, Object(request))| match request.ttl {
        Some(_) => DecisionReply::from(answer).of_hold(),
        None => DecisionReply::from(answer),
    });
    let replies = replies.collect();
    let hold = admitted.hold.as_ref().map_or(json!({}), |hold| {
        let all = held(hold);
        json!({"id": all["id"], "token": all["token"], "expires_after": all["expires_after"]})
    });
    Ok(encode::several_with(admitted.granted, replies, hold))
}

/// Corrects what a hold has reserved, once.
pub async fn settle(
    State(service): State<Arc<Service>>,
    body: Body<Object<SettleRequest>>,
) -> Result<Response, ErrorReply> {
    let (Object(request), live) = (read(body)?, service.live());
    let key = request.key.name(prefix(&live))?;
    let used = request.used.iter().map(|Object(used)| Ok((used.key.name(prefix(&live))?, used.units)));
    let used = used.collect::<Result<Vec<_>, ErrorReply>>()?;
    if used.iter().any(|(_, units)| *units > MAX_EXACT) {
        return Err(ErrorReply::invalid(format!("units are at most {MAX_EXACT}")));
    }
    let changes = live.limiters.settle(&key, &request.id.0, &used).await.map_err(refused)?;
    Ok(Json(json!({ "settled": changes.is_some(), "changes": changes.unwrap_or_default() })).into_response())
}
