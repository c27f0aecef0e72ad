//! Limits that rise after idleness: what a process knows of each key, and how it asks.

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Limiter;
use crate::clock::{now_ms, unix_ms};
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::keyed::{Bounded, Keep};
use crate::request::Request;
use crate::upstream::Outcome;
use crate::warm_up::{Reply, State, WarmUp};

/// The keys of a limiter whose limit rises.
pub(super) struct Warming {
    warm_up: WarmUp,
    keys: Bounded<Known>,
}

/// What is known of a key, until so many ms after the last decision.
struct Known(Mutex<State>, u64);

impl Warming {
    /// Of at most so many keys.
    pub fn new(warm_up: WarmUp, max_keys: usize) -> Self {
        Self { warm_up, keys: Bounded::new(max_keys) }
    }

    fn change<R>(&self, key: &[u8], change: impl FnOnce(&mut State, u64) -> R) -> R {
        let now = now_ms();
        let begin = || Known(Mutex::new(self.warm_up.begin_at(now)), self.warm_up.length());
        self.keys.with(key, begin, |known| change(&mut known.0.lock(), now))
    }
}

impl Keep for Known {
    fn is_idle(&self, now: Instant) -> bool {
        self.0.try_lock().is_some_and(|state| state.at() + self.1 <= unix_ms(now))
    }
}

impl Limiter {
    /// Whether its limit rises after idleness.
    pub(crate) fn is_warming(&self) -> bool {
        self.0.warming.is_some()
    }

    /// # Errors
    /// [`Error::Invalid`] where the limit rises after idleness.
    pub(crate) fn check_not_warming(&self, what: &str) -> Result<(), Error> {
        match self.is_warming() {
            true => Err(Error::Invalid(format!("warm_up does not go with {what}"))),
            false => Ok(()),
        }
    }

    /// A demand with the limit that the key has now.
    pub(super) fn warmed(&self, key: &[u8], demand: &Demand) -> Demand {
        let Some(Warming { warm_up, keys }) = self.0.warming.as_deref() else { return *demand };
        let known = keys.see(key, |known| *known.0.lock());
        self.limited(demand, warm_up.ask(known, now_ms(), self.0.quota.limit()))
    }

    /// A demand with the whole limit.
    pub(super) fn whole(&self, demand: &Demand) -> Demand {
        self.limited(demand, self.0.quota.limit())
    }

    fn limited(&self, demand: &Demand, limit: u64) -> Demand {
        let quota = self.0.quota.with_limit(limit);
        Demand { exact: swlimit_window::Request { quota, ..demand.exact }, ..*demand }
    }

    /// When the commands of one decision are over: together, they take no longer than one request may.
    pub(super) fn latest(&self, deadline: Option<Instant>) -> Option<Instant> {
        let own = self.0.deciding.upstream().ok().map(|upstream| Instant::now() + upstream.timeout());
        own.into_iter().chain(deadline).min()
    }

    /// Keeps what a decision shows of a key; whether it counted what it granted.
    pub(super) fn learn(&self, key: &[u8], decision: &Decision, is_counted: bool) {
        let Some(warming) = &self.0.warming else { return };
        let granted = if is_counted { decision.granted } else { 0 };
        let is_reply = matches!(decision.source, Source::Server | Source::Local);
        let remaining = decision.remaining.filter(|_| is_reply);
        let reply = remaining.map(|remaining| Reply { asked: decision.limit, granted, remaining });
        let limit = self.0.quota.limit();
        warming.change(key, |state, now| *state = warming.warm_up.feed(Some(*state), now, limit, reply));
    }

    /// Behind a denial: asks once a step, with the whole limit, how much is counted. Only that shows it where the limit
    /// asked for is lower.
    pub(super) async fn look(&self, key: &[u8], deadline: Option<Instant>) {
        let Some(warming) = &self.0.warming else { return };
        if warming.change(key, |state, _| warming.warm_up.look(state)) {
            let demand = self.demand(&Request::new(key));
            if let Ok(seen) = self.peek_as(key, &demand, deadline).await {
                self.learn(key, &seen, false);
            }
        }
    }

    /// A denial that says "never" because the limit is still low says when it is high enough.
    pub(super) fn told(&self, key: &[u8], demand: &Demand, decision: Decision) -> Decision {
        let (Some(warming), None) = (&self.0.warming, decision.retry_after) else { return decision };
        let (limit, least) = (self.0.quota.limit(), demand.least());
        if least > limit || least <= decision.limit || decision.granted() {
            return decision;
        }
        // Meanwhile, it may have become high enough.
        let wait = warming.change(key, |state, _| warming.warm_up.wait(*state, limit, least)).max(1);
        Decision { retry_after: Some(wait), ..decision }
    }

    /// Decides with the limit of the moment; after a denial once more, if the limit turns out to be higher.
    pub(super) async fn allow_warming(
        &self,
        key: &[u8],
        demand: &Demand,
        request: &Request<'_>,
    ) -> Result<Decision, Error> {
        let deadline = self.latest(request.deadline);
        let asked = self.warmed(key, demand);
        let outcome = Outcome::keeping(request.keeps_late_grant);
        let decided = self.decide(key, &asked, deadline, &outcome).await;
        let denied = self.allowed_on_failure(decided, key, &asked, &outcome)?;
        self.learn(key, &denied, true);
        if denied.granted() || asked == *demand {
            return Ok(denied);
        }
        self.look(key, deadline).await;
        let again = self.warmed(key, demand);
        if again.exact.quota.limit > asked.exact.quota.limit {
            // Without a reply, the denial stands: the failure policy has no say.
            if let Ok(decision) = self.decide(key, &again, deadline, &outcome).await {
                self.learn(key, &decision, true);
                return Ok(self.told(key, demand, decision));
            }
            outcome.decided(0);
        }
        Ok(self.told(key, demand, denied))
    }
}
