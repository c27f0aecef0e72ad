//! Leases: units are taken from the server ahead of need, and granted near the requests.
//!
//! A key that is asked for often is hot. Its units are renewed in the background before they are used up: `TIME`, then
//! `ALLOW … COST b PARTIAL`, then `PEEK`, in one pipeline, which is a flight. What it brings is granted near the requests
//! for at most the lease's length, counted from before the pipeline was sent. What is left goes back by
//! `REFUND … SINCE`, dated by that TIME: no delay on the way makes it wrong. A request that the units in hand do not
//! cover waits for units that are on their way, or goes to the server itself, with a flight beside it: one trip at most.
//! A key that is not hot takes no lease.
//!
//! [`sizing`] says how many units and when, [`hand`] what is in hand and on its way, and [`returns`] gives back.

mod hand;
mod meter;
mod returns;
mod sizing;
mod together;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use swlimit_window::{Decision as Exact, Request};
use tokio::sync::Notify;
use tokio::time::{timeout_at, Duration, Instant};

use self::hand::{Ask, Claimed, Flight, GrantedUnits, Hand, Landed, Standing, Step};
use self::returns::Return;
use self::sizing::Terms;
pub(crate) use self::together::{from_flights, from_hand, from_landed, land, together, Part};
use super::cached::{DenialCache, Ticket};
use crate::clock::{awake, now};
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::{Cause, Error};
use crate::keyed::{Bounded, Keep};
use crate::mode::Share;
use crate::protocol::Command;
use crate::reason::Reason;
use crate::statistics::Count;
use crate::transport::Reply;
use crate::upstream::{is_failure, Batch, Owner, Settled, Upstream};

/// The longest that units are kept in hand unless set, whatever the resolution.
const LONGEST: Duration = Duration::from_secs(1);
/// For how long it is tried to give units back, at most: then they are written off.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so many replies in a row from too far, the log says so.
const REPLIES: u32 = 8;

/// The leases of one limiter. Dropped, they hand over what they hold to the task that gives it back.
pub(crate) struct Leases(Arc<Core>);

pub(crate) struct Core {
    upstream: Arc<Upstream>,
    denial_cache: Arc<DenialCache>,
    keys: Bounded<Arc<Leased>>,
    length: Duration,
    share: Share,
    /// A unit of its limit.
    unit: Request,
    /// For so long it is tried to give units back.
    patience: Duration,
    /// Leases by their end, and by when they may have to be renewed.
    ends: Mutex<BTreeMap<(Instant, u64), Arc<Leased>>>,
    numbers: AtomicU64,
    /// Units that go back.
    returning: Mutex<Vec<Return>>,
    /// How many flights have not ended.
    flying: AtomicUsize,
    /// Units that these ask for.
    flying_units: AtomicU64,
    /// Replies in a row that took longer than half a lease, and than a request may wait.
    far: AtomicU32,
    late: AtomicU32,
    /// A refund is under way, or due.
    is_busy: AtomicBool,
    wake: Notify,
    is_idle: Notify,
    is_running: AtomicBool,
    is_dropped: AtomicBool,
    /// The client is being closed, or was: nothing is leased any more, and what comes late goes back.
    is_closed: AtomicBool,
    /// What could not be given back so far is written off.
    is_given_up: AtomicBool,
    given_up: Notify,
}

/// The lease of a key.
pub(crate) struct Leased {
    key: Arc<[u8]>,
    hand: Mutex<Hand>,
    /// Tells who waits for units on their way.
    landed: Notify,
}

/// A request that is not decided near itself.
pub(crate) enum Elsewhere {
    /// It waits for units that are on their way.
    Waits(Reserved),
    /// It goes to the server.
    Asks(Arc<Leased>, Option<Landing>),
}

impl Leases {
    /// Leases of units of a limit, at most this share of it, and for so long, of at most so many keys.
    pub fn new(
        upstream: Arc<Upstream>,
        denial_cache: Arc<DenialCache>,
        unit: Request,
        length: Option<Duration>,
        share: Share,
        max_keys: usize,
    ) -> Self {
        let geometry = unit.quota.geometry;
        let [window, resolution] = [geometry.window(), geometry.resolution()].map(Duration::from_millis);
        Self(Arc::new(Core {
            upstream,
            denial_cache,
            keys: Bounded::new(max_keys),
            length: length.unwrap_or_else(|| LONGEST.min(resolution)),
            share,
            unit,
            patience: PATIENCE.min(window + resolution),
            ends: Mutex::default(),
            numbers: AtomicU64::new(0),
            returning: Mutex::default(),
            flying: AtomicUsize::new(0),
            flying_units: AtomicU64::new(0),
            far: AtomicU32::new(0),
            late: AtomicU32::new(0),
            is_busy: AtomicBool::new(false),
            wake: Notify::new(),
            is_idle: Notify::new(),
            is_running: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            given_up: Notify::new(),
        }))
    }

