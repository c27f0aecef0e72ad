//! A page that shows what is decided: one file, without anything fetched from elsewhere.

mod history;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::Json;
use serde_json::{json, Value};

pub use history::{History, Tally, STEP};

use crate::service::Service;

const PAGE: &str = include_str!("page.html");

/// Rules that are shown at most.
const MOST_RULES: usize = 200;

/// Nothing from elsewhere, and in nobody's frame.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE)
}

/// What the page shows: the rules that denied most, and those that are configured; and how long requests took.
pub async fn overview(State(service): State<Arc<Service>>) -> Json<Value> {
    let live = service.live();
    let mut rules: BTreeMap<(String, String), Value> = BTreeMap::new();
    for (domain, rule) in live.configuration.limits.rules() {
        let limits: Vec<_> = match rule.unlimited {
            true => vec!["unlimited".to_string()],
            false => rule.limits.iter().map(ToString::to_string).collect(),
        };
        let told = json!({"limits": limits, "shadow": rule.shadow_mode || live.configuration.settings.shadow_mode,
                          "granted": 0, "denied": 0, "local": 0, "history": []});
        rules.insert((domain.name.clone(), rule.name.clone()), told);
    }
    for rule in service.metrics.all_rules() {
        let (domain, name) = rule.names();
        let told = rules.entry((domain.into(), name.into())).or_insert_with(|| json!({"limits": [], "shadow": false}));
        let (counts, history) = service.metrics.history.of(&rule);
        told["granted"] = counts.granted.into();
        told["denied"] = counts.denied.into();
        told["local"] = counts.local.into();
        told["history"] = history.iter().map(|counts| json!([counts.granted, counts.denied])).collect();
    }
    let mut rules: Vec<_> = rules.into_iter().collect();
    rules.sort_by_key(|(_, told)| std::cmp::Reverse(told["denied"].as_u64()));
    let told = rules.into_iter().take(MOST_RULES).map(|((domain, rule), mut told)| {
        told["domain"] = domain.into();
        told["rule"] = rule.into();
        told
    });
    let [median, slow] = service.metrics.history.took_at_most([0.5, 0.99]);
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "server": service.has_server.then(|| service.client().is_connected()),
        "key_prefix": live.configuration.settings.key_prefix,
        "step": STEP.as_secs(),
        "median": median,
        "slow": slow,
        "rules": told.collect::<Vec<_>>(),
    }))
}
