//! Errors of the API.

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::json;

use crate::config::explained;
use crate::core::Refusal;

/// An error: a status, and `{"error": text}`.
#[derive(Debug)]
pub struct ErrorReply {
    status: StatusCode,
    text: String,
}

impl ErrorReply {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl IntoResponse for ErrorReply {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.text }))).into_response()
    }
}

impl From<Refusal> for ErrorReply {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Refused(_) => StatusCode::BAD_GATEWAY,
            Refusal::NeedsServer => StatusCode::NOT_IMPLEMENTED,
        };
        Self::new(status, refusal.message())
    }
}

impl From<JsonRejection> for ErrorReply {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        let text = rejection.body_text();
        // The body begins with axum's own words, then the parser's.
        let (context, message) = text.rsplit_once(": ").unwrap_or(("", &text));
        match explained(message) {
            same if same == message => Self::new(status, text),
            explained => Self::new(status, format!("{context}: {explained}")),
        }
    }
}

impl From<QueryRejection> for ErrorReply {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}