    /// Decides a request from what is in hand or known, if that suffices.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while the server is unavailable.
    #[inline]
    pub fn decide(&self, key: &[u8], demand: &Demand) -> Result<Result<Decision, Box<Elsewhere>>, Error> {
        let core = &self.0;
        core.keys.with(key, || Arc::new(core.leased(key)), |leased| core.decide(leased, demand))
    }

    /// Asks the server, or waits for what it was asked for already.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where no reply comes in time, and as the server refuses.
    pub async fn ask(&self, elsewhere: Box<Elsewhere>, demand: &Demand, deadline: Instant) -> Result<Decision, Error> {
        match *elsewhere {
            Elsewhere::Waits(reserved) => {
                reserved.settled(deadline).await?;
                reserved.decided()
            }
            Elsewhere::Asks(leased, landing) => self.0.ask(leased, demand, landing, deadline).await,
        }
    }

    /// What [`close`](Closing::close) needs, without keeping the leases from being dropped.
    pub fn closing(&self) -> Closing {
        Closing(Arc::downgrade(&self.0))
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.0.surrender();
        self.0.is_dropped.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }
}

/// Gives back all that is in hand.
pub(crate) struct Closing(std::sync::Weak<Core>);

impl Closing {
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Gives back all that is in hand or on its way, and waits until that is sent. Nothing is leased from then on.
    pub async fn close(&self) {
        let Some(core) = self.0.upgrade() else { return };
        core.is_closed.store(true, Ordering::Release);
        core.surrender();
        core.wake.notify_one();
        core.until(|core| core.flying.load(Ordering::Acquire) == 0).await;
        core.until(|core| !core.is_busy.load(Ordering::Acquire)).await;
    }

    /// Writes off what could not be given back, and what is on its way still: the server may have counted it.
    pub async fn write_off(&self) {
        let Some(core) = self.0.upgrade() else { return };
        let units = core.flying_units.load(Ordering::Acquire);
        if units > 0 {
            core.upstream.count(Count::WrittenOff, units);
            tracing::warn!(units, "closed while these units were being leased: they may stay counted for a window");
        }
        core.is_given_up.store(true, Ordering::Release);
        core.given_up.notify_waiters();
        core.wake.notify_one();
        core.until(|core| !core.is_busy.load(Ordering::Acquire)).await;
        core.is_given_up.store(false, Ordering::Release);
    }

    /// Whether the server is so far that no lease would last.
    #[cfg(feature = "metrics")]
    pub fn is_too_far(&self) -> bool {
        self.0.upgrade().is_some_and(|core| core.far.load(Ordering::Relaxed) >= REPLIES)
    }
}

/// A flight that is to land: it ends when this is dropped, whatever became of it.
pub(crate) struct Landing {
    core: Arc<Core>,
    leased: Arc<Leased>,
    flight: Flight,
    /// What is asked of the key, of the largest cost.
    demand: Demand,
    ticket: Ticket,
}

impl Landing {
    /// How many commands it has.
    const COMMANDS: usize = 2;

    /// The commands that ask for the units, and when there will be more.
    fn commands(&self) -> [Command; Self::COMMANDS] {
        let key = &self.leased.key;
        let ahead = Command::allow(key, &self.demand.of_up_to(self.flight.units));
        [ahead, Command::peek(key, &self.demand)]
    }

    /// Takes in the replies. Units of which nobody knows since when they count could not be given back.
    fn land(&self, since: Option<u64>, replies: &[Reply], settled: &Settled) {
        let Self { core, leased, flight, demand, ticket } = self;
        let [ahead, peeked] = replies else { return };
        let granted = match ahead {
            Reply::Error(text) => return self.refused(text),
            ahead => one_of_several(&core.upstream, ahead).decision(),
        };
        let Ok(granted) = granted else { return };
        core.upstream.count(Count::Leased, granted.granted);
        let Some(since) = since else { return core.upstream.count(Count::WrittenOff, granted.granted) };
        let denied = peeked.decision().ok().filter(|peeked| granted.granted < flight.units && peeked.granted == 0);
        let retry_after = denied.and_then(|denied| denied.retry_after).map(Duration::from_millis);
        let (units, server) = (granted.granted, settled.connection.identity().cloned());
        let landed = Landed { units, since, server, retry_after, spread: 0.5 + fastrand::f64() };
        core.heard(leased, &granted);
        let back = leased.hand.lock().landed(flight.number, landed, awake());
        leased.landed.notify_waiters();
        if let Some(denied) = denied {
            core.denial_cache.denied_often(&leased.key);
            core.denial_cache.denied(&core.upstream, &leased.key, demand, &denied, settled.sent, *ticket);
        }
        core.ends_at(flight.until(core.length), leased, back);
    }

