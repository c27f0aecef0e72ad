//! Periods of the calendar: when the one that holds an instant began, and when it ends.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

use crate::error::Error;

/// How long a budget lasts before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Period {
    /// An hour by the zone's clock; of the hour that comes twice, each is one.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From midnight of a weekday: Monday unless an anchor says otherwise.
    Week,
    /// From midnight of a day of the month: the first unless an anchor says otherwise.
    Month,
    /// From midnight of a day of the year: the first of January unless an anchor says otherwise.
    Year,
}

impl Period {
    /// Its name: `hour`, `day`, `week`, `month`, `year`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

impl FromStr for Period {
    type Err = Error;

    /// # Errors
    /// [`Error::Invalid`] for any other word.
    fn from_str(word: &str) -> Result<Self, Error> {
        let all = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];
        let found = all.into_iter().find(|period| period.as_str() == word);
        found.ok_or_else(|| Error::Invalid("period must be hour, day, week, month or year".into()))
    }
}

/// The periods of a calendar: in which time zone they begin, and on which day.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use swlimit_client::{Calendar, Period};
///
/// let months = Calendar::new(Period::Month).time_zone("Europe/Berlin")?.anchor("15")?;
/// let (start, end) = months.period_at(UNIX_EPOCH + Duration::from_secs(1_800_000_000))?; // 15 January 2027, 09:00
/// assert_eq!(start, UNIX_EPOCH + Duration::from_secs(1_799_967_600));
/// assert_eq!(end, start + Duration::from_secs(31 * 24 * 60 * 60));
/// # Ok::<(), swlimit_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    period: Period,
    zone: TimeZone,
    anchor: Anchor,
}

/// On which day a period begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    weekday: Weekday,
    month: i8,
    /// In a shorter month, its last day.
    day: i8,
}

impl Calendar {
    /// The periods of UTC, from the usual day on.
    pub fn new(period: Period) -> Self {
        let anchor = Anchor { weekday: Weekday::Monday, month: 1, day: 1 };
        Self { period, zone: TimeZone::UTC, anchor }
    }

    /// The same in a time zone, by its name in the IANA's database: `Europe/Berlin`. Where a day has no midnight, it
    /// begins with its first instant; where midnight comes twice, with the first one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that there is not.
    pub fn time_zone(self, name: &str) -> Result<Self, Error> {
        let unknown = |_| Error::Invalid(format!("time_zone must be a name such as Europe/Berlin, not '{name}'"));
        Ok(Self { zone: TimeZone::get(name).map_err(unknown)?, ..self })
    }

    /// The same from another day on: of a week `monday` … `sunday`, of a month `1` … `31` (in a shorter month, its last
    /// day), of a year `MM-DD`. Hours and days take none.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no such day.
    pub fn anchor(self, anchor: &str) -> Result<Self, Error> {
        let (anchor, expected) = match self.period {
            Period::Week => (self.anchor.on_weekday(anchor), "monday to sunday"),
            Period::Month => (self.anchor.on_day(anchor), "a day of the month, 1 to 31"),
            Period::Year => (self.anchor.on_day_of_year(anchor), "a day of the year, MM-DD"),
            Period::Hour | Period::Day => (None, "left out: it is for week, month and year"),
        };
        let anchor = anchor.ok_or_else(|| Error::Invalid(format!("anchor must be {expected}")))?;
        Ok(Self { anchor, ..self })
    }

    /// Its period.
    pub fn period(&self) -> Period {
        self.period
    }

