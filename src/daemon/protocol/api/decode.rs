//! Decodes requests: their bodies, and those about keys. Requests for decisions are [questions](super::questions).

use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::Json;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};

use super::error::ErrorReply;
use crate::protocol::object::Object;

/// The longest key in bytes.
const MAX_KEY: usize = 1024;

/// The most ids of a command.
const MAX_IDS: usize = 1000;

/// A JSON body. Other content types are refused, so that browsers send a preflight for cross-site requests.
pub type Body<T> = Result<Json<T>, JsonRejection>;

pub fn read<T: DeserializeOwned>(body: Body<T>) -> Result<T, ErrorReply> {
    let Json(read) = body?;
    Ok(read)
}

#[derive(Debug, Deserialize)]
pub struct Key(pub String);

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
pub struct Span(pub u64);

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

/// An id: its text, or `hex:` and its bytes where it is no text.
#[derive(Clone, Debug)]
pub struct Id(pub Vec<u8>);

impl Id {
    const HEX: &'static str = "hex:";

    pub fn spelled(id: &[u8]) -> String {
        match std::str::from_utf8(id) {
            Ok(text) if !text.starts_with(Self::HEX) && !text.chars().any(char::is_control) => text.into(),
            _ => id.iter().fold(Self::HEX.into(), |text, byte| format!("{text}{byte:02x}")),
        }
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let id = match text.strip_prefix(Self::HEX) {
            None => Some(text.into_bytes()),
            Some(digits) if digits.len() % 2 == 0 => digits.as_bytes().chunks_exact(2).map(byte).collect(),
            Some(_) => None,
        };
        let id = id.filter(|id| (1..=128).contains(&id.len()));
        id.map(Self).ok_or_else(|| de::Error::custom("an id has 1 to 128 bytes"))
    }
}

/// One id, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Ids {
    One(Id),
    Several(Vec<Id>),
}

impl Ids {
    pub fn bytes(&self) -> Result<Vec<&[u8]>, ErrorReply> {
        let ids: Vec<&[u8]> = match self {
            Self::One(id) => vec![&id.0],
            Self::Several(ids) => ids.iter().map(|id| id.0.as_slice()).collect(),
        };
        match (1..=MAX_IDS).contains(&ids.len()) {
            true => Ok(ids),
            false => Err(ErrorReply::invalid(format!("id is one id, or 1 to {MAX_IDS}"))),
        }
    }
}

/// Units to refund.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundRequest {
    pub key: Key,
    #[serde(default = "one")]
    pub cost: u64,
    pub age: Option<Span>,
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
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    pub key: Key,
    pub id: Ids,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    pub key: Key,
    pub ttl: Span,
    pub id: Ids,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldersRequest {
    pub key: Key,
    #[serde(default = "hundred")]
    pub count: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    pub key: Key,
    pub id: Id,
    pub used: Vec<Object<Used>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Used {
    pub key: Key,
    pub units: u64,
}

pub fn one() -> u64 {
    1
}

fn ten() -> usize {
    10
}

fn hundred() -> usize {
    100
}