    /// The server refused.
    fn refused(&self, text: &str) {
        self.lost((!is_failure(text)).then_some(text));
        self.leased.hand.lock().cool(awake());
    }

    fn lost(&self, refusal: Option<&str>) {
        if self.leased.hand.lock().lost(self.flight.number, refusal) {
            self.leased.landed.notify_waiters();
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.lost(None);
        self.core.flying_units.fetch_sub(self.flight.units, Ordering::AcqRel);
        if self.core.flying.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.core.is_idle.notify_waiters();
        }
    }
}

/// Units that are kept for a request, in hand or on their way. Dropped, it gives up its claim to them.
pub(crate) struct Reserved {
    core: Arc<Core>,
    leased: Arc<Leased>,
    number: u64,
}

impl Reserved {
    /// Waits until it is known what became of it.
    async fn settled(&self, deadline: Instant) -> Result<(), Error> {
        let mut is_late = false;
        loop {
            let landed = self.leased.landed.notified();
            match self.standing() {
                Standing::Awaited { .. } if is_late => {
                    return Err(Error::Unavailable(Reason::NoAnswer.because("no reply in time")))
                }
                Standing::Awaited { .. } => is_late = timeout_at(deadline, landed).await.is_err(),
                Standing::Granted { .. } | Standing::Failed => return Ok(()),
            }
        }
    }

    fn standing(&self) -> Standing {
        self.leased.hand.lock().standing(self.number)
    }

    /// What became of it.
    fn decided(&self) -> Result<Decision, Error> {
        let claimed = self.leased.hand.lock().claimed(self.number, awake());
        match claimed {
            Some(Claimed::Decided(decision)) => Ok(decision),
            Some(Claimed::Lost(Some(refusal))) => Err(self.core.upstream.error(refusal, &self.leased.key)),
            _ => Err(Error::Unavailable(Reason::NoAnswer.because("the reply with leased units was lost"))),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let back = {
            let mut hand = self.leased.hand.lock();
            let mut back = hand.abandon(self.number, awake());
            if self.core.is_closed.load(Ordering::Acquire) {
                back.extend(hand.surrender());
            }
            back
        };
        if !back.is_empty() {
            self.core.give_back(&self.leased.key, back);
            self.core.wake.notify_one();
        }
    }
}

impl Core {
    fn leased(&self, key: &[u8]) -> Leased {
        let hand = Mutex::new(Hand::new(self.terms(self.unit.quota.limit), self.trip(key), awake()));
        Leased { key: key.into(), hand, landed: Notify::new() }
    }

    /// The terms at a limit.
    fn terms(&self, limit: u64) -> Terms {
        Terms { length: self.length, most: self.share.units(limit), limit }
    }

    /// How long a round trip takes, at most. Where nothing is known, no lease is taken.
    fn trip(&self, key: &[u8]) -> Duration {
        self.upstream.longest_trip(key).unwrap_or(self.length)
    }

    #[inline]
    fn decide(
        self: &Arc<Self>,
        leased: &Arc<Leased>,
        demand: &Demand,
    ) -> Result<Result<Decision, Box<Elsewhere>>, Error> {
        let step = leased.hand.lock().decide(ask_of(demand), awake(), || self.known(&leased.key, demand));
        let elsewhere = |of| Ok(Err(Box::new(of)));
        match step {
            Step::Granted(decision, None) | Step::Denied(decision, None) => Ok(Ok(decision)),
            Step::Granted(decision, Some(flight)) | Step::Denied(decision, Some(flight)) => {
                self.send(leased, flight);
                Ok(Ok(decision))
            }
            Step::Known(known) => known.map(Ok),
            Step::Claimed(number) => {
                let (core, leased) = (Arc::clone(self), Arc::clone(leased));
                elsewhere(Elsewhere::Waits(Reserved { core, leased, number }))
            }
            Step::Own(flight) => {
                let landing = flight.and_then(|flight| self.landing(leased, flight));
                elsewhere(Elsewhere::Asks(Arc::clone(leased), landing))
            }
        }
    }

