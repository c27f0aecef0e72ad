//! Encodes the reply to the proxy.

use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::config::limits::NetworkDecision;
use crate::config::settings::Settings;
use crate::core::{retry_after, Answer, Plan};
use crate::protocol::headers::{self, Limited};

/// Whether the proxy may forward the request, and the headers for its response.
#[derive(Default)]
pub struct Permission {
    denial: Option<Denial>,
    headers: HeaderMap,
}

/// A status, and the text with it.
type Denial = (StatusCode, &'static str);

impl Permission {
    pub fn is_denied(&self) -> bool {
        self.denial.is_some()
    }
}

/// The reply to a request that the client's network decides.
pub fn of_network(decision: NetworkDecision) -> Permission {
    match decision {
        NetworkDecision::Denied => {
            Permission { denial: Some((StatusCode::FORBIDDEN, "forbidden\n")), ..Permission::default() }
        }
        NetworkDecision::Allowed => Permission::default(),
    }
}

/// The reply, from the answers to the plan's questions.
pub fn permission(plan: &Plan, answers: &[Answer], settings: &Settings) -> Permission {
    let denied = plan.is_denied(|at| !answers[at].granted) && !settings.shadow_mode;
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
            Limited { name: name.into(), limit: limit.units, window: limit.per.window(), left }
        })
    });
    let mut headers = headers::of_limits(limits);
    if denied {
        headers.extend(retry_after(plan, answers).map(|wait| (header::RETRY_AFTER, headers::seconds(wait).into())));
    }
    Permission { denial: denied.then_some((settings.auth.denied_status, "too many requests\n")), headers }
}

impl IntoResponse for Permission {
    fn into_response(self) -> Response {
        let (status, text) = self.denial.unwrap_or((StatusCode::OK, "OK\n"));
        (status, self.headers, text).into_response()
    }
}
