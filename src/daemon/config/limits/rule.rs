//! Rules: limits, and what they apply to.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use swlimit_window::{Geometry, WarmUp};

use super::document::{Metadata, Unit};
use super::entry::Entry;
use super::matching::{MatchConditions, MissingHeader, OriginalRequest};
use super::periods::Periods;
use super::template::Template;
use crate::config::duration::spelled;
use crate::config::policy::{Cold, DecisionPolicy};

/// The limits of a descriptor or policy.
#[derive(Debug, Default)]
pub struct Rule {
    /// Its name in metrics and logs: the keys and values of its levels.
    pub name: String,
    /// There is no limit, and the reply says so.
    pub unlimited: bool,
    pub limits: Vec<Limit>,
    /// Names of limits that do not apply to requests that this rule matches, too.
    pub replaces: Vec<String>,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub metadata: Option<Metadata>,
    pub(super) levels: Vec<Level>,
    /// Metrics name the request's values of every level.
    pub(super) detailed_metric: bool,
}

/// One limit of a rule, and how it is decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Its number among all configured limits; `None` for a limit from a request.
    pub id: Option<usize>,
    pub name: String,
    /// Units that each window or period admits.
    pub units: u64,
    pub per: Per,
    /// What its keys end with: `1m`, `month`.
    pub suffix: Cow<'static, str>,
    pub strict: bool,
    /// How long a denial blocks the key, in ms.
    pub block: Option<u64>,
    /// Hits are counted even when the limit denies.
    pub record: bool,
    /// How the limit rises after idleness.
    pub warm_up: Option<WarmUp>,
    /// It has a priority. Its key leaves out a policy's name, and a descriptor's last entry, which names the priority.
    pub is_shared: bool,
    pub policy: DecisionPolicy,
}

/// How long the units of a limit count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    Window(Geometry),
    Period(Periods),
    /// Until the request has ended.
    Hold(Lifetime),
}

/// How long a request in progress counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// The longest, in ms.
    pub ttl: u64,
    /// The level of the descriptor's entry that identifies the request, and is no part of the key; `None` for a limit
    /// from a request.
    pub id: Option<usize>,
}

impl Per {
    /// In keys: `1m`, `month`.
    pub fn spelled(&self) -> Cow<'static, str> {
        match self {
            Self::Window(geometry) => spelled(geometry.window()).into(),
            Self::Period(periods) => periods.period.as_str().into(),
            Self::Hold(_) => "concurrency".into(),
        }
    }

    /// Its unit, if there is one.
    pub fn unit(&self) -> Option<Unit> {
        match self {
            Self::Window(geometry) => Unit::of(geometry.window()),
            Self::Period(periods) => Some(Unit::of_period(periods.period)),
            Self::Hold(_) => None,
        }
    }

    /// The length of a window; the others have none that is known.
    pub fn window(&self) -> Option<Duration> {
        match self {
            Self::Window(geometry) => Some(Duration::from_millis(geometry.window())),
            Self::Period(_) | Self::Hold(_) => None,
        }
    }

    pub fn is_window(&self) -> bool {
        matches!(self, Self::Window(_))
    }

    /// The level of the entry that is the id of a hold.
    pub fn id(&self) -> Option<usize> {
        match self {
            Self::Hold(lifetime) => lifetime.id,
            Self::Window(_) | Self::Period(_) => None,
        }
    }
}

impl Limit {
    /// A limit from a request.
    pub fn from_request(units: u64, per: Per, policy: DecisionPolicy) -> Self {
        let (id, name, suffix) = (None, String::new(), per.spelled());
        let (strict, block, record, warm_up, is_shared) = (false, None, false, None, false);
        Self { id, name, units, per, suffix, strict, block, record, warm_up, is_shared, policy }
    }

