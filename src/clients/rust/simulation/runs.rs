//! Simulation: everything above the wire, unchanged, against a simulated server and network, on a simulated clock, from
//! a seed.
//!
//! A run makes requests of one mode, of one limit or several, some of which wait for their turn, while replies come
//! late or never, connections are cut or fall silent, servers start again, fail over, refuse writes, slots move, and
//! callers go away. Then it heals everything and balances the books: what was counted is what was used, given back,
//! written off, or unknown for ever. A seed that fails is a regression test: add it to [`FOUND`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, Instant};

use crate::simulation::fake::{paused, Fake, Fault};
use crate::{Client, Decision, Error, Limiter, Mode, OnFailure, Quota, Request, Source};

/// Seeds that found something. Of defects that were put back, one at a time, these are found first by the seed behind:
/// who waits asks for a place before it asks whether the key is free (0), a late lease is lost (1), leases are lost in a
/// reload (1), a pipeline of errors counts as success (2), a reload loses what is unsent (2), several limits of mode
/// direct are denied by the cache (5), a synchronization is sent again while it may still be answered (22), what is
/// behind a key that is refused is sent again (35), a key that is refused is denied (168). That several limits never
/// lease is found by [`Coverage::assert_decided`].
///
/// The client was wrong: a connection that was made while the server had neither the module nor scripts asked for
/// scripts for ever (26,000,119, 28,000,149, and 17,000,118, where a unit was never told); a denial that was heard just
/// when a request of mode leased arrived denied it, too (22,000,096); a connection that fell silent when another one's
/// reply had just come opened no breaker (1,917,113,231,870); a key for which there was no room got its share
/// twice (1,670,117,525,903); a connection that ended, or fell silent, while a key was being taken over took the replies to
/// all other commands with it, which were sent again (281,477,982,603,012; 281,475,690,767,736); a request of several
/// limits waited for units on their way from a server that was unavailable (281,477,000,000,321); a connection that was silent for
/// long opened the breaker of a server that was back over another one (281,477,300,019,771); a key that is refused was
/// never known to be, where trips are long (281,477,564,634,137); a late reply over a connection that requests had left
/// said that the server is slow (562,950,259,126,547).
///
/// The simulator expected too much: of clients that did not ask meanwhile (13,000,116; 910,000,354: for a key that had
/// been refused), or had to make a connection or follow a redirection first, for which there was no time (15,000,105,
/// 1,296,058,849,558, 281,477,100,016,876), or whose connection refused writes (5,000,172, 7,000,229); and of denials that
/// hold for a short time, while leases were given back (1,192,107,374,201). And it was wrong: a former primary said
/// nothing when it copied all from the new one (281,477,200,018,128); a connection that was being made was refused, and not
/// silent, when nothing arrived any more (562,951,651,008,718); and a module that came back between two commands was
/// no error (562,953,492,558,381).
const FOUND: [u64; 30] = [
    0,
    11,
    168,
    1_000_121,
    5_000_172,
    7_000_229,
    13_000_116,
    15_000_105,
    17_000_118,
    22_000_096,
    26_000_119,
    28_000_149,
    910_000_354,
    1_192_107_374_201,
    1_296_058_849_558,
    1_670_117_525_903,
    1_917_113_231_870,
    281_475_690_767_736,
    281_477_000_000_321,
    281_477_100_016_876,
    281_477_200_018_128,
    281_477_300_019_771,
    281_477_564_634_137,
    281_477_982_603_012,
    281_476_602_170_833,
    562_950_259_126_547,
    562_951_651_008_718,
    562_952_651_002_919,
    562_953_492_558_381,
    562_954_109_293_291,
];

/// From this seed on, what is rare happens often, and one thing in the midst of another. Below, runs stay what they
/// were when they found something: new kinds of trouble belong here.
const ROUGH: u64 = 1 << 48;

/// From this seed on, connections take longer than the timeout to be made now and then, nodes of a cluster tell an empty
/// table of slots, and clients close while requests are under way.
const STRANGE: u64 = 1 << 49;

/// From this seed on, half of the limits rise after idleness.
const RISING: u64 = 1 << 50;

const TIMEOUT: Duration = Duration::from_millis(50);
const MODES: [Mode; 4] = [Mode::Direct, Mode::Cached, Mode::Leased, Mode::Eventual];
/// Steps of a run.
const STEPS: usize = 600;
/// After so long, a server that does not answer is known to be unavailable: connecting says nothing for its first second.
const NOTICED: Duration = Duration::from_millis(1_300);
/// How long something that was lost with a connection may go unnoticed.
const UNNOTICED: Duration = Duration::from_secs(5);
/// A server that is back is used again after so long; where packets were dropped, or were late by seconds, after three
/// times that: the last late replies still say that it is slow, and the next probe comes half a second after them.
const BACK: Duration = Duration::from_secs(1);
/// A key that the server refuses is known to be refused after so long.
const REFUSED: Duration = Duration::from_millis(500);
/// How late a reply may be that somebody waits for on the server.
const LATE: Duration = Duration::from_millis(150);
/// Closing takes no longer, and a connection that is being made is given up behind it.
const CLOSED: Duration = Duration::from_millis(2_600);
/// Timers have whole ms.
const TICK: Duration = Duration::from_millis(2);
/// The number of all keys that are asked for once.
const ALONE: usize = usize::MAX;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Cut,
    /// All connections fall silent.
    HalfOpen,
    Slow,
    BlackHole,
    Down,
    Restart,
    FailOver,
    /// The same; the old primary goes on, and only sentinels announce it.
    Announced,
    ClockSet,
    Errors,
    /// What is on its way is late by seconds.
    Late,
    Reshard,
    RefusedKey,
    /// Replies to what the mode depends on most are lost with their connections.
    LostReply,
    /// All connections are cut, and new ones take longer than the timeout to be made.
    SlowToOpen,
    /// A node of a cluster tells an empty table of slots, while slots move.
    EmptySlots,
}

