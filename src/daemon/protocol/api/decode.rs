//! Decodes requests.

use std::time::Duration;

use axum::http::StatusCode;
use serde::{de, Deserialize, Deserializer};
use swlimit_window::{Geometry, Quota, MAX_EXACT};

use super::encode::ErrorReply;
use crate::config::limits::{default_geometry, Limit};
use crate::config::policy::{Defaults, Mode, OnFailure, PolicyKeys};
use crate::core::{Demand, Verb};

/// The longest timeout of `acquire`.
const MAX_WAIT: Duration = Duration::from_secs(10 * 60);

/// The longest key in bytes.
const MAX_KEY: usize = 1024;

/// The command of a request about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Allow,
    Peek,
    Record,
    Acquire,
}

/// A limit, and a demand for one of its keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRequest {
    key: Key,
    limit: u64,
    window: Span,
    resolution: Option<Span>,
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    strict: bool,
    #[serde(default)]
    partial: bool,
    block: Option<Span>,
    age: Option<Span>,
    timeout: Option<Span>,
    mode: Option<Mode>,
    on_failure: Option<OnFailure>,
}

/// Units to refund.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundRequest {
    pub key: Key,
    #[serde(default = "one")]
    cost: u64,
    age: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRequest {
    pub key: Key,
    pub duration: Span,
    #[serde(default)]
    pub unless_blocked: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    pub key: Key,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopRequest {
    #[serde(default = "ten")]
    pub count: usize,
}

#[derive(Debug, Deserialize)]
pub struct Key(String);

impl Key {
    /// The key's name on the server.
    pub fn name(&self, prefix: &str) -> Result<String, ErrorReply> {
        match self.0.len() {
            1..=MAX_KEY => Ok(format!("{prefix}{}", self.0)),
            _ => Err(ErrorReply::invalid(format!("a key has 1 to {MAX_KEY} bytes"))),
        }
    }
}

/// A duration in ms: text as the commands write it, or a number of seconds.
#[derive(Clone, Copy, Debug)]
pub struct Span(u64);

impl From<Span> for Duration {
    fn from(Span(ms): Span) -> Self {
        Self::from_millis(ms)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Seconds(u64),
            Text(String),
        }
        let invalid = || de::Error::custom("a duration is written such as 60, \"500ms\", \"5m\", \"1h\" or \"7d\"");
        let text = match Written::deserialize(deserializer).map_err(|_| invalid())? {
            Written::Seconds(seconds) => seconds.to_string(),
            Written::Text(text) => text,
        };
        swlimit_window::duration(text.as_bytes()).map(Self).ok_or_else(invalid)
    }
}

impl LimitRequest {
    /// The limit, if the command accepts all fields.
    pub fn limit(&self, command: Command, top: PolicyKeys, defaults: Defaults) -> Result<Limit, ErrorReply> {
        let fields = [
            (self.partial, matches!(command, Command::Allow | Command::Peek), "partial is for allow and peek"),
            (
                self.block.is_some(),
                matches!(command, Command::Allow | Command::Record),
                "block is for allow and record",
            ),
            (self.age.is_some(), command == Command::Record, "age is for record and refund"),
            (self.timeout.is_some(), command == Command::Acquire, "timeout is for acquire"),
        ];
        if let Some((.., message)) = fields.into_iter().find(|(is_set, is_accepted, _)| *is_set && !is_accepted) {
            return Err(ErrorReply::invalid(message));
        }
        if self.limit > MAX_EXACT {
            return Err(ErrorReply::invalid(format!("limit is at most {MAX_EXACT}")));
        }
        let geometry = match self.resolution {
            Some(Span(resolution)) => Geometry::new(self.window(), resolution).ok(),
            None => default_geometry(self.window()),
        };
        let geometry = geometry.ok_or_else(|| {
            ErrorReply::invalid(
                "the resolution divides the window evenly, at most 1 048 576 times, and both are 1 ms to 3650 d",
            )
        })?;
        let keys = PolicyKeys { mode: self.mode, on_failure: self.on_failure, ..PolicyKeys::default() };
        let policy = keys.or(top).policy(defaults).map_err(ErrorReply::invalid)?;
        let limit = Limit::from_request(Quota { limit: self.limit, geometry }, policy);
        Ok(Limit { strict: self.strict, block: self.block.map(|Span(ms)| ms), ..limit })
    }

    pub fn key(&self, prefix: &str) -> Result<String, ErrorReply> {
        self.key.name(prefix)
    }

    pub fn with_key(self, key: &str) -> Self {
        Self { key: Key(key.into()), ..self }
    }

    /// In ms.
    pub fn window(&self) -> u64 {
        self.window.0
    }

    pub fn cost(&self) -> Result<u64, ErrorReply> {
        match self.cost {
            1..=MAX_EXACT => Ok(self.cost),
            _ => Err(ErrorReply::invalid(format!("cost is 1 to {MAX_EXACT}"))),
        }
    }

    pub fn is_partial(&self) -> bool {
        self.partial
    }

    pub fn demand<'a>(&self, key: &'a str) -> Demand<'a> {
        Demand { key, cost: self.cost, partial: self.partial, age: self.age.map(Into::into) }
    }

    pub fn verb(&self, command: Command) -> Result<Verb, ErrorReply> {
        Ok(match command {
            Command::Allow => Verb::Allow,
            Command::Peek => Verb::Peek,
            Command::Record => Verb::Record,
            Command::Acquire => Verb::Acquire(self.timeout()?),
        })
    }

    fn timeout(&self) -> Result<Duration, ErrorReply> {
        let timeout = self.timeout.map(Duration::from).filter(|timeout| *timeout <= MAX_WAIT);
        timeout.ok_or_else(|| ErrorReply::new(StatusCode::BAD_REQUEST, "acquire needs a timeout of at most 10m"))
    }
}

impl RefundRequest {
    pub fn demand<'a>(&self, key: &'a str) -> Demand<'a> {
        Demand { key, cost: self.cost, partial: false, age: self.age.map(Into::into) }
    }
}

fn one() -> u64 {
    1
}

fn ten() -> usize {
    10
}
