//! Leases ahead of need, measured: how many requests wait, how many commands they take, and how many units lie idle, on
//! a grid of limits, windows, clients, round trips and loads.

use std::future::{poll_fn, Future};
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, Instant};

use crate::simulation::fake::{paused, Fake};
use crate::{Client, Decision, Limiter, Mode, OnFailure, Quota, Request, Source};

/// Timers have whole ms, at the start and at the end.
const TICKS: Duration = Duration::from_millis(2);
/// The most requests of a case, unless set.
const MOST_REQUESTS: usize = 20_000;
/// Of so many cases of the grid, the long form runs one.
const CHOICE: usize = 7;

/// Clients of one server and one key, as far, and their demand.
#[derive(Clone, Copy, Debug)]
struct Case {
    limit: u64,
    window: Duration,
    clients: usize,
    trip: Duration,
    /// Demand, as a part of the limit.
    load: f64,
    costs: &'static [u64],
    /// Each request is for a key of its own, too.
    with_cold: bool,
}

/// What came of it, once it had gone on for a while.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    requests: u64,
    /// Of them, those that waited, and for how long 99 of 100 did at most, and the slowest.
    waited: u64,
    p99: Duration,
    longest: Duration,
    commands: u64,
    /// Decided by the failure policy.
    failed: u64,
    granted: u64,
    /// Of the limit, on average.
    idle: f64,
    /// The most units of a client, in hand, on their way and going back.
    held: u64,
    /// Units that were leased, and neither used nor given back when all was closed.
    lost: u64,
}

impl Case {
    fn resolution(&self) -> Duration {
        Quota::of(self.limit, self.window, None).unwrap().resolution()
    }

    /// Requests a second, of one client.
    fn rate(&self) -> f64 {
        let mean = self.costs.iter().sum::<u64>() as f64 / self.costs.len() as f64;
        self.load * self.limit as f64 / self.window.as_secs_f64() / mean / self.clients as f64
    }

    /// How many requests come in half of what the way leaves of a lease.
    fn demand(&self) -> f64 {
        self.rate() * self.resolution().saturating_sub(self.trip).as_secs_f64() / 2.0
    }

    /// Whether leases decide.
    fn is_hot(&self) -> bool {
        let dearest = *self.costs.iter().max().unwrap() as f64;
        let mean = self.costs.iter().sum::<u64>() as f64 / self.costs.len() as f64;
        let (most, trip) = ((self.limit as f64 / 10.0).ceil(), self.trip.as_secs_f64() + 0.002);
        let in_trip = self.rate() * mean / dearest * trip;
        self.demand() * mean / dearest >= 10.0
            && trip <= self.resolution().as_secs_f64() / 2.0
            && (in_trip + 3.0 * in_trip.sqrt() + 1.0) * dearest <= most / 2.0
    }

    fn run(self, mode: Mode, seed: u64) -> Measured {
        fastrand::seed(seed);
        paused(self.measured(mode, Rng::with_seed(seed)))
    }

