//! The YAML of limits: envoyproxy/ratelimit's keys, and our own.

use serde::{de, Deserialize, Deserializer};
use serde_saphyr::Spanned;
use swlimit_client::Period;
use swlimit_window::MAX_EXACT;

use super::matching::MatchKeys;
use super::networks::NetworkRules;
use super::periods::Anchor;
use super::template::Template;
use crate::config::duration::Duration;
use crate::config::policy::{Cold, Mode, OnFailure, Share};

/// A file: the limits of one domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    #[serde(default, deserialize_with = "nullable")]
    pub domain: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "nullable")]
    pub descriptors: Vec<Spanned<Descriptor>>,

    // Our own.
    /// The descriptor entry that is the keys' hash tag, instead of the domain.
    pub hash_tag: Option<String>,
    #[serde(default)]
    pub policies: Vec<Spanned<Policy>>,
    pub networks: Option<Spanned<NetworkRules>>,
}

/// Limits for the requests that a proxy asks about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub name: String,
    #[serde(default, rename = "match")]
    pub conditions: MatchKeys,
    pub key: Template,
    #[serde(default = "one", deserialize_with = "cost")]
    pub cost: u64,
    pub rate_limit: Option<Spanned<RateLimit>>,
    pub rate_limits: Option<Vec<Spanned<RateLimit>>>,
    #[serde(default)]
    pub shadow_mode: bool,
}

/// One level of a descriptor, and its limits.
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

/// Metadata that a reply hands to Envoy's other filters.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// A limit, and how it is decided.
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
    /// A budget: the units of each period of the calendar.
    pub period: Option<Period>,
    pub time_zone: Option<String>,
    pub anchor: Option<Anchor>,
    /// Maximum holds at the same time.
    #[serde(default, deserialize_with = "units")]
    pub concurrency: Option<u64>,
    /// The longest time that a request in progress counts.
    pub ttl: Option<Duration>,
    /// The descriptor entry that identifies the request.
    pub id: Option<String>,
    pub resolution: Option<Duration>,
    pub strict: Option<bool>,
    pub block: Option<Duration>,
    pub record: Option<bool>,
    /// How long the limit rises after idleness.
    pub warm_up: Option<Duration>,
    pub cold: Option<Cold>,
    /// The part of the limit that these requests may use up, counted with those of other priorities.
    pub priority: Option<Share>,
    pub mode: Option<Mode>,
    pub on_failure: Option<OnFailure>,
    pub local_share: Option<Share>,
    pub lease_share: Option<Share>,
    pub lease_length: Option<Duration>,
    pub sync_interval: Option<Duration>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replaced {
    #[serde(default, deserialize_with = "nullable")]
    pub name: String,
}

/// A window that Envoy's protocol has a name for.
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

    /// Its length in ms.
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

    /// The unit of a period.
    pub fn of_period(period: Period) -> Self {
        match period {
            Period::Hour => Self::Hour,
            Period::Day => Self::Day,
            Period::Week => Self::Week,
            Period::Month => Self::Month,
            Period::Year => Self::Year,
        }
    }

    /// The unit with this window in ms.
    pub fn of(window: u64) -> Option<Self> {
        Self::NAMES.into_iter().map(|(_, unit)| unit).find(|unit| unit.window() == window)
    }
}

/// Null is the type's default.
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
