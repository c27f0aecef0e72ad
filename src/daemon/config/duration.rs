//! Durations as the commands write them: `500ms`, `60`, `5m`.

use std::time;

use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer};

/// A duration in ms, 1 ms … 3650 d. In YAML a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub u64);

impl From<Duration> for time::Duration {
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

/// A duration of milliseconds rather than seconds: a bare number, which would be seconds, is more likely a mistake.
pub fn with_unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let word = String::deserialize(deserializer)?;
    match word.bytes().all(|byte| byte.is_ascii_digit()) {
        true if !word.is_empty() => Err(de::Error::custom(format!("'{word}' has no unit: {word}ms or {word}s"))),
        _ => Duration::deserialize(word.into_deserializer()),
    }
}

/// The shortest spelling of a duration in ms.
pub fn spelled(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(24 * 60 * 60 * 1000, "d"), (60 * 60 * 1000, "h"), (60 * 1000, "m"), (1000, "s")];
    let even = UNITS.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit));
    let (number, unit) = even.map_or((ms, "ms"), |(unit, name)| (ms / unit, name));
    number.to_string() + unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_those_of_the_commands() {
        for word in ["1ms", "1500ms", "1s", "90s", "1m", "5m", "1h", "1d", "365d"] {
            assert_eq!(spelled(swlimit_window::duration(word.as_bytes()).unwrap()), word);
        }
    }
}