    async fn measured(self, mode: Mode, mut rng: Rng) -> Measured {
        let fake = Fake::new();
        let quota = Quota::of(self.limit, self.window, None).unwrap();
        let timeout = (4 * self.trip).max(Duration::from_millis(50));
        let clients: Vec<Client> =
            (0..self.clients).map(|_| Client::builder().timeout(timeout).over(fake.clone()).unwrap()).collect();
        let of = |client: &Client| {
            let of = |quota: Quota| client.limiter(quota).mode(mode).on_failure(OnFailure::Deny);
            let cold = of(Quota::new(100, "1m").unwrap()).build().unwrap();
            (of(quota).lease_length(quota.resolution()).build().unwrap(), cold)
        };
        let limiters: Vec<(Limiter, Limiter)> = clients.iter().map(of).collect();
        let way = self.trip.as_micros() as u64 / 2;
        fake.delay([(way, way)]);
        for (limiter, _) in limiters.iter().cycle().take(8 * limiters.len()) {
            let _ = limiter.peek("another").await;
        }
        sleep(Duration::from_secs(2)).await;
        let rate = self.rate() * self.clients as f64;
        let whole = (2.5 * self.window.as_secs_f64()).max(12.0).min(most_requests() as f64 / rate).max(100.0 / rate);
        let (begun, mut due) = (Instant::now(), 0.0);
        let mut tasks = JoinSet::new();
        let mut measured = Measured::default();
        let (mut latencies, mut samples, mut used) = (Vec::new(), 0u64, vec![0u64; self.clients]);
        let (mut warm, mut commands, mut number) = (false, 0, 0u64);
        let sum =
            |of: fn(&crate::Statistics) -> u64| clients.iter().map(|client| of(&client.statistics())).sum::<u64>();
        let mut note = |client: usize, decision: &Decision, took: Duration, warm: bool, measured: &mut Measured| {
            if decision.source() == Source::Lease {
                used[client] += decision.units();
            }
            measured.failed += u64::from(decision.source() == Source::Failure);
            measured.longest = measured.longest.max(took);
            if warm {
                latencies.push(took);
                measured.requests += 1;
                measured.waited += u64::from(!took.is_zero());
                measured.granted += decision.units();
            }
            let statistics = clients[client].statistics();
            let back = used[client] + statistics.returned + statistics.written_off;
            statistics.leased.saturating_sub(back)
        };
        let mut held = vec![0u64; self.clients];
        while due < whole {
            due += -(1.0 - rng.f64()).ln() / rate;
            let at = begun + Duration::from_millis((due * 1_000.0) as u64);
            if at > Instant::now() {
                sleep_until(at).await;
            }
            while let Some(done) = tasks.try_join_next() {
                let (client, decision, took, warm): (usize, Decision, Duration, bool) = done.unwrap();
                held[client] = note(client, &decision, took, warm, &mut measured);
            }
            if !warm && due > whole * 0.4 {
                (warm, commands) = (true, sum(|all| all.commands));
            }
            let client = rng.usize(..self.clients);
            let cost = *rng.choice(self.costs).unwrap();
            number += 1;
            let (limiter, cold) = limiters[client].clone();
            let with_cold = self.with_cold;
            let mut deciding = Box::pin(async move {
                let asked = Instant::now();
                let request = Request::new("k").cost(cost);
                let decision = match with_cold {
                    false => limiter.allow(request).await.unwrap(),
                    true => {
                        let own = format!("cold:{number}");
                        let both = [(&limiter, request), (&cold, Request::new(&own))];
                        limiter.client().allow_all(&both).await.unwrap().each()[0]
                    }
                };
                (client, decision, asked.elapsed(), warm)
            });
            match poll_fn(|context| Poll::Ready(deciding.as_mut().poll(context))).await {
                Poll::Ready((client, decision, took, warm)) => {
                    held[client] = note(client, &decision, took, warm, &mut measured);
                }
                Poll::Pending => drop(tasks.spawn(deciding)),
            }
            measured.held = measured.held.max(held.iter().copied().max().unwrap_or_default());
            if warm {
                samples += 1;
                measured.idle += held.iter().sum::<u64>() as f64 / self.limit as f64;
            }
        }
        measured.commands = sum(|all| all.commands) - commands;
        while let Some(done) = tasks.join_next().await {
            let (client, decision, took, warm) = done.unwrap();
            note(client, &decision, took, warm, &mut measured);
        }
        for client in &clients {
            // Ends when all flights have.
            client.close().await;
        }
        measured.lost = sum(|all| all.leased - all.returned) - used.iter().sum::<u64>();
        measured.idle /= samples.max(1) as f64;
        latencies.sort_unstable();
        measured.p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
        measured
    }
}

impl Measured {
    fn commands_a_request(&self) -> f64 {
        self.commands as f64 / self.requests.max(1) as f64
    }

    fn waiting(&self) -> f64 {
        self.waited as f64 / self.requests.max(1) as f64
    }

    /// The most commands a request. Of limits of a hundred there are few requests between two denials, or two leases.
    fn most_commands(case: &Case) -> f64 {
        if case.limit <= 100 {
            1.2
        } else {
            1.1
        }
    }

    /// What the contract promises of every case, and is not so. `other` is the same case in another mode.
    fn misses(&self, case: &Case, other: impl Fn(Mode) -> Measured) -> Vec<String> {
        let mut misses = Vec::new();
        if self.failed > 0 || self.longest > case.trip + TICKS {
            let direct = other(Mode::Direct);
            if self.failed > direct.failed {
                misses.push(format!("{} decided by failure, direct {}", self.failed, direct.failed));
            }
            if self.p99 > direct.p99 + TICKS || self.longest > direct.longest + TICKS {
                let Self { longest, p99, .. } = direct;
                misses.push(format!("waited {:?}, p99 {:?}, direct {longest:?} and {p99:?}", self.longest, self.p99));
            }
        }
        let commands = self.commands_a_request();
        if self.held > case.limit.div_ceil(10) || self.lost > 0 {
            misses.push(format!("{} held, {} lost", self.held, self.lost));
        }
        if commands > Self::most_commands(case) {
            let cached = other(Mode::Cached).commands_a_request();
            misses.push(format!("{commands:.2} commands a request, cached {cached:.2}"));
        }
        if case.is_hot() && case.load < 1.0 && !case.with_cold {
            if self.waiting() > 0.005 {
                misses.push(format!("{:.2} % wait", 100.0 * self.waiting()));
            }
            if self.idle > 0.04 {
                misses.push(format!("{:.1} % idle", 100.0 * self.idle));
            }
        }
        misses
    }
}

