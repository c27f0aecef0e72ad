//! What is asked.

use std::time::Duration;

use axum::http::StatusCode;
use serde::{de, Deserialize, Deserializer};
use swlimit_client::Request;
use swlimit_window::{Geometry, Quota, MAX_EXACT};

use super::reply::Failure;
use crate::limits::{default_geometry, Deciding, Limit, Manner, WhenAway};

/// Nobody waits longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 60);

/// The longest key.
const LONGEST_KEY: usize = 1024;

/// What is to be decided of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Allow,
    Peek,
    Record,
    Acquire,
}

/// A limit, and what is asked of it for a key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
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
    deciding: Option<Deciding>,
    when_away: Option<WhenAway>,
}

/// Units to be given back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Back {
    pub key: Key,
    #[serde(default = "one")]
    cost: u64,
    age: Option<Span>,
}

/// A key to be blocked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    pub key: Key,
    pub duration: Span,
    #[serde(default)]
    pub unless_blocked: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Top {
    #[serde(default = "ten")]
    pub count: usize,
}

/// A key.
#[derive(Debug, Deserialize)]
pub struct Key(String);

impl Key {
    /// As the server has it.
    pub fn spelled(&self, prefix: &str) -> Result<String, Failure> {
        match self.0.len() {
            1..=LONGEST_KEY => Ok(format!("{prefix}{}", self.0)),
            _ => Err(Failure::invalid(format!("a key has 1 to {LONGEST_KEY} bytes"))),
        }
    }
}

/// A duration as the commands take it, or a number of seconds.
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
            Words(String),
        }
        let wrong = || de::Error::custom("a duration is written such as 60, \"500ms\", \"5m\", \"1h\" or \"7d\"");
        let words = match Written::deserialize(deserializer).map_err(|_| wrong())? {
            Written::Seconds(seconds) => seconds.to_string(),
            Written::Words(words) => words,
        };
        swlimit_window::duration(words.as_bytes()).map(Self).ok_or_else(wrong)
    }
}

impl Question {
    /// The limit that it is about, and how it is decided, if it may be asked this.
    pub fn limit(&self, what: What, usual: Manner) -> Result<Limit, Failure> {
        let misplaced = [
            (self.partial, matches!(what, What::Allow | What::Peek), "partial is for allow and peek"),
            (self.block.is_some(), matches!(what, What::Allow | What::Record), "block is for allow and record"),
            (self.age.is_some(), what == What::Record, "age is for record and refund"),
            (self.timeout.is_some(), what == What::Acquire, "timeout is for acquire"),
        ];
        if let Some((.., why)) = misplaced.into_iter().find(|(is_there, may_be, _)| *is_there && !may_be) {
            return Err(Failure::invalid(why));
        }
        if self.limit > MAX_EXACT {
            return Err(Failure::invalid(format!("limit is at most {MAX_EXACT}")));
        }
        let geometry = match self.resolution {
            Some(Span(resolution)) => Geometry::new(self.window(), resolution).ok(),
            None => default_geometry(self.window()),
        };
        let geometry = geometry.ok_or_else(|| {
            Failure::invalid(
                "the resolution divides the window evenly, at most 1 048 576 times, and both are 1 ms to 3650 d",
            )
        })?;
        let manner = Manner {
            deciding: self.deciding.unwrap_or(usual.deciding),
            when_away: self.when_away.unwrap_or(usual.when_away),
            ..usual
        };
        let limit = Limit::from_request(Quota { limit: self.limit, geometry }, manner);
        Ok(Limit { strict: self.strict, block: self.block.map(|Span(ms)| ms), ..limit })
    }

    pub fn key(&self, prefix: &str) -> Result<String, Failure> {
        self.key.spelled(prefix)
    }

    /// Ask it of another key.
    pub fn name(&mut self, key: &str) {
        self.key = Key(key.into());
    }

    /// In ms.
    pub fn window(&self) -> u64 {
        self.window.0
    }

    pub fn cost(&self) -> Result<u64, Failure> {
        match self.cost {
            1..=MAX_EXACT => Ok(self.cost),
            _ => Err(Failure::invalid(format!("cost is 1 to {MAX_EXACT}"))),
        }
    }

    pub fn is_partial(&self) -> bool {
        self.partial
    }

    pub fn request<'a>(&self, key: &'a str) -> Request<'a> {
        let request = requested(key, self.cost, self.age);
        if self.partial {
            request.partial()
        } else {
            request
        }
    }

    /// How long whoever acquires waits.
    pub fn timeout(&self) -> Result<Duration, Failure> {
        let timeout = self.timeout.map(Duration::from).filter(|timeout| *timeout <= LONGEST_WAIT);
        timeout.ok_or_else(|| Failure::new(StatusCode::BAD_REQUEST, "acquire needs a timeout of at most 10m"))
    }
}

impl Back {
    pub fn request<'a>(&self, key: &'a str) -> Request<'a> {
        requested(key, self.cost, self.age)
    }
}

fn requested(key: &str, cost: u64, age: Option<Span>) -> Request<'_> {
    let request = Request::of(key).cost(cost);
    match age {
        Some(age) => request.age(age.into()),
        None => request,
    }
}

fn one() -> u64 {
    1
}

fn ten() -> usize {
    10
}