impl What {
    const USUAL: [Self; 13] = [
        Self::Cut,
        Self::HalfOpen,
        Self::Slow,
        Self::BlackHole,
        Self::Down,
        Self::Restart,
        Self::FailOver,
        Self::ClockSet,
        Self::Errors,
        Self::Errors,
        Self::Late,
        Self::Reshard,
        Self::RefusedKey,
    ];
    /// When it is rough.
    const ROUGH: [Self; 14] = [
        Self::Cut,
        Self::HalfOpen,
        Self::Slow,
        Self::BlackHole,
        Self::Down,
        Self::Restart,
        Self::FailOver,
        Self::Announced,
        Self::ClockSet,
        Self::Errors,
        Self::Late,
        Self::Reshard,
        Self::RefusedKey,
        Self::LostReply,
    ];
    /// When it is strange, these besides.
    const STRANGE: [Self; 2] = [Self::SlowToOpen, Self::EmptySlots];
    /// In the midst of these, others happen.
    const LASTING: [Self; 9] = [
        Self::Slow,
        Self::BlackHole,
        Self::Down,
        Self::Restart,
        Self::FailOver,
        Self::Announced,
        Self::Errors,
        Self::RefusedKey,
        Self::LostReply,
    ];
    const SUDDEN: [Self; 6] =
        [Self::Cut, Self::HalfOpen, Self::Restart, Self::FailOver, Self::Reshard, Self::LostReply];
}

/// What happened in a run that its promises depend on.
struct Ledger {
    used: Vec<Used>,
    nodes: Vec<Trouble>,
    /// By client and node.
    failing: Vec<Vec<Failing>>,
    given_back: Option<Instant>,
    /// A server forgot what it had counted, or gave back what others had.
    has_lost: bool,
    has_jumped: bool,
    /// Some connection fell silent, which may be noticed much later.
    is_half_open: bool,
    /// A key that the server refuses, and by client when it was asked for first.
    refused: Option<(usize, Vec<Option<Instant>>)>,
    reloads: u64,
    requests: u64,
    /// Units that requests have waited for which may be granted when nobody waits any more.
    waited_for: u64,
    coverage: Coverage,
}

/// Units that a decision granted.
struct Used {
    at: Instant,
    key: usize,
    units: u64,
    source: Source,
    /// What it said of the limit.
    limit: u64,
}

/// What happened at all: nothing is found where nobody looks.
#[derive(Clone, Default)]
struct Coverage {
    /// Who decided what.
    decided: HashSet<(Mode, &'static str, Source)>,
    troubles: HashMap<(Mode, What), u64>,
    /// The second in the midst of the first.
    within: HashMap<(What, What), u64>,
}

/// What was wrong with a server or its network.
#[derive(Clone, Default)]
struct Trouble {
    is_on: bool,
    /// Nothing comes back.
    is_out: bool,
    ended: Option<Instant>,
    /// When packets were dropped, or late by seconds, the last time.
    dropped: Option<Instant>,
}

/// When the failure policy decided first.
#[derive(Clone, Default)]
struct Failing {
    /// Since the outage began.
    since_outage: Option<Instant>,
    /// Since the server, or what is known of it, decided.
    since: Option<Instant>,
    /// When the server was asked first since all was well: a client that does not ask cannot notice.
    asked: Option<Instant>,
}

struct World {
    rng: Rng,
    fake: Fake,
    mode: Mode,
    quota: Quota,
    strict: bool,
    warm_up: Option<Duration>,
    clients: Vec<Client>,
    limiters: Vec<Limiter>,
    keys: usize,
    ledger: Arc<Mutex<Ledger>>,
    tasks: JoinSet<()>,
    faults: bool,
    is_rough: bool,
    is_strange: bool,
    /// Servers lose what they have counted, and their clocks are set: the limit is not promised then.
    is_lossy: bool,
    /// What is to happen in the midst of what lasts, and at which node.
    sudden: Option<(What, usize)>,
    /// Nothing but synchronizations asks the server.
    only_synchronizes: bool,
    /// How many of a hundred requests wait for their turn.
    waiting: u8,
    /// The clients closed while the server owed replies.
    closes_in_doubt: bool,
}

/// What a request is.
#[derive(Clone, Copy)]
enum Kind {
    One,
    /// Two limits at once.
    Two(usize),
    /// It waits for its turn, so long at most.
    Waiting(Duration),
    /// The same of a key that nobody else asks for.
    WaitingAlone(Duration),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two(_) => "two",
            Self::Waiting(_) | Self::WaitingAlone(_) => "waiting",
        }
    }
}

/// What came of a run.
struct Outcome {
    events: u64,
    coverage: Coverage,
}