    /// Only the fields that its limiter depends on.
    pub fn unnamed(&self) -> Self {
        let Self { units, per, policy, strict, block, warm_up, .. } = self.clone();
        Self { strict, block, warm_up, ..Self::from_request(units, per, policy) }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.per {
            Per::Window(geometry) => {
                let [window, resolution] = [geometry.window(), geometry.resolution()].map(spelled);
                write!(f, "{} per {window}, resolution {resolution}", self.units)?;
                self.warm_up.map_or(Ok(()), |warm_up| write!(f, ", warm-up {}", spelled(warm_up.duration())))
            }
            Per::Period(periods) => write!(f, "{} per {periods}", self.units),
            Per::Hold(lifetime) => write!(f, "{} at once, each for at most {}", self.units, spelled(lifetime.ttl)),
        }
    }
}

/// Limits for the requests that a proxy asks about.
#[derive(Debug)]
pub struct Policy {
    pub rule: Rule,
    pub conditions: MatchConditions,
    pub key: Template,
    pub cost: u64,
}

impl Policy {
    /// The key of a request; `None` if the request does not match.
    pub fn key_of(&self, request: &OriginalRequest) -> Result<Option<String>, MissingHeader> {
        match self.conditions.mismatch(request)? {
            None => self.key.fill(request).map(Some),
            Some(_) => Ok(None),
        }
    }
}

/// How a limit with this window rises after idleness, in ms.
pub fn warm_up(duration: Option<u64>, cold: Option<Cold>, geometry: &Geometry) -> Result<Option<WarmUp>, &'static str> {
    match duration {
        None if cold.is_some() => Err("cold needs warm_up"),
        None => Ok(None),
        Some(duration) if duration < 10 * geometry.window() => Err("warm_up must be at least ten times the window"),
        Some(duration) => Ok(WarmUp::new(duration, cold.map_or(WarmUp::COLD, |Cold(parts)| parts))),
    }
}

/// The default geometry: the largest resolution that divides the window at least 12 and at most 4096 times, else one
/// subinterval.
pub fn default_geometry(window: u64) -> Option<Geometry> {
    let subintervals = (12..=4096).find(|n| window.is_multiple_of(*n)).unwrap_or(1);
    Geometry::new(window, window / subintervals).ok()
}

/// One level of what a rule matches.
#[derive(Clone, Debug)]
pub struct Level {
    pub key: String,
    /// With or without wildcards; empty for any value.
    pub value: String,
    /// All values share one key.
    pub shared: bool,
    pub value_to_metric: bool,
}

impl Level {
    /// Its value in the rule's name.
    fn label<'a>(&'a self, entry: &'a Entry, detailed: bool) -> Cow<'a, str> {
        let is_one = !self.value.is_empty() && !self.value.contains('*');
        if !self.shared && !is_one && (detailed || self.value_to_metric) {
            String::from_utf8_lossy(&entry.value)
        } else {
            Cow::Borrowed(&self.value)
        }
    }
}

impl Rule {
    /// What it matches; nothing if it is a policy's.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Its name in metrics, for the entries of a matching descriptor.
    pub fn label(&self, entries: &[Entry]) -> Cow<'_, str> {
        if !self.has_detailed_label() {
            return Cow::Borrowed(&self.name);
        }
        let values = self.levels.iter().zip(entries).map(|(level, entry)| level.label(entry, self.detailed_metric));
        Cow::Owned(joined(self.levels.iter().map(|level| &*level.key).zip(values)))
    }

    /// Whether its name in metrics depends on the values that requests come with.
    pub fn has_detailed_label(&self) -> bool {
        self.detailed_metric || self.levels.iter().any(|level| level.value_to_metric)
    }

    /// The value of a descriptor's entry in its key on the server.
    pub fn key_value<'a>(&'a self, level: usize, entry: &'a Entry) -> &'a [u8] {
        match self.levels.get(level) {
            Some(level) if level.shared => level.value.as_bytes(),
            _ => &entry.value,
        }
    }

    pub(super) fn name_of(levels: &[Level]) -> String {
        joined(levels.iter().map(|level| (&*level.key, Cow::Borrowed(&*level.value))))
    }
}

/// `key_value.key.key_value`, as in envoyproxy/ratelimit's metrics.
fn joined<'a>(levels: impl Iterator<Item = (&'a str, Cow<'a, str>)>) -> String {
    let named = levels.map(|(key, value)| if value.is_empty() { key.into() } else { format!("{key}_{value}") });
    named.collect::<Vec<_>>().join(".")
}
