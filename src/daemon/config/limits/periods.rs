//! Periods of the calendar, as they are written.

use std::fmt;

use serde::{Deserialize, Deserializer};
use swlimit_client::{Calendar, Error, Period};

/// Periods of the calendar: in which time zone they begin, and on which day.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Periods {
    pub period: Period,
    pub time_zone: Option<String>,
    pub anchor: Option<Anchor>,
}

/// The day on which a period begins: of a month a number, else text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Anchor(pub String);

impl<'de> Deserialize<'de> for Anchor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Day(u8),
            Text(String),
        }
        Written::deserialize(deserializer).map(|written| match written {
            Written::Day(day) => Self(day.to_string()),
            Written::Text(text) => Self(text),
        })
    }
}

impl Periods {
    /// The calendar that has them.
    ///
    /// # Errors
    /// There is no such time zone, or no such day.
    pub fn calendar(&self) -> Result<Calendar, Error> {
        let mut calendar = Calendar::new(self.period);
        if let Some(zone) = &self.time_zone {
            calendar = calendar.time_zone(zone)?;
        }
        match &self.anchor {
            Some(Anchor(day)) => calendar.anchor(day),
            None => Ok(calendar),
        }
    }
}

impl fmt::Display for Periods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { period, time_zone, anchor } = self;
        f.write_str(period.as_str())?;
        if let Some(zone) = time_zone {
            write!(f, ", time zone {zone}")?;
        }
        if let Some(Anchor(day)) = anchor {
            write!(f, ", from {day}")?;
        }
        Ok(())
    }
}
