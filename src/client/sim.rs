//! Simulation: everything above the wire, unchanged, against a simulated server and network, on a simulated clock, from
//! a seed.
//!
//! A run makes requests of one mode while replies come late or never, connections are cut or fall silent, the server
//! starts again, fails over, refuses writes, and callers go away. Then it heals everything and balances the books:
//! what was counted is what was used, given back, written off, or never heard of. A seed that fails is a regression
//! test: add it to [`FOUND`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, Instant};

use crate::fake::{Fake, Fault};
use crate::{Client, Decision, Error, Limiter, Mode, OnFailure, Quota, Request, Source};

/// Seeds that found something.
const FOUND: [u64; 3] = [0, 11, 1_000_121];

const TIMEOUT: Duration = Duration::from_millis(50);
const MODES: [Mode; 4] = [Mode::Direct, Mode::Cached, Mode::Leased, Mode::Eventual];
/// Steps of a run.
const STEPS: usize = 600;
/// After so long, a server that does not answer is known to be away: connecting says nothing for its first second.
const NOTICED: Duration = Duration::from_millis(1_300);
/// How long something that was lost with a connection may go unnoticed.
const UNNOTICED: Duration = Duration::from_secs(5);
/// Timers have whole ms.
const TICK: Duration = Duration::from_millis(2);

/// What happened in a run that its promises depend on.
#[derive(Default)]
struct Ledger {
    used: Vec<(Instant, usize, u64, Source)>,
    /// When the failure policy decided first since the outage began, by client.
    failed: [Option<Instant>; 3],
    outage: bool,
    /// When a connection was lost last, or everything was slow.
    disturbed: Option<Instant>,
    given_back: Option<Instant>,
    /// The server forgot what it had counted, or gave back what others had.
    has_lost: bool,
    has_jumped: bool,
    requests: u64,
}

struct World {
    rng: Rng,
    fake: Fake,
    mode: Mode,
    quota: Quota,
    strict: bool,
    clients: Vec<Client>,
    limiters: Vec<Limiter>,
    keys: usize,
    ledger: Arc<Mutex<Ledger>>,
    tasks: JoinSet<()>,
    faults: bool,
}

