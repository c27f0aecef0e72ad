//! The leased units of one key: what is in hand, what is on its way, and who waits for it. A function of what happens
//! and when: no clock, no server, no task.

#[cfg(test)]
mod models;

use std::collections::VecDeque;

use swlimit_window::Decision as Exact;
use tokio::time::{Duration, Instant};

use super::meter::{Meter, Which};
use super::sizing::{batch, is_hot, lasting, low_water, pace, Need, Terms};
use crate::clock::{ms, ms_up};
use crate::decision::{Decision, Source};
use crate::upstream::Identity;

/// The most flights of a key at a time.
const FLIGHTS: usize = 4;
/// The least time in which demand is measured.
const LEAST_SPAN: Duration = Duration::from_secs(1);
/// What follows from demand is worked out again after this part of the time in which it is measured.
const STALE: u32 = 64;

/// The units of one key, and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Hand {
    terms: Terms,
    /// How long a request and its reply are on their way, at most, as far as is known.
    trip: Duration,
    meter: Meter,
    demand: Derived,
    batches: VecDeque<GrantedUnits>,
    flights: Vec<Flight>,
    /// In the order in which they came.
    claims: VecDeque<Claim>,
    numbers: u64,
    dry: Option<Dry>,
    /// What the server said remains beside the units in hand, and when nothing counts any more.
    remaining: u64,
    reset_at: Instant,
}

/// Units of one grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct GrantedUnits {
    pub units: u64,
    /// An instant of the server's clock, in Unix ms, no later than the grant.
    pub since: u64,
    /// When the units may not be used any more.
    pub until: Instant,
    /// The server that counted them, if it said who it is.
    pub server: Option<Identity>,
}

/// Units that the server was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    pub number: u64,
    pub units: u64,
    /// The largest cost that is asked for.
    pub cost: u64,
    sent: Instant,
    /// When the reply is expected, at the latest.
    due: Instant,
    /// How many of the units are promised.
    claimed: u64,
}

/// A request that units are kept for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    number: u64,
    cost: u64,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// The units are on their way, with this flight.
    Awaited(u64),
    Granted(Vec<GrantedUnits>),
    /// The server granted too few units.
    Denied,
    /// No reply came, or the server refused.
    Lost(Option<String>),
}

/// How far a claim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its units are expected by then.
    Awaited { due: Instant },
    /// Its units end then.
    Granted { until: Instant },
    /// It gets none.
    Failed,
}

/// The server granted less than it was asked for.
#[derive(Clone, Copy, Debug)]
struct Dry {
    /// Not asked before this.
    pace: Instant,
    /// Nor before this, which the server said of requests of that cost; unless that was known, and is no longer.
    retry_at: Instant,
    cost: u64,
    was_known: bool,
    /// What is known without the server is known by then.
    known_by: Instant,
}

/// What follows from the demand, for as long as it is fresh.
#[derive(Clone, Debug)]
struct Derived {
    need: Need,
    is_hot: bool,
    /// Hot, if requests count that leases cannot decide.
    is_warm: bool,
    low_water: u64,
    /// Units that end within this time are not counted on.
    horizon: Duration,
    until: Instant,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    pub cost: u64,
    /// It waits for no units that others asked for, and is denied only by the server: fewer units would do, or it is to
    /// begin a block.
    pub is_own: bool,
    pub is_blocking: bool,
}

/// What is done about a request.
#[derive(Debug)]
pub(super) enum Step<K> {
    /// From the units in hand. A flight may go out in the background.
    Granted(Decision, Option<Flight>),
    /// Somebody else knows.
    Known(K),
    /// The key is dry. A flight may go out in the background.
    Denied(Decision, Option<Flight>),
    /// It waits for units that are on their way.
    Claimed(u64),
    /// It goes to the server, with a flight beside it if there is one.
    Own(Option<Flight>),
}

/// What the server replied to a flight.
#[derive(Clone, Debug)]
pub(super) struct Landed {
    pub units: u64,
    pub since: u64,
    pub server: Option<Identity>,
    /// Where it granted less than it was asked for: how long until it would grant the largest cost.
    pub retry_after: Option<Duration>,
    /// See [`pace`].
    pub spread: f64,
}

/// The reply to a claim, for who waits for it.
#[derive(Debug)]
pub(super) enum Claimed {
    Decided(Decision),
    /// With the error, if the server refused.
    Lost(Option<String>),
}

