//! Limits that rise after idleness: processes that share a key of the fake server, in paused time.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, Instant};

use crate::simulation::fake::{paused, Fake};
use crate::{Client, Decision, Error, HoldRequest, Limiter, LimiterBuilder, Mode, OnFailure, Quota, Request, Source};

const LIMIT: u64 = 60;
const WINDOW: Duration = Duration::from_secs(1);
const RESOLUTION: Duration = Duration::from_millis(100);
const LENGTH: Duration = Duration::from_secs(20);

fn builder(client: &Client) -> LimiterBuilder {
    client.limiter(Quota::of(LIMIT, WINDOW, Some(RESOLUTION)).unwrap()).warm_up(LENGTH).on_failure(OnFailure::Deny)
}

fn process(fake: &Fake, mode: Mode) -> Limiter {
    let client = Client::builder().timeout(Duration::from_millis(500)).over(fake.clone()).unwrap();
    builder(&client).mode(mode).build().unwrap()
}

fn network() -> Fake {
    fastrand::seed(1);
    let fake = Fake::new();
    fake.delay([(500, 700)]);
    fake
}

/// One of the processes asks for so long, every so often; when it was granted a unit.
async fn asks(limiter: &Limiter, every: Duration, length: Duration) -> Vec<Instant> {
    let (end, mut grants) = (Instant::now() + length, Vec::new());
    while Instant::now() < end {
        if limiter.allow("k").await.unwrap().granted() {
            grants.push(Instant::now());
        }
        sleep(every.mul_f64(0.5 + fastrand::f64())).await;
    }
    grants
}

/// Guava's curve, which is the limit's so long after the first grant.
fn curve(rising: Duration) -> f64 {
    let part = rising.as_secs_f64() / LENGTH.as_secs_f64();
    LIMIT as f64 / (9.0 - 8.0 * part.min(1.0)).sqrt()
}

/// How many of the grants are within a second behind an instant.
fn within(grants: &[Instant], from: Instant) -> f64 {
    grants.iter().filter(|at| (from..from + WINDOW).contains(at)).count() as f64
}

#[test]
fn what_all_processes_are_granted_follows_the_curve() {
    for mode in [Mode::Direct, Mode::Cached] {
        paused(async {
            let fake = network();
            let processes: Vec<_> = (0..8).map(|_| process(&fake, mode)).collect();
            let begun = Instant::now();
            let every = Duration::from_millis(60);
            let all = processes.iter().map(|limiter| asks(limiter, every, LENGTH * 3 / 2));
            let grants: Vec<_> = join_all(all).await.concat();
            for second in 0..29 {
                let rising = Duration::from_secs(second);
                let (granted, most) = (within(&grants, begun + rising), curve(rising + WINDOW));
                // By default, a span of the window may see units of the subinterval that is sliding out, too.
                assert!(granted <= most * 1.15 + 1.0, "{mode:?}, second {second}: {granted} of {most}");
                let least = if second == 0 { 0.0 } else { curve(rising.saturating_sub(WINDOW)) * 0.75 };
                assert!(granted >= least, "{mode:?}, second {second}: {granted} of {least}");
            }
        });
    }
}

/// A process that joins at saturation, or has forgotten, sees by a look how much is counted, and gets its part.
#[test]
fn a_process_that_joins_late_is_not_cold() {
    for mode in [Mode::Direct, Mode::Cached] {
        paused(async {
            let fake = network();
            let processes: Vec<_> = (0..4).map(|_| process(&fake, mode)).collect();
            let every = Duration::from_millis(40);
            let late = process(&fake, mode);
            let joins = async {
                sleep(LENGTH * 5 / 4).await;
                asks(&late, every, LENGTH / 4).await.len() as u64
            };
            let others = join_all(processes.iter().map(|limiter| asks(limiter, every, LENGTH * 3 / 2)));
            let (joined, _) = tokio::join!(joins, others);
            // A fifth of 60 a second, for 5 s.
            assert!(joined > 30, "{mode:?}: {joined}");
        });
    }
}

