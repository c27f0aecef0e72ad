//! `/explain`: what would be decided about a request now, and why. Nothing is counted.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::{de, Deserialize, Deserializer};
use serde_json::Value;

use super::auth::{self, WrittenRequest};
use super::envoy::json::JsonRequest;
use super::envoy::{self, Request};
use super::object::Object;
use crate::config::limits::{MissingHeader, Policy};
use crate::config::words;
use crate::core::{Explanation, Mismatch, Refusal};
use crate::service::Live;

/// A request in either protocol: Envoy's has a domain or descriptors.
#[derive(Debug)]
pub enum ExplainRequest {
    Envoy(JsonRequest),
    Proxy(ProxyRequest),
}

impl<'de> Deserialize<'de> for ExplainRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Value::deserialize(deserializer)?;
        let is_envoy = fields.get("domain").or(fields.get("descriptors")).is_some();
        let read = if is_envoy {
            Object::deserialize(fields).map(|Object(request)| Self::Envoy(request))
        } else {
            Object::deserialize(fields).map(|Object(request)| Self::Proxy(request))
        };
        read.map_err(de::Error::custom)
    }
}

/// A request that a proxy would ask about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyRequest {
    method: Option<String>,
    host: Option<String>,
    /// With or without a query.
    path: Option<String>,
    /// The client's.
    address: Option<IpAddr>,
    #[serde(default, deserialize_with = "headers")]
    headers: HeaderMap,
}

/// Headers by name, each with a value or a list of values.
fn headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderMap, D::Error> {
    let mut headers = HeaderMap::new();
    for (name, values) in BTreeMap::<String, words::Words>::deserialize(deserializer)? {
        let name: HeaderName = name.parse().map_err(|_| de::Error::custom(format!("'{name}' is not a header name")))?;
        for value in values.list() {
            let value = HeaderValue::from_bytes(value.as_bytes())
                .map_err(|_| de::Error::custom(format!("the value of {name} has a control character")))?;
            headers.append(name.clone(), value);
        }
    }
    Ok(headers)
}

/// Plans the request as its protocol does, and asks each limit what it says now.
pub async fn explain(live: &Live, request: ExplainRequest) -> Result<Explanation, Refusal> {
    match request {
        ExplainRequest::Envoy(request) => {
            let request = Request::from(request);
            let (plan, _) = envoy::plan(&live.configuration, &request)?;
            let answers = live.limiters.peek(&plan).await;
            Ok(Explanation::new(&plan, &answers, live.configuration.settings.shadow_mode))
        }
        ExplainRequest::Proxy(request) => of_proxy(live, request).await,
    }
}

async fn of_proxy(live: &Live, request: ProxyRequest) -> Result<Explanation, Refusal> {
    let (settings, limits) = (&live.configuration.settings, &live.configuration.limits);
    let word = |word: Option<String>, name: &str| word.ok_or_else(|| MissingHeader(name.into()));
    let words = WrittenRequest {
        method: word(request.method, "method"),
        host: word(request.host, "host"),
        uri: word(request.path, "path"),
    };
    let original = words.normalized(request.address, &request.headers, &settings.auth);
    let missing = |MissingHeader(name)| match &*name {
        "X-Forwarded-For" => Refusal::invalid("a policy needs the request's address"),
        name => Refusal::invalid(format!("a policy needs the request's {name}")),
    };
    if let Some(decision) = auth::by_network(limits, settings, &original).map_err(missing)? {
        return Ok(Explanation::of_network(&original, decision, settings.shadow_mode));
    }
    let plan = auth::plan(limits, &settings.prefix, &original).map_err(missing)?;
    let answers = live.limiters.peek(&plan).await;
    let mut explanation = Explanation::new(&plan, &answers, settings.shadow_mode);
    for (domain, Policy { rule, conditions, .. }) in limits.policies() {
        if let Some(condition) = conditions.mismatch(&original).map_err(missing)? {
            let (domain, rule) = (domain.name.clone(), rule.name.clone());
            explanation.not_matching.push(Mismatch { domain, rule, condition: condition.into() });
        }
    }
    Ok(explanation)
}
