//! What holds for the descriptors that match.

use std::borrow::Cow;
use std::fmt;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use swlimit_window::{Geometry, Quota};

use super::document::{Deciding, Metadata, Unit, WhenAway};
use crate::keys;

/// The limits of the descriptors that match one place in the configuration.
#[derive(Debug, Default)]
pub struct Rule {
    /// What it is called in metrics and logs: its levels' keys and values.
    pub name: String,
    /// There is no limit, and callers are told so.
    pub unlimited: bool,
    pub limits: Vec<Limit>,
    /// Names of limits that do not hold in a request that this rule matches, too.
    pub replaces: Vec<String>,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub metadata: Option<Metadata>,
    pub(super) levels: Vec<Level>,
    /// The metrics name the values that requests come with: of every level, or of those that say so.
    pub(super) detailed_metric: bool,
}

/// One limit of a rule, and how it is decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Which one of all the configuration's limits this is; none if a request brought it along.
    pub id: Option<usize>,
    pub name: String,
    pub quota: Quota,
    pub strict: bool,
    /// How long a denial blocks the key, in ms.
    pub block: Option<u64>,
    /// Hits are counted whatever the limit says.
    pub record: bool,
    pub manner: Manner,
}

impl Limit {
    /// A limit that a request brought along.
    pub fn from_request(quota: Quota, manner: Manner) -> Self {
        Self { id: None, name: String::new(), quota, strict: false, block: None, record: false, manner }
    }

    /// The unit that its window is, if it is one.
    pub fn unit(&self) -> Option<Unit> {
        Unit::of(self.quota.geometry.window())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let geometry = self.quota.geometry;
        let [window, resolution] = [geometry.window(), geometry.resolution()].map(keys::duration);
        write!(f, "{} per {window}, resolution {resolution}", self.quota.limit)
    }
}

/// Who decides, and who does while the server is away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manner {
    pub deciding: Deciding,
    /// The part of the limit that one daemon uses by itself, where it does.
    pub share: f64,
    /// How often usage that was decided in the background is sent, in ms.
    pub interval: u64,
    pub when_away: WhenAway,
}

impl Default for Manner {
    fn default() -> Self {
        Self { deciding: Deciding::default(), share: 0.1, interval: 100, when_away: WhenAway::default() }
    }
}

/// The geometry of a window whose resolution nobody chose: 12 subintervals, or as many as divide it evenly.
pub fn default_geometry(window: u64) -> Option<Geometry> {
    let subintervals = (1..=12).rev().find(|n| window.is_multiple_of(*n))?;
    Geometry::new(window, window / subintervals).ok()
}

/// One level of what a rule matches.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub key: String,
    /// With or without `*`; empty for any.
    pub value: String,
    /// All values count together.
    pub shared: bool,
    pub value_to_metric: bool,
}

impl Level {
    /// The value that metrics name.
    fn measured<'a>(&'a self, entry: &'a Entry, detailed: bool) -> &'a str {
        let is_one = !self.value.is_empty() && !self.value.contains('*');
        if !self.shared && !is_one && (detailed || self.value_to_metric) {
            &entry.value
        } else {
            &self.value
        }
    }
}

impl Rule {
    /// Its name in metrics for a descriptor's entries, which are those that it matched.
    pub fn measured(&self, entries: &[Entry]) -> Cow<'_, str> {
        if !self.detailed_metric && !self.levels.iter().any(|level| level.value_to_metric) {
            return Cow::Borrowed(&self.name);
        }
        let values = self.levels.iter().zip(entries).map(|(level, entry)| level.measured(entry, self.detailed_metric));
        Cow::Owned(joined(self.levels.iter().map(|level| &*level.key).zip(values)))
    }

    /// The value that an entry of a descriptor counts under, the one at this level.
    pub fn counted<'a>(&'a self, level: usize, entry: &'a Entry) -> &'a str {
        match self.levels.get(level) {
            Some(level) if level.shared => &level.value,
            _ => &entry.value,
        }
    }

    pub(super) fn name_of(levels: &[Level]) -> String {
        joined(levels.iter().map(|level| (&*level.key, &*level.value)))
    }
}

/// `key_value.key.key_value`, as envoyproxy/ratelimit's metrics have it.
fn joined<'a>(levels: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let named = levels.map(|(key, value)| if value.is_empty() { key.into() } else { format!("{key}_{value}") });
    named.collect::<Vec<_>>().join(".")
}
