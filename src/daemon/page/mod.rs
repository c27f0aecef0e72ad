//! The status page: recent decisions, and the keys that are denied most.
//!
//! The page and its counts are as public as `/metrics`. Keys may name people: only users of the API see and block them.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{header, HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use serde::Deserialize;
use serde_json::{json, Value};
use tokio::runtime::Handle;

use crate::config::access::Access;
use crate::config::limits::{Domain, Limit, Limits, Per, Rule};
use crate::core::{DeniedKey, Refusal, Source};
use crate::observe::denied::KeyDenials;
use crate::observe::metrics::{Metrics, SECONDS, WAIT_SECONDS};
use crate::observe::process;
use crate::observe::recent::TimeRange;
use crate::observe::refusals;
use crate::observe::rules::{RecentRule, SHOWN_OUTCOMES};
use crate::observe::snapshots::Snapshots;
use crate::observe::waiting::AwaitedKey;
use crate::protocol::access::AccessError;
use crate::protocol::api;
use crate::protocol::peer::Peer;
use crate::service::Service;

/// The page loads nothing from other hosts, runs no inline code, and cannot be framed.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The most rules and keys that the page shows.
const MAX_RULES: usize = 200;
const MAX_KEYS: usize = 10;

/// The page, its parts, and the state that it polls.
pub fn router(states: Arc<States>) -> Router<Arc<Service>> {
    let part = |media: &'static str, text: &'static str| get(move || async move { (response_headers(media), text) });
    Router::new()
        .route("/", part("text/html; charset=utf-8", include_str!("page.html")))
        .route("/page/page.css", part("text/css; charset=utf-8", include_str!("page.css")))
        .route("/page/page.js", part("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/page/icon.svg", part("image/svg+xml", include_str!("icon.svg")))
        .route("/page/state", get(state).layer(Extension(states)))
}

fn response_headers(media: &'static str) -> [(HeaderName, &'static str); 5] {
    [
        (header::CONTENT_TYPE, media),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ]
}

#[derive(Deserialize)]
struct StateQuery {
    /// Show only rules whose domain or name contains this, in any case.
    #[serde(default)]
    filter: String,
    #[serde(default)]
    range: TimeRange,
}

/// The filters of a reader of the page.
#[derive(PartialEq, Eq, Hash)]
pub struct PageQuery {
    /// In lower case.
    filter: String,
    range: TimeRange,
    access: Result<(), AccessError>,
}

/// The state of the page, as JSON, for each of its readers.
pub type States = Snapshots<PageQuery, Bytes>;

/// Starts rendering states.
pub fn states(service: Arc<Service>) -> States {
    let runtime = Handle::current();
    Snapshots::new("page", move || {
        let denied = runtime.block_on(service.client().top(MAX_KEYS)).map_err(Refusal::from);
        let state = PageState { service: service.clone(), denied };
        move |query: &PageQuery| state.shown(query).to_string().into()
    })
}

/// The state of the page, except for looked-up keys.
async fn state(
    State(service): State<Arc<Service>>,
    Extension(states): Extension<Arc<States>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(StateQuery { filter, range }): Query<StateQuery>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let access = service.live().configuration.access.check(peer, &uri, &headers);
    match states.show(PageQuery { filter: filter.to_lowercase(), range, access }).await {
        Some(state) => (response_headers("application/json"), state).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

struct PageState {
    service: Arc<Service>,
    denied: Result<Vec<DeniedKey>, Refusal>,
}

impl PageState {
    fn shown(&self, PageQuery { filter, range, access }: &PageQuery) -> Value {
        let (Self { service, denied }, range) = (self, *range);
        let live = service.live();
        let configuration = &live.configuration;
        let (settings, metrics) = (&configuration.settings, &service.metrics);
        let statistics = service.client().statistics();
        metrics.count_sources(&statistics);
        let here = metrics.denied_here.top(MAX_KEYS);
        let is_shown = |domain: &str, rule: &str| format!("{domain} {rule}").to_lowercase().contains(filter);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "host": process::host(),
            "uptime": process::started().elapsed().as_secs(),
            "server": server(denied),
            "refusals": refusals(access.is_ok()),
            "servers": servers(service, access.is_ok()),
            "configuration": {
                "read": api::unix(live.read),
                "refused": refused(service, access.is_ok()),
                "hash": configuration.hash,
                "restart_keys": metrics.configuration.restart_keys(),
            },
            "taken_over": statistics.taken_over,
            "module": settings.module,
            "shadow_mode": settings.shadow_mode,
            "prefix": settings.prefix,
            "needs_token": matches!(configuration.access, Access::Tokens(_)),
            "step": range.step().as_millis() as u64,
            "decisions": decisions(metrics, range, is_shown),
            "errors": metrics.recent_errors.steps(range),
            "outages": metrics.recent_outages.steps(range),
            "unmatched": metrics.recent_unmatched.steps(range),
            "sources": sources(metrics, range),
            "durations": {"bounds": SECONDS, "steps": metrics.recent_durations.steps(range)},
            "waits": {"bounds": WAIT_SECONDS, "steps": metrics.recent_waits.steps(range), "now": metrics.waiting.count()},
            "keys": keys(*access, denied, &here, &metrics.waiting.top(MAX_KEYS)),
            "rules": rules(&configuration.limits, is_shown),
        })
    }
}

/// The state of the counting server.
fn server<T>(top: &Result<T, Refusal>) -> &'static str {
    match top {
        Err(Refusal::Unavailable) => "unavailable",
        Err(Refusal::NeedsServer) => "none",
        Ok(_) | Err(_) => "there",
    }
}