/// One run; how many events it had.
fn run(seed: u64) -> u64 {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    fastrand::seed(seed);
    runtime.block_on(async {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step().await;
        }
        world.end().await
    })
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let fake = Fake::new();
        let mode = MODES[rng.usize(..MODES.len())];
        let (window, subintervals) = match mode {
            // So long that what waits for an outage to end matters still.
            Mode::Eventual => (60_000, 12),
            _ => *rng.choice(&[(1_000, 10), (2_000, 4), (5_000, 10), (3_000, 1)]).unwrap(),
        };
        let limit = *rng.choice(&[1, 5, 20, 100, 1_000]).unwrap();
        let ms = Duration::from_millis;
        let quota = Quota::of(limit, ms(window), Some(ms(window / subintervals))).unwrap();
        let delays: Vec<_> = (0..50).map(|_| (rng.u64(..2_000), rng.u64(..2_000))).collect();
        fake.delay(delays);
        let client = || Client::builder().timeout(TIMEOUT).over(fake.clone()).unwrap();
        let clients: Vec<_> = (0..rng.usize(1..4)).map(|_| client()).collect();
        let (strict, keys, faults) = (rng.bool(), rng.usize(1..4), rng.u8(..8) > 0);
        let mut world = Self {
            rng,
            fake,
            mode,
            quota,
            strict,
            clients,
            limiters: Vec::new(),
            keys,
            ledger: Arc::default(),
            tasks: JoinSet::new(),
            faults,
        };
        world.limiters = (0..world.clients.len()).map(|client| world.limiter(client)).collect();
        world
    }

    /// Nothing is granted but what the server counts, or is to count.
    fn limiter(&self, client: usize) -> Limiter {
        let builder = self.clients[client].limiter(self.quota).mode(self.mode).on_failure(OnFailure::Deny);
        if self.strict { builder.strict() } else { builder }.build().unwrap()
    }

    async fn step(&mut self) {
        match self.rng.u32(..1_000) {
            ..=850 => self.request(),
            851..=960 => sleep(Duration::from_micros(self.rng.u64(..60_000))).await,
            961..=970 => sleep(Duration::from_millis(self.rng.u64(..2_000))).await,
            971..=974 => {
                // A reload: the old limiter hands over what it holds.
                let client = self.rng.usize(..self.clients.len());
                self.limiters[client] = self.limiter(client);
            }
            975..=979 => self.give_back(),
            _ if self.faults => self.disturb().await,
            _ => {}
        }
        // Requests come in bursts, and at intervals.
        if self.rng.u8(..4) == 0 {
            sleep(Duration::from_micros(self.rng.u64(..8_000))).await;
        }
    }

    fn request(&mut self) {
        let client = self.rng.usize(..self.limiters.len());
        let limiter = self.limiters[client].clone();
        let (fake, ledger, quota) = (self.fake.clone(), Arc::clone(&self.ledger), self.quota);
        let (key, cost) = (self.rng.usize(..self.keys), self.rng.u64(1..4).min(quota.limit()));
        let (patience, has_deadline, partial) = (self.rng.u64(1..60), self.rng.bool(), self.rng.u8(..10) == 0);
        let is_patient = self.rng.u8(..3) > 0;
        self.tasks.spawn(async move {
            let name = format!("key:{key}");
            let begun = Instant::now();
            let (is_away, is_known) = {
                let mut ledger = ledger.lock();
                ledger.requests += 1;
                let is_known = ledger.failed[client].is_some_and(|failed| failed.elapsed() > NOTICED);
                (!limiter.client().is_connected(), ledger.outage && is_known)
            };
            let mut longest = if is_away || is_known { TICK } else { TIMEOUT + TICK };
            let mut request = Request { partial, ..Request::of(&name).cost(cost) };
            let patience = Duration::from_millis(patience);
            if !is_patient && has_deadline {
                request = request.deadline(begun + patience);
                longest = longest.min(patience.max(TICK));
            }
            let deciding = limiter.allow(request);
            let decided = match is_patient || has_deadline {
                true => deciding.await,
                // The caller goes away.
                false => match timeout(patience, deciding).await {
                    Ok(decided) => decided,
                    Err(_) => return,
                },
            };
            let (mode, took) = (limiter.mode(), begun.elapsed());
            assert!(took <= longest, "{mode:?}: decided after {took:?} of {longest:?}; away: {is_away}");
            let decision = match decided {
                Ok(decision) => decision,
                Err(Error::ModuleMissing | Error::Refused(_)) => return,
                Err(error) => panic!("{error}"),
            };
            let mut ledger = ledger.lock();
            if decision.source() == Source::Failure {
                ledger.failed[client].get_or_insert(begun);
            }
            ledger.decided(&fake, &limiter, &request, key, &decision);
        });
    }

    /// Another client gives back.
    fn give_back(&mut self) {
        if self.mode == Mode::Cached || self.mode == Mode::Direct {
            let key = self.rng.usize(..self.keys);
            let command = match self.rng.bool() {
                true => format!("SWLIMIT.REFUND key:{key} {}", self.rng.u64(1..5)),
                false => format!("DEL key:{key}"),
            };
            self.fake.run(&command);
            let mut ledger = self.ledger.lock();
            ledger.given_back = Some(Instant::now());
            ledger.has_lost = true;
        }
    }

    /// Something goes wrong, and is right again, or not.
    async fn disturb(&mut self) {
        let lasting = Duration::from_millis(self.rng.u64(20..4_000));
        let loses = self.rng.u8(..4) == 0;
        self.ledger.lock().disturbed = Some(Instant::now());
        match self.rng.u8(..9) {
            0 => self.fake.cut(),
            1 => self.fake.half_open(),
            2 => {
                self.fake.slower(Duration::from_micros(self.rng.u64(..60_000)));
                self.during(lasting).await;
                self.fake.slower(Duration::ZERO);
            }
            fault @ 3..=4 => {
                self.fake.fault(if fault == 3 { Fault::BlackHole } else { Fault::Down });
                self.ledger.lock().outage = true;
                self.ledger.lock().failed = [None; 3];
                self.during(lasting).await;
                self.fake.fault(Fault::None);
                self.ledger.lock().outage = false;
            }
            5 => {
                self.fake.restart(!loses);
                self.ledger.lock().has_lost |= loses;
            }
            6 if loses => {
                self.fake.replicate();
                self.during(lasting).await;
                self.fake.fail_over();
                self.ledger.lock().has_lost = true;
            }
            7 if loses => {
                let ms = self.rng.i64(-5_000..5_000);
                self.fake.jump(ms);
                self.ledger.lock().has_jumped = true;
            }
            _ => {
                let code = *self.rng.choice(&["OOM no", "LOADING data", "NOREPLICAS no", "READONLY replica"]).unwrap();
                self.fake.fail(Some(code));
                self.during(lasting).await;
                self.fake.fail(None);
            }
        }
        self.ledger.lock().disturbed = Some(Instant::now());
    }

    /// Requests go on.
    async fn during(&mut self, lasting: Duration) {
        let end = Instant::now() + lasting;
        while Instant::now() < end {
            for _ in 0..self.rng.u8(..4) {
                self.request();
            }
            sleep(Duration::from_micros(self.rng.u64(100..20_000))).await;
        }
    }

    /// Heals everything, and balances the books.
    async fn end(mut self) -> u64 {
        for _ in 0..40 {
            self.request();
            sleep(Duration::from_millis(100)).await;
        }
        for (number, limiter) in self.limiters.iter().enumerate() {
            let name = format!("healthy:{number}");
            let decision = limiter.allow(&name).await.unwrap();
            assert_ne!(
                decision.source(),
                Source::Failure,
                "{:?}: the server is back; {:?}",
                self.mode,
                limiter.client().statistics()
            );
            self.ledger.lock().used.push((Instant::now(), usize::MAX, decision.units(), decision.source()));
        }
        while let Some(done) = self.tasks.join_next().await {
            if let Err(error) = done {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        // Whatever is late has come, or was given up.
        sleep(Duration::from_secs(13)).await;
        for client in &self.clients {
            let begun = Instant::now();
            client.close().await;
            assert!(begun.elapsed() < Duration::from_secs(5));
        }
        self.balance();
        let (fake, ledger) = (self.fake.clone(), Arc::clone(&self.ledger));
        drop(self);
        sleep(Duration::from_secs(13)).await;
        assert_eq!(fake.connections(), 0, "connections are left");
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
        let requests = ledger.lock().requests;
        fake.events() + requests
    }

    fn balance(&self) {
        let ledger = self.ledger.lock();
        let sum = |of: fn(&crate::Statistics) -> u64| -> u64 {
            self.clients.iter().map(|client| of(&client.statistics())).sum()
        };
        let used = |source: Source| -> u64 {
            ledger.used.iter().filter(|(.., by)| *by == source).map(|(_, _, units, _)| units).sum()
        };
        let (counted, undelivered) = (self.fake.counted(), self.fake.undelivered());
        let (by_server, leased) = (used(Source::Server), used(Source::Lease));
        match self.mode {
            Mode::Leased => {
                let ahead = sum(|statistics| statistics.leased);
                assert_eq!(counted, by_server + ahead + undelivered, "counted; used {by_server}, leased {ahead}");
                let (returned, written_off) = (sum(|all| all.returned), sum(|all| all.written_off));
                assert_eq!(ahead, leased + returned + written_off, "leased; used {leased}, returned {returned}");
                let length = self.quota.resolution().min(Duration::from_secs(1));
                self.keeps_limit(&ledger, length);
            }
            Mode::Eventual => {
                let used = used(Source::Eventual) + by_server;
                let lost = sum(|statistics| statistics.lost + statistics.refused);
                assert!(counted + lost >= used, "counted {counted} of {used}, {lost} lost");
                assert!(counted <= used + undelivered, "counted {counted} of {used}, {undelivered} in doubt");
            }
            _ => {
                assert!(by_server <= counted);
                self.keeps_limit(&ledger, Duration::ZERO);
            }
        }
    }

    /// No span sees more units used than the limit, but where the server forgot, or its clock was set.
    fn keeps_limit(&self, ledger: &Ledger, length: Duration) {
        if ledger.has_lost || ledger.has_jumped {
            return;
        }
        let resolution = if self.strict { Duration::ZERO } else { self.quota.resolution() };
        // A request is counted before its reply is seen, by its timeout at most.
        let span = self.quota.window().saturating_sub(length + resolution + TIMEOUT + TICK);
        for key in 0..self.keys {
            let mut within: VecDeque<(Instant, u64)> = VecDeque::new();
            for (at, _, units, _) in ledger.used.iter().filter(|(_, of, ..)| *of == key) {
                within.push_back((*at, *units));
                while within.front().is_some_and(|(first, _)| *at >= *first + span) {
                    within.pop_front();
                }
                let units: u64 = within.iter().map(|(_, units)| units).sum();
                assert!(units <= self.quota.limit(), "{units} of {} in {span:?}", self.quota.limit());
            }
        }
    }
}

impl Ledger {
    fn decided(&mut self, fake: &Fake, limiter: &Limiter, request: &Request<'_>, key: usize, decision: &Decision) {
        let now = Instant::now();
        self.used.push((now, key, decision.units(), decision.source()));
        if decision.source() == Source::Cache && !self.has_jumped {
            let name = format!("key:{key}");
            let would = fake.would(&name, &limiter.demand(request).exact);
            let is_recent = |at: Option<Instant>, by: Duration| at.is_some_and(|at| now <= at + by);
            let is_late =
                is_recent(self.disturbed, UNNOTICED) || is_recent(self.given_back, Duration::from_millis(150));
            assert!(would.granted == 0 || is_late, "{decision:?}, but the server would: {would:?}");
        }
    }
}

/// Runs seeds until so many events have happened.
fn simulate(first: u64, events: u64) {
    let mut happened = 0;
    for seed in first.. {
        let run = std::panic::catch_unwind(|| run(seed));
        match run {
            Ok(events) => happened += events,
            Err(panic) => {
                eprintln!("seed {seed} fails; {happened} events before");
                std::panic::resume_unwind(panic);
            }
        }
        if happened >= events {
            eprintln!("{} seeds, {happened} events", seed + 1 - first);
            return;
        }
    }
}

#[test]
fn seeds_that_found_something() {
    for seed in FOUND {
        run(seed);
    }
}

/// Half a million events each, side by side.
#[test]
fn half_a_million_events() {
    simulate(0, 500_000);
}

#[test]
fn another_half_a_million_events() {
    simulate(1_000_000, 500_000);
}

/// As many as `SWLIMIT_EVENTS` says, from the seed `SWLIMIT_SEED` on: see `scripts/simulate`.
#[test]
#[ignore = "as long as one likes"]
fn any_number_of_events() {
    let number = |name, usual| std::env::var(name).map_or(usual, |text| text.parse().expect(name));
    simulate(number("SWLIMIT_SEED", fastrand::u64(..1 << 32)), number("SWLIMIT_EVENTS", 10_000_000));
}
