//! The units of one period.

use swlimit_window::{Decision, Invalid, Overflow, MAX_EXACT, MAX_WINDOW};

/// Units counted in a period; at least one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    used: u64,
    since: u64,
    until: u64,
}

/// What is asked of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Units a period has: 0 … [`MAX_EXACT`].
    pub limit: u64,
    /// The end of the period, in ms, if none is in force: after the instant of the request, by at most [`MAX_WINDOW`].
    pub until: u64,
    /// Units this takes: 1 … [`MAX_EXACT`].
    pub cost: u64,
    /// Grant as much of the cost as fits.
    pub partial: bool,
}

/// The units to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what is granted must be counted"]
pub struct Count {
    after: Budget,
    units: u64,
    instant: u64,
}

impl Count {
    /// The budget with them.
    pub fn budget(self) -> Budget {
        self.after
    }

    /// How many, at least one.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The instant at which they count, in ms: time never runs backwards for a budget.
    pub fn instant(&self) -> u64 {
        self.instant
    }
}

impl Budget {
    /// So many units, counted since an instant, of a period until another (ms), if there can be such a budget.
    pub(crate) fn new(used: u64, since: u64, until: u64) -> Result<Self, Invalid> {
        if used == 0 || used > MAX_EXACT {
            return Err(Invalid("units out of range"));
        }
        if until > MAX_EXACT || until <= since || until - since > MAX_WINDOW {
            return Err(Invalid("a period out of range"));
        }
        Ok(Self { used, since, until })
    }

    /// Units counted in the period.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// When the first of them was counted, in ms.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// The end of the period, in ms.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// The first instant at which nothing here matters any more, in ms; 0 when nothing is counted.
    pub fn end(&self) -> u64 {
        if self.used == 0 {
            0
        } else {
            self.until
        }
    }

    /// The budget whose period is in force at `now`.
    pub fn in_force(budget: Option<&Self>, now: u64) -> Option<&Self> {
        budget.filter(|budget| now < budget.end())
    }

    /// Decide a request at `now` on what a key holds, if anything: what must be counted if it is granted, and the
    /// decision that follows.
    pub fn decide(budget: Option<&Self>, now: u64, request: &Request) -> (Option<Count>, Decision) {
        let units = Self::fits(budget, now, request);
        // At most the limit: nothing overflows.
        let count = Self::count(budget, now, request.until, units).ok().filter(|count| count.units > 0);
        let after = count.map_or(budget.copied(), |count| Some(count.after));
        (count, Self::decision(after.as_ref(), now, request, units))
    }

    /// The same decision as it reads while nothing is counted.
    pub fn peek(budget: Option<&Self>, now: u64, request: &Request) -> Decision {
        Self::decision(budget, now, request, Self::fits(budget, now, request))
    }

    /// Count a request at `now` whatever the limit says.
    pub fn force(budget: Option<&Self>, now: u64, request: &Request) -> Result<(Count, Decision), Overflow> {
        let (_, allowed) = Self::decide(budget, now, &Request { partial: false, ..*request });
        let count = Self::count(budget, now, request.until, request.cost)?;
        let mut decision = Self::decision(Some(&count.after), now, request, allowed.granted);
        if decision.remaining >= request.cost {
            decision.retry_after = Some(0);
        }
        Ok((count, decision))
    }

    /// Units that fit and are asked for.
    fn fits(budget: Option<&Self>, now: u64, request: &Request) -> u64 {
        let used = Self::in_force(budget, now).map_or(0, Self::used);
        match (request.cost, request.limit.saturating_sub(used)) {
            (cost, room) if cost <= room => cost,
            (_, room) if request.partial => room,
            _ => 0,
        }
    }

    /// The decision as it reads at `now`, so many units having been granted.
    fn decision(budget: Option<&Self>, now: u64, request: &Request, granted: u64) -> Decision {
        let in_force = Self::in_force(budget, now);
        let reset_after = in_force.map_or(0, |budget| budget.until - now);
        let least = if request.partial { 1 } else { request.cost };
        let retry_after = match granted {
            0 => request.limit.checked_sub(least).map(|_| reset_after),
            _ => Some(0),
        };
        let remaining = request.limit.saturating_sub(in_force.map_or(0, Self::used));
        Decision { granted, limit: request.limit, remaining, retry_after, reset_after }
    }

    /// Count units at `now`, in the period that is in force or else one until `until`.
    pub fn count(budget: Option<&Self>, now: u64, until: u64, units: u64) -> Result<Count, Overflow> {
        let after = match Self::in_force(budget, now) {
            Some(budget) => *budget,
            None => Self { used: 0, since: now, until },
        };
        let used = after.used.checked_add(units).filter(|used| *used <= MAX_EXACT).ok_or(Overflow)?;
        Ok(Count { after: Self { used, ..after }, units, instant: now.max(after.since) })
    }

    /// How much of `units` can be given back at `now`; with an `age`, in ms, none if the period had not begun then.
    pub fn refundable(&self, units: u64, age: Option<u64>, now: u64) -> u64 {
        let older = age.is_some_and(|age| now.saturating_sub(age) < self.since);
        if now < self.end() && !older {
            units.min(self.used)
        } else {
            0
        }
    }

    /// Give back units that [`Self::refundable`] says can be.
    pub fn refund(&mut self, units: u64) {
        self.used = self.used.saturating_sub(units);
    }
}
