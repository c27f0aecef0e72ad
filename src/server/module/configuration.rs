//! The module's settings.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

/// An integer setting; the server prefixes its name with the module's.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The value when nothing is set.
    pub default: u64,
    /// The smallest and the largest value.
    pub range: RangeInclusive<u64>,
    value: AtomicU64,
}

/// The maximum number of subintervals in a client's command.
pub static MAX_SUBINTERVALS: Setting = Setting::new("max-subintervals", 4096, 1..=swlimit_window::MAX_SUBINTERVALS);

/// The maximum number of clients blocked by ACQUIRE.
pub static MAX_WAITING: Setting = Setting::new("max-waiting", 10_000, 0..=1_000_000);

/// The maximum number of live holds of a key.
pub static MAX_HOLDS: Setting = Setting::new("max-holds", 100_000, 1..=1_000_000);

/// How many keys `SWLIMIT.TOP` keeps for each minute; 0 turns it off.
pub static TOP_KEYS: Setting = Setting::new("top-keys", 100, 0..=10_000);

/// The most keys or holds that one command shows.
pub const MOST_SHOWN: u64 = 10_000;

/// All settings.
pub static SETTINGS: [&Setting; 4] = [&MAX_SUBINTERVALS, &MAX_WAITING, &MAX_HOLDS, &TOP_KEYS];

impl Setting {
    const fn new(name: &'static str, default: u64, range: RangeInclusive<u64>) -> Self {
        Self { name, default, range, value: AtomicU64::new(default) }
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Set a value, which is within the range.
    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }
}

/// A setting and its initial value.
pub type Chosen = (&'static Setting, u64);

/// All settings with their initial values from the module's load arguments, or why those are invalid.
pub fn from_load_arguments<'a>(mut arguments: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Chosen>, String> {
    let mut chosen = [None; SETTINGS.len()];
    while let Some(name) = arguments.next() {
        let place = SETTINGS.iter().position(|setting| name.eq_ignore_ascii_case(setting.name.as_bytes()));
        let Some(place) = place.filter(|place| chosen[*place].is_none()) else {
            return Err(format!("unknown or repeated argument '{}'", name.escape_ascii()));
        };
        let Setting { name, range, .. } = SETTINGS[place];
        let value = arguments.next().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        let Some(value) = value.filter(|value| range.contains(value)) else {
            return Err(format!("{name} must be an integer between {} and {}", range.start(), range.end()));
        };
        chosen[place] = Some(value);
    }
    Ok(SETTINGS.into_iter().zip(chosen).map(|(setting, value)| (setting, value.unwrap_or(setting.default))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_arguments() {
        let from = |words: &[&str]| {
            let chosen = from_load_arguments(words.iter().map(|word| word.as_bytes()))?;
            Ok::<_, String>(chosen.iter().map(|(setting, value)| (setting.name, *value)).collect::<Vec<_>>())
        };
        let defaults = [("max-subintervals", 4096), ("max-waiting", 10_000), ("max-holds", 100_000), ("top-keys", 100)];
        assert_eq!(from(&[]).unwrap(), defaults);
        let all = ["top-keys", "10000", "max-holds", "1", "max-waiting", "0", "MAX-SUBINTERVALS", "1000000"];
        let chosen = [("max-subintervals", 1_000_000), ("max-waiting", 0), ("max-holds", 1), ("top-keys", 10_000)];
        assert_eq!(from(&all).unwrap(), chosen);
        for words in [
            &["max-subintervals"][..],
            &["max-subintervals", "0"],
            &["max-subintervals", "1000001"],
            &["max-subintervals", "-1"],
            &["max-subintervals", "many"],
            &["max-subintervals", "5", "max-subintervals", "6"],
            &["top-keys", "10001"],
            &["max-holds", "0"],
            &["verbose"],
        ] {
            assert!(from(words).is_err(), "{words:?}");
        }
    }
}
