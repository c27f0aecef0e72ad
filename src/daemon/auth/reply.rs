//! From what the server answered to the reply.

use std::time::Duration;

use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use swlimit_client::Way;

use crate::deciding::{retry_after, Answer, Plan};
use crate::headers::{self, Told};
use crate::keys;

/// Whether a request may pass, and what its response should say.
pub struct Permission {
    pub denied: bool,
    headers: HeaderMap,
}

/// The reply to a request, from the answers to the questions of its plan.
pub fn reply(plan: &Plan, answers: &[Answer], shadow_mode: bool) -> Permission {
    let denied = plan.is_denied(|ask| !answers[ask].granted) && !shadow_mode;
    let limits = plan.descriptors.iter().flat_map(|descriptor| {
        let is_only = descriptor.asks.len() == 1;
        // What was not asked, since another limit is known to deny, has nothing to tell.
        let known = descriptor.asks.iter().filter(|ask| !answers[**ask].granted || answers[**ask].way != Way::Denial);
        known.map(move |ask| {
            let (limit, answer) = (&plan.asks[*ask].limit, &answers[*ask]);
            let window = limit.quota.geometry.window();
            let name = match &*limit.name {
                "" if is_only => descriptor.measured.to_string(),
                "" => format!("{}-{}", descriptor.measured, keys::duration(window)),
                name => name.to_string(),
            };
            let (remaining, reset_after) = (answer.remaining, answer.reset_after);
            let window = Duration::from_millis(window);
            Told { name: name.into(), limit: limit.quota.limit, window, remaining, reset_after }
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