/// Processes that share a limit with STRICT, and how many requests a second each makes.
#[derive(Clone, Copy, Debug)]
struct Shared {
    limit: u64,
    window: Duration,
    trip: Duration,
    rates: &'static [f64],
}

impl Shared {
    fn run(self, mode: Mode, seed: u64) -> (Vec<u64>, f64) {
        fastrand::seed(seed);
        paused(self.granted(mode, seed))
    }

    /// How many units each was granted in six windows, once two have passed, and the commands of all for a request.
    async fn granted(self, mode: Mode, seed: u64) -> (Vec<u64>, f64) {
        let Self { limit, window, trip, rates } = self;
        let fake = Fake::new();
        let quota = Quota::of(limit, window, None).unwrap();
        let of = |client: &Client| client.limiter(quota).strict().mode(mode).on_failure(OnFailure::Deny);
        let client = || Client::builder().timeout(4 * trip).over(fake.clone()).unwrap();
        // As if it had gone on for long: else all units would come free at once.
        let before = of(&client()).build().unwrap();
        for _ in 0..100 {
            let _ = before.record(Request::new("k").cost(limit / 100)).await.unwrap();
            sleep(window / 100).await;
        }
        let way = trip.as_micros() as u64 / 2;
        fake.delay([(way, way)]);
        let (begun, clients) = (Instant::now(), Vec::from_iter(rates.iter().map(|_| client())));
        let asks = clients.iter().zip(rates).zip(seed..).map(|((client, rate), seed)| {
            let limiter = of(client).lease_share(0.33).lease_length(quota.resolution()).build().unwrap();
            let mut rng = Rng::with_seed(seed);
            tokio::spawn(async move {
                let mut deciding = JoinSet::new();
                while begun.elapsed() < 8 * window {
                    sleep(Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate)).await;
                    let (limiter, is_counted) = (limiter.clone(), begun.elapsed() >= 2 * window);
                    deciding.spawn(async move { limiter.allow("k").await.unwrap().units() * u64::from(is_counted) });
                }
                deciding.join_all().await
            })
        });
        let (mut granted, mut requests) = (Vec::new(), 0);
        for units in Vec::from_iter(asks) {
            let units = units.await.unwrap();
            requests += units.len();
            granted.push(units.iter().sum());
        }
        let commands: u64 = clients.iter().map(|client| client.statistics().commands).sum();
        (granted, commands as f64 / requests as f64)
    }
}

const MIXED: &[u64] = &[1, 1, 1, 2, 5];

fn grid() -> impl Iterator<Item = Case> {
    let ms = Duration::from_millis;
    [10, 100, 1_000, 10_000, 100_000].into_iter().flat_map(move |limit| {
        [1_000, 10_000, 60_000, 3_600_000].into_iter().flat_map(move |window| {
            [2, 20].into_iter().flat_map(move |clients| {
                [1, 75, 300].into_iter().flat_map(move |trip| {
                    [0.7, 1.5].into_iter().flat_map(move |load| {
                        [(&[1][..], false), (MIXED, false), (&[1], true)].into_iter().map(move |(costs, with_cold)| {
                            Case { limit, window: ms(window), clients, trip: ms(trip), load, costs, with_cold }
                        })
                    })
                })
            })
        })
    })
}

/// A number that `scripts/simulate` sets.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

fn most_requests() -> usize {
    number("SWLIMIT_REQUESTS").unwrap_or(MOST_REQUESTS)
}

