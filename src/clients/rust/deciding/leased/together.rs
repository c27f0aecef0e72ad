//! Leases of several limits in one decision: all from leases, or all from the server.

use std::sync::Arc;

use tokio::time::Instant;

use super::hand::{Hand, Standing};
use super::{ask_of, Core, Landing, Leased, Leases, Reserved};
use crate::clock::awake;
use crate::decision::{Decision, Decisions};
use crate::demand::Demand;
use crate::error::Error;
use crate::protocol::Command;
use crate::reason::Reason;
use crate::transport::Reply;
use crate::upstream::Settled;

/// One of several limits.
pub(crate) struct Part {
    core: Arc<Core>,
    leased: Arc<Leased>,
    demand: Demand,
    begun: Instant,
    /// Leases could decide all of them.
    is_leasable: bool,
    landing: Option<Landing>,
    reserved: Option<Reserved>,
}

/// The leases of several limits in one decision, where they have any. Only where all of them are asked for so often that
/// leases pay is anything leased for them.
pub(crate) fn together<'a>(
    members: impl Iterator<Item = (Option<&'a Leases>, &'a [u8], &'a Demand)>,
) -> Vec<Option<Part>> {
    let part = |(leases, key, demand): (Option<&Leases>, &[u8], &Demand)| {
        let core = Arc::clone(&leases?.0);
        let leased = core.keys.get_or_make(key, || core.leased(key));
        let is_leasable = leased.hand.lock().covers(demand.exact.cost);
        let (demand, begun) = (*demand, awake());
        Some(Part { core, leased, demand, begun, is_leasable, landing: None, reserved: None })
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

/// The decisions, if the units of all limits are in hand. Otherwise those that are stay reserved.
pub(crate) fn from_hand(parts: &mut [Option<Part>]) -> Option<Decisions> {
    for part in parts.iter_mut().flatten() {
        part.reserve();
    }
    granted(parts)
}

/// Reserves units on their way for all limits whose units are not in hand, or else nothing for any.
pub(crate) fn from_flights(parts: &mut [Option<Part>]) -> bool {
    let are_reserved = parts.iter_mut().all(|part| part.as_mut().is_some_and(|part| part.reserve() || part.claim()));
    let (mut due, mut until) = (None, None::<Instant>);
    for standing in parts.iter().flatten().filter_map(|part| Some(part.reserved.as_ref()?.standing())) {
        match standing {
            Standing::Awaited { due: at } => due = due.max(Some(at)),
            Standing::Granted { until: at } => until = Some(until.map_or(at, |until| until.min(at))),
            Standing::Failed => {}
        }
    }
    // Else what is in hand would end while the rest is on its way.
    let are_reserved = are_reserved && until.is_none_or(|until| due < Some(until));
    if !are_reserved {
        parts.iter_mut().flatten().for_each(|part| part.reserved = None);
    }
    are_reserved
}

/// The decisions, once the units on their way have come.
///
/// # Errors
/// [`Error::Unavailable`] where no reply comes in time, and as the server refuses.
pub(crate) async fn from_landed(mut parts: Vec<Option<Part>>, deadline: Instant) -> Result<Decisions, Error> {
    for reserved in parts.iter().flatten().filter_map(|part| part.reserved.as_ref()) {
        reserved.settled(deadline).await?;
        if reserved.standing() == Standing::Failed {
            break;
        }
    }
    if let Some(decisions) = granted(&mut parts) {
        return Ok(decisions);
    }
    let failed = |part: &Part| {
        let reserved = part.reserved.as_ref().filter(|reserved| reserved.standing() == Standing::Failed)?;
        Some(reserved.decided())
    };
    let each = parts.iter().flatten().map(|part| failed(part).unwrap_or_else(|| Ok(part.demand.not_asked())));
    let each = each.collect::<Result<Vec<_>, _>>()?;
    match each.iter().all(Decision::granted) {
        true => Err(Error::Unavailable(Reason::NoAnswer.because("the reply with leased units came late"))),
        false => Ok(Decisions { granted: false, each }),
    }
}

/// The decisions of limits that have units in hand, all of them.
fn granted(parts: &mut [Option<Part>]) -> Option<Decisions> {
    let now = awake();
    let is_granted = |part: &Part| {
        let standing = part.reserved.as_ref().map(Reserved::standing);
        matches!(standing, Some(Standing::Granted { until }) if now < until)
    };
    if !parts.iter().all(|part| part.as_ref().is_some_and(is_granted)) {
        return None;
    }
    let decided = |part: &Part| part.reserved.as_ref()?.decided().ok();
    let each = parts.iter().flatten().filter_map(decided).collect();
    parts.iter_mut().flatten().for_each(Part::renew);
    Some(Decisions { granted: true, each })
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

    /// Reserves units in hand, if there are as many.
    fn reserve(&mut self) -> bool {
        self.keep_for(|hand, demand| hand.reserve(demand.exact.cost, awake()))
    }

    /// Reserves units on their way, if there are as many. Nobody waits for a server that is unavailable.
    fn claim(&mut self) -> bool {
        !self.core.upstream.is_unavailable(&self.leased.key)
            && self.keep_for(|hand, demand| hand.claim(ask_of(demand), awake()))
    }

    fn keep_for(&mut self, claim: impl FnOnce(&mut Hand, &Demand) -> Option<u64>) -> bool {
        if self.reserved.is_none() {
            let mut hand = self.leased.hand.lock();
            let number = hand.covers(self.demand.exact.cost).then(|| claim(&mut hand, &self.demand)).flatten();
            let of = |number| Reserved { core: Arc::clone(&self.core), leased: Arc::clone(&self.leased), number };
            self.reserved = number.map(of);
        }
        self.is_reserved()
    }

    pub fn is_reserved(&self) -> bool {
        self.reserved.is_some()
    }

    /// Renews what was taken from, if it is time.
    fn renew(&mut self) {
        self.reserved = None;
        let flight = self.leased.hand.lock().renewal(awake());
        if let Some(flight) = flight {
            self.core.send(&self.leased, flight);
        }
    }

    /// The denial of a key that is dry.
    pub fn dry_denial(&self) -> Option<Decision> {
        if !self.is_leasable || self.core.upstream.is_unavailable(&self.leased.key) {
            return None;
        }
        let (decision, flight) = self.leased.hand.lock().dry_denial(ask_of(&self.demand), awake())?;
        if let Some(flight) = flight {
            self.core.send(&self.leased, flight);
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
        let landing = flight.and_then(|flight| self.core.landing(&self.leased, flight));
        self.landing = landing;
        self.landing.iter().flat_map(Landing::commands).collect()
    }

    /// The server decided.
    pub fn heard(&self, decision: &swlimit_window::Decision) {
        self.core.heard(&self.leased, decision);
    }

    /// Keeps units that were granted to nobody.
    pub fn keep(&self, decision: &swlimit_window::Decision, since: Option<u64>, settled: &Settled) {
        self.core.keep(&self.leased, decision, since, self.begun, settled);
    }
}