/// After idleness, what many ask for at once is granted up to the cold limit, in each mode.
#[test]
fn a_burst_after_idleness_finds_the_limit_cold() {
    for mode in [Mode::Direct, Mode::Cached, Mode::Local] {
        paused(async {
            let limiter = process(&network(), mode);
            let burst = async || {
                let all = join_all((0..100).map(|_| limiter.allow("k"))).await;
                all.into_iter().filter(|decision| decision.as_ref().unwrap().granted()).count()
            };
            assert_eq!(burst().await, 20);
            asks(&limiter, Duration::from_millis(8), LENGTH).await;
            sleep(2 * WINDOW).await;
            assert_eq!(burst().await, 20, "{mode:?}: the window was idle");
            asks(&limiter, Duration::from_millis(8), LENGTH).await;
            sleep(WINDOW / 2).await;
            assert!(burst().await > 20, "{mode:?}: it was not");
            sleep(2 * LENGTH).await;
            assert_eq!(burst().await, 20);
        });
    }
}

#[test]
fn a_cost_above_the_cold_limit_waits_for_its_step() {
    for mode in [Mode::Direct, Mode::Cached, Mode::Local] {
        paused(async {
            let limiter = process(&network(), mode);
            let request = || Request::new("k").cost(40);
            let denied = limiter.allow(request()).await.unwrap();
            assert!(!denied.granted() && denied.limit() == 20);
            // 60 / √(9 − 8 · 17 / 20) is 40.4.
            let wait = denied.retry_after().unwrap();
            assert!(wait <= LENGTH * 17 / 20 && wait > LENGTH * 16 / 20, "{mode:?}: {wait:?}");
            let peeked = limiter.peek(request()).await.unwrap().retry_after();
            let recorded = limiter.record(Request::new("other").cost(40)).await.unwrap().retry_after();
            for wait in [peeked, recorded] {
                assert!(wait.is_some_and(|wait| wait > LENGTH * 16 / 20), "{mode:?}: {wait:?}");
            }
            sleep(WINDOW).await;
            assert!(!limiter.allow(request()).await.unwrap().granted());
            sleep(wait - WINDOW).await;
            assert!(limiter.allow(request()).await.unwrap().granted(), "{mode:?}");
            let never = limiter.allow(Request::new("k").cost(61)).await.unwrap();
            assert!(!never.granted() && never.retry_after().is_none());
        });
    }
}

#[test]
fn several_limits_rise_together() {
    paused(async {
        let fake = network();
        let processes: Vec<_> = (0..3).map(|_| process(&fake, Mode::Cached)).collect();
        let ask = async |limiter: &Limiter, length: Duration| {
            let (end, mut grants, client) = (Instant::now() + length, 0, limiter.client());
            let other = client.limiter(Quota::per_hour(1_000_000)).build().unwrap();
            while Instant::now() < end {
                let both = [(limiter, Request::new("k")), (&other, Request::new("hourly"))];
                let decisions = client.allow_all(&both).await.unwrap();
                grants += u64::from(decisions.granted());
                sleep(Duration::from_millis(20)).await;
            }
            grants
        };
        let (first, second) = (ask(&processes[0], LENGTH), ask(&processes[1], LENGTH));
        let (first, second) = tokio::join!(first, second);
        // The area under the curve is L · p / 2 with c = 3.
        let area = LIMIT * LENGTH.as_secs() / 2;
        assert!((area * 8 / 10..area * 11 / 10).contains(&(first + second)), "{first} + {second} of {area}");
        let seconds = Duration::from_secs(4);
        let (_, late) = tokio::join!(ask(&processes[0], seconds), ask(&processes[2], seconds));
        assert!(late > 60, "{late}");
    });
}

