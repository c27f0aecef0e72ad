//! Encodes the reply to the proxy.

use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::core::{retry_after, Answer, Plan};
use crate::protocol::headers::{self, Told};

/// Whether the proxy may forward the request, and the headers for its response.
pub struct Permission {
    pub denied: bool,
    headers: HeaderMap,
}

/// The reply, from the answers to the plan's questions.
pub fn permission(plan: &Plan, answers: &[Answer], shadow_mode: bool) -> Permission {
    let denied = plan.is_denied(|at| !answers[at].granted) && !shadow_mode;
    let limits = plan.descriptors.iter().flat_map(|descriptor| {
        let is_only = descriptor.questions.len() == 1;
        descriptor.questions.iter().map(move |at| {
            let (limit, answer) = (&plan.questions[*at].limit, &answers[*at]);
            let name = match &*limit.name {
                "" if is_only => descriptor.label.to_string(),
                "" => format!("{}-{}", descriptor.label, limit.per.spelled()),
                name => name.to_string(),
            };
            let left = answer.remaining.zip(answer.reset_after);
            Told { name: name.into(), limit: limit.units, window: limit.per.window(), left }
        })
    });
    let mut headers = headers::of_limits(limits);
    if denied {
        headers.extend(retry_after(plan, answers).map(|wait| (header::RETRY_AFTER, headers::seconds(wait).into())));
    }
    Permission { denied, headers }
}

impl IntoResponse for Permission {
    fn into_response(self) -> Response {
        match self.denied {
            true => (StatusCode::TOO_MANY_REQUESTS, self.headers, "too many requests\n").into_response(),
            false => (self.headers, "OK\n").into_response(),
        }
    }
}