    /// What is known without the server: a denial, or that it is unavailable.
    fn known(&self, key: &[u8], demand: &Demand) -> Option<Result<Decision, Error>> {
        let denied = self.denial_cache.find(key, demand, now());
        let unavailable = || {
            self.upstream
                .is_unavailable(key)
                .then(|| Err(Error::Unavailable(Reason::Other.because("the breaker is open"))))
        };
        denied.map(Ok).or_else(unavailable)
    }

    /// How a flight is to land, if it may begin.
    fn landing(self: &Arc<Self>, leased: &Arc<Leased>, flight: Flight) -> Option<Landing> {
        let demand = Demand { exact: Request { cost: flight.cost, ..self.unit }, block: None };
        let ticket = self.denial_cache.ticket(&leased.key);
        self.flying.fetch_add(1, Ordering::AcqRel);
        self.flying_units.fetch_add(flight.units, Ordering::AcqRel);
        let landing = Landing { core: Arc::clone(self), leased: Arc::clone(leased), flight, demand, ticket };
        if self.is_over() || !self.upstream.is_identified(&leased.key) {
            // Else a dry key would be denied for ever.
            leased.hand.lock().cool(awake());
            return None;
        }
        Some(landing)
    }

    /// Sends a flight. Nobody waits for it.
    fn send(self: &Arc<Self>, leased: &Arc<Leased>, flight: Flight) {
        let Some(landing) = self.landing(leased, flight) else { return };
        let (core, deadline) = (Arc::clone(self), Instant::now() + self.upstream.timeout());
        tokio::spawn(async move {
            let [ahead, peek] = landing.commands();
            let batch = Batch::Several(vec![Command::TIME, ahead, peek]);
            let counting = Arc::clone(&core);
            let settle = Box::new(move |settled: Settled| match &settled.reply {
                Ok(Reply::Array(replies)) => {
                    let [time, replies @ ..] = replies.as_slice() else { return };
                    landing.land(time.unix_ms(), replies, &settled);
                }
                // Whether the units were counted is in doubt. They are never refunded.
                _ => counting.upstream.count(Count::InDoubt, 1),
            });
            if let Ok(mut settled) = core.upstream.exchange(batch, deadline, Owner::Settle(settle)).await {
                if let Owner::Settle(settle) = std::mem::take(&mut settled.owner) {
                    settle(settled);
                }
            }
        });
    }

    /// Asks the server for a request's own units, with a flight beside it if there is one.
    async fn ask(
        self: &Arc<Self>,
        leased: Arc<Leased>,
        demand: &Demand,
        landing: Option<Landing>,
        deadline: Instant,
    ) -> Result<Decision, Error> {
        let key = &*Arc::clone(&leased.key);
        let ticket = self.denial_cache.ticket(key);
        let own = Command::allow(key, demand);
        let batch = match &landing {
            None => Batch::One(own),
            Some(landing) => Batch::Several([vec![Command::TIME, own], landing.commands().to_vec()].concat()),
        };
        let asked = Arc::new(Asked { core: Arc::clone(self), leased, landing, begun: awake() });
        let late = Arc::clone(&asked);
        // Nobody takes the request's own units: they are leased, too.
        let settle = Box::new(move |settled: Settled| {
            if let Ok((decision, since)) = late.replied(&settled) {
                late.keep(&decision, since, &settled);
            }
        });
        let settled = self.upstream.exchange(batch, deadline, Owner::Settle(settle)).await?;
        let (decision, since) = asked.replied(&settled)?;
        if decision.granted == 0 {
            self.denial_cache.denied(&self.upstream, key, demand, &decision, settled.sent, ticket);
        }
        Ok(Source::Server.decided(decision).counted_since(since))
    }

    /// Units of a key end at an instant; some go back at once.
    fn ends_at(self: &Arc<Self>, until: Instant, leased: &Arc<Leased>, back: Option<GrantedUnits>) {
        let renewed_at = leased.hand.lock().renewed_at(until, awake());
        for at in renewed_at.into_iter().chain([until]) {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            self.ends.lock().insert((at, number), Arc::clone(leased));
        }
        self.give_back(&leased.key, back.into_iter().collect());
        self.begin();
        if self.is_over() {
            self.surrender();
        }
        self.wake.notify_one();
    }

    /// A reply came from so far.
    fn heard_from(&self, trip: Duration) {
        let in_a_row = |of: &AtomicU32, is_so: bool| match is_so {
            true => of.fetch_add(1, Ordering::Relaxed) + 1 == REPLIES,
            false => {
                of.store(0, Ordering::Relaxed);
                false
            }
        };
        let (length, timeout) = (self.length, self.upstream.timeout());
        if in_a_row(&self.far, trip > length / 2) {
            tracing::warn!(?trip, ?length, "leases would end before they are used: set a longer lease_length");
        }
        if in_a_row(&self.late, trip >= timeout) {
            tracing::warn!(?trip, ?timeout, "replies with leased units come late: set a longer timeout");
        }
    }