/// What the server refuses. Its errors may name keys.
fn refusals(has_access: bool) -> Value {
    let shown = |(rate, error)| json!({"rate": rate, "error": if has_access { error } else { String::new() }});
    refusals::recent().map_or(Value::Null, shown)
}

/// The state of each counting server. Messages may name more than its address.
fn servers(service: &Service, has_access: bool) -> Vec<Value> {
    let all = service.servers();
    let shown = all.iter().map(|server| {
        json!({
            "address": server.address,
            "state": server.state.as_str(),
            "reason": server.reason.map(|reason| reason.as_str()),
            "message": if has_access { &*server.message } else { "" },
            "since": api::unix(server.since),
            "lacks": server.lacks,
            "backend": server.backend.map(|backend| backend.as_str()),
            "evicts": server.eviction.as_ref().map(|eviction| &eviction.policy),
            "round_trip": server.round_trip.map(|took| took.as_secs_f64()),
        })
    });
    shown.collect()
}

/// The invalid configuration that was read last. Its error may quote a file.
fn refused(service: &Service, has_access: bool) -> Value {
    match service.refused_configuration() {
        None => Value::Null,
        Some((read, error)) => {
            json!({"read": api::unix(read), "error": if has_access { error.to_string() } else { String::new() }})
        }
    }
}

/// The recent decisions by rule, with their sums: most denials first, then shadow denials, then grants.
fn decisions(metrics: &Metrics, range: TimeRange, is_shown: impl Fn(&str, &str) -> bool) -> Value {
    let mut rules = metrics.rules.recent(range);
    let sum = |rule: &RecentRule, kind: usize| rule.steps.iter().map(|step| u64::from(step[kind])).sum::<u64>();
    rules.sort_by_cached_key(|rule| {
        (Reverse([0, 2, 1].map(|kind| sum(rule, kind))), rule.domain.clone(), rule.name.clone())
    });
    let mut all: Vec<[u64; SHOWN_OUTCOMES]> = Vec::new();
    for rule in &rules {
        all.resize(rule.steps.len(), [0; SHOWN_OUTCOMES]);
        for (all, step) in all.iter_mut().zip(&rule.steps) {
            *all = std::array::from_fn(|kind| all[kind] + u64::from(step[kind]));
        }
    }
    rules.retain(|rule| is_shown(&rule.domain, &rule.name));
    let count = rules.len();
    rules.truncate(MAX_RULES);
    json!({"all": all, "rules": rules, "count": count})
}

/// The recent decisions by source.
fn sources(metrics: &Metrics, range: TimeRange) -> Vec<Value> {
    let steps = metrics.recent_sources.steps(range).unwrap_or_default();
    let sum = |source: Source| steps.iter().map(|step| u64::from(step[source as usize])).sum::<u64>();
    Source::ALL.map(|source| json!({"source": source.as_str(), "decisions": sum(source)})).into()
}

/// The keys that were denied most, or why they are hidden.
fn keys(
    access: Result<(), AccessError>,
    denied: &Result<Vec<DeniedKey>, Refusal>,
    here: &[KeyDenials],
    waiting: &[AwaitedKey],
) -> Value {
    let waiting = || {
        let shown = waiting.iter().map(|AwaitedKey { key, requests, longest }| {
            json!({"key": key, "requests": requests, "longest": longest.as_secs_f64()})
        });
        shown.collect::<Vec<_>>()
    };
    let here = || {
        let shown = here.iter().map(|KeyDenials { key, this_minute, last_minute }| {
            json!({"key": key, "this_minute": this_minute, "last_minute": last_minute})
        });
        shown.collect::<Vec<_>>()
    };
    match access {
        Err(AccessError::NeedsToken) => json!({"barred": "Keys need a token of the API."}),
        Err(AccessError::NotLocal | AccessError::CrossSite) => {
            json!({"barred": "Without tokens only the daemon's own machine sees keys."})
        }
        Ok(()) => {
            let (denied, barred) = match denied {
                Ok(denied) => (Some(denied.iter().map(api::denied).collect::<Vec<_>>()), None),
                Err(Refusal::Unavailable) => (None, Some("The counting server is unavailable.".to_string())),
                Err(refusal) => (None, Some(refusal.message().to_string())),
            };
            json!({"denied": denied, "barred": barred, "here": here(), "waiting": waiting()})
        }
    }
}

/// The current rules.
fn rules(limits: &Limits, is_shown: impl Fn(&str, &str) -> bool) -> Value {
    let mut all = limits.rules();
    all.retain(|(domain, rule)| is_shown(&domain.name, &rule.name));
    json!({"rules": all.iter().take(MAX_RULES).map(rule).collect::<Vec<_>>(), "count": all.len()})
}

fn rule((domain, rule): &(&Domain, &Rule)) -> Value {
    json!({
        "domain": domain.name,
        "rule": rule.name,
        "unlimited": rule.unlimited,
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "limits": rule.limits.iter().map(limit).collect::<Vec<_>>(),
    })
}

fn limit(limit: &Limit) -> Value {
    let geometry = match &limit.per {
        Per::Window(geometry) => Some(geometry),
        Per::Period(_) | Per::Hold(_) => None,
    };
    json!({
        "limit": limit.units,
        "shown": limit.to_string(),
        "window": geometry.map(|geometry| geometry.window()),
        "resolution": geometry.map(|geometry| geometry.resolution()),
        "strict": limit.strict,
        "block": limit.block,
        "record": limit.record,
        "mode": limit.policy.mode,
        "on_failure": limit.policy.on_failure,
    })
}
