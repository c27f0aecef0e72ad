//! What is answered.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::Serialize;
use serde_json::{json, Value};
use swlimit_client::{self as client, Denied, Error, Held, Way};

use crate::deciding::{Answer, Ask, Unanswered};
use crate::headers::{self, Told};
use crate::metrics;
use crate::service::AWAY;

/// The five fields of the command's reply, and whether it was decided without the server. Durations in ms.
#[derive(Debug, Serialize)]
pub struct Decision {
    granted: u64,
    limit: u64,
    remaining: u64,
    retry_after: i64,
    reset_after: u64,
    local: bool,
}

impl From<&client::Decision> for Decision {
    fn from(decision: &client::Decision) -> Self {
        Self {
            granted: decision.units(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: retry_after(decision.retry_after()),
            reset_after: ms(decision.reset_after()),
            local: decision.local(),
        }
    }
}

impl Decision {
    /// The decision upon one of several limits.
    pub fn of(ask: &Ask, answer: &Answer) -> Self {
        Self {
            granted: if answer.granted { ask.hits } else { 0 },
            limit: ask.limit.quota.limit,
            remaining: answer.remaining,
            retry_after: retry_after(answer.retry_after),
            reset_after: ms(answer.reset_after),
            local: answer.way != Way::Server,
        }
    }

    fn denies(&self) -> bool {
        self.granted == 0
    }

    /// As the response to whoever asked whether he may, of a limit with this window in ms.
    pub fn response(self, window: u64) -> Response {
        let (limit, remaining) = (self.limit, self.remaining);
        let [window, reset_after] = [window, self.reset_after].map(Duration::from_millis);
        let told = Told { name: "default".into(), limit, window, remaining, reset_after };
        let headers = headers::of_limits([told].into_iter());
        (headers, answered(self.denies(), self.retry_after, Json(self))).into_response()
    }
}

/// The response to whoever asked of several limits.
pub fn together(each: Vec<Decision>) -> Response {
    let denied = each.iter().any(Decision::denies);
    let waits = || each.iter().filter(|decision| decision.denies()).map(|decision| decision.retry_after);
    let retry_after = if waits().any(|wait| wait < 0) { -1 } else { waits().max().unwrap_or_default() };
    let local = each.iter().any(|decision| decision.local);
    let told = json!({"granted": !denied, "retry_after": retry_after, "local": local, "each": each});
    answered(denied, retry_after, Json(told))
}

fn answered(denied: bool, retry_after: i64, body: impl IntoResponse) -> Response {
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
pub fn held(held: &Held) -> Value {
    let counts = held.counts.iter().map(|(start, units)| json!([unix(*start), units]));
    json!({
        "window": ms(held.window),
        "resolution": ms(held.resolution),
        "total": held.total,
        "memory": held.memory,
        "counts": counts.collect::<Vec<_>>(),
        "blocked_until": held.blocked_until.map(unix),
    })
}

/// A key that was denied lately.
pub fn denied(denied: &Denied) -> Value {
    json!({
        "database": denied.database,
        "key": String::from_utf8_lossy(&denied.key),
        "this_minute": denied.this_minute,
        "last_minute": denied.last_minute,
    })
}

/// An instant, in ms of Unix time.
pub fn unix(instant: SystemTime) -> u64 {
    ms(instant.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// As the command has it: −1 for never.
fn retry_after(wait: Option<Duration>) -> i64 {
    wait.map_or(-1, |wait| i64::try_from(ms(wait)).unwrap_or(i64::MAX))
}

/// What went wrong: a status, and `{"error": text}`.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    text: String,
}

impl Failure {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub fn away() -> Self {
        metrics::failed("away");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, AWAY)
    }

    fn refused(error: &Error) -> Self {
        metrics::failed("refused");
        tracing::error!(%error, "the server refuses");
        Self::new(StatusCode::BAD_GATEWAY, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.text }))).into_response()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Away(_) => Self::away(),
            Error::Invalid(text) => Self::invalid(text),
            Error::OnlyLocal(_) => Self::new(StatusCode::NOT_IMPLEMENTED, error.to_string()),
            error => Self::refused(&error),
        }
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Away => Self::away(),
            Unanswered::Refused(error) => error.into(),
        }
    }
}

impl From<JsonRejection> for Failure {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        Self::new(status, rejection.body_text())
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}
