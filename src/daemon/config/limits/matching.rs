//! The conditions of policies.

use std::net::IpAddr;

use axum::http::HeaderMap;
use serde::{de, Deserialize, Deserializer};

use super::wildcard::Wildcard;

/// The request that a proxy asks about.
#[derive(Debug)]
pub struct OriginalRequest<'a> {
    pub client: Option<IpAddr>,
    pub host: Result<String, MissingHeader>,
    /// Decoded and normalized, without its query.
    pub path: Result<String, MissingHeader>,
    pub method: Result<String, MissingHeader>,
    pub headers: &'a HeaderMap,
}

/// The header that a policy needs and the proxy did not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingHeader(pub String);

/// Match conditions; an omitted field matches everything.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MatchConditions {
    #[serde(deserialize_with = "hosts")]
    host: Vec<Pattern>,
    #[serde(deserialize_with = "paths")]
    path: Vec<Pattern>,
    #[serde(deserialize_with = "methods")]
    method: Vec<Pattern>,
}

impl MatchConditions {
    /// Whether all conditions match.
    pub fn matches(&self, request: &OriginalRequest) -> Result<bool, MissingHeader> {
        let conditions = [(&self.host, &request.host), (&self.path, &request.path), (&self.method, &request.method)];
        for (patterns, value) in conditions {
            if patterns.is_empty() {
                continue;
            }
            let value = value.as_ref().map_err(MissingHeader::clone)?;
            if !patterns.iter().any(|pattern| pattern.matches(value)) {
                return Ok(false);
            }
        }
        Ok(true)
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

/// A word or a list of words.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Several(Vec<String>),
}

fn patterns<'de, D: Deserializer<'de>>(
    deserializer: D,
    checked: impl Fn(String) -> Result<String, String>,
) -> Result<Vec<Pattern>, D::Error> {
    let words = match Words::deserialize(deserializer)? {
        Words::One(word) => vec![word],
        Words::Several(words) => words,
    };
    words.into_iter().map(|word| checked(word).map(Pattern::new).map_err(de::Error::custom)).collect()
}

fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pattern>, D::Error> {
    patterns(deserializer, |host| Ok(host.to_ascii_lowercase()))
}

fn paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pattern>, D::Error> {
    patterns(deserializer, |path| match path.starts_with(['/', '*']) {
        true => Ok(path),
        false => Err(format!("a path begins with / or *, not as '{path}'")),
    })
}

fn methods<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pattern>, D::Error> {
    patterns(deserializer, |method| Ok(method.to_ascii_uppercase()))
}
