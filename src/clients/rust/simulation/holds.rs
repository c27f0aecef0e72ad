//! Simulation of holds: a simulated server and network on a simulated clock, from a seed. Replies come late, connections
//! are cut or fall silent, the server is gone, refuses writes, and starts again with its data or without; callers are
//! cancelled anywhere; half of the servers have no module. Holds are taken alone, or two with a rate in one admission. A
//! hold that says that it is live is live on the server, and nothing stays held.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout, Instant};

use crate::simulation::fake::{paused, Fake, Fault};
use crate::{Client, Hold, HoldLimiter, HoldRequest, Limiter, Mode, OnFailure, Quota, Request, Source};

const STEPS: usize = 250;
const KEYS: [&str; 2] = ["first", "second"];
/// What is asked for together with both, and where it is reserved.
const RATE: (&str, &str) = ("rate", "{first}:reserved");
const LIMIT: u64 = 3;
const TTL: Duration = Duration::from_secs(3);
/// A server that is back is used again after so long.
const BACK: Duration = Duration::from_secs(12);

/// Holds that the server granted, and that nobody has dropped yet.
#[derive(Default)]
struct Ledger {
    held: Vec<(&'static str, Arc<Hold>)>,
    /// The largest token of each key.
    tokens: [u64; KEYS.len()],
    granted: u64,
    lost: u64,
    /// When the server lost what it had, the last time.
    forgot: Option<Instant>,
}

struct World {
    rng: Rng,
    fake: Fake,
    clients: Vec<Client>,
    limiters: Vec<HoldLimiter>,
    rates: Vec<Limiter>,
    ledger: Arc<Mutex<Ledger>>,
    tasks: JoinSet<()>,
}

/// One run; how many holds the server granted, and how many were lost.
fn run(seed: u64) -> (u64, u64) {
    fastrand::seed(seed);
    paused(async {
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
        let fake = if rng.bool() { Fake::new().waiting() } else { Fake::new().waiting().scripted() };
        fake.delay([(rng.u64(50..5_000), rng.u64(50..5_000))]);
        let clients: Vec<_> = (0..2).map(|_| Client::builder().over(fake.clone()).unwrap()).collect();
        let limiter = |client: &Client| client.holds(LIMIT).ttl(TTL).on_failure(OnFailure::Deny).build().unwrap();
        let limiters = clients.iter().map(limiter).collect();
        let rate = |client: &Client| {
            let rate = client.limiter(Quota::per_hour(1_000_000)).mode(Mode::Direct);
            rate.on_failure(OnFailure::Deny).build().unwrap()
        };
        let rates = clients.iter().map(rate).collect();
        Self { rng, fake, clients, limiters, rates, ledger: Arc::default(), tasks: JoinSet::new() }
    }

    async fn step(&mut self) {
        match self.rng.u8(..100) {
            0..30 => self.request(),
            30..40 => self.admit(),
            40..60 => self.retry(),
            60..70 => self.cancel(),
            70..85 => self.drop_one(),
            85..100 => self.fault(),
            100.. => unreachable!(),
        }
        let pause = if self.rng.u8(..20) == 0 { 4_000 } else { 300 };
        sleep(Duration::from_millis(self.rng.u64(..pause))).await;
        self.check();
    }

    fn request(&mut self) {
        self.ask(None);
    }

    /// Somebody chooses an id, gives up soon, and tries again with it; perhaps in another process.
    fn retry(&mut self) {
        let id = self.rng.u64(..).to_string();
        self.ask(Some(id));
    }

    fn ask(&mut self, id: Option<String>) {
        let (which, limiter) = (self.rng.usize(..KEYS.len()), self.rng.choice(&self.limiters).unwrap().clone());
        let wait = Duration::from_millis(*self.rng.choice(&[0, 0, 100, 3_000]).unwrap());
        let ledger = Arc::clone(&self.ledger);
        let patience = Duration::from_millis(self.rng.u64(1..30));
        let first = self.rng.choice(&self.limiters).unwrap().clone();
        self.tasks.spawn(async move {
            let before = ledger.lock().tokens[which];
            let request = HoldRequest::new(KEYS[which]).wait(wait);
            let request = id.as_ref().map_or(request, |id| request.id(id.as_bytes()));
            if id.is_some() && timeout(patience, first.hold(request)).await.is_ok() {
                return;
            }
            let hold = limiter.hold(request).await.unwrap();
            if hold.granted() && hold.source() == Source::Server {
                let token = hold.token().unwrap();
                assert!(token > before, "token {token} behind {before}");
                let mut ledger = ledger.lock();
                ledger.tokens[which] = ledger.tokens[which].max(token);
                ledger.granted += 1;
                ledger.held.push((KEYS[which], Arc::new(hold)));
            }
        });
    }

    /// Both keys at once. Half of the admissions are settled a little later, and the holds of the others stay until they
    /// are dropped.
    fn admit(&mut self) {
        let which = self.rng.usize(..self.clients.len());
        let (client, limiter) = (self.clients[which].clone(), self.limiters[which].clone());
        let (rate, ledger) = (self.rates[which].clone(), Arc::clone(&self.ledger));
        let (pause, is_settled) = (Duration::from_millis(self.rng.u64(..500)), self.rng.bool());
        self.tasks.spawn(async move {
            let holds = KEYS.map(|key| (&limiter, key).into());
            let members = holds.into_iter().chain([(&rate, Request::new(RATE.0).cost(40)).into()]);
            let mut admission = client.admit(members).await.unwrap();
            if !admission.granted() || admission.each()[0].source() != Source::Server {
                return;
            }
            if is_settled {
                sleep(pause).await;
                let _ = admission.settle(&[10]).await;
            }
            for (which, hold) in admission.take_holds().into_iter().enumerate() {
                let mut ledger = ledger.lock();
                ledger.tokens[which] = ledger.tokens[which].max(hold.token().unwrap());
                ledger.granted += 1;
                ledger.held.push((KEYS[which], Arc::new(hold)));
            }
        });
    }

    /// A caller is gone, wherever it is.
    fn cancel(&mut self) {
        self.tasks.abort_all();
    }

    fn drop_one(&mut self) {
        let mut ledger = self.ledger.lock();
        if !ledger.held.is_empty() {
            let which = self.rng.usize(..ledger.held.len());
            ledger.held.swap_remove(which);
        }
    }

    fn fault(&mut self) {
        match self.rng.u8(..8) {
            0 => self.fake.cut(),
            1 => self.fake.half_open(),
            2 => self.fake.fault(Fault::Down),
            3 => self.fake.fault(Fault::BlackHole),
            4 => self.fake.fail(Some("OOM command not allowed")),
            5 => self.fake.slower(Duration::from_millis(self.rng.u64(..400))),
            6 => {
                let keeps = self.rng.bool();
                self.fake.restart(0, keeps);
                if !keeps {
                    self.ledger.lock().forgot = Some(Instant::now());
                }
            }
            _ => self.heal(),
        }
    }

    fn heal(&self) {
        self.fake.fault(Fault::None);
        self.fake.fail(None);
        self.fake.slower(Duration::ZERO);
    }

    /// A caller that may go on holds something on the server, which never grants more than the limit.
    fn check(&mut self) {
        let mut ledger = self.ledger.lock();
        let has_forgotten = ledger.forgot.is_some_and(|forgot| forgot.elapsed() <= TTL);
        for (key, hold) in &ledger.held {
            let is_held = self.fake.is_held(key, hold.id().unwrap());
            assert!(!hold.is_live() || is_held || has_forgotten, "{hold:?} is not held");
        }
        let lost = ledger.held.iter().filter(|(_, hold)| !hold.is_live()).count();
        ledger.lost += lost as u64;
        // Those that notice leave.
        ledger.held.retain(|(_, hold)| hold.is_live());
        for key in KEYS {
            assert!(self.fake.held(key) <= LIMIT);
        }
    }

    /// Without faults nothing is lost, and what is granted to nobody is given back long before it would end.
    async fn in_peace(&mut self) {
        self.heal();
        sleep(BACK).await;
        for _ in 0..20 {
            self.fake.jump(-10); // tokens grow all the same
            if self.rng.bool() {
                self.request();
            } else {
                self.admit();
            }
            sleep(Duration::from_micros(self.rng.u64(..10_000))).await;
            self.cancel();
        }
        for _ in KEYS {
            self.drop_one();
        }
        for _ in 0..KEYS.len() * 4 {
            self.request();
        }
        sleep(TTL / 4).await;
        self.cancel();
        // A connection that is dead may be noticed after a second only.
        sleep(TTL / 2).await;
        self.check();
        let held = self.ledger.lock().held.len();
        assert!(held > 0);
        assert_eq!(self.fake.held(RATE.1), 0, "what is reserved is settled, or left");
        for key in KEYS {
            let known = self.ledger.lock().held.iter().filter(|(name, _)| *name == key).count();
            assert_eq!(self.fake.held(key), known as u64, "{key}");
        }
        sleep(TTL * 3).await;
        self.check();
        assert_eq!(self.ledger.lock().held.len(), held, "nothing is lost");
    }

    /// A hold whose reply took long, and that cannot be renewed: its holder stops before the server ends it.
    async fn in_silence(&mut self) {
        self.ledger.lock().held.clear();
        sleep(TTL / 4).await;
        self.fake.slower(Duration::from_millis(15));
        self.request();
        sleep(Duration::from_millis(100)).await;
        assert_eq!(self.ledger.lock().held.len(), 1);
        self.fake.fault(Fault::BlackHole);
        sleep(TTL - Duration::from_millis(150)).await;
        for _ in 0..50 {
            self.check();
            sleep(Duration::from_millis(4)).await;
        }
        assert_eq!(self.ledger.lock().held.len(), 0);
        self.heal();
        sleep(BACK).await;
    }

    /// A hold that is dropped while the server is unavailable is released once it is back.
    async fn dropped_meanwhile(&mut self) {
        self.request();
        sleep(TTL / 10).await;
        assert_eq!(self.ledger.lock().held.len(), 1);
        self.fake.fault(Fault::Down);
        self.drop_one();
        sleep(TTL / 3).await;
        self.heal();
        sleep(TTL / 3).await;
        for key in KEYS {
            assert_eq!(self.fake.held(key), 0, "{key}");
        }
    }

    /// Heals everything, and leaves: nothing stays held.
    async fn end(mut self) -> (u64, u64) {
        self.in_peace().await;
        self.in_silence().await;
        self.dropped_meanwhile().await;
        self.request();
        sleep(TTL / 4).await;
        let held: Vec<_> = std::mem::take(&mut self.ledger.lock().held);
        let ids: Vec<_> = held.iter().map(|(key, hold)| (*key, hold.id().unwrap().to_vec())).collect();
        drop(held);
        self.tasks.abort_all();
        while let Some(done) = self.tasks.join_next().await {
            if let Some(panic) = done.err().filter(JoinError::is_panic) {
                std::panic::resume_unwind(panic.into_panic());
            }
        }
        for client in &self.clients {
            timeout(Duration::from_secs(1), client.close()).await.expect("it is closed in time");
        }
        for (key, id) in ids {
            assert!(!self.fake.is_held(key, &id), "released");
        }
        // What was in doubt is held for no longer than its time to live.
        sleep(TTL).await;
        for key in KEYS.into_iter().chain([RATE.1]) {
            assert_eq!(self.fake.held(key), 0, "{key}");
        }
        let ledger = self.ledger.lock();
        (ledger.granted, ledger.lost)
    }
}

#[test]
fn holds_over_faults() {
    let seeds = std::env::var("SWLIMIT_HOLD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    let (mut granted, mut lost) = (0, 0);
    for seed in 0..seeds {
        let run = std::panic::catch_unwind(|| run(seed));
        let run = run.unwrap_or_else(|panic| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic)
        });
        granted += run.0;
        lost += run.1;
    }
    assert!(granted > 20 * seeds && lost > 0, "{granted} granted, {lost} lost");
}