/// One run.
fn run(seed: u64) -> Outcome {
    fastrand::seed(seed);
    paused(async {
        let mut world = World::new(seed);
        world.connect().await;
        for _ in 0..STEPS {
            world.step().await;
        }
        world.end().await
    })
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let nodes = *rng.choice(&[1, 1, 1, 3]).unwrap();
        let fake = Fake::cluster(nodes).waiting();
        let mode = MODES[rng.usize(..MODES.len())];
        let (window, subintervals) = match mode {
            // So long that what waits for an outage to end matters still.
            Mode::Eventual => (60_000, 12),
            _ => *rng.choice(&[(1_000, 10), (2_000, 4), (5_000, 10), (3_000, 1)]).unwrap(),
        };
        let limit = *rng.choice(&[1, 5, 20, 100, 1_000]).unwrap();
        let ms = Duration::from_millis;
        let quota = Quota::of(limit, ms(window), Some(ms(window / subintervals))).unwrap();
        // Near, or far: in time all the same.
        let far = *rng.choice(&[0, 0, 5_000, 18_000]).unwrap();
        let delays: Vec<_> = (0..50).map(|_| (far + rng.u64(..2_000), far + rng.u64(..2_000))).collect();
        fake.delay(delays);
        let only_synchronizes = mode == Mode::Eventual && rng.bool();
        let max_keys = if only_synchronizes { 100_000 } else { *rng.choice(&[2, 100_000]).unwrap() };
        let (max_waiting, waiting) = (*rng.choice(&[1, 3, 10]).unwrap(), *rng.choice(&[3, 3, 30]).unwrap());
        let builder = Client::builder().timeout(TIMEOUT).max_keys(max_keys).max_waiting(max_waiting);
        let client = || builder.clone().over(fake.clone()).unwrap();
        let clients: Vec<_> = (0..rng.usize(1..4)).map(|_| client()).collect();
        let (strict, keys, faults) = (rng.bool(), rng.usize(1..6), rng.u8(..4) > 0);
        let is_rough = seed >= ROUGH;
        let is_lossy = !is_rough || rng.u8(..3) > 0;
        let warm_up = (seed >= RISING && rng.bool()).then(|| quota.window() * rng.u32(10..30));
        let ledger = Ledger {
            used: Vec::new(),
            nodes: vec![Trouble::default(); nodes],
            failing: vec![vec![Failing::default(); nodes]; clients.len()],
            given_back: None,
            has_lost: false,
            has_jumped: false,
            is_half_open: false,
            refused: None,
            reloads: 0,
            requests: 0,
            waited_for: 0,
            coverage: Coverage::default(),
        };
        let mut world = Self {
            rng,
            fake,
            mode,
            quota,
            strict,
            warm_up,
            clients,
            limiters: Vec::new(),
            keys,
            ledger: Arc::new(Mutex::new(ledger)),
            tasks: JoinSet::new(),
            faults,
            is_rough,
            is_strange: seed >= STRANGE,
            is_lossy,
            sudden: None,
            only_synchronizes,
            waiting,
            closes_in_doubt: false,
        };
        world.limiters = (0..world.clients.len()).map(|client| world.limiter(client)).collect();
        world
    }

    /// Nothing is granted but what the server counts, or is to count.
    fn limiter(&self, client: usize) -> Limiter {
        let builder = self.clients[client].limiter(self.quota).mode(self.mode).on_failure(OnFailure::Deny);
        let builder = if self.strict { builder.strict() } else { builder };
        self.warm_up.into_iter().fold(builder, |builder, length| builder.warm_up(length)).build().unwrap()
    }

    /// A single client of mode eventual, which nothing disturbs, exceeds no limit.
    fn is_exact(&self) -> bool {
        self.mode == Mode::Eventual && self.clients.len() == 1 && !self.faults
    }

    /// The first request of all finds no connection yet; that of a cluster, not even the node.
    async fn connect(&mut self) {
        for _ in 0..2 {
            for limiter in &self.limiters {
                for key in 0..self.keys {
                    let _ = limiter.peek(&name(key)).await;
                }
            }
            sleep(Duration::from_millis(500)).await;
        }
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
                self.ledger.lock().reloads += 1;
            }
            975..=978 => self.give_back(),
            979 => self.fake.close_idle(),
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
        let kind = match self.rng.u8(..100) {
            _ if self.is_exact() || self.only_synchronizes => Kind::One,
            share if share < self.waiting / 3 => Kind::WaitingAlone(Duration::from_millis(1_500)),
            share if share < self.waiting => Kind::Waiting(Duration::from_millis(self.rng.u64(..1_500))),
            // In a cluster, keys of several limits are of one slot.
            90.. if self.keys > 1 && fake.nodes() == 1 => Kind::Two((key + 1) % self.keys),
            _ => Kind::One,
        };
        let number = {
            let mut ledger = self.ledger.lock();
            ledger.requests += 1;
            ledger.requests
        };
        self.tasks.spawn(async move {
            let name = if let Kind::WaitingAlone(_) = kind { format!("alone:{number}") } else { name(key) };
            let node = fake.node(&name);
            let begun = Instant::now();
            let is_known = {
                let mut ledger = ledger.lock();
                let since = ledger.failing[client][node].since_outage;
                if let Kind::Waiting(_) | Kind::WaitingAlone(_) = kind {
                    ledger.waited_for += cost;
                }
                ledger.nodes[node].is_out && since.is_some_and(|since| since.elapsed() > NOTICED)
            };
            let upstream = limiter.deciding().upstream().unwrap();
            let is_unavailable = upstream.is_unavailable(name.as_bytes());
            // Else a connection is made first, or a redirection followed, for which there may be no time: what is
            // learned then is for the next request.
            let address = fake.address_of(&name);
            let leads_there = upstream.leads_to(&address, name.as_bytes());
            let is_found = upstream.finds(&address, name.as_bytes());
            let is_calm = fake.nodes() == 1 && ledger.lock().is_calm();
            let mut longest = match kind {
                // What is free needs no turn.
                Kind::WaitingAlone(_) if is_calm => TIMEOUT + TICK,
                Kind::Waiting(longest) | Kind::WaitingAlone(longest) => longest + 3 * TIMEOUT + TICK,
                _ if is_unavailable || is_known => TICK,
                _ => TIMEOUT + TICK,
            };
            let is_waiting = matches!(kind, Kind::Waiting(_) | Kind::WaitingAlone(_));
            let partial = partial && matches!(kind, Kind::One);
            let mut request = Request { partial, ..Request::new(&name).cost(cost) };
            let patience = Duration::from_millis(patience);
            if !is_patient && has_deadline && !is_waiting {
                request = request.deadline(begun + patience);
                longest = longest.min(patience.max(TICK));
            }
            let deciding = async {
                match kind {
                    Kind::One => {
                        limiter.allow(request).await.map(|decision| (decision.granted(), vec![(key, decision)]))
                    }
                    Kind::Waiting(longest) | Kind::WaitingAlone(longest) => {
                        let of = if let Kind::Waiting(_) = kind { key } else { ALONE };
                        let waited = limiter.acquire(request, longest).await;
                        waited.map(|decision| (decision.granted(), vec![(of, decision)]))
                    }
                    Kind::Two(second) => {
                        let other = crate::simulation::runs::name(second);
                        let both = [(&limiter, request), (&limiter, Request { key: other.as_bytes(), ..request })];
                        let decided = limiter.client().allow_all(&both).await;
                        decided.map(|all| (all.granted(), [key, second].into_iter().zip(all.each().to_vec()).collect()))
                    }
                }
            };
            let decided = match is_patient || has_deadline {
                true => deciding.await,
                // The caller is gone.
                false => match timeout(patience, deciding).await {
                    Ok(decided) => decided,
                    Err(_) => return,
                },
            };
            if let (Kind::WaitingAlone(patience), false) = (kind, ledger.lock().is_calm()) {
                longest = patience + 3 * TIMEOUT + TICK;
            }
            let (mode, took) = (limiter.mode(), begun.elapsed());
            let what = kind.name();
            assert!(took <= longest, "{mode:?}, {what}: decided after {took:?} of {longest:?}; away: {is_unavailable}");
            let (is_granted, each) = match decided {
                Ok(decided) => decided,
                // Too old is a module that was missing for a command, and there when it was asked about others.
                Err(Error::ModuleMissing | Error::ModuleTooOld(_) | Error::Refused(_)) => return,
                Err(error) => panic!("{error}"),
            };
            let mut ledger = ledger.lock();
            // What is wrong with a server that it has not asked, a client cannot notice.
            let may_notice = leads_there || each[0].1.source() != Source::Failure;
            if is_patient && !is_waiting && may_notice {
                ledger.failed_or_not(&limiter, client, node, &each[0].1, begun, is_found);
            }
            for (key, decision) in each {
                let units = if is_granted { decision.units() } else { 0 };
                ledger.used.push(Used::of(key, units, &decision));
                ledger.coverage.decided.insert((mode, what, decision.source()));
                let is_refused = ledger.is_refused(client, key, begun);
                assert!(!is_refused || decision.source() == Source::Failure, "{decision:?} of a key that is refused");
                ledger.decided(&fake, &limiter, &request, key, &decision, begun);
            }
        });
    }

    /// Another client gives back.
    fn give_back(&mut self) {
        if self.mode == Mode::Cached || self.mode == Mode::Direct {
            let key = name(self.rng.usize(..self.keys));
            match self.rng.u8(..3) {
                0 => drop(self.fake.run(&format!("SWLIMIT.REFUND {key} {}", self.rng.u64(1..5)))),
                1 => drop(self.fake.run(&format!("DEL {key}"))),
                _ => {
                    self.fake.expire(&key, Duration::from_millis(self.rng.u64(1..3_000)));
                    // The server announces that the key was changed, but not when it has expired.
                    self.fake.run(&format!("SWLIMIT.UNBLOCK {key}"));
                }
            }
            let mut ledger = self.ledger.lock();
            ledger.given_back = Some(Instant::now());
            ledger.has_lost = true;
        }
    }

    /// Something goes wrong, and is right again, or not.
    async fn disturb(&mut self) {
        let lasting = Duration::from_millis(self.rng.u64(20..4_000));
        let loses = self.rng.u8(..4) == 0 && self.is_lossy;
        let node = self.rng.usize(..self.fake.nodes());
        let kinds = if self.is_rough { &What::ROUGH[..] } else { &What::USUAL };
        let mut what = kinds[usize::from(self.rng.u8(..kinds.len() as u8))];
        if self.is_strange && self.rng.u8(..4) == 0 {
            what = *self.rng.choice(&What::STRANGE).unwrap();
        }
        let is_one = matches!(
            what,
            What::BlackHole | What::Down | What::Restart | What::FailOver | What::Announced | What::Errors
        );
        let all = 0..self.fake.nodes();
        let mut nodes = if is_one { node..node + 1 } else { all.clone() };
        let erring = nodes.clone();
        what = match what {
            What::FailOver | What::Announced | What::ClockSet if !self.is_lossy => What::Restart,
            What::FailOver if !(loses || self.is_rough || self.only_synchronizes) => What::Errors,
            What::FailOver if !self.is_rough && lasting.as_millis().is_multiple_of(3) => What::Announced,
            What::ClockSet if !(loses || self.is_rough) => What::Errors,
            what => what,
        };
        if self.is_rough && What::LASTING.contains(&what) && self.rng.u8(..4) > 0 {
            let sudden = self.rng.choice(What::SUDDEN).filter(|sudden| *sudden != What::FailOver || self.is_lossy);
            self.sudden = sudden.map(|sudden| (sudden, node));
            nodes = all;
        }
        self.count(what);
        let was_calm = self.ledger.lock().is_calm();
        self.trouble(nodes.clone(), true);
        if let Some((sudden, _)) = self.sudden {
            *self.ledger.lock().coverage.within.entry((what, sudden)).or_default() += 1;
            // Else nothing would be left of what was counted.
            self.fake.replicate(node);
        }
        match what {
            What::Slow => {
                self.fake.slower(Duration::from_micros(self.rng.u64(..60_000)));
                self.during(lasting).await;
                self.fake.slower(Duration::ZERO);
            }
            What::BlackHole | What::Down => {
                let fault = if what == What::Down { Fault::Down } else { Fault::BlackHole };
                self.outage(node, fault, lasting).await;
                if what == What::BlackHole {
                    // Nobody learns what was lost in it.
                    self.dropped(nodes.clone());
                }
            }
            What::Restart => {
                if self.is_rough {
                    self.outage(node, Fault::Down, lasting).await;
                }
                self.strike(what, node, loses);
            }
            What::FailOver | What::Announced => {
                self.fake.replicate(node);
                self.during(lasting).await;
                if what == What::FailOver {
                    self.strike(what, node, loses);
                } else {
                    self.fake.divide(node);
                    // Sentinels are asked each second.
                    self.during(lasting.min(Duration::from_secs(1))).await;
                    self.fake.announce(node);
                    self.ledger.lock().has_lost = true;
                }
                if self.only_synchronizes {
                    self.calm(20).await;
                }
            }
            What::Late => {
                self.fake.slower(Duration::from_millis(self.rng.u64(500..4_000)));
                self.during(Duration::from_millis(200)).await;
                self.fake.slower(Duration::ZERO);
                self.dropped(nodes.clone());
            }
            What::RefusedKey => {
                let key = self.rng.usize(..self.keys);
                self.fake.refuse(&name(key), "WRONGTYPE Operation");
                if was_calm && self.only_synchronizes && self.sudden.is_none() {
                    self.ledger.lock().refused = Some((key, vec![None; self.clients.len()]));
                }
                self.during(lasting).await;
                self.fake.accept(&name(key));
                self.ledger.lock().refused = None;
            }
            What::LostReply => {
                self.strike(what, node, loses);
                self.during(lasting).await;
            }
            What::SlowToOpen => {
                self.fake.open_later(Duration::from_millis(self.rng.u64(20..1_500)));
                self.fake.cut();
                self.during(lasting).await;
                self.fake.open_later(Duration::ZERO);
                self.dropped(0..self.fake.nodes()); // one that is being made takes its second
            }
            What::EmptySlots => {
                self.fake.forget_slots(node);
                self.strike(What::Reshard, node, loses);
                self.during(lasting).await;
                self.fake.remember_slots(node);
            }
            What::Errors => {
                const CODES: [&str; 5] = [
                    "OOM no",
                    "LOADING data",
                    "NOREPLICAS no",
                    "READONLY replica",
                    "ERR unknown command 'SWLIMIT.ALLOW'",
                ];
                let code = *self.rng.choice(&CODES).unwrap();
                erring.clone().for_each(|node| self.fake.fail_at(node, Some(code)));
                self.during(lasting).await;
                erring.for_each(|node| self.fake.fail_at(node, None));
            }
            What::Cut | What::HalfOpen | What::ClockSet | What::Reshard => self.strike(what, node, loses),
        }
        self.fake.keep_replies();
        self.trouble(nodes, false);
    }

    /// Something goes wrong at once.
    fn strike(&mut self, what: What, node: usize, loses: bool) {
        match what {
            What::Cut => self.fake.cut(),
            What::HalfOpen => {
                self.fake.half_open();
                self.dropped(0..self.fake.nodes());
            }
            What::Restart => {
                self.fake.restart(node, !loses);
                self.ledger.lock().has_lost |= loses;
            }
            What::FailOver => {
                self.fake.fail_over(node, self.rng.bool());
                self.ledger.lock().has_lost = true;
            }
            What::ClockSet => {
                let ms = self.rng.i64(-5_000..5_000);
                self.fake.jump(ms);
                self.ledger.lock().has_jumped = true;
            }
            What::Reshard => self.fake.reshard(&name(self.rng.usize(..self.keys)), node),
            What::LostReply => {
                let commands = match self.mode {
                    Mode::Eventual => &["SWLIMIT.RECORD", "SWLIMIT.RECORD", "SWLIMIT.PEEK"],
                    Mode::Leased => &["SWLIMIT.REFUND", "SWLIMIT.ALLOW", "SWLIMIT.MALLOW"],
                    _ => &["SWLIMIT.ALLOW", "SWLIMIT.ACQUIRE", "SWLIMIT.PEEK"],
                };
                let is_silent = self.rng.u8(..4) == 0;
                self.fake.lose_replies(self.rng.choice(commands).unwrap(), self.rng.usize(1..4), is_silent);
                if is_silent {
                    self.dropped(0..self.fake.nodes());
                }
            }
            _ => unreachable!("{what:?} lasts"),
        }
    }

    /// Something is wrong with the network before a node.
    async fn outage(&mut self, node: usize, fault: Fault, lasting: Duration) {
        self.fake.fault_at(node, fault);
        self.out(node, true);
        self.during(lasting).await;
        self.fake.fault_at(node, Fault::None);
        self.out(node, false);
    }

    fn count(&self, what: What) {
        *self.ledger.lock().coverage.troubles.entry((self.mode, what)).or_default() += 1;
    }

    fn trouble(&self, nodes: std::ops::Range<usize>, is_on: bool) {
        let mut ledger = self.ledger.lock();
        for trouble in &mut ledger.nodes[nodes] {
            trouble.is_on = is_on;
            trouble.ended = Some(Instant::now());
        }
    }

    /// Packets were dropped before these nodes.
    fn dropped(&self, nodes: std::ops::Range<usize>) {
        let mut ledger = self.ledger.lock();
        ledger.is_half_open = true;
        ledger.nodes[nodes].iter_mut().for_each(|trouble| trouble.dropped = Some(Instant::now()));
    }

    fn out(&self, node: usize, is_out: bool) {
        self.ledger.lock().nodes[node].is_out = is_out;
        self.noticed_nothing(node);
    }

    fn noticed_nothing(&self, node: usize) {
        self.ledger.lock().failing.iter_mut().for_each(|nodes| nodes[node].since_outage = None);
    }

    /// Requests go on. Something may happen in the midst of it.
    async fn during(&mut self, lasting: Duration) {
        let (midst, end) = (Instant::now() + lasting / 2, Instant::now() + lasting);
        while Instant::now() < end {
            if let Some((what, node)) = self.sudden.take_if(|_| Instant::now() >= midst) {
                let loses = self.rng.bool() && self.is_lossy;
                self.strike(what, node, loses);
                // Where connections were lost, connecting has to show again that a server is unavailable.
                (0..self.fake.nodes()).for_each(|node| self.noticed_nothing(node));
            }
            for _ in 0..self.rng.u8(..4) {
                self.request();
            }
            sleep(Duration::from_micros(self.rng.u64(100..20_000))).await;
        }
    }

    /// Heals everything, and balances the books.
    async fn end(mut self) -> Outcome {
        // A synchronization is given up after ten seconds.
        self.calm(40).await;
        for client in 0..self.limiters.len() {
            self.assert_served(client, &format!("healthy:{client}"), ALONE).await;
            for key in 0..self.keys {
                self.assert_served(client, &name(key), key).await;
            }
        }
        while let Some(done) = self.tasks.join_next().await {
            if let Err(error) = done {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        // Whatever is late has come, or was given up.
        sleep(Duration::from_secs(13)).await;
        self.close().await;
        self.balance();
        let (fake, ledger, mode) = (self.fake.clone(), Arc::clone(&self.ledger), self.mode);
        drop(self);
        sleep(Duration::from_secs(13)).await;
        assert_eq!(fake.connections(), 0, "connections are left");
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
        let mut ledger = ledger.lock();
        let lost = ledger.coverage.troubles.get_mut(&(mode, What::LostReply));
        lost.into_iter().for_each(|lost| *lost = fake.lost_replies());
        Outcome { events: fake.events() + ledger.requests, coverage: ledger.coverage.clone() }
    }

    /// The server decides, or what is known of it, once what was lost has been noticed.
    async fn assert_served(&self, client: usize, name: &str, key: usize) {
        let limiter = &self.limiters[client];
        // The first finds a connection that was lost or refuses writes, or what a synchronization heard; the next ones
        // none, or another node that has the key, and while one is made, or a redirection followed, their time is up.
        for _ in 0..5 {
            if let Ok(decision) = limiter.allow(name).await {
                self.ledger.lock().used.push(Used::of(key, decision.units(), &decision));
                if decision.source() != Source::Failure {
                    return;
                }
            }
            sleep(2 * BACK).await;
        }
        let client = limiter.client();
        panic!("{:?}: the server is back; {:?}", self.mode, (client.servers(), client.statistics()));
    }

    /// Closes the clients; often while the server is unavailable, which is back in time.
    async fn close(&mut self) {
        let lost = |clients: &[Client]| clients.iter().map(|client| client.statistics().lost).sum::<u64>();
        let in_doubt = |clients: &[Client]| clients.iter().map(|client| client.statistics().in_doubt).sum::<u64>();
        let in_doubt_before = in_doubt(&self.clients);
        let (before, is_unavailable) = (lost(&self.clients), self.faults && self.rng.bool());
        if is_unavailable {
            let nodes = 0..self.fake.nodes();
            self.trouble(nodes.clone(), true);
            self.during(Duration::from_millis(150)).await;
            self.fake.fault(Fault::Down);
            nodes.for_each(|node| self.out(node, true));
        }
        if self.is_strange {
            // While requests are under way.
            for _ in 0..self.rng.u8(..20) {
                self.request();
            }
            sleep(Duration::from_micros(self.rng.u64(..4_000))).await;
        }
        let begun = Instant::now();
        let closing = join_all(self.clients.iter().map(Client::close));
        let back = async {
            sleep(Duration::from_millis(400)).await;
            self.fake.fault(Fault::None);
        };
        tokio::join!(closing, back);
        self.closes_in_doubt = in_doubt(&self.clients) > in_doubt_before;
        assert!(begun.elapsed() < CLOSED, "closed after {:?}", begun.elapsed());
        // What was in doubt for the first time has been sent again.
        let is_told = self.mode != Mode::Eventual || lost(&self.clients) == before;
        assert!(is_told, "{:?}", self.clients.iter().map(Client::statistics).collect::<Vec<_>>());
        while let Some(done) = self.tasks.join_next().await {
            done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
        // The usage of a request that was decided meanwhile may have been sent later.
        sleep(Duration::from_secs(13)).await;
    }

    /// So many requests at long intervals, while nothing is wrong.
    async fn calm(&mut self, requests: usize) {
        for _ in 0..requests {
            self.request();
            sleep(Duration::from_millis(300)).await;
        }
        if self.only_synchronizes {
            self.assert_synchronized();
        }
    }

    /// Whatever was used a while ago is counted, refused or lost.
    fn assert_synchronized(&self) {
        let lost: u64 = self.clients.iter().map(|client| client.statistics()).map(|all| all.lost + all.refused).sum();
        let (counted, now) = (self.fake.counted(), Instant::now());
        let ledger = self.ledger.lock();
        let used = ledger.used.iter().filter(|used| used.source == Source::Eventual && used.at + UNNOTICED < now);
        let used: u64 = used.map(|used| used.units).sum();
        assert!(counted + lost >= used, "{counted} of {used} counted, {lost} lost: not synchronized");
    }

    fn balance(&self) {
        let ledger = self.ledger.lock();
        let sum = |of: fn(&crate::Statistics) -> u64| -> u64 {
            self.clients.iter().map(|client| of(&client.statistics())).sum()
        };
        let used = |source: Source| -> u64 {
            ledger.used.iter().filter(|used| used.source == source).map(|used| used.units).sum()
        };
        let (counted, undelivered) = (self.fake.counted(), self.fake.undelivered());
        let (by_server, leased) = (used(Source::Server), used(Source::Lease));
        let unclaimed = sum(|statistics| statistics.unclaimed);
        match self.mode {
            Mode::Leased => {
                let ahead = sum(|statistics| statistics.leased);
                let known = by_server + ahead + unclaimed + undelivered;
                assert_eq!(counted, known, "counted; used {by_server}, leased {ahead}, unclaimed {unclaimed}");
                let (returned, written_off) = (sum(|all| all.returned), sum(|all| all.written_off));
                let accounted = leased + returned + written_off;
                // What was being leased at the end is written off, whatever the server did.
                let is_right = if self.closes_in_doubt { ahead <= accounted } else { ahead == accounted };
                assert!(is_right, "{ahead} leased; used {leased}, returned {returned}, written off {written_off}");
                let waited_for = ledger.waited_for;
                assert!(unclaimed <= waited_for, "{unclaimed} unclaimed, {waited_for} were waited for");
                let length = self.quota.resolution().min(Duration::from_secs(1));
                self.keeps_limit(&ledger, length);
            }
            Mode::Eventual => {
                let granted = used(Source::Eventual);
                let used = granted + by_server;
                let lost = sum(|statistics| statistics.lost + statistics.refused);
                assert!(counted + lost >= used, "counted {counted} of {used}, {lost} lost");
                let recorded = self.fake.recorded();
                let again = sum(|statistics| statistics.sent_again);
                assert!(recorded <= granted + again, "recorded {recorded} of {granted}, {again} of them sent again");
                let in_doubt = undelivered + unclaimed;
                assert!(counted <= used + in_doubt, "counted {counted} of {used}, {in_doubt} in doubt");
                // No key is forgotten so that it begins from nothing.
                if self.is_exact() && ledger.reloads == 0 {
                    self.keeps_limit(&ledger, Duration::ZERO);
                }
            }
            _ => {
                let known = by_server + unclaimed + undelivered;
                assert_eq!(counted, known, "counted; used {by_server}, unclaimed {unclaimed}");
                self.keeps_limit(&ledger, Duration::ZERO);
            }
        }
    }

    /// No span sees more units used than the limit, but where the server forgot, or its clock was set. Of a limit that rises
    /// that is the most that was said of it within the span: nothing but its first request can have more.
    fn keeps_limit(&self, ledger: &Ledger, length: Duration) {
        if ledger.has_lost || ledger.has_jumped {
            return;
        }
        let resolution = if self.strict { Duration::ZERO } else { self.quota.resolution() };
        // A request is counted before its reply is seen.
        let span = self.quota.window().saturating_sub(length + resolution + LATE + TICK);
        for key in 0..self.keys {
            let mut within: VecDeque<&Used> = VecDeque::new();
            for used in ledger.used.iter().filter(|used| used.key == key && used.units > 0) {
                within.push_back(used);
                while within.front().is_some_and(|first| used.at >= first.at + span) {
                    within.pop_front();
                }
                let units: u64 = within.iter().map(|used| used.units).sum();
                let limit = within.iter().map(|used| used.limit).max().unwrap_or_default();
                assert!(units <= limit, "{units} of {limit} in {span:?}");
            }
        }
    }
}

impl Used {
    fn of(key: usize, units: u64, decision: &Decision) -> Self {
        Self { at: Instant::now(), key, units, source: decision.source(), limit: decision.limit() }
    }
}

impl Trouble {
    /// Whether all has been well for a while.
    fn is_calm(&self) -> bool {
        !self.is_on && self.ended.is_none_or(|ended| ended.elapsed() > UNNOTICED)
    }

    /// Whether a client may decide without a server that is back since that instant.
    fn may_last_since(&self, back: Instant) -> bool {
        let now = Instant::now();
        now <= back + BACK || self.dropped.is_some_and(|dropped| now <= dropped.max(back) + 3 * BACK)
    }
}

impl Ledger {
    /// Whether all has been well for a while, and nothing is left of what was not.
    fn is_calm(&self) -> bool {
        !self.is_half_open && self.nodes.iter().all(Trouble::is_calm)
    }

    /// Whether a client has had the time to hear that the server refuses a key.
    fn is_refused(&mut self, client: usize, key: usize, begun: Instant) -> bool {
        let Some((_, asked)) = self.refused.as_mut().filter(|(refused, _)| *refused == key) else { return false };
        begun > *asked[client].get_or_insert(begun) + REFUSED
    }

    /// A request that had all its time: who decides is no longer the failure policy than the server is unavailable, and a
    /// connection that was lost, or on which writes are refused, is noticed.
    fn failed_or_not(
        &mut self,
        limiter: &Limiter,
        client: usize,
        node: usize,
        decision: &Decision,
        begun: Instant,
        is_found: bool,
    ) {
        let (now, trouble) = (Instant::now(), &self.nodes[node]);
        let failing = &mut self.failing[client][node];
        if matches!(decision.source(), Source::Server | Source::Failure) {
            let is_first = |asked: &Instant| trouble.is_on || trouble.ended.is_some_and(|ended| *asked < ended);
            failing.asked = Some(failing.asked.filter(|asked| !is_first(asked)).unwrap_or(begun));
        }
        if decision.source() != Source::Failure {
            failing.since = None;
            return;
        }
        // Where nothing could be synchronized lately, the server itself is not asked.
        if begun < now {
            failing.since_outage.get_or_insert(begun);
        }
        let since = *failing.since.get_or_insert(begun);
        // A synchronization ends with its connection, and a lease is waited for as long as a request may wait.
        if trouble.is_on || !is_found || matches!(limiter.mode(), Mode::Eventual | Mode::Leased) {
            return;
        }
        let asked = failing.asked.unwrap_or(begun);
        let servers = limiter.client().servers();
        let (noticed, back) = (asked.max(since), now - asked.max(since));
        assert!(trouble.may_last_since(noticed), "decided without the server for {back:?}: {servers:?}");
        let is_recent = trouble.ended.is_some_and(|ended| trouble.may_last_since(asked.max(ended)));
        assert!(is_recent || self.is_half_open, "decided without a server that is there: {servers:?}");
    }

    fn decided(
        &mut self,
        fake: &Fake,
        limiter: &Limiter,
        request: &Request<'_>,
        key: usize,
        decision: &Decision,
        begun: Instant,
    ) {
        let (now, source) = (Instant::now(), decision.source());
        let sources: &[Source] = match limiter.mode() {
            Mode::Direct => &[Source::Server],
            Mode::Cached => &[Source::Server, Source::Cache],
            Mode::Leased => &[Source::Server, Source::Cache, Source::Lease],
            _ => &[Source::Server, Source::Cache, Source::Eventual],
        };
        assert!(source == Source::Failure || sources.contains(&source), "{:?} by {source:?}", limiter.mode());
        // What waited for another one's denial was denied while it waited.
        let is_at_once = begun == now;
        if source == Source::Cache && !decision.granted() && is_at_once && !self.has_jumped {
            let name = name(key);
            let would = fake.would(&name, &limiter.demand(request).exact);
            let is_recent = |at: Option<Instant>, by: Duration| at.is_some_and(|at| now <= at + by);
            // A denial that is worth no look at the key holds for a short time, whatever is given back, by leases, too,
            // and whether or not the key expires.
            let is_late = self.nodes.iter().any(|node| node.is_on || is_recent(node.ended, UNNOTICED))
                || is_recent(self.given_back, LATE)
                || is_recent(fake.given_back(&name), LATE);
            let mode = limiter.mode();
            assert!(
                would.granted == 0 || is_late,
                "{mode:?} {request:?}: {decision:?}, but the server would: {would:?}"
            );
        }
    }
}

fn name(key: usize) -> String {
    format!("key:{key}")
}

/// Runs seeds until so many events have happened; what happened in them.
fn simulate(first: u64, events: u64) -> Coverage {
    eprintln!("from seed {first}");
    let (mut happened, mut coverage) = (0, Coverage::default());
    for seed in first.. {
        let run = std::panic::catch_unwind(|| run(seed));
        match run {
            Ok(outcome) => {
                happened += outcome.events;
                coverage.add(outcome.coverage);
            }
            Err(panic) => {
                eprintln!("seed {seed} fails; {happened} events before");
                std::panic::resume_unwind(panic);
            }
        }
        if happened >= events {
            eprintln!("{} seeds, {happened} events", seed + 1 - first);
            break;
        }
    }
    coverage
}

impl Coverage {
    fn add(&mut self, other: Self) {
        self.decided.extend(other.decided);
        other.troubles.into_iter().for_each(|(what, times)| *self.troubles.entry(what).or_default() += times);
        other.within.into_iter().for_each(|(what, times)| *self.within.entry(what).or_default() += times);
    }

    /// How often each kind of trouble happened.
    fn print(&self) {
        for mode in MODES {
            let times = |what| (what, self.troubles.get(&(mode, what)).copied().unwrap_or_default());
            eprintln!("{mode:?}: {:?}, {:?}", What::ROUGH.map(times), What::STRANGE.map(times));
        }
        for outer in What::LASTING {
            let times = |inner| (inner, self.within.get(&(outer, inner)).copied().unwrap_or_default());
            eprintln!("in the midst of {outer:?}: {:?}", What::SUDDEN.map(times));
        }
    }

    /// Everybody decided in each mode who may.
    fn assert_decided(&self) {
        use Source::{Cache, Eventual, Failure, Lease, Server};
        for (mode, kind, sources) in [
            (Mode::Direct, "one", &[Server, Failure][..]),
            (Mode::Direct, "two", &[Server, Failure]),
            (Mode::Cached, "one", &[Server, Cache, Failure]),
            (Mode::Cached, "two", &[Server, Cache, Failure]),
            (Mode::Leased, "one", &[Server, Cache, Lease, Failure]),
            (Mode::Leased, "two", &[Server, Cache, Lease, Failure]),
            (Mode::Eventual, "one", &[Server, Eventual, Failure]),
            (Mode::Eventual, "waiting", &[Server]),
        ] {
            for source in sources {
                let was_seen = self.decided.contains(&(mode, kind, *source));
                assert!(was_seen, "{kind} of {mode:?} by {source:?} was never seen");
            }
        }
    }

    /// Everything that can go wrong did, in each mode.
    fn assert_troubled(&self) {
        for (mode, what) in MODES.iter().flat_map(|mode| What::ROUGH.iter().map(|what| (*mode, *what))) {
            assert!(
                self.troubles.get(&(mode, what)).is_some_and(|times| *times > 0),
                "{what:?} never happened in mode {mode:?}"
            );
        }
    }

    /// Things went wrong in the midst of others, and what is rarest did.
    fn assert_nested(&self) {
        for what in What::LASTING {
            assert!(self.within.keys().any(|(outer, _)| *outer == what), "nothing happened in the midst of {what:?}");
        }
        for what in What::SUDDEN {
            assert!(
                self.within.keys().any(|(_, inner)| *inner == what),
                "{what:?} never happened in the midst of others"
            );
        }
        assert!(self.within.contains_key(&(What::Restart, What::FailOver)), "no failover within a restart");
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
    simulate(0, 500_000).assert_decided();
}

#[test]
fn half_a_million_rough_events() {
    let coverage = simulate(ROUGH, 500_000);
    coverage.assert_decided();
    coverage.assert_troubled();
    coverage.assert_nested();
}

/// They are strange, too, and half of the limits do not rise.
#[test]
fn a_quarter_of_a_million_events_where_limits_rise() {
    simulate(RISING, 250_000).assert_decided();
}

/// As many as `SWLIMIT_EVENTS` says, from the seed `SWLIMIT_SEED` on, or a random one where limits rise: see `scripts/simulate`.
#[test]
#[ignore = "as long as one likes"]
fn any_number_of_events() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect(name));
    let first = number("SWLIMIT_SEED").unwrap_or_else(|| RISING + fastrand::u64(..1 << 32));
    simulate(first, number("SWLIMIT_EVENTS").unwrap_or(500_000)).print();
}
