//! The conditions of policies.

use std::fmt;
use std::net::IpAddr;

use axum::http::{HeaderMap, Method};
use serde::{de, Deserialize, Deserializer};

use super::wildcard::Wildcard;
use crate::config::path::PathRules;
use crate::config::words::Words;

/// The request that a proxy asks about.
#[derive(Debug)]
pub struct OriginalRequest<'a> {
    pub client: Option<IpAddr>,
    pub host: Result<String, MissingHeader>,
    /// Normalized, without its query.
    pub path: Result<String, MissingHeader>,
    pub method: Result<String, MissingHeader>,
    pub headers: &'a HeaderMap,
}

/// Such as `POST shop.example/login from 192.0.2.1`; what is unknown is `?`.
impl fmt::Display for OriginalRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [&self.method, &self.host, &self.path];
        let [method, host, path] = words.map(|word| word.as_deref().unwrap_or("?").escape_debug());
        let client = self.client.map_or("?".into(), |client| client.to_string());
        write!(f, "{method} {host}{path} from {client}")
    }
}

/// The header that a policy needs and the proxy did not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingHeader(pub String);

/// Match conditions as written; an omitted field matches everything.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MatchKeys {
    #[serde(deserialize_with = "hosts")]
    host: Vec<String>,
    #[serde(deserialize_with = "paths")]
    path: Vec<String>,
    #[serde(deserialize_with = "methods")]
    method: Vec<String>,
}

/// Match conditions; an empty list matches everything.
#[derive(Debug)]
pub struct MatchConditions {
    host: Vec<Pattern>,
    path: Vec<Pattern>,
    method: Vec<Pattern>,
}

impl MatchConditions {
    /// The conditions, with patterns normalized as paths are.
    pub fn new(keys: MatchKeys, rules: PathRules) -> Self {
        let patterns = |words: Vec<String>| words.into_iter().map(Pattern::new).collect();
        let path = |word: String| match word.starts_with('/') {
            true => rules.normalize(&word),
            false if rules.ignore_case => word.to_lowercase(),
            false => word,
        };
        Self {
            host: patterns(keys.host),
            path: patterns(keys.path.into_iter().map(path).collect()),
            method: patterns(keys.method),
        }
    }

    /// The first condition that does not match; `None` if all match.
    pub fn mismatch(&self, request: &OriginalRequest) -> Result<Option<&'static str>, MissingHeader> {
        let conditions = [
            ("host", &self.host, &request.host),
            ("path", &self.path, &request.path),
            ("method", &self.method, &request.method),
        ];
        for (name, patterns, value) in conditions {
            if patterns.is_empty() {
                continue;
            }
            let value = value.as_ref().map_err(MissingHeader::clone)?;
            if !patterns.iter().any(|pattern| pattern.matches(value)) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

/// A value with or without wildcards.
#[derive(Debug)]
enum Pattern {
    Exact(String),
    Wild(Wildcard),
}

impl Pattern {
    fn new(word: String) -> Self {
        Wildcard::new(&word).map_or(Self::Exact(word), Self::Wild)
    }

    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == value,
            Self::Wild(wildcard) => wildcard.matches(value.as_bytes()),
        }
    }
}

/// The checked words. A word that no request can match is an error.
fn words<'de, D: Deserializer<'de>>(
    deserializer: D,
    check: impl Fn(&str) -> Result<String, String>,
) -> Result<Vec<String>, D::Error> {
    let words = Words::deserialize(deserializer)?.list();
    if words.is_empty() {
        return Err(de::Error::custom("an empty list matches nothing"));
    }
    words.iter().map(|word| check(word).map_err(de::Error::custom)).collect()
}

fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    words(deserializer, |host| {
        let port = host.rsplit_once(':').filter(|(name, _)| !name.contains(':') || name.ends_with(']'));
        match port {
            Some(_) => Err(format!("'{host}' matches no host: hosts are compared without port")),
            None if host.is_empty() || host.contains(['/', ' ']) => Err(format!("'{host}' matches no host")),
            None => Ok(host.trim_end_matches('.').to_ascii_lowercase()),
        }
    })
}

fn paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    words(deserializer, |path| match path {
        _ if path.contains(['?', '#']) => Err(format!("'{path}' matches no path: paths are compared without query")),
        _ if path.starts_with(['/', '*']) => Ok(path.into()),
        _ => Err(format!("a path begins with / or *, not as '{path}'")),
    })
}

fn methods<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    words(deserializer, |method| match Method::from_bytes(method.as_bytes()) {
        Ok(_) => Ok(method.to_ascii_uppercase()),
        Err(_) => Err(format!("'{method}' matches no method")),
    })
}
