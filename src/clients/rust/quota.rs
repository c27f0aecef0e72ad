//! Quotas: limit, window, resolution.

use std::time::Duration;

use swlimit_window::{duration, Geometry, GeometryError, MAX_EXACT};

use crate::error::Error;

/// A limit in a sliding window: at most so many units in any span of the window's length.
///
/// The window slides in steps of the resolution. What was counted in a step stops counting when all of the step has
/// left the window, so a finer resolution forgets sooner, and takes more memory.
///
/// ```
/// use std::time::Duration;
/// use swlimit_client::Quota;
///
/// const BURST: Quota = Quota::per_second(20);
/// let hourly: Quota = "100/hour".parse()?;
/// let precise = Quota::of(100, Duration::from_secs(60), Some(Duration::from_secs(1)))?;
/// assert_eq!(hourly, Quota::new(100, "1h")?);
/// assert_eq!((BURST.limit(), BURST.window()), (20, Duration::from_secs(1)));
/// assert_eq!(hourly.resolution(), Duration::from_secs(5 * 60));
/// assert_eq!(precise.resolution(), Duration::from_secs(1));
/// # Ok::<(), swlimit_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota(swlimit_window::Quota);

impl Quota {
    /// At most `limit` units a second, with the default resolution.
    pub const fn per_second(limit: u32) -> Self {
        Self::per_ms(limit, 1_000)
    }

    /// At most `limit` units a minute, with the default resolution.
    pub const fn per_minute(limit: u32) -> Self {
        Self::per_ms(limit, 60_000)
    }

    /// At most `limit` units an hour, with the default resolution.
    pub const fn per_hour(limit: u32) -> Self {
        Self::per_ms(limit, 3_600_000)
    }

    const fn per_ms(limit: u32, window: u64) -> Self {
        match Geometry::new(window, default_resolution(window)) {
            Ok(geometry) => Self(swlimit_window::Quota { limit: limit as u64, geometry }),
            Err(_) => panic!("the window is valid"),
        }
    }

    /// At most `limit` units (0 … 2^53 − 1) in a window, with the default resolution: a twelfth of the window, or the
    /// next smaller part that divides it. A duration is written as the commands write it: `250ms`, `60s`, `5m`, `1h`,
    /// `7d`, or a bare number of seconds; 1 ms … 3650 d.
    ///
    /// # Errors
    /// [`Error::Invalid`], in the words of the server.
    pub fn new(limit: u64, window: &str) -> Result<Self, Error> {
        Self::per_window(limit, parse("window", window)?)
    }

    /// The same with a resolution of its own, which has to divide the window.
    ///
    /// # Errors
    /// [`Error::Invalid`], in the words of the server.
    pub fn with_resolution(limit: u64, window: &str, resolution: &str) -> Result<Self, Error> {
        Self::of_ms(limit, parse("window", window)?, parse("resolution", resolution)?)
    }

    /// The same of durations, which are whole milliseconds; with the default resolution where none is given.
    ///
    /// # Errors
    /// [`Error::Invalid`], in the words of the server.
    pub fn of(limit: u64, window: Duration, resolution: Option<Duration>) -> Result<Self, Error> {
        let window = whole_ms("window", window)?;
        let resolution = resolution.map(|resolution| whole_ms("resolution", resolution)).transpose()?;
        Self::of_ms(limit, window, resolution.unwrap_or_else(|| default_resolution(window)))
    }

    /// The same of a window in ms, with the default resolution.
    pub(crate) fn per_window(limit: u64, window: u64) -> Result<Self, Error> {
        Self::of_ms(limit, window, default_resolution(window))
    }

    fn of_ms(limit: u64, window: u64, resolution: u64) -> Result<Self, Error> {
        let limit = checked_limit(limit)?;
        let geometry = Geometry::new(window, resolution).map_err(|error| {
            Error::Invalid(match error {
                GeometryError::OutOfRange => "window must be a duration such as 60, 500ms, 5m, 1h or 7d".into(),
                GeometryError::Uneven => "resolution must divide the window evenly".into(),
                GeometryError::TooMany(subintervals) => {
                    format!("window / resolution is {subintervals} subintervals, above what any server allows")
                }
            })
        })?;
        Ok(Self(swlimit_window::Quota { limit, geometry }))
    }

    /// Units admitted per window.
    pub const fn limit(&self) -> u64 {
        self.0.limit
    }

    /// The length of the window.
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.0.geometry.window())
    }

    /// The length of one subinterval.
    pub const fn resolution(&self) -> Duration {
        Duration::from_millis(self.0.geometry.resolution())
    }

    pub(crate) fn exact(&self) -> swlimit_window::Quota {
        self.0
    }

    /// The same window with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> swlimit_window::Quota {
        swlimit_window::Quota { limit, ..self.0 }
    }
}

/// The default resolution: the largest divisor of the window that is at most a twelfth of it and makes at most 4096
/// subintervals; the window itself if there is none.
pub(crate) const fn default_resolution(window: u64) -> u64 {
    let mut subintervals = 12;
    while subintervals <= MOST_SUBINTERVALS {
        if window.is_multiple_of(subintervals) {
            return window / subintervals;
        }
        subintervals += 1;
    }
    window
}

/// As many subintervals as every server allows unless it is configured otherwise.
const MOST_SUBINTERVALS: u64 = 4096;

fn parse(name: &str, word: &str) -> Result<u64, Error> {
    duration(word.as_bytes()).ok_or_else(|| no_duration(name))
}

/// # Errors
/// [`Error::Invalid`] for a limit that no server takes.
pub(crate) fn checked_limit(limit: u64) -> Result<u64, Error> {
    match limit <= MAX_EXACT {
        true => Ok(limit),
        false => Err(Error::Invalid(format!("limit must be an integer between 0 and {MAX_EXACT}"))),
    }
}

fn whole_ms(name: &str, duration: Duration) -> Result<u64, Error> {
    let ms = u64::try_from(duration.as_millis()).ok();
    ms.filter(|_| duration.subsec_nanos().is_multiple_of(1_000_000)).ok_or_else(|| no_duration(name))
}

fn no_duration(name: &str) -> Error {
    Error::Invalid(format!("{name} must be a duration such as 60, 500ms, 5m, 1h or 7d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_resolution() {
        for (window, resolution) in [
            (60_000, 5_000),
            (1_000, 1_000 / 20),
            (10_000, 625),
            (3_600_000, 300_000),
            (7, 7),
            (13, 1),
            (12, 1),
            (4099, 4099),
        ] {
            assert_eq!(default_resolution(window), resolution, "{window}");
        }
    }
}