impl GrantedUnits {
    /// Whether they end together and go back together.
    fn is_like(&self, other: &Self) -> bool {
        (self.until, self.since, &self.server) == (other.until, other.since, &other.server)
    }
}

impl Claim {
    fn is_awaiting(&self, flight: u64) -> bool {
        matches!(self.state, State::Awaited(number) if number == flight)
    }
}

impl Flight {
    /// When the units it brings end.
    pub fn until(&self, length: Duration) -> Instant {
        self.sent + length
    }
}

impl Hand {
    /// No units yet, of a key whose server is so far.
    pub fn new(terms: Terms, trip: Duration, now: Instant) -> Self {
        let need = Need { rate: 0.0, cost: 1, requests: 0 };
        Self {
            terms,
            trip,
            meter: Meter::new(terms.length.max(LEAST_SPAN), now),
            demand: Derived { need, is_hot: false, is_warm: false, low_water: 0, horizon: Duration::ZERO, until: now },
            batches: VecDeque::new(),
            flights: Vec::new(),
            claims: VecDeque::new(),
            numbers: 0,
            dry: None,
            remaining: 0,
            reset_at: now,
        }
    }

    /// What is done about a request. `known` says what somebody else knows of it.
    #[inline]
    pub fn decide<K>(&mut self, ask: Ask, now: Instant, known: impl FnOnce() -> Option<K>) -> Step<K> {
        if !self.covers(ask.cost) {
            return known().map_or(Step::Own(None), Step::Known);
        }
        self.asked(ask.cost, true, now);
        if let Some(decision) = self.take(ask.cost, now) {
            return Step::Granted(decision, self.renewal(now));
        }
        if let Some(known) = known() {
            self.knew(ask.cost);
            return Step::Known(known);
        }
        if let Some((decision, flight)) = self.dry_denial(ask, now) {
            return Step::Denied(decision, flight);
        }
        match self.claim(ask, now) {
            Some(claim) => Step::Claimed(claim),
            None => Step::Own(self.beside(now)),
        }
    }

    /// Whether leases decide requests of this cost.
    pub fn covers(&self, cost: u64) -> bool {
        self.terms.cover(cost)
    }

    /// A request for the key came; `is_leasable` if leases can decide it.
    pub fn asked(&mut self, cost: u64, is_leasable: bool, now: Instant) {
        let which = if is_leasable { Which::Leasable } else { Which::All };
        self.meter.add(cost, which, now);
        if now >= self.demand.until || !self.demand.is_hot {
            self.derive(now);
        }
    }

    /// Whether the key is asked for so often that leases would pay, if they could decide all requests.
    pub fn is_warm(&self) -> bool {
        self.demand.is_warm
    }

    /// Grants a request, if there are as many units in hand.
    #[inline]
    pub fn take(&mut self, cost: u64, now: Instant) -> Option<Decision> {
        let units = self.units(now);
        if units < cost {
            return None;
        }
        let mut since = u64::MAX;
        // No later than any of them was counted.
        self.draw(cost, now, |batch, _| since = since.min(batch.since));
        Some(self.granted(cost, units - cost, since, now))
    }

    /// Takes units that are in hand; says from which batch, and how many.
    #[inline]
    fn draw(&mut self, cost: u64, now: Instant, mut drawn: impl FnMut(&GrantedUnits, u64)) {
        let mut left = cost;
        for batch in self.batches.iter_mut().filter(|batch| now < batch.until && batch.units > 0) {
            let taken = left.min(batch.units);
            batch.units -= taken;
            left -= taken;
            drawn(batch, taken);
            if left == 0 {
                break;
            }
        }
    }

    /// Keeps units in hand for a request, if there are as many: other limits have to grant it, too.
    pub fn reserve(&mut self, cost: u64, now: Instant) -> Option<u64> {
        if self.units(now) < cost {
            return None;
        }
        let mut units = Vec::new();
        self.draw(cost, now, |batch, taken| units.push(GrantedUnits { units: taken, ..batch.clone() }));
        Some(self.add_claim(cost, State::Granted(units)))
    }

    fn add_claim(&mut self, cost: u64, state: State) -> u64 {
        let number = self.numbers;
        self.numbers += 1;
        self.claims.push_back(Claim { number, cost, state });
        number
    }

