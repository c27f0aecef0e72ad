//! What replies say.

use swlimit_window::Decision;

use crate::error::{Cause, Error};
use crate::reason::Reason;
use crate::transport::Reply;

/// The server's decision about a hold, durations in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldReply {
    pub granted: u64,
    pub remaining: u64,
    /// `None`: never.
    pub retry_after: Option<u64>,
    pub expires_after: u64,
    pub token: u64,
}

impl Reply {
    /// The five integers of a decision.
    pub(crate) fn decision(&self) -> Result<Decision, Error> {
        let integers = |replies: &[Reply]| replies.iter().map(Reply::integer).collect::<Option<Vec<i64>>>();
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let Some([granted, limit, remaining, retry_after, reset_after]) =
            integers(replies).and_then(|integers| <[i64; 5]>::try_from(integers).ok())
        else {
            return Err(self.unclear());
        };
        let natural = |integer: i64| u64::try_from(integer).map_err(|_| self.unclear());
        Ok(Decision {
            granted: natural(granted)?,
            limit: natural(limit)?,
            remaining: natural(remaining)?,
            retry_after: u64::try_from(retry_after).ok(),
            reset_after: natural(reset_after)?,
        })
    }

    /// Whether several limits granted, and the decision of each.
    pub(crate) fn decisions(&self) -> Result<(bool, Vec<Decision>), Error> {
        let (granted, each) = self.clauses()?;
        Ok((granted, each.iter().map(Reply::decision).collect::<Result<_, _>>()?))
    }

    /// The six integers of a hold, without the limit.
    pub(crate) fn hold(&self) -> Result<HoldReply, Error> {
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let [granted, _, remaining, retry_after, expires_after, token] = replies.as_slice() else {
            return Err(self.unclear());
        };
        Ok(HoldReply {
            granted: granted.natural()?,
            remaining: remaining.natural()?,
            retry_after: retry_after.natural().ok(),
            expires_after: expires_after.natural()?,
            token: token.natural()?,
        })
    }

    /// Whether all was granted, and the reply of each clause.
    pub(crate) fn clauses(&self) -> Result<(bool, &[Reply]), Error> {
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let Some((granted, each)) = replies.split_first() else { return Err(self.unclear()) };
        Ok((granted.integer() == Some(1), each))
    }

    /// What a settlement has changed; `None` where there was nothing to be settled any more.
    pub(crate) fn changes(&self) -> Result<Option<Vec<i64>>, Error> {
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let integers: Option<Vec<i64>> = replies.iter().map(Self::integer).collect();
        match integers.as_deref() {
            Some([0]) => Ok(None),
            Some([1, changes @ ..]) => Ok(Some(changes.to_vec())),
            _ => Err(self.unclear()),
        }
    }

    /// A number that is not negative.
    pub(crate) fn natural(&self) -> Result<u64, Error> {
        self.integer().and_then(|integer| u64::try_from(integer).ok()).ok_or_else(|| self.unclear())
    }

    /// The Unix time in ms that TIME tells.
    pub(crate) fn unix_ms(&self) -> Option<u64> {
        let number = |reply: &Self| match reply {
            Self::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
            _ => None,
        };
        let Self::Array(time) = self else { return None };
        let [seconds, micros] = time.as_slice() else { return None };
        number(seconds)?.checked_mul(1000)?.checked_add(number(micros)? / 1000)
    }

    /// An integer. Servers with another Lua, and proxies, may send it as a number with a fraction of 0, or as its digits.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(*integer),
            Self::Bytes(text) => {
                let text = std::str::from_utf8(text).ok()?;
                let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
                let is_digits = !whole.starts_with('+') && fraction.bytes().all(|digit| digit == b'0');
                whole.parse().ok().filter(|_| is_digits)
            }
            _ => None,
        }
    }

    /// Null stands where no reply came to one of several commands.
    fn unclear(&self) -> Error {
        match self {
            Self::Nil => Error::Unavailable(Reason::NoAnswer.because("no reply to this command")),
            _ => Error::Unavailable(Cause::unclear(self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_may_come_as_integral_numbers_or_their_digits() {
        let all = |texts: [&str; 5]| Reply::Array(texts.map(|text| Reply::Bytes(text.into())).to_vec()).decision();
        let plain = Reply::Array([1, 10, 9, -1, 60_000].map(Reply::Integer).to_vec()).decision();
        assert_eq!(all(["1.0", "10", "9.00", "-1", "60000."]), plain);
        for wrong in ["1.5", "", "1e3", "one", "0x1", "+1", "inf", ".0", "99999999999999999999"] {
            assert!(matches!(all([wrong, "10", "9", "0", "1"]), Err(Error::Unavailable(_))), "{wrong}");
        }
    }
}
