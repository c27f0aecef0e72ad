//! How requests are decided where the server does not answer.

use swlimit_window::Decision as Exact;

use super::{DecidingMode, Limiter};
use crate::deciding::local::Windows;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::{Cause, Error};
use crate::mode::OnFailure;
use crate::upstream::Outcome;

/// What decides where the server does not.
pub(crate) enum Policy<'a> {
    /// The policy, whatever was used.
    Decided(Decision),
    /// A window in this process, with its share of the limit.
    Window(&'a Windows, Demand, Source),
}

impl Limiter {
    /// The decision, or the failure policy's if the server is unavailable: of its window, where it has one, as `local` asks
    /// it.
    pub(super) fn or_on_failure(
        &self,
        decided: Result<Decision, Error>,
        demand: &Demand,
        outcome: &Outcome,
        local: impl FnOnce(&Windows, &Demand) -> Result<Exact, Error>,
    ) -> Result<Decision, Error> {
        let decided = decided.map_err(|error| self.0.client.failure(error));
        let Err(Error::Unavailable(reason)) = decided else { return decided };
        let decided = match self.policy(demand, reason) {
            Ok(Policy::Decided(decision)) => Ok(decision),
            Ok(Policy::Window(windows, share, source)) => {
                local(windows, &share).map(|exact| source.decided(exact).of(demand))
            }
            Err(error) => Err(error),
        };
        match &decided {
            Ok(decision) => outcome.decided(decision.granted),
            Err(_) => outcome.failed(),
        }
        decided
    }

    /// What decides where the server does not.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with [`OnFailure::Error`].
    pub(crate) fn policy(&self, demand: &Demand, reason: Cause) -> Result<Policy<'_>, Error> {
        if let DecidingMode::Local(windows) = &self.0.deciding {
            return Ok(Policy::Window(windows, *demand, Source::Local));
        }
        Ok(match self.0.on_failure {
            OnFailure::Error => return Err(Error::Unavailable(reason)),
            OnFailure::Allow => Policy::Decided(demand.allowed()),
            OnFailure::Deny => Policy::Decided(demand.denied()),
            OnFailure::Local => {
                let client = &self.0.client;
                let windows = self.0.failure_windows.get_or_init(|| Windows::new(client.max_keys, &client.counters));
                let quota = self.0.quota.with_limit(self.0.local_share.units(demand.exact.quota.limit));
                let exact = swlimit_window::Request { quota, ..demand.exact };
                Policy::Window(windows, Demand { exact, ..*demand }, Source::Failure)
            }
        })
    }
}

impl Decision {
    /// Made with a share of the limit, which callers do not see unless it rises.
    pub(crate) fn of(self, demand: &Demand) -> Self {
        match demand.exact.warm_up {
            Some(_) => self,
            None => Self { limit: demand.exact.quota.limit, ..self },
        }
    }
}
