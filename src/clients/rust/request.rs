//! Requests.

use std::time::Duration;

use swlimit_window::MAX_EXACT;
use tokio::time::Instant;

use crate::error::Error;

/// One request to a limiter: a key, and how many units it takes.
///
/// Whatever is bytes makes a request of one unit: `limiter.allow("user:1")`.
///
/// ```
/// use swlimit_client::Request;
///
/// let request = Request::new("user:1").cost(5).partial();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    pub(crate) partial: bool,
    pub(crate) age: Option<Duration>,
    pub(crate) since: Option<u64>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) keeps_late_grant: bool,
}

impl<'a> Request<'a> {
    /// A request of one unit.
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Self {
        let (age, since, deadline) = (None, None, None);
        Self { key: key.as_ref(), cost: 1, partial: false, age, since, deadline, keeps_late_grant: false }
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

    /// For `refund`: gives back units that count since then, as [`Decision::since`](crate::Decision::since) says, in
    /// Unix ms of the server's clock. However long the refund travels, it takes nobody else's units.
    #[must_use]
    pub fn since(self, unix_ms: u64) -> Self {
        Self { since: Some(unix_ms), ..self }
    }

    /// When the caller's own time is up. The request is decided a tenth of its time before, at least 1 and at most 5
    /// ms, and at once with less than 2 ms left; never later than after the client's
    /// [`timeout`](crate::ClientBuilder::timeout).
    #[must_use]
    pub fn deadline(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Units that the server grants after the request failed with [`Error::Unavailable`] stay counted: for a caller that
    /// may let such a request pass, as proxies do. Default: they are given back.
    #[must_use]
    pub fn keep_late_grant(self) -> Self {
        Self { keeps_late_grant: true, ..self }
    }

    /// # Errors
    /// [`Error::Invalid`] for a cost that no server would take.
    pub(crate) fn checked(self) -> Result<Self, Error> {
        if self.age.is_some() && self.since.is_some() {
            return Err(Error::Invalid("a request has an age or an instant since when, not both".into()));
        }
        match self.cost {
            1..=MAX_EXACT => Ok(self),
            _ => Err(Error::Invalid(format!("cost must be an integer between 1 and {MAX_EXACT}"))),
        }
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for Request<'a> {
    fn from(key: &'a K) -> Self {
        Self::new(key)
    }
}
