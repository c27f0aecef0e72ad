//! What is asked for.

use std::time::Duration;

use swlimit_window::MAX_EXACT;

use crate::error::Error;

/// One request upon a limiter: a key, and how many units it takes.
///
/// Whatever is bytes makes a request of one unit: `limiter.allow("user:1")`.
///
/// ```
/// use swlimit_client::Request;
///
/// let request = Request::of("user:1").cost(5).partial();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    pub(crate) partial: bool,
    pub(crate) age: Option<Duration>,
}

impl<'a> Request<'a> {
    /// A request of one unit.
    pub fn of<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Self {
        Self { key: key.as_ref(), cost: 1, partial: false, age: None }
    }

    /// Take so many units: 1 … 2^53 − 1.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { cost: units, ..self }
    }

    /// Grant as much of the cost as fits; of `allow` and `peek`.
    #[must_use]
    pub fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    /// The units were used, or taken, that long ago; of `record` and `refund`. Milliseconds count; what is less is
    /// dropped.
    #[must_use]
    pub fn age(self, age: Duration) -> Self {
        Self { age: Some(age), ..self }
    }

    /// # Errors
    /// [`Error::Invalid`] for a cost that no server would take.
    pub(crate) fn checked(self) -> Result<Self, Error> {
        match self.cost {
            1..=MAX_EXACT => Ok(self),
            _ => Err(Error::Invalid(format!("cost must be an integer between 1 and {MAX_EXACT}"))),
        }
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for Request<'a> {
    fn from(key: &'a K) -> Self {
        Self::of(key)
    }
}
