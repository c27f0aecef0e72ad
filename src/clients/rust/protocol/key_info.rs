//! What the server holds of a key, and which keys it denies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use swlimit_budget::{Budget, Count};

use crate::clock::ms;
use crate::error::{Cause, Error};
use crate::transport::Reply;

/// A key that was denied lately, as TOP tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedKey {
    /// The number of the database.
    pub database: u64,
    /// The key's name, cut after 512 bytes.
    pub key: Vec<u8>,
    /// Requests denied in this minute of the server's clock.
    pub this_minute: u64,
    /// Requests denied in the minute before.
    pub last_minute: u64,
}

/// The server's words for a key that it has not.
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";

/// What the server holds of a key, as INFO tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyInfo {
    /// The window; zero of a key with a block and no counts, and of a budget.
    pub window: Duration,
    /// The length of one subinterval; zero as the window.
    pub resolution: Duration,
    /// Units held.
    pub total: u64,
    /// How many holds are live; `None` of a window and a budget.
    pub holds: Option<u64>,
    /// Bytes of the server's memory.
    pub memory: u64,
    /// Units by the start of their subinterval, the oldest first; of a budget, all of them by the first one's instant.
    pub counts: Vec<(SystemTime, u64)>,
    /// Until when the key is blocked, if it ever was.
    pub blocked_until: Option<SystemTime>,
    /// The end of its period, of a budget; of holds, when the last of them ends.
    pub until: Option<SystemTime>,
}

impl DeniedKey {
    pub(crate) fn all_of(reply: &Reply) -> Result<Vec<Self>, Error> {
        let Reply::Array(keys) = reply else { return Err(unclear(reply)) };
        keys.iter().map(Self::of).collect()
    }

    fn of(reply: &Reply) -> Result<Self, Error> {
        match reply {
            Reply::Array(fields) => match fields.as_slice() {
                [database, Reply::Bytes(key), this, last] => Ok(Self {
                    database: database.natural()?,
                    key: key.clone(),
                    this_minute: this.natural()?,
                    last_minute: last.natural()?,
                }),
                _ => Err(unclear(reply)),
            },
            _ => Err(unclear(reply)),
        }
    }
}

impl KeyInfo {
    pub(crate) fn of(reply: &Reply) -> Result<Self, Error> {
        let number = |name: &str| field(reply, name)?.natural();
        if let Ok(used) = number("used") {
            let (since, until) = (unix(number("since")?), unix(number("until")?));
            return Ok(Self {
                counts: vec![(since, used)],
                until: Some(until),
                ..Self::of_units(used, number("memory")?)
            });
        }
        if let Ok((units, end)) = held_of(reply) {
            let (holds, until) = (Some(number("holds")?), Some(unix(end)));
            return Ok(Self { holds, until, ..Self::of_units(units, number("memory")?) });
        }
        let Reply::Array(counts) = field(reply, "counts")? else { return Err(unclear(reply)) };
        let count = |count: &Reply| match count {
            Reply::Array(pair) => match pair.as_slice() {
                [start, units] => Ok((unix(start.natural()?), units.natural()?)),
                _ => Err(unclear(reply)),
            },
            _ => Err(unclear(reply)),
        };
        Ok(Self {
            window: Duration::from_millis(number("window")?),
            resolution: Duration::from_millis(number("resolution")?),
            total: number("total")?,
            holds: None,
            memory: number("memory")?,
            counts: counts.iter().map(count).collect::<Result<_, _>>()?,
            blocked_until: Some(number("blocked")?).filter(|ms| *ms > 0).map(unix),
            until: None,
        })
    }

    fn of_units(total: u64, memory: u64) -> Self {
        let (window, resolution, counts) = (Duration::ZERO, Duration::ZERO, Vec::new());
        Self { window, resolution, total, holds: None, memory, counts, blocked_until: None, until: None }
    }

    /// The budget that the key holds; `None` for a window, and for holds.
    pub(crate) fn budget(&self) -> Option<Budget> {
        let ms = |instant: SystemTime| ms(instant.duration_since(UNIX_EPOCH).unwrap_or_default());
        let (until, &(since, used)) = (self.until?, self.counts.first()?);
        Budget::count(None, ms(since), ms(until), used).ok().map(Count::budget)
    }
}

/// Units of a key that are held, and when the last of them ends, in Unix ms; zeros without a hold.
///
/// # Errors
/// [`Error::Refused`] for a key that has something else.
pub(crate) fn held_of(reply: &Reply) -> Result<(u64, u64), Error> {
    let number = |name: &str| field(reply, name).and_then(Reply::natural).map_err(|_| wrong_type());
    Ok((number("units")?, number("end")?))
}

/// What the server says where a key has another type.
pub(crate) fn wrong_type() -> Error {
    Error::Refused("WRONGTYPE Operation against a key holding the wrong kind of value".into())
}

/// A field of a map.
fn field<'a>(reply: &'a Reply, name: &str) -> Result<&'a Reply, Error> {
    let Reply::Array(fields) = reply else { return Err(unclear(reply)) };
    let mut pairs = fields.chunks_exact(2);
    let found = pairs.find(|pair| matches!(&pair[0], Reply::Bytes(bytes) if bytes == name.as_bytes()));
    found.map(|pair| &pair[1]).ok_or_else(|| unclear(reply))
}

/// An instant of Unix time in ms.
pub(crate) fn unix(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

fn unclear(reply: &Reply) -> Error {
    Error::Unavailable(Cause::unclear(reply))
}
