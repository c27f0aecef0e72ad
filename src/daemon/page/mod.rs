//! A page for people: what is decided here at the moment, and who is being limited.
//!
//! The page and what it counts are as open as `/metrics`. Keys may name people: they are told to those who may use the
//! API, and blocked through it.

use std::sync::Arc;

use axum::extract::{ConnectInfo, State};
use axum::http::{header, HeaderMap, HeaderName, Uri};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{json, Value};
use swlimit_client::{Denied, Error, Way};

use crate::access::{Access, Barred};
use crate::api;
use crate::http::Peer;
use crate::limits::{Domain, Limit, Limits, Rule};
use crate::metrics::{Metrics, SECONDS};
use crate::recent::STEP;
use crate::service::Service;

/// Nothing comes from elsewhere, nothing is put into the page that could run, and nobody frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// So many rules, and so many keys, are shown.
const MOST_RULES: usize = 200;
const MOST_KEYS: usize = 10;

/// The page, its parts, and what it asks for again and again.
pub fn router() -> Router<Arc<Service>> {
    let part = |media: &'static str, text: &'static str| get(move || async move { (headers(media), text) });
    Router::new()
        .route("/", part("text/html; charset=utf-8", include_str!("page.html")))
        .route("/page/page.css", part("text/css; charset=utf-8", include_str!("page.css")))
        .route("/page/page.js", part("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/page/icon.svg", part("image/svg+xml", include_str!("icon.svg")))
        .route("/page/state", get(state))
}

fn headers(media: &'static str) -> [(HeaderName, &'static str); 5] {
    [
        (header::CONTENT_TYPE, media),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ]
}

/// All that the page shows, but for the key that somebody looks up.
async fn state(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    uri: Uri,
    asked: HeaderMap,
) -> impl IntoResponse {
    let denied = service.client().top(MOST_KEYS).await;
    let live = service.live();
    let configuration = &live.configuration;
    let settings = &configuration.settings;
    let metrics = &service.metrics;
    metrics.count_ways(&service.client().statistics());
    let shown = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "server": server(&denied),
        "shadow_mode": settings.shadow_mode,
        "key_prefix": settings.key_prefix,
        "needs_token": matches!(configuration.access, Access::Tokens(_)),
        "step": STEP.as_millis() as u64,
        "decisions": decisions(metrics),
        "ways": ways(metrics),
        "durations": {"bounds": SECONDS, "steps": metrics.recent_durations.steps()},
        "keys": keys(configuration.access.check(peer, &uri, &asked), denied),
        "rules": rules(&configuration.limits),
    });
    (headers("application/json"), Json(shown))
}

/// How the counting server is.
fn server<T>(asked: &Result<T, Error>) -> &'static str {
    match asked {
        Err(Error::Away(_)) => "away",
        Err(Error::OnlyLocal(_)) => "none",
        Ok(_) | Err(_) => "there",
    }
}

/// What every rule decided lately: those that denied most first, then those that granted most; and all together.
fn decisions(metrics: &Metrics) -> Value {
    let mut rules = metrics.recent_rules();
    let sum = |steps: &[[u32; 2]], kind: usize| steps.iter().map(|step| u64::from(step[kind])).sum::<u64>();
    rules.sort_by_cached_key(|(names, steps)| (std::cmp::Reverse((sum(steps, 0), sum(steps, 1))), names.clone()));
    let mut all: Vec<[u64; 2]> = Vec::new();
    for (_, steps) in &rules {
        all.resize(steps.len(), [0; 2]);
        for (all, step) in all.iter_mut().zip(steps) {
            *all = std::array::from_fn(|kind| all[kind] + u64::from(step[kind]));
        }
    }
    let count = rules.len();
    rules.truncate(MOST_RULES);
    let shown = rules.iter().map(|([domain, rule], steps)| json!({"domain": domain, "rule": rule, "steps": steps}));
    json!({"all": all, "rules": shown.collect::<Vec<_>>(), "count": count})
}

/// How often who decided lately.
fn ways(metrics: &Metrics) -> Vec<Value> {
    let steps = metrics.recent_ways.steps().unwrap_or_default();
    let sum = |way: Way| steps.iter().map(|step| u64::from(step[way as usize])).sum::<u64>();
    Way::ALL.map(|way| json!({"way": way.name(), "decisions": sum(way)})).into()
}

/// The keys that were denied most, or why they are not told.
fn keys(may_see: Result<(), Barred>, denied: Result<Vec<Denied>, Error>) -> Value {
    match (may_see, denied) {
        (Err(Barred::NeedsToken), _) => json!({"barred": "A token of the API is needed to see keys."}),
        (Err(Barred::NotFromThere | Barred::OfAnotherPage), _) => {
            json!({"barred": "Without tokens only the daemon's own machine sees keys."})
        }
        (Ok(()), Ok(denied)) => json!({"denied": denied.iter().map(api::denied).collect::<Vec<_>>()}),
        (Ok(()), Err(Error::Away(_))) => json!({"barred": "The counting server is away."}),
        (Ok(()), Err(error)) => json!({"barred": error.to_string()}),
    }
}

/// What is in force.
fn rules(limits: &Limits) -> Value {
    let all = limits.rules();
    json!({"rules": all.iter().take(MOST_RULES).map(rule).collect::<Vec<_>>(), "count": all.len()})
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
    json!({
        "limit": limit.quota.limit,
        "window": limit.quota.geometry.window(),
        "resolution": limit.quota.geometry.resolution(),
        "strict": limit.strict,
        "block": limit.block,
        "record": limit.record,
        "deciding": limit.manner.deciding,
        "when_away": limit.manner.when_away,
    })
}
