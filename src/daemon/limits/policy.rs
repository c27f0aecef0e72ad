//! Policies: which of the requests that a proxy asks about are limited, and by what.

use std::net::IpAddr;

use axum::http::HeaderMap;
use serde::{de, Deserialize, Deserializer};

use super::rule::Rule;
use super::template::Template;
use super::wildcard::Wildcard;

/// A policy: its limits hold for each key of the requests that match.
#[derive(Debug)]
pub struct Policy {
    pub rule: Rule,
    pub matching: Matching,
    pub key: Template,
    pub cost: u64,
}

/// A request that a proxy asks about, as far as the proxy told.
#[derive(Debug)]
pub struct Asked<'a> {
    pub client: Option<IpAddr>,
    pub host: Told<String>,
    /// Without its query, decoded, and without ways round.
    pub path: Told<String>,
    pub method: Told<String>,
    pub headers: &'a HeaderMap,
}

/// Something of a request, or what is missing that would tell.
pub type Told<T> = Result<T, Missing>;

/// The header that does not say what a policy has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub String);

/// What a request has to be. What is not there may be anything.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Matching {
    #[serde(deserialize_with = "hosts")]
    host: Vec<Pattern>,
    #[serde(deserialize_with = "paths")]
    path: Vec<Pattern>,
    #[serde(deserialize_with = "methods")]
    method: Vec<Pattern>,
}

impl Matching {
    /// Whether a request is such a one.
    pub fn matches(&self, asked: &Asked) -> Told<bool> {
        for (patterns, told) in [(&self.host, &asked.host), (&self.path, &asked.path), (&self.method, &asked.method)] {
            if patterns.is_empty() {
                continue;
            }
            let value = told.as_ref().map_err(Missing::clone)?;
            if !patterns.iter().any(|pattern| pattern.matches(value)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A value, or one with `*` in it.
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
            Self::Wild(wildcard) => wildcard.matches(value),
        }
    }
}

/// One word, or several.
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
