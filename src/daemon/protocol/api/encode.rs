//! Encodes replies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::Serialize;
use serde_json::{json, Value};

use super::decode::Id;
use crate::core::{Answer, DeniedKey, KeyInfo, TakenHold};
use crate::protocol::headers::{self, Limited};

/// In ms: the next hold may end at any time.
const NEXT_PLACE: i64 = 1000;

/// A decision: the known fields of the command's reply, with durations in ms, and its source.
#[derive(Debug, Serialize)]
pub struct DecisionReply {
    granted: u64,
    limit: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    retry_after: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_after: Option<u64>,
    source: &'static str,
    /// Of a hold that the server granted.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    hold: Option<HoldReply>,
    /// For the header `Retry-After`.
    #[serde(skip)]
    retry_header: i64,
}

impl From<&Answer> for DecisionReply {
    fn from(answer: &Answer) -> Self {
        Self {
            granted: answer.units,
            limit: answer.limit,
            remaining: answer.remaining,
            retry_after: retry_after(answer.retry_after),
            reset_after: answer.reset_after.map(ms),
            source: answer.source.as_str(),
            hold: None,
            retry_header: retry_after(answer.retry_after),
        }
    }
}

/// What the holder of a hold needs.
#[derive(Debug, Serialize)]
struct HoldReply {
    id: String,
    token: Option<u64>,
    expires_after: Option<u64>,
}

impl DecisionReply {
    /// The reply of a hold, if it was taken. The header says when to try again, the body when all holds have ended.
    pub fn of_hold(answer: &Answer, taken: Option<&TakenHold>) -> Self {
        let reply = Self::from(answer);
        let hold = taken.and_then(|TakenHold { token, expires_after, id, .. }| {
            Some(HoldReply { id: Id::spelled(id.as_deref()?), token: *token, expires_after: expires_after.map(ms) })
        });
        Self { retry_header: reply.retry_header.min(NEXT_PLACE), hold, ..reply }
    }

    fn is_denied(&self) -> bool {
        self.granted == 0
    }

    /// The response for a limit with this window in ms: status 200 or 429, with headers.
    pub fn response(self, window: u64) -> Response {
        let left = self.remaining.zip(self.reset_after.map(Duration::from_millis));
        let told =
            Limited { name: "default".into(), limit: self.limit, window: Some(Duration::from_millis(window)), left };
        let headers = headers::of_limits([told].into_iter());
        (headers, with_status(self.is_denied(), self.retry_header, Json(self))).into_response()
    }
}

/// The response of a decision with this body: status 200 or 429.
pub fn with_decision(is_granted: bool, reply: &DecisionReply, body: impl IntoResponse) -> Response {
    with_status(!is_granted, reply.retry_header, body)
}

/// The response for several limits.
pub fn several(is_granted: bool, each: Vec<DecisionReply>) -> Response {
    let denials = || each.iter().filter(|reply| reply.is_denied());
    let longest = |wait: fn(&DecisionReply) -> i64| match denials().map(wait).min() {
        Some(never) if never < 0 => never,
        _ => denials().map(wait).max().unwrap_or_default(),
    };
    let (retry_after, retry_header) = (longest(|reply| reply.retry_after), longest(|reply| reply.retry_header));
    let body = json!({"granted": is_granted, "retry_after": retry_after, "each": each});
    with_status(!is_granted, retry_header, Json(body))
}

fn with_status(denied: bool, retry_after: i64, body: impl IntoResponse) -> Response {
    if !denied {
        return body.into_response();
    }
    let wait = u64::try_from(retry_after).ok().map(|ms| headers::seconds(Duration::from_millis(ms)));
    match wait {
        Some(wait) => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, wait)], body).into_response(),
        None => (StatusCode::TOO_MANY_REQUESTS, body).into_response(),
    }
}

/// What the server holds of a key.
pub fn held(held: &KeyInfo) -> Value {
    let counts = held.counts.iter().map(|(start, units)| json!([unix(*start), units]));
    json!({
        "window": ms(held.window),
        "resolution": ms(held.resolution),
        "total": held.total,
        "holds": held.holds,
        "memory": held.memory,
        "counts": counts.collect::<Vec<_>>(),
        "blocked_until": held.blocked_until.map(unix),
        "until": held.until.map(unix),
    })
}

/// A key that was denied lately.
pub fn denied(denied: &DeniedKey) -> Value {
    json!({
        "database": denied.database,
        "key": String::from_utf8_lossy(&denied.key),
        "this_minute": denied.this_minute,
        "last_minute": denied.last_minute,
    })
}

/// Unix time in ms.
pub fn unix(instant: SystemTime) -> u64 {
    ms(instant.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// In ms, −1 for never, as in the command's reply.
fn retry_after(wait: Option<Duration>) -> i64 {
    wait.map_or(-1, |wait| i64::try_from(ms(wait)).unwrap_or(i64::MAX))
}
