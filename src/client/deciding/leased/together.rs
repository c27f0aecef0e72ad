//! Leases of several limits in one decision: all from leases, or all from the server.

use std::sync::Arc;

use tokio::time::Instant;

use super::{ask_of, Core, Landing, Leased, Leases};
use crate::decision::Decision;
use crate::demand::Demand;
use crate::protocol::Command;
use crate::transport::Reply;
use crate::upstream::{awake, Settled};

/// One of several limits.
pub(crate) struct Part {
    core: Arc<Core>,
    key: Arc<[u8]>,
    leased: Arc<Leased>,
    demand: Demand,
    begun: Instant,
    /// Leases could decide all of them.
    is_leasable: bool,
    landing: Option<Landing>,
}

/// The leases of several limits in one decision, where they have any. Only where all of them are asked for so often that
/// leases pay is anything leased for them.
pub(crate) fn together<'a>(
    members: impl Iterator<Item = (Option<&'a Leases>, &'a [u8], &'a Demand)>,
) -> Vec<Option<Part>> {
    let part = |(leases, key, demand): (Option<&Leases>, &[u8], &Demand)| {
        let core = Arc::clone(&leases?.0);
        let leased = core.keys.get_or_make(key, || core.leased(key));
        let is_leasable = core.terms.cover(demand.exact.cost);
        Some(Part { core, key: key.into(), leased, demand: *demand, begun: awake(), is_leasable, landing: None })
    };
    let mut parts: Vec<Option<Part>> = members.map(part).collect();
    let is_warm = |part: &Option<Part>| part.as_ref().is_some_and(Part::is_warm);
    let are_leasable = parts.iter().all(is_warm);
    for part in parts.iter_mut().flatten() {
        if part.is_leasable {
            part.leased.hand.lock().asked(part.demand.exact.cost, are_leasable, part.begun);
        }
        part.is_leasable = are_leasable;
    }
    parts
}

/// Takes in the replies to what was leased beside a decision, in the order of its limits.
pub(crate) fn land(parts: &[Option<Part>], since: Option<u64>, replies: &[Reply], settled: &Settled) {
    let landings = parts.iter().flatten().filter_map(|part| part.landing.as_ref());
    for (landing, replies) in landings.zip(replies.chunks(Landing::COMMANDS)) {
        landing.land(since, replies, settled);
    }
}

impl Part {
    fn is_warm(&self) -> bool {
        self.is_leasable && self.leased.hand.lock().is_warm()
    }

    /// Grants it, if there are as many units in hand.
    pub fn take(&self) -> Option<Decision> {
        let Demand { exact, .. } = self.demand;
        self.leased.hand.lock().take(exact.cost, exact.quota.limit, awake())
    }

    /// Puts back units that were taken just now.
    pub fn put_back(&self, decision: &Decision) {
        let back = self.leased.hand.lock().put_back(decision, awake());
        if let Some(back) = back {
            self.core.give_back(&self.key, vec![back]);
            self.core.wake.notify_one();
        }
    }

    /// Renews what was taken from, if it is time.
    pub fn renew(&self) {
        let flight = self.leased.hand.lock().renewal(awake());
        if let Some(flight) = flight {
            self.core.send(&self.key, &self.leased, flight);
        }
    }

    /// The denial of a key that is dry.
    pub fn dry_denial(&self) -> Option<Decision> {
        if !self.is_leasable || self.core.link.is_away(&self.key) {
            return None;
        }
        let limit = self.demand.exact.quota.limit;
        let (decision, flight) = self.leased.hand.lock().dry_denial(ask_of(&self.demand), limit, awake())?;
        if let Some(flight) = flight {
            self.core.send(&self.key, &self.leased, flight);
        }
        Some(decision)
    }

    /// Somebody else denies it.
    pub fn knew(&self) {
        self.leased.hand.lock().knew(self.demand.exact.cost);
    }

    /// The commands that lease units beside the decision, if it is time.
    pub fn beside(&mut self) -> Vec<Command> {
        let flight = self.is_leasable.then(|| self.leased.hand.lock().beside(awake())).flatten();
        let landing = flight.and_then(|flight| self.core.landing(&self.key, &self.leased, flight));
        self.landing = landing;
        self.landing.iter().flat_map(Landing::commands).collect()
    }

    /// The server decided.
    pub fn heard(&self, decision: &swlimit_window::Decision) {
        self.core.heard(&self.key, &self.leased, decision);
    }

    /// Keeps units that were granted to nobody.
    pub fn keep(&self, decision: &swlimit_window::Decision, since: Option<u64>, settled: &Settled) {
        self.core.keep(&self.key, &self.leased, decision, since, self.begun, settled);
    }
}
