//! Whether a hold is granted.

use swlimit_window::MAX_EXACT;

use crate::holds::{Hold, Holds, Live};
use crate::reservation::Reservation;

/// A hold that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Units of all live holds together: 0 … [`MAX_EXACT`].
    pub limit: u64,
    /// Time to live, in ms, at least 1.
    pub ttl: u64,
    /// The id, 1 to [`MAX_ID`](crate::MAX_ID) bytes.
    pub id: &'a [u8],
    /// Units of this hold: 1 … [`MAX_EXACT`].
    pub cost: u64,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Units of the hold; 0 = denied.
    pub granted: u64,
    /// The limit.
    pub limit: u64,
    /// Units still available.
    pub remaining: u64,
    /// ms until enough holds have ended; 0 when granted, `None` when the limit is less than the cost.
    pub retry_after: Option<u64>,
    /// ms until the hold ends; 0 when denied.
    pub expires_after: u64,
    /// The hold's token; 0 when denied.
    pub token: u64,
}

impl Decision {
    /// The same decision for a request whose turn comes in so many ms at the earliest: denied, although it may fit.
    pub fn behind(self, ms: u64) -> Self {
        let retry_after = self.retry_after.map(|own| own.max(ms));
        Self { granted: 0, retry_after, expires_after: 0, token: 0, ..self }
    }
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Verdict {
    /// A new hold.
    Granted(Grant),
    /// The id is live; the hold goes on until its new end. The decision is the one after that.
    Renewed(Decision),
    /// It does not fit; nothing changes.
    Denied(Decision),
}

/// Why there is neither a grant nor a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The id is live with so many units, which are not those asked for.
    OtherUnits(u64),
    /// There are as many live holds as there may be.
    TooMany,
    /// No token is left that is larger than all before.
    NoToken,
}

/// A hold that is granted, to be put among the others.
#[derive(Debug)]
#[must_use = "what is granted must be held"]
pub struct Grant {
    hold: Hold,
    now: u64,
    limit: u64,
    remaining: u64,
}

impl Holds {
    /// Decide a request at `now` on what a key holds, if anything; at most `max` holds are live.
    pub fn decide(holds: Option<&Self>, now: u64, request: &Request, max: u64) -> Result<Verdict, Refusal> {
        let Request { limit, ttl, id, cost } = *request;
        let live = holds.map_or_else(Live::default, |holds| holds.live(now));
        if let Some(hold) = holds.and_then(|holds| holds.get(id, now)) {
            if hold.units() != cost {
                return Err(Refusal::OtherUnits(hold.units()));
            }
            let remaining = limit.saturating_sub(live.units);
            let token = hold.token();
            return Ok(Verdict::Renewed(Decision {
                granted: cost,
                limit,
                remaining,
                retry_after: Some(0),
                expires_after: ttl,
                token,
            }));
        }
        let look = Self::look(holds, now, request, live);
        if look.granted == 0 {
            return Ok(Verdict::Denied(look));
        }
        if live.count >= max {
            return Err(Refusal::TooMany);
        }
        let last = holds.map_or(0, Holds::last_token);
        let token = (last + 1).max(now.saturating_mul(1000));
        if token > MAX_EXACT {
            return Err(Refusal::NoToken);
        }
        let hold = Hold::new(id, cost, now + ttl, token, None).map_err(|_| Refusal::NoToken)?;
        Ok(Verdict::Granted(Grant { hold, now, limit, remaining: look.remaining - cost }))
    }

    /// What a request for a new hold comes to while nothing is held for it.
    fn look(holds: Option<&Self>, now: u64, request: &Request, live: Live) -> Decision {
        let Request { limit, cost, .. } = *request;
        let remaining = limit.saturating_sub(live.units);
        let fits = cost <= remaining;
        let retry_after = match limit.checked_sub(cost) {
            None => None,
            Some(_) if fits => Some(0),
            Some(room) => holds.map(|holds| holds.freed_at(now, live.units.saturating_sub(room)).saturating_sub(now)),
        };
        let granted = if fits { cost } else { 0 };
        Decision { granted, limit, remaining, retry_after, expires_after: 0, token: 0 }
    }

    /// The decision on a request at `now` without a change: granted if its id is live, or if it would fit.
    pub fn peek(holds: Option<&Self>, now: u64, request: &Request) -> Decision {
        let live = holds.map_or_else(Live::default, |holds| holds.live(now));
        let look = Self::look(holds, now, request, live);
        match holds.and_then(|holds| holds.get(request.id, now)) {
            Some(_) => Decision { granted: request.cost, retry_after: Some(0), ..look },
            None => look,
        }
    }
}

impl Grant {
    /// The hold that is granted.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Put the hold among the others, with what is reserved under it. What has ended has been swept.
    pub fn apply(self, holds: &mut Holds, reserved: Option<Box<[Reservation]>>) -> Decision {
        let Self { mut hold, now, limit, remaining } = self;
        let (units, end, token) = (hold.units(), hold.end(), hold.token());
        hold.reserve(reserved);
        holds.insert(hold);
        Decision { granted: units, limit, remaining, retry_after: Some(0), expires_after: end - now, token }
    }
}