/// Where the second command of a decision finds no server, the denial stands.
#[test]
fn the_failure_policy_grants_nothing_that_the_server_has_denied() {
    paused(async {
        let fake = network();
        let (limiter, other) = (process(&fake, Mode::Direct), process(&fake, Mode::Direct));
        asks(&limiter, Duration::from_millis(8), LENGTH * 3 / 2).await;
        let client = Client::builder().timeout(Duration::from_millis(20)).over(fake.clone()).unwrap();
        let late = builder(&client).mode(Mode::Direct).on_failure(OnFailure::Allow).build().unwrap();
        assert!(!late.peek("k").await.unwrap().granted() && !other.peek("k").await.unwrap().granted());
        fake.delay([(500, 500), (500, 500), (1_000_000, 1_000_000)]);
        let decision = late.allow("k").await.unwrap();
        assert_eq!((decision.granted(), decision.source()), (false, Source::Server));
    });
}

/// What it would have granted in place of the second command is not counted in this process.
#[test]
fn the_failure_policy_counts_nothing_that_the_server_has_denied() {
    for is_of_several in [false, true] {
        paused(async {
            let fake = network();
            let limiter = process(&fake, Mode::Direct);
            asks(&limiter, Duration::from_millis(8), LENGTH * 3 / 2).await;
            let client = Client::builder().timeout(Duration::from_millis(20)).over(fake.clone()).unwrap();
            let late = builder(&client).mode(Mode::Direct).on_failure(OnFailure::Local).build().unwrap();
            assert!(!late.peek("k").await.unwrap().granted());
            fake.delay([(500, 500), (500, 500), (1_000_000, 1_000_000)]);
            let request = || [(&late, Request::new("k"))];
            let denied = match is_of_several {
                true => client.allow_all(&request()).await.unwrap().each()[0],
                false => late.allow("k").await.unwrap(),
            };
            assert_eq!((denied.granted(), denied.source()), (false, Source::Server));
            // The first of a tenth of the limit.
            let first = late.allow("k").await.unwrap();
            let whole = first.limit() / 10;
            assert_eq!((first.source(), first.remaining()), (Source::Failure, Some(whole - 1)));
        });
    }
}

/// The step has come for which it would wait.
#[test]
fn what_exceeds_the_share_of_this_process_never_fits() {
    paused(async {
        let fake = network();
        let client = Client::builder().timeout(Duration::from_millis(20)).over(fake.clone()).unwrap();
        let limiter = builder(&client).mode(Mode::Direct).on_failure(OnFailure::Local).build().unwrap();
        fake.delay([(1_000_000, 1_000_000)]);
        let decision = limiter.allow(Request::new("k").cost(10)).await.unwrap();
        assert_eq!((decision.source(), decision.limit(), decision.retry_after()), (Source::Failure, 20, None));
    });
}

#[tokio::test]
async fn what_does_not_go_with_a_warm_up_is_refused() {
    let client = Client::local();
    let fails = |error: Result<Decision, Error>, text: &str| assert_eq!(error.unwrap_err().to_string(), text);
    let refused = |builder: LimiterBuilder, text: &str| assert_eq!(builder.build().unwrap_err().to_string(), text);
    refused(builder(&client).mode(Mode::Leased), "warm_up does not go with mode leased");
    refused(builder(&client).mode(Mode::Eventual), "warm_up does not go with mode eventual");
    refused(builder(&client).block_for(WINDOW), "warm_up does not go with block");
    refused(builder(&client).warm_up(WINDOW * 9), "warm_up must be at least ten times the window");
    refused(builder(&client).cold(f64::NAN), "cold must be above 1 and at most 1000");
    refused(client.limiter(Quota::per_second(1)).cold(2.0), "cold needs warm_up");
    let limiter = builder(&client).build().unwrap();
    fails(limiter.acquire("k", WINDOW).await, "warm_up does not go with acquire");
    let holds = client.holds(1).build().unwrap();
    let admitted = client.admit([(&limiter, "k").into(), (&holds, HoldRequest::new("h")).into()]).await;
    assert_eq!(admitted.unwrap_err().to_string(), "warm_up does not go with admit");
}
