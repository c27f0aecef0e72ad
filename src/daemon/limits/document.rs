//! The YAML of limits as it is written: envoyproxy/ratelimit's keys, and our own beside them.

use serde::{de, Deserialize, Deserializer, Serialize};
use serde_saphyr::Spanned;
use swlimit_window::MAX_EXACT;

use super::policy::Matching;
use super::template::Template;

/// A file: limits of one domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    #[serde(default, deserialize_with = "nullable")]
    pub domain: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "nullable")]
    pub descriptors: Vec<Spanned<Descriptor>>,

    // Our own.
    /// The entry of each descriptor that its keys have for a hash tag, in place of the domain.
    pub hash_tag: Option<String>,
    #[serde(default)]
    pub policies: Vec<Spanned<Policy>>,
}

/// What holds for requests that a proxy asks about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub name: String,
    #[serde(default, rename = "match")]
    pub matching: Matching,
    pub key: Template,
    #[serde(default = "one", deserialize_with = "cost")]
    pub cost: u64,
    pub rate_limit: Option<Spanned<RateLimit>>,
    pub rate_limits: Option<Vec<Spanned<RateLimit>>>,
    #[serde(default)]
    pub shadow_mode: bool,
}

/// One level of what a request's descriptor has to be, and what holds for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    #[serde(default, deserialize_with = "nullable")]
    pub key: String,
    #[serde(default, deserialize_with = "nullable")]
    pub value: String,
    #[serde(default, deserialize_with = "nullable")]
    pub descriptors: Vec<Spanned<Descriptor>>,
    pub rate_limit: Option<Spanned<RateLimit>>,
    pub shadow_mode: Option<bool>,
    pub quota_mode: Option<bool>,
    pub detailed_metric: Option<bool>,
    pub value_to_metric: Option<bool>,
    pub share_threshold: Option<bool>,
    pub metadata: Option<Metadata>,

    // Our own.
    pub rate_limits: Option<Vec<Spanned<RateLimit>>>,
}

/// What a request's reply carries along for the filters behind it.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// How much of what, and how it is decided.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    #[serde(default, deserialize_with = "unit")]
    pub unit: Option<Unit>,
    #[serde(default, deserialize_with = "units")]
    pub requests_per_unit: Option<u64>,
    pub unlimited: Option<bool>,
    pub name: Option<String>,
    pub replaces: Option<Vec<Replaced>>,

    // Our own.
    pub window: Option<Duration>,
    pub resolution: Option<Duration>,
    pub strict: Option<bool>,
    pub block: Option<Duration>,
    pub record: Option<bool>,
    pub deciding: Option<Deciding>,
    pub share: Option<Share>,
    pub interval: Option<Duration>,
    pub when_away: Option<WhenAway>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replaced {
    #[serde(default, deserialize_with = "nullable")]
    pub name: String,
}

/// A window with a name of its own in Envoy's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    const NAMES: [(&'static str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    /// Its window, in ms.
    pub fn window(self) -> u64 {
        const DAY: u64 = 24 * 60 * 60 * 1000;
        match self {
            Self::Second => 1000,
            Self::Minute => 60 * 1000,
            Self::Hour => 60 * 60 * 1000,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        }
    }

    /// The unit that this window is, if it is one.
    pub fn of(window: u64) -> Option<Self> {
        Self::NAMES.into_iter().map(|(_, unit)| unit).find(|unit| unit.window() == window)
    }
}

/// A duration as the commands take it, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub u64);

impl From<Duration> for std::time::Duration {
    fn from(Duration(ms): Duration) -> Self {
        Self::from_millis(ms)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        swlimit_window::duration(word.as_bytes())
            .map(Self)
            .ok_or_else(|| de::Error::custom(format!("'{word}' is not a duration such as 60, 500ms, 5m, 1h or 7d")))
    }
}

/// The part of a limit that one daemon uses by itself: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(deserializer)?;
        match share > 0.0 && share <= 1.0 {
            true => Ok(Self(share)),
            false => Err(de::Error::custom(format!("a share is above 0 and at most 1, not {share}"))),
        }
    }
}

/// Who decides.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum Deciding {
    Direct,
    #[default]
    Denials,
    Leases,
    Background,
    OnlyLocal,
}

/// What is decided while the server is away.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum WhenAway {
    /// Nothing: the caller is told, and has a policy of its own.
    #[default]
    Error,
    Allow,
    Deny,
    Local,
}

/// What is not there, or null, is the type's default.
pub fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Unit>, D::Error> {
    let Some(word) = Option::<String>::deserialize(deserializer)?.filter(|word| !word.is_empty()) else {
        return Ok(None);
    };
    let known = Unit::NAMES.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name));
    known.map(|(_, unit)| Some(unit)).ok_or_else(|| de::Error::custom(format!("'{word}' is not a unit of time")))
}

fn units<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let units = Option::<u64>::deserialize(deserializer)?;
    match units {
        Some(units) if units > MAX_EXACT => Err(de::Error::custom(format!("a limit is at most {MAX_EXACT}"))),
        _ => Ok(units),
    }
}

fn one() -> u64 {
    1
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let cost = u64::deserialize(deserializer)?;
    match (1..=MAX_EXACT).contains(&cost) {
        true => Ok(cost),
        false => Err(de::Error::custom(format!("a cost is at least 1 and at most {MAX_EXACT}"))),
    }
}