fn row(case: &Case, measured: &Measured) -> String {
    let Case { limit, window, clients, trip, load, costs, with_cold } = case;
    let kind = match (costs.len(), with_cold) {
        (1, false) => "one",
        (_, false) => "mixed",
        _ => "cold too",
    };
    format!(
        "{limit:>7} in {window:>6?}, {clients:>2} clients, {trip:>5?}, load {load}, {kind:<8} {:<4} {:>7} requests {:.2} commands, wait {:.2} %, p99 {:>5?}, idle {:.1} %, held {}, used {:.2}",
        if case.is_hot() { "hot" } else { "" },
        measured.requests,
        measured.commands_a_request(),
        100.0 * measured.waiting(),
        measured.p99,
        100.0 * measured.idle,
        measured.held,
        measured.granted as f64 / measured.requests.max(1) as f64,
    )
}

/// A thin choice of the grid, in which everything is kept.
#[test]
fn promises_of_leases() {
    let of = |limit, seconds, clients, trip, load, costs| Case {
        limit,
        window: Duration::from_secs(seconds),
        clients,
        trip: Duration::from_millis(trip),
        load,
        costs,
        with_cold: false,
    };
    for case in [
        of(1_000, 10, 2, 1, 0.7, &[1]),
        of(1_000, 60, 2, 75, 1.5, MIXED),
        of(10_000, 60, 2, 300, 0.7, &[1]),
        of(10_000, 60, 20, 1, 1.5, &[1]),
        Case { with_cold: true, ..of(1_000, 10, 2, 75, 0.7, &[1]) },
    ] {
        let measured = case.run(Mode::Leased, 1);
        let misses = measured.misses(&case, |mode| case.run(mode, 1));
        assert!(misses.is_empty(), "{}: {misses:?}", row(&case, &measured));
    }
}

/// Eight processes that ask for three times the limit send no more commands than requests.
#[test]
fn dry_processes_send_no_more_than_direct() {
    let (window, trip) = (Duration::from_secs(10), Duration::from_millis(75));
    let case = Case { limit: 1_000, window, clients: 8, trip, load: 3.0, costs: &[1], with_cold: false };
    let measured = case.run(Mode::Leased, 1);
    assert!(measured.commands < measured.requests, "{}", row(&case, &measured));
    assert_eq!(measured.failed, 0);
}

/// With STRICT units come free all at once, and who asks first has them. A process that asks seldom has its part of them,
/// all the same: half or more of what it has if the server decides each request.
#[test]
fn unequal_processes_share_a_strict_limit() {
    let of = |limit, seconds, trip, rates| Shared {
        limit,
        window: Duration::from_secs(seconds),
        trip: Duration::from_millis(trip),
        rates,
    };
    for shared in
        [of(600, 20, 150, &[40.0, 20.0, 4.0]), of(600, 20, 150, &[80.0, 40.0, 8.0]), of(600, 20, 20, &[60.0, 5.0])]
    {
        for seed in 1..3 {
            let [(leased, commands), (direct, _)] = [Mode::Leased, Mode::Direct].map(|mode| shared.run(mode, seed));
            let is_fair = leased.iter().zip(&direct).all(|(leased, direct)| leased * 2 >= *direct);
            let is_used = leased.iter().sum::<u64>() * 100 >= direct.iter().sum::<u64>() * 98;
            let of = format!("{shared:?}, seed {seed}: {leased:?}, direct {direct:?}, {commands:.2} commands");
            assert!(is_fair && is_used && commands < 0.5, "{of}");
        }
    }
}

/// Each limit, window, number of clients, round trip, load and kind of request, and each pair of them.
#[test]
#[ignore = "a minute"]
fn a_choice_of_the_grid_keeps_its_promises() {
    for (number, case) in grid().enumerate().step_by(CHOICE) {
        let of = |mode| case.run(mode, number as u64);
        let measured = of(Mode::Leased);
        let misses = measured.misses(&case, of);
        assert!(misses.is_empty(), "{number} {}: {misses:?}", row(&case, &measured));
    }
}

/// Each case of the grid, or one of so many, as `SWLIMIT_EVERY` says: see `scripts/simulate`.
#[test]
#[ignore = "minutes"]
fn the_grid() {
    let (first, every) = (number("SWLIMIT_FIRST").unwrap_or(0), number("SWLIMIT_EVERY").unwrap_or(1));
    let mut missed = 0;
    for (number, case) in grid().enumerate().skip(first).step_by(every) {
        let of = |mode| case.run(mode, number as u64);
        let measured = of(Mode::Leased);
        let misses = measured.misses(&case, of);
        missed += usize::from(!misses.is_empty());
        println!("{number:>3} {} {}", row(&case, &measured), misses.join("; "));
    }
    println!("{missed} cases missed something");
}