    fn granted(&self, cost: u64, in_hand: u64, since: u64, now: Instant) -> Decision {
        let reset_after = ms(self.reset_at.saturating_duration_since(now));
        let remaining = self.remaining + in_hand;
        let exact = Exact { granted: cost, limit: self.terms.limit, remaining, retry_after: Some(0), reset_after };
        Source::Lease.decided(exact).counted_since(Some(since))
    }

    /// When a batch that ends at an instant may need renewal, though nobody asks.
    pub fn renewed_at(&self, until: Instant, now: Instant) -> Option<Instant> {
        let at = until.checked_sub(self.demand.horizon).filter(|at| *at > now);
        at.filter(|_| self.demand.is_hot && self.dry.is_none())
    }

    /// The same flight, of a key that nobody asks for just now.
    pub fn renewal_unasked(&mut self, now: Instant) -> Option<Flight> {
        self.derive(now);
        self.renewal(now)
    }

    /// The flight that renews a hot key's units before they are used up, or end.
    pub fn renewal(&mut self, now: Instant) -> Option<Flight> {
        if !self.demand.is_hot || self.dry.is_some() {
            return None;
        }
        let outliving = self.outliving(now);
        (outliving + self.flying() < self.demand.low_water).then(|| self.fly(outliving, now))?
    }

    /// The flight beside a request that goes to the server itself.
    pub fn beside(&mut self, now: Instant) -> Option<Flight> {
        match self.demand.is_hot && self.dry.is_none() {
            true => self.fly(self.outliving(now), now),
            false => None,
        }
    }

    /// Somebody else denies requests of this cost.
    pub fn knew(&mut self, cost: u64) {
        if let Some(dry) = self.dry.as_mut().filter(|dry| cost >= dry.cost) {
            dry.was_known = true;
        }
    }

    /// The denial of a request for a hot key that is dry, and the flight that asks about it now and then.
    pub fn dry_denial(&mut self, ask: Ask, now: Instant) -> Option<(Decision, Option<Flight>)> {
        let dry = self.dry.filter(|_| self.demand.is_hot && !ask.is_blocking)?;
        // What was known ends at once for all processes when units come free. Of smaller requests nothing is known.
        let is_over = match ask.cost >= dry.cost {
            true => dry.was_known || now >= dry.known_by,
            false => self.demand.need.cost < dry.cost,
        };
        let next = if is_over { dry.pace } else { dry.pace.max(dry.retry_at) };
        let flight = match now >= next && self.flights.is_empty() {
            // Without room for one, the request asks.
            true => Some(self.fly(self.outliving(now), now)?),
            false => None,
        };
        let expected = self.flights.iter().map(|flight| flight.due).min().unwrap_or(next + self.trip);
        Some((self.denied(expected, now), flight))
    }

    fn denied(&self, retry_at: Instant, now: Instant) -> Decision {
        let retry_after = ms_up(retry_at.saturating_duration_since(now)).max(1);
        let reset_after = ms(self.reset_at.saturating_duration_since(now));
        let (limit, remaining) = (self.terms.limit, self.units(now));
        Source::Lease.decided(Exact { granted: 0, limit, remaining, retry_after: Some(retry_after), reset_after })
    }

    /// Promises a request units that are on their way, if there are as many.
    pub fn claim(&mut self, ask: Ask, now: Instant) -> Option<u64> {
        let is_free = |flight: &&mut Flight| now < flight.due && flight.units - flight.claimed >= ask.cost;
        let flight = self.flights.iter_mut().filter(|_| !ask.is_own).find(is_free)?;
        flight.claimed += ask.cost;
        let flight = flight.number;
        Some(self.add_claim(ask.cost, State::Awaited(flight)))
    }

    /// How far a claim has come.
    pub fn standing(&self, number: u64) -> Standing {
        match self.claims.iter().find(|claim| claim.number == number).map(|claim| &claim.state) {
            Some(State::Awaited(number)) => match self.flights.iter().find(|flight| flight.number == *number) {
                Some(flight) => Standing::Awaited { due: flight.due },
                None => Standing::Failed,
            },
            Some(State::Granted(units)) => match units.iter().map(|units| units.until).min() {
                Some(until) => Standing::Granted { until },
                None => Standing::Failed,
            },
            _ => Standing::Failed,
        }
    }

