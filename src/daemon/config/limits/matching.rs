//! The conditions of policies.

use std::fmt;
use std::net::IpAddr;

use axum::http::{HeaderMap, Method};
use serde::{de, Deserialize, Deserializer};

use super::index::{Index, Texts};
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
    /// In capitals: some applications take `post` for POST.
    pub method: Result<String, MissingHeader>,
    pub method_written: Result<String, MissingHeader>,
    pub headers: &'a HeaderMap,
}

impl OriginalRequest<'_> {
    /// The client's address.
    pub fn client(&self) -> Result<IpAddr, MissingHeader> {
        self.client.ok_or(MissingHeader("X-Forwarded-For".into()))
    }
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
    pub method: Vec<String>,
    /// Methods are compared with case, and GET does not match HEAD.
    pub method_exact: bool,
}

impl MatchKeys {
    /// How a request can bypass these conditions and still reach the handler of a method that they name.
    pub fn bypass(&self) -> Option<String> {
        if self.method.is_empty() {
            return None;
        }
        let matches = |method: &str| self.method.iter().any(|word| Pattern::new(word.clone()).matches(method));
        let methods = self.method.join(" and ");
        let mut ways = Vec::new();
        if self.method_exact {
            let in_lower_case = methods.to_lowercase();
            ways.push(format!("some applications treat {in_lower_case} like {methods}: leave out method_exact"));
            if matches("GET") && !matches("HEAD") {
                ways.push("most applications answer HEAD like GET: name HEAD, too".into());
            }
        }
        if !matches("POST") {
            ways.push(format!(
                "applications that honour X-HTTP-Method-Override or `_method` treat POST like {methods}: name POST, too"
            ));
        }
        (!ways.is_empty()).then(|| ways.join("; "))
    }
}

/// Match conditions; an empty list matches everything.
#[derive(Debug)]
pub struct MatchConditions {
    host: Vec<Pattern>,
    path: Vec<Pattern>,
    method: Vec<Pattern>,
    method_exact: bool,
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
        let mut method: Vec<_> = patterns(keys.method);
        if !keys.method_exact && method.iter().any(|pattern| pattern.matches("GET")) {
            method.push(Pattern::Exact("HEAD".into())); // many applications answer HEAD by GET's handler
        }
        Self {
            host: patterns(keys.host),
            path: patterns(keys.path.into_iter().map(path).collect()),
            method,
            method_exact: keys.method_exact,
        }
    }

    /// The first condition that does not match; `None` if all match.
    pub fn mismatch(&self, request: &OriginalRequest) -> Result<Option<&'static str>, MissingHeader> {
        let method = if self.method_exact { &request.method_written } else { &request.method };
        let conditions = [
            ("host", &self.host, &request.host),
            ("path", &self.path, &request.path),
            ("method", &self.method, method),
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

/// The numbers of those match conditions that a request may meet, by its host and path.
#[derive(Debug, Default)]
pub struct ConditionsIndex {
    by_host: Index,
    by_path: Index,
    count: usize,
}

impl ConditionsIndex {
    /// Numbers the conditions from 0. Each is found by its hosts or by its paths, whichever finds fewer others.
    pub fn new<'a>(conditions: impl Iterator<Item = &'a MatchConditions> + Clone) -> Self {
        let texts = |patterns: &'a [Pattern]| patterns.iter().map(Pattern::texts).collect::<Vec<_>>();
        let all_hosts = Texts::of(conditions.clone().flat_map(|it| texts(&it.host)));
        let all_paths = Texts::of(conditions.clone().flat_map(|it| texts(&it.path)));
        let (mut by_host, mut by_path, mut others, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (number, conditions) in conditions.enumerate() {
            let hosts = all_hosts.all_rarest(&texts(&conditions.host));
            let paths = all_paths.all_rarest(&texts(&conditions.path));
            match (hosts, paths) {
                (Some((few, hosts)), Some((more, _))) if few < more => add(&mut by_host, hosts, number),
                (_, Some((_, paths))) => add(&mut by_path, paths, number),
                (Some((_, hosts)), None) => add(&mut by_host, hosts, number),
                (None, None) => others.push(number),
            }
            count += 1;
        }
        Self { by_host: Index::new(by_host, Vec::new()), by_path: Index::new(by_path, others), count }
    }

    /// The numbers, in order. Without the request's host or path all: some conditions say what is missing.
    pub fn find(&self, request: &OriginalRequest) -> Vec<usize> {
        let (Ok(host), Ok(path)) = (&request.host, &request.path) else { return (0..self.count).collect() };
        let mut found = self.by_host.find(host.as_bytes()).into_owned();
        found.extend(&*self.by_path.find(path.as_bytes()));
        found.sort_unstable();
        found
    }
}

fn add<'a>(numbers: &mut Vec<(&'a str, usize)>, texts: Vec<&'a str>, number: usize) {
    numbers.extend(texts.into_iter().map(|text| (text, number)));
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

    /// The texts that a value has to contain.
    fn texts(&self) -> Vec<&str> {
        match self {
            Self::Exact(exact) if exact.is_empty() => Vec::new(),
            Self::Exact(exact) => vec![exact],
            Self::Wild(wildcard) => wildcard.texts(),
        }
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
