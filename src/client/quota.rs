//! What may be used: limit, window, resolution.

use std::time::Duration;

use swlimit_window::{duration, Geometry, GeometryError, MAX_EXACT};

use crate::error::Error;

/// How much may be used in which window.
///
/// ```
/// use swlimit_client::Quota;
///
/// let quota = Quota::new(100, "1m", "5s")?;
/// assert_eq!(quota.window().as_secs(), 60);
/// # Ok::<(), swlimit_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota(swlimit_window::Quota);

impl Quota {
    /// At most `limit` units (0 … 2^53 − 1) in a window, kept at a resolution that divides it. Durations are written as
    /// the commands write them: `250ms`, `60s`, `5m`, `1h`, `7d`, or a bare number of seconds; 1 ms … 3650 d.
    ///
    /// # Errors
    /// [`Error::Invalid`], in the words of the server.
    pub fn new(limit: u64, window: &str, resolution: &str) -> Result<Self, Error> {
        let parse = |name: &str, word: &str| {
            duration(word.as_bytes())
                .ok_or_else(|| Error::Invalid(format!("{name} must be a duration such as 60, 500ms, 5m, 1h or 7d")))
        };
        Self::of_ms(limit, parse("window", window)?, parse("resolution", resolution)?)
    }

    /// The same of durations, which are whole milliseconds.
    ///
    /// # Errors
    /// [`Error::Invalid`], in the words of the server.
    pub fn of(limit: u64, window: Duration, resolution: Duration) -> Result<Self, Error> {
        let parse = |name: &str, duration: Duration| {
            whole_ms(duration)
                .ok_or_else(|| Error::Invalid(format!("{name} must be a duration such as 60, 500ms, 5m, 1h or 7d")))
        };
        Self::of_ms(limit, parse("window", window)?, parse("resolution", resolution)?)
    }

    fn of_ms(limit: u64, window: u64, resolution: u64) -> Result<Self, Error> {
        if limit > MAX_EXACT {
            return Err(Error::Invalid(format!("limit must be an integer between 0 and {MAX_EXACT}")));
        }
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
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// The length of the window.
    pub fn window(&self) -> Duration {
        Duration::from_millis(self.0.geometry.window())
    }

    /// The length of one subinterval.
    pub fn resolution(&self) -> Duration {
        Duration::from_millis(self.0.geometry.resolution())
    }

    pub(crate) fn exact(&self) -> swlimit_window::Quota {
        self.0
    }

    /// The same window with a share of the limit: rounded up, so that a share of something is something.
    pub(crate) fn share(&self, share: f64) -> swlimit_window::Quota {
        swlimit_window::Quota { limit: share_of(self.0.limit, share), ..self.0 }
    }
}

/// A share (0 … 1) of some units, rounded up.
pub(crate) fn share_of(units: u64, share: f64) -> u64 {
    ((units as f64 * share.clamp(0.0, 1.0)).ceil() as u64).min(units)
}

fn whole_ms(duration: Duration) -> Option<u64> {
    duration.subsec_nanos().is_multiple_of(1_000_000).then(|| u64::try_from(duration.as_millis()).ok())?
}