    /// What became of a claim; `None` while nothing did.
    pub fn claimed(&mut self, number: u64, now: Instant) -> Option<Claimed> {
        let at = self.claims.iter().position(|claim| claim.number == number)?;
        if let State::Awaited(_) = self.claims[at].state {
            return None;
        }
        let Claim { cost, state, .. } = self.claims.remove(at)?;
        Some(match state {
            State::Awaited(_) => return None,
            State::Granted(units) => {
                let since = units.iter().map(|units| units.since).min().unwrap_or_default();
                Claimed::Decided(self.granted(cost, self.units(now), since, now))
            }
            State::Denied => {
                let retry_at = self.dry.map_or(now + self.trip, |dry| dry.retry_at);
                Claimed::Decided(self.denied(retry_at, now))
            }
            State::Lost(refusal) => Claimed::Lost(refusal),
        })
    }

    /// Nobody waits for a claim any more. Units that can be in hand no longer are returned.
    #[must_use]
    pub fn abandon(&mut self, number: u64, now: Instant) -> Vec<GrantedUnits> {
        let Some(at) = self.claims.iter().position(|claim| claim.number == number) else { return Vec::new() };
        let Some(Claim { cost, state, .. }) = self.claims.remove(at) else { return Vec::new() };
        match state {
            State::Awaited(number) => {
                let flight = self.flights.iter_mut().find(|flight| flight.number == number);
                flight.into_iter().for_each(|flight| flight.claimed -= cost);
                Vec::new()
            }
            State::Granted(units) => units.into_iter().filter_map(|units| self.keep(units, now)).collect(),
            State::Denied | State::Lost(_) => Vec::new(),
        }
    }

    /// Units were granted. Those that were promised are given out, in order; what cannot be in hand is returned.
    #[must_use]
    pub fn landed(&mut self, number: u64, landed: Landed, now: Instant) -> Option<GrantedUnits> {
        let at = self.flights.iter().position(|flight| flight.number == number)?;
        let flight = self.flights.remove(at);
        let until = flight.until(self.terms.length);
        self.dry = (landed.units < flight.units).then(|| Dry {
            pace: flight.sent + pace(&self.demand.need, &self.terms, self.trip, landed.spread),
            retry_at: flight.sent + landed.retry_after.unwrap_or_default(),
            cost: flight.cost,
            was_known: false,
            known_by: now + self.trip,
        });
        let mut units = GrantedUnits { units: landed.units, since: landed.since, until, server: landed.server };
        for claim in self.claims.iter_mut().filter(|claim| claim.is_awaiting(number)) {
            claim.state = match claim.cost <= units.units {
                false => State::Denied,
                // However late: it was asked for in time, as if by the request itself.
                true => {
                    units.units -= claim.cost;
                    State::Granted(vec![GrantedUnits { units: claim.cost, ..units.clone() }])
                }
            };
        }
        // Too few for the largest cost would lie idle.
        if self.dry.is_some() && self.units(now) + units.units < flight.cost {
            return Some(units).filter(|units| units.units > 0);
        }
        self.keep(units, now)
    }

    /// A flight brings nothing: no reply will come, or the server refused. Whether anybody waited for it.
    pub fn lost(&mut self, number: u64, refusal: Option<&str>) -> bool {
        self.flights.retain(|flight| flight.number != number);
        let waiting = self.claims.iter_mut().filter(|claim| claim.is_awaiting(number));
        waiting.map(|claim| claim.state = State::Lost(refusal.map(str::to_owned))).count() > 0
    }

    /// Keeps units that nobody took. Those that are too many, or have ended, are returned.
    #[must_use]
    pub fn keep(&mut self, units: GrantedUnits, now: Instant) -> Option<GrantedUnits> {
        if units.units == 0 {
            return None;
        }
        if now >= units.until || self.held() + self.flying() + units.units > self.terms.most {
            return Some(units);
        }
        match self.batches.iter_mut().find(|batch| batch.is_like(&units)) {
            Some(batch) => batch.units += units.units,
            None => self.batches.push_back(units),
        }
        None
    }

    /// What the server said of the key.
    pub fn heard(&mut self, decision: &Exact, terms: Terms, trip: Duration, now: Instant) {
        self.remaining = decision.remaining;
        self.reset_at = now + Duration::from_millis(decision.reset_after);
        (self.terms, self.trip) = (terms, trip);
        self.demand.until = now;
    }

    /// The key is no longer asked for, as far as leases go.
    pub fn cool(&mut self, now: Instant) {
        self.meter.clear();
        self.derive(now);
    }

