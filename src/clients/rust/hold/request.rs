//! Requests for holds.

use std::sync::Arc;
use std::time::Duration;

use swlimit_window::MAX_WINDOW;
use tokio::time::Instant;

use super::guard::{Hold, Taken};
use crate::clock::{ms, ms_up};
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::protocol::{Command, HoldClause, HoldReply};
use crate::reason::Reason;
use crate::upstream::{HoldName, HoldRenewer, Moment};

pub(super) const MAX_ID: usize = 128;
/// The longest wait.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(60 * 60);

/// One request for a hold: a key, how many units, and how long to wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRequest<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    pub(super) ttl: Option<Duration>,
    pub(super) wait: Duration,
    pub(super) id: Option<&'a [u8]>,
    pub(super) deadline: Option<Instant>,
}

impl<'a> HoldRequest<'a> {
    /// A request for one unit that does not wait.
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Self {
        Self { key: key.as_ref(), cost: 1, ttl: None, wait: Duration::ZERO, id: None, deadline: None }
    }

    /// Hold so many units: 1 … 2^53 − 1.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { cost: units, ..self }
    }

    /// End so long after the last sign of life: 3 s … 3650 d in whole ms, instead of the limiter's.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Wait so long for one's turn, at most 1 h: first come, first served. Not for
    /// [`Client::admit`](crate::Client::admit).
    #[must_use]
    pub fn wait(self, time: Duration) -> Self {
        Self { wait: time, ..self }
    }

    /// The id by which the server knows the hold, 1 … 128 bytes, instead of 16 random ones. An id is for one hold: it
    /// must be fresh, and nobody must guess it. What it is granted when nobody waits any more is not released: the next
    /// try with it may know of it.
    #[must_use]
    pub fn id(self, id: &'a [u8]) -> Self {
        Self { id: Some(id), ..self }
    }

    /// When the caller's own time is up, as [`Request::deadline`](crate::Request::deadline) says.
    #[must_use]
    pub fn deadline(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    pub(crate) fn waits(&self) -> bool {
        !self.wait.is_zero()
    }

    pub(crate) fn own_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for HoldRequest<'a> {
    fn from(key: &'a K) -> Self {
        Self::new(key)
    }
}

/// The shortest time to live.
pub(super) const MIN_TTL: Duration = Duration::from_secs(3);

pub(super) fn checked_ttl(ttl: Duration) -> Result<Duration, Error> {
    let is_whole = ttl.subsec_nanos().is_multiple_of(1_000_000);
    match is_whole && (MIN_TTL..=Duration::from_millis(MAX_WINDOW)).contains(&ttl) {
        true => Ok(ttl),
        false => Err(Error::Invalid("ttl must be a duration of at least 3s in whole ms".into())),
    }
}

pub(super) fn check_ids(ids: &[&[u8]]) -> Result<(), Error> {
    match !ids.is_empty() && ids.iter().all(|id| (1..=MAX_ID).contains(&id.len())) {
        true => Ok(()),
        false => Err(Error::Invalid("id must be 1 to 128 bytes".into())),
    }
}

/// A hold that is being asked for.
#[derive(Clone)]
pub(crate) struct PendingHold {
    pub name: HoldName,
    /// The id was drawn here, and nobody else knows it: what nobody waits for any more is given back. What an id that
    /// its caller chose is granted belongs to the caller, whose next try, or other process, may know of it by now.
    pub is_own: bool,
    pub limit: u64,
    pub cost: u64,
    /// The longest that it waits because of the limiter.
    pub timeout: Duration,
}

impl PendingHold {
    pub fn clause(&self) -> HoldClause {
        let (ttl, id) = (ms(self.name.ttl), Arc::clone(&self.name.id));
        HoldClause { limit: self.limit, ttl, id, cost: self.cost, own_id: self.is_own }
    }

    /// Whether there can be room for it.
    pub fn may_fit(&self) -> bool {
        self.cost <= self.limit
    }

    /// Another id, unless the caller chose it.
    pub fn renew_id(&mut self) -> Result<(), Error> {
        if self.is_own {
            self.name.id = fresh_id()?;
        }
        Ok(())
    }

    /// The hold to release where nobody knows whether it was granted.
    pub fn released_in_doubt(&self) -> Option<HoldName> {
        self.is_own.then(|| self.name.clone())
    }

    pub fn command(&self, wait: Option<Duration>) -> Command {
        Command::Hold { key: Arc::clone(&self.name.key), hold: self.clause(), wait: wait.map(ms_up) }
    }

    /// A decision of the server's. What matters to nobody else is no field of it.
    pub fn decision(&self, held: &HoldReply) -> Decision {
        let HoldReply { granted, remaining, retry_after, .. } = *held;
        let unknown = Source::Server.unknown(granted, self.limit, retry_after);
        Decision { remaining: Some(remaining), ..unknown }
    }

    /// What was granted, or renewed, by what was sent at a moment.
    pub fn kept(self, renewer: &HoldRenewer, held: &HoldReply, sent: Moment) -> Hold {
        let decision = self.decision(held);
        let life = renewer.keep(self.name.clone(), sent);
        Hold::there(decision, held.expires_after, held.token, Taken::There(renewer.clone(), self.name, life))
    }
}

/// A hold that may have been granted, and that nobody has: dropped, it is released.
pub(super) struct InDoubt<'a> {
    pub renewer: &'a HoldRenewer,
    pub name: Option<HoldName>,
}

impl InDoubt<'_> {
    pub fn settle(mut self) {
        self.name = None;
    }
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.renewer.release(name);
        }
    }
}

pub(super) fn fresh_id() -> Result<Arc<[u8]>, Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id)
        .map_err(|error| Error::Unavailable(Reason::Other.because(format!("no random bytes: {error}"))))?;
    Ok(Arc::new(id))
}