    /// Whether nothing is leased any more.
    fn is_over(&self) -> bool {
        self.is_closed.load(Ordering::Acquire) || self.is_dropped.load(Ordering::Acquire)
    }

    /// Waits until something is so.
    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let idle = self.is_idle.notified();
            if is_so(self) {
                return;
            }
            idle.await;
        }
    }
}

/// A request that went to the server.
struct Asked {
    core: Arc<Core>,
    leased: Arc<Leased>,
    landing: Option<Landing>,
    begun: Instant,
}

impl Asked {
    /// Takes in the replies: the request's own decision, and since when its units count.
    fn replied(&self, settled: &Settled) -> Result<(Exact, Option<u64>), Error> {
        let Self { core, leased, .. } = self;
        let (own, since, ahead) = decided(&core.upstream, settled)?;
        if let Some(landing) = &self.landing {
            landing.land(since, ahead, settled);
        }
        let decision = match own {
            Reply::Error(text) => return Err(core.upstream.error(text.clone(), &leased.key)),
            own => own.decision()?,
        };
        core.heard(leased, &decision);
        Ok((decision, since))
    }

    /// Keeps the request's own units, which nobody takes.
    fn keep(&self, decision: &Exact, since: Option<u64>, settled: &Settled) {
        self.core.keep(&self.leased, decision, since, self.begun, settled);
    }
}

/// The reply to a decision, since when its units count, and the replies to what was leased beside it.
///
/// # Errors
/// [`Error::Unavailable`] where no reply came.
pub(crate) fn decided<'a>(
    upstream: &Upstream,
    settled: &'a Settled,
) -> Result<(&'a Reply, Option<u64>, &'a [Reply]), Error> {
    let reply = settled.reply.as_ref().map_err(|failure| {
        // Whether the units were counted is in doubt. They are never refunded.
        upstream.count(Count::InDoubt, 1);
        Error::Unavailable(failure.clone().into())
    })?;
    match (&settled.batch, reply) {
        (Batch::One(_), own) => Ok((own, settled.connection.unix_ms(settled.sent), &[])),
        (_, Reply::Array(replies)) => match replies.as_slice() {
            [time, own, ahead @ ..] => Ok((one_of_several(upstream, own), time.unix_ms(), ahead)),
            _ => Err(Error::Unavailable(Cause::unclear(reply))),
        },
        (_, reply) => Err(Error::Unavailable(Cause::unclear(reply))),
    }
}

/// The reply to one of several commands; without one, whether its units were counted is in doubt.
fn one_of_several<'a>(upstream: &Upstream, reply: &'a Reply) -> &'a Reply {
    upstream.count(Count::InDoubt, u64::from(*reply == Reply::Nil));
    reply
}

impl Core {
    /// The server said this of a key.
    fn heard(&self, leased: &Leased, decision: &Exact) {
        let (terms, trip) = (self.terms(decision.limit), self.trip(&leased.key));
        leased.hand.lock().heard(decision, terms, trip, awake());
        self.heard_from(trip);
    }

    /// Keeps units that were granted to nobody, in reply to what was sent after `begun`.
    fn keep(
        self: &Arc<Self>,
        leased: &Arc<Leased>,
        decision: &Exact,
        since: Option<u64>,
        begun: Instant,
        settled: &Settled,
    ) {
        let units = decision.granted;
        self.upstream.count(Count::Leased, units);
        let Some(since) = since else { return self.upstream.count(Count::WrittenOff, units) };
        let (until, server) = (begun + self.length, settled.connection.identity().cloned());
        let back = leased.hand.lock().keep(GrantedUnits { units, since, until, server }, awake());
        self.ends_at(until, leased, back);
    }
}

fn ask_of(demand: &Demand) -> Ask {
    let is_blocking = demand.block.is_some();
    Ask { cost: demand.exact.cost, is_own: demand.exact.partial || is_blocking, is_blocking }
}

impl Keep for Leased {
    fn is_idle(&self, _: Instant) -> bool {
        // By the hand's own clock, which goes on while the machine sleeps.
        self.hand.try_lock().is_some_and(|hand| hand.is_idle(awake()))
    }

    fn is_pinned(&self) -> bool {
        self.hand.try_lock().is_none_or(|hand| hand.is_busy())
    }
}