    /// The batches that end by an instant.
    pub fn ended(&mut self, by: Instant) -> Vec<GrantedUnits> {
        let (ended, live): (VecDeque<_>, _) = self.batches.drain(..).partition(|batch| batch.until <= by);
        self.batches = live;
        ended.into_iter().filter(|batch| batch.units > 0).collect()
    }

    /// All batches.
    pub fn surrender(&mut self) -> Vec<GrantedUnits> {
        self.batches.drain(..).filter(|batch| batch.units > 0).collect()
    }

    /// Units in hand.
    pub fn units(&self, now: Instant) -> u64 {
        self.batches.iter().filter(|batch| now < batch.until).map(|batch| batch.units).sum()
    }

    /// Whether something is in hand, on its way or waited for.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty() || !self.claims.is_empty() || self.batches.iter().any(|batch| batch.units > 0)
    }

    /// Whether nothing would be lost by forgetting it.
    pub fn is_idle(&self, now: Instant) -> bool {
        !self.is_busy() && self.meter.is_idle(now)
    }

    /// Units in hand, with those that are kept for a request, or have ended and were not given back yet.
    fn held(&self) -> u64 {
        let kept = self.claims.iter().filter_map(|claim| match &claim.state {
            State::Granted(units) => Some(units),
            _ => None,
        });
        self.batches.iter().chain(kept.flatten()).map(|units| units.units).sum()
    }

    fn flying(&self) -> u64 {
        self.flights.iter().map(|flight| flight.units).sum()
    }

    /// Units that can still be used when what is asked for now has come.
    fn outliving(&self, now: Instant) -> u64 {
        let horizon = now + self.demand.horizon;
        self.batches.iter().filter(|batch| horizon < batch.until).map(|batch| batch.units).sum()
    }

    fn fly(&mut self, outliving: u64, now: Instant) -> Option<Flight> {
        if self.flights.len() >= FLIGHTS {
            return None;
        }
        let (need, flying) = (&self.demand.need, self.flying());
        let lasting = lasting(need, &self.terms, self.trip, self.dry.is_some());
        let units = batch(need, &self.terms, self.trip, lasting, outliving, self.held(), flying)?;
        let number = self.numbers;
        self.numbers += 1;
        let flight = Flight { number, units, cost: need.cost, sent: now, due: now + self.trip, claimed: 0 };
        self.flights.push(flight.clone());
        Some(flight)
    }

    /// Works out what follows from the demand.
    fn derive(&mut self, now: Instant) {
        let (terms, trip) = (self.terms, self.trip);
        let all = self.meter.need(Which::All, trip, now);
        let need = self.meter.need(Which::Leasable, trip, now);
        let is_warm = is_hot(&all, &terms, trip, self.demand.is_warm);
        let is_hot = is_hot(&need, &terms, trip, self.demand.is_hot);
        let between = Duration::try_from_secs_f64(1.0 / need.rate).unwrap_or(terms.length).min(terms.length);
        self.demand = Derived {
            need,
            is_hot,
            is_warm,
            low_water: low_water(&need, trip),
            horizon: trip + between,
            until: now + terms.length.max(LEAST_SPAN) / STALE,
        };
        if !is_hot {
            self.dry = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { length: Duration::from_secs(1), most: 100, limit: 1_000 };
    const TRIP: Duration = Duration::from_millis(50);

    fn ask(cost: u64) -> Ask {
        Ask { cost, is_own: false, is_blocking: false }
    }

    fn landed(units: u64) -> Landed {
        Landed { units, since: 7, server: None, retry_after: Some(Duration::from_millis(400)), spread: 1.0 }
    }

    fn decide(hand: &mut Hand, ask: Ask, now: Instant) -> Step<()> {
        hand.decide(ask, now, || None)
    }

    /// A hand that has become hot, and the flight of the request that made it so.
    fn hot(now: Instant) -> (Hand, Flight) {
        let mut hand = Hand::new(TERMS, TRIP, now);
        for _ in 0..5 {
            assert!(matches!(decide(&mut hand, ask(1), now), Step::Own(None)));
        }
        let Step::Own(Some(flight)) = decide(&mut hand, ask(1), now) else { panic!("it is hot") };
        (hand, flight)
    }

    fn claim(hand: &mut Hand, ask: Ask, now: Instant) -> u64 {
        match decide(hand, ask, now) {
            Step::Claimed(number) => number,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn who_comes_first_is_served_and_others_are_denied() {
        let now = Instant::now();
        let (mut hand, flight) = hot(now);
        assert!((10..=100).contains(&flight.units), "{flight:?}");
        let claims: Vec<u64> = [2, 3, 1].map(|cost| claim(&mut hand, ask(cost), now)).to_vec();
        let later = now + TRIP;
        assert!(hand.claimed(claims[0], later).is_none());
        assert_eq!(hand.landed(flight.number, landed(3), later), None);
        let granted = claims.iter().map(|number| match hand.claimed(*number, later) {
            Some(Claimed::Decided(decision)) => (decision.units(), decision.retry_after),
            other => panic!("{other:?}"),
        });
        assert_eq!(granted.collect::<Vec<_>>(), [(2, Some(0)), (0, Some(350)), (1, Some(0))]);
        assert!(!hand.is_busy());
    }

    #[test]
    fn a_claim_that_is_given_up_leaves_its_units() {
        let now = Instant::now();
        let (mut hand, flight) = hot(now);
        let (early, late) = (claim(&mut hand, ask(2), now), claim(&mut hand, ask(2), now));
        assert_eq!(hand.abandon(early, now), []);
        assert_eq!(hand.landed(flight.number, landed(flight.units), now), None);
        assert_eq!(hand.units(now), flight.units - 2);
        assert_eq!(hand.abandon(late, now), []);
        assert_eq!(hand.units(now), flight.units);
        // After their end they go back.
        let (mut hand, flight) = hot(now);
        let late = claim(&mut hand, ask(2), now);
        assert_eq!(hand.landed(flight.number, landed(flight.units), now), None);
        let back = hand.abandon(late, now + TERMS.length);
        assert_eq!((back.len(), back[0].units, back[0].since), (1, 2, 7));
    }

    /// Of several limits in one decision, another one may have too few.
    #[test]
    fn units_that_are_kept_for_a_request_have_their_place_until_they_end() {
        let now = Instant::now();
        let (mut hand, flight) = hot(now);
        assert_eq!(hand.landed(flight.number, landed(flight.units), now), None);
        let (used, given_up) = (hand.reserve(2, now).unwrap(), hand.reserve(3, now).unwrap());
        assert_eq!((hand.units(now), hand.held()), (flight.units - 5, flight.units));
        // Whatever comes meanwhile.
        let until = now + TERMS.length;
        let others = |units| GrantedUnits { units, since: 9, until, server: None };
        assert_eq!(hand.keep(others(TERMS.most - flight.units), now), None);
        assert_eq!(hand.keep(others(1), now), Some(others(1)), "there is no room");
        assert_eq!(hand.abandon(given_up, now), []);
        assert_eq!((hand.units(now), hand.held()), (TERMS.most - 2, TERMS.most));
        assert!(matches!(hand.claimed(used, now), Some(Claimed::Decided(decision)) if decision.units() == 2));
        assert_eq!(hand.held(), TERMS.most - 2);
        // Units of several grants are given back as if all were counted with the first.
        let mut other = hand.clone();
        let all = other.reserve(other.units(now), now).unwrap();
        assert!(matches!(other.claimed(all, now), Some(Claimed::Decided(decision)) if decision.since == Some(7)));
        // After their end they go back.
        let late = hand.reserve(2, now).unwrap();
        assert_eq!(hand.standing(late), Standing::Granted { until });
        assert_eq!(hand.abandon(late, until), [GrantedUnits { since: 7, ..others(2) }]);
    }

    /// Each goes back to the server that counted it.
    #[test]
    fn units_of_two_servers_are_never_mixed() {
        let now = Instant::now();
        let mut hand = Hand::new(TERMS, TRIP, now);
        let of = |run_id| {
            let (until, server) = (now + TERMS.length, Some(Identity::of(run_id)));
            GrantedUnits { units: 1, since: 7, until, server }
        };
        let batches = ["before", "after", "before"].map(of);
        assert_eq!(batches.map(|batch| hand.keep(batch, now)), [None, None, None]);
        assert_eq!(hand.surrender(), [GrantedUnits { units: 2, ..of("before") }, of("after")]);
    }

    #[test]
    fn a_flight_that_is_lost_is_lost_for_all_who_wait() {
        let now = Instant::now();
        let (mut hand, flight) = hot(now);
        let number = claim(&mut hand, ask(1), now);
        assert!(hand.lost(flight.number, None) && !hand.lost(flight.number, None));
        assert!(matches!(hand.claimed(number, now), Some(Claimed::Lost(None))));
        assert_eq!(hand.landed(flight.number, landed(5), now), None, "it has ended");
        assert_eq!(hand.units(now), 0);
    }

    #[test]
    fn who_would_take_less_or_block_waits_for_nobody() {
        let now = Instant::now();
        let (mut hand, _) = hot(now);
        let own = Ask { is_own: true, ..ask(1) };
        assert!(matches!(decide(&mut hand, own, now), Step::Own(_)));
        // Overdue units are waited for by nobody, either.
        assert!(matches!(decide(&mut hand, ask(1), now + TRIP), Step::Own(_)));
        assert!(matches!(decide(&mut hand, ask(34), now), Step::Own(None)), "it is too dear");
    }

    #[test]
    fn a_dry_key_denies_and_asks_at_its_pace() {
        let now = Instant::now();
        let (mut hand, flight) = hot(now);
        assert_eq!(hand.landed(flight.number, landed(0), now + TRIP), None);
        let at = |ms| now + Duration::from_millis(ms);
        let denied = |hand: &mut Hand, ms| match decide(hand, ask(1), at(ms)) {
            Step::Denied(decision, flight) => (decision.retry_after.unwrap(), flight),
            step => panic!("{step:?}"),
        };
        assert_eq!(denied(&mut hand, 60), (390, None));
        // A request that begins a block is denied by the server alone.
        let blocking = Ask { is_own: true, is_blocking: true, ..ask(1) };
        assert!(matches!(decide(&mut hand, blocking, at(60)), Step::Own(None)));
        let (wait, flight) = denied(&mut hand, 400);
        assert_eq!(wait, 50);
        let flight = flight.expect("it is time");
        assert_eq!(denied(&mut hand, 410).1, None, "one asks");
        assert_eq!(hand.landed(flight.number, landed(flight.units), at(450)), None);
        assert!(matches!(decide(&mut hand, ask(1), at(451)), Step::Granted(..)));
    }

    #[test]
    fn when_what_was_known_is_no_longer_a_dry_key_is_asked_about() {
        let now = Instant::now();
        let (mut hand, flight) = hot(now);
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(hand.landed(flight.number, landed(0), at(50)), None);
        assert!(matches!(hand.decide(ask(1), at(60), || Some(())), Step::Known(())));
        let step = |hand: &mut Hand, ms| match decide(hand, ask(1), at(ms)) {
            Step::Denied(_, flight) => flight.is_some(),
            step => panic!("{step:?}"),
        };
        assert!(!step(&mut hand, 90), "not before the pace");
        assert!(step(&mut hand, 200), "units may have come free");
    }

    /// Nothing is remembered of a dry key when a read beside found units; and what was may end while units are in hand.
    #[test]
    fn a_dry_key_of_which_nothing_is_known_is_asked_about() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let later = |units| Landed { retry_after: Some(Duration::from_secs(3600)), ..landed(units) };
        let is_asked = |hand: &mut Hand, cost, ms| match decide(hand, ask(cost), at(ms)) {
            Step::Denied(_, flight) => flight.is_some(),
            step => panic!("{step:?}"),
        };
        let (mut hand, flight) = hot(now);
        assert_eq!(hand.landed(flight.number, later(0), at(50)), None);
        assert!(!is_asked(&mut hand, 1, 90), "the read may be under way");
        assert!(is_asked(&mut hand, 1, 200));
        // The same where only larger requests would have been known.
        let (mut hand, _) = hot(now);
        hand.dry = None;
        assert!(matches!(decide(&mut hand, ask(2), at(20)), Step::Claimed(_)));
        let flight = hand.beside(at(20)).unwrap();
        assert_eq!(flight.cost, 2);
        assert_eq!(hand.landed(flight.number, later(0), at(50)), None);
        hand.lost(hand.flights[0].number, None);
        assert!((6..200).map(|time| 10 * time).any(|ms| is_asked(&mut hand, 1, ms)));
    }

    #[test]
    fn the_server_decides_for_a_dry_key_where_there_is_no_room_for_a_flight() {
        let (now, trip) = (Instant::now(), Duration::from_millis(1));
        let mut hand = Hand::new(Terms { most: 10, ..TERMS }, trip, now);
        let own = (0..6).map(|_| decide(&mut hand, ask(1), now)).last();
        let Some(Step::Own(Some(flight))) = own else { panic!("it is hot") };
        assert_eq!(hand.landed(flight.number, landed(2), now + trip), None);
        let dear = decide(&mut hand, ask(3), now + Duration::from_millis(500));
        assert!(matches!(dear, Step::Own(None)), "{dear:?}");
    }

    /// What happens to a hand.
    #[derive(Clone, Debug)]
    enum Event {
        Ask(Ask),
        Reserve(u64),
        Land(usize, u64),
        Lose(usize),
        Abandon(usize),
        Take(usize),
        End,
    }

    fn event() -> impl Strategy<Value = Event> {
        let ask = (1u64..40, any::<bool>()).prop_map(|(cost, is_own)| {
            Event::Ask(Ask { cost: cost.min(5) + u64::from(cost > 36) * 30, is_own, is_blocking: false })
        });
        prop_oneof![
            6 => ask,
            1 => (1u64..6).prop_map(Event::Reserve),
            2 => (0usize..4, 0u64..=100).prop_map(|(flight, units)| Event::Land(flight, units)),
            1 => (0usize..4).prop_map(Event::Lose),
            1 => (0usize..9).prop_map(Event::Abandon),
            2 => (0usize..9).prop_map(Event::Take),
            1 => Just(Event::End),
        ]
    }

    proptest! {
        /// Whatever happens, each unit is used once, given back, or in hand, and no more than the most is in hand and
        /// on its way.
        #[test]
        fn no_unit_is_lost_or_used_twice(events in prop::collection::vec((event(), 0u64..300), 1..200)) {
            let mut now = Instant::now();
            let mut hand = Hand::new(TERMS, TRIP, now);
            let (mut flights, mut claims) = (Vec::<Flight>::new(), Vec::new());
            let (mut leased, mut used, mut back) = (0, 0, 0);
            for (event, ms) in events {
                now += Duration::from_millis(ms);
                let returned: Vec<GrantedUnits> = match event {
                    Event::Ask(ask) => {
                        match decide(&mut hand, ask, now) {
                            Step::Granted(decision, flight) => {
                                used += decision.units();
                                flights.extend(flight);
                            }
                            Step::Denied(_, flight) | Step::Own(flight) => flights.extend(flight),
                            Step::Claimed(number) => claims.push(number),
                            Step::Known(()) => unreachable!(),
                        }
                        Vec::new()
                    }
                    Event::Reserve(cost) => {
                        claims.extend(hand.reserve(cost, now));
                        Vec::new()
                    }
                    Event::Land(at, part) if at < flights.len() => {
                        let flight = flights.remove(at);
                        let units = flight.units * part / 100;
                        leased += units;
                        hand.landed(flight.number, landed(units), now).into_iter().collect()
                    }
                    Event::Lose(at) if at < flights.len() => {
                        hand.lost(flights.remove(at).number, None);
                        Vec::new()
                    }
                    Event::Abandon(at) if at < claims.len() => {
                        hand.abandon(claims.remove(at), now)
                    }
                    Event::Take(at) if at < claims.len() => {
                        match hand.claimed(claims[at], now) {
                            Some(Claimed::Decided(decision)) => used += decision.units(),
                            Some(Claimed::Lost(_)) => {}
                            None => continue,
                        }
                        claims.remove(at);
                        Vec::new()
                    }
                    Event::End => hand.ended(now),
                    _ => Vec::new(),
                };
                back += returned.iter().map(|units| units.units).sum::<u64>();
                prop_assert!(hand.held() + hand.flying() <= TERMS.most);
                prop_assert!(hand.flights.len() <= FLIGHTS && hand.flights.len() == flights.len());
                prop_assert!(hand.flights.iter().all(|flight| flight.claimed <= flight.units));
            }
            for flight in flights {
                hand.lost(flight.number, None);
            }
            for number in claims {
                match hand.claimed(number, now) {
                    Some(Claimed::Decided(decision)) => used += decision.units(),
                    Some(Claimed::Lost(_)) => {}
                    None => panic!("nobody told claim {number}"),
                }
            }
            back += hand.surrender().iter().map(|units| units.units).sum::<u64>();
            prop_assert_eq!(leased, used + back);
            prop_assert!(!hand.is_busy());
        }
    }
}