    /// The period that holds an instant: its first instant, and the first one after it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an instant that is thousands of years off.
    pub fn period_at(&self, instant: SystemTime) -> Result<(SystemTime, SystemTime), Error> {
        let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = i64::try_from(since.as_millis()).ok();
        let period = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok()).and_then(|at| match self.period {
            Period::Hour => self.hour_at(at).ok(),
            _ => self.days_at(at).ok(),
        });
        let (start, end) = period.ok_or_else(|| Error::Invalid("an instant that no calendar has".into()))?;
        Ok((system_time(start), system_time(end)))
    }

    /// A period that begins on a day.
    fn days_at(&self, at: Timestamp) -> Result<(Timestamp, Timestamp), jiff::Error> {
        let today = self.zone.to_datetime(at).date();
        // Where a clock is set back past midnight, yesterday comes again: it belongs to the period that has begun.
        let near = (-2..=2).map(|steps| self.first_instant(self.first_day(today, steps)?));
        let near = near.collect::<Result<Vec<_>, _>>()?;
        let start = near.iter().rfind(|start| **start <= at).copied().unwrap_or(at);
        let end = near.iter().find(|start| **start > at).copied().unwrap_or(at);
        Ok((start, end))
    }

    /// The day on which a period begins, so many periods from one that begins near a day.
    fn first_day(&self, near: Date, steps: i64) -> Result<Date, jiff::Error> {
        let Anchor { weekday, month, day } = self.anchor;
        let clamped = |month: Date| month.with().day(day.min(month.days_in_month())).build();
        match self.period {
            Period::Hour | Period::Day => near.checked_add(steps.days()),
            Period::Week => {
                let since = near.weekday().since(weekday);
                near.checked_add((steps * 7 - i64::from(since)).days())
            }
            Period::Month => clamped(near.first_of_month().checked_add(steps.months())?),
            Period::Year => clamped(Date::new(near.year(), month, 1)?.checked_add(steps.years())?),
        }
    }

    /// The first instant of a day, or after it where the zone has left it out.
    fn first_instant(&self, day: Date) -> Result<Timestamp, jiff::Error> {
        let midnight: DateTime = day.to_datetime(jiff::civil::Time::midnight());
        match self.zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(midnight),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(midnight),
            AmbiguousOffset::Gap { before, .. } => {
                // The clock was set forward at or before the instant that would have been midnight.
                let behind = before.to_timestamp(midnight)?;
                let set_forward = self.zone.preceding(behind.checked_add(1.nanosecond())?).next();
                Ok(set_forward.map_or(behind, |transition| transition.timestamp()))
            }
        }
    }

    /// An hour of the zone's clock: it begins whenever that shows no minutes.
    fn hour_at(&self, at: Timestamp) -> Result<(Timestamp, Timestamp), jiff::Error> {
        let mut start = self.full_hour_before(at)?;
        // Before the clock was set, full hours were other instants.
        let was_set = self.zone.preceding(at.checked_add(1.nanosecond())?).next().map(|set| set.timestamp());
        if let Some(was_set) = was_set.filter(|was_set| start < *was_set) {
            start = self.full_hour_before(was_set.checked_sub(1.nanosecond())?)?;
        }
        let hour = 1.hour();
        let end = self.full_hour_before(at)?.checked_add(hour)?;
        let is_set = self.zone.following(at).next().map(|set| set.timestamp());
        let end = match is_set.filter(|is_set| *is_set <= end) {
            None => end,
            Some(is_set) => match self.full_hour_before(is_set)? {
                full if full == is_set => full,
                full => full.checked_add(hour)?,
            },
        };
        Ok((start, end))
    }

    /// The full hour at or before an instant, by the offset that is in force at it.
    fn full_hour_before(&self, at: Timestamp) -> Result<Timestamp, jiff::Error> {
        let local = at.as_second() + i64::from(self.zone.to_offset(at).seconds());
        Timestamp::from_second(at.as_second() - local.rem_euclid(3600))
    }
}

impl Anchor {
    fn on_weekday(self, name: &str) -> Option<Self> {
        let names = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
        let weekday = names.iter().position(|known| *known == name)?;
        let weekday = Weekday::from_monday_zero_offset(i8::try_from(weekday).ok()?).ok()?;
        Some(Self { weekday, ..self })
    }

    fn on_day(self, day: &str) -> Option<Self> {
        let day = day.parse().ok().filter(|day| (1..=31).contains(day))?;
        Some(Self { day, ..self })
    }

    fn on_day_of_year(self, words: &str) -> Option<Self> {
        let (month, day) = words.split_once('-').filter(|(month, day)| month.len() == 2 && day.len() == 2)?;
        let (month, day) = (month.parse().ok()?, day.parse().ok()?);
        // A leap year has all days there are.
        Date::new(2000, month, day).ok()?;
        Some(Self { month, day, ..self })
    }
}

fn system_time(instant: Timestamp) -> SystemTime {
    let ms = u64::try_from(instant.as_millisecond()).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors() {
        let anchored = |period, anchor| Calendar::new(period).anchor(anchor).is_ok();
        for (period, anchor) in
            [(Period::Week, "sunday"), (Period::Month, "31"), (Period::Year, "02-29"), (Period::Year, "12-31")]
        {
            assert!(anchored(period, anchor), "{anchor}");
        }
        for (period, anchor) in [
            (Period::Week, "Sunday"),
            (Period::Month, "0"),
            (Period::Month, "32"),
            (Period::Month, "monday"),
            (Period::Year, "02-30"),
            (Period::Year, "2-03"),
            (Period::Year, "1"),
            (Period::Day, "1"),
            (Period::Hour, "1"),
        ] {
            assert!(!anchored(period, anchor), "{anchor}");
        }
        assert!(Calendar::new(Period::Day).time_zone("Mars/Base").is_err());
    }
}
