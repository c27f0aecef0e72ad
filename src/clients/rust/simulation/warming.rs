//! Limits that rise after idleness: processes that share a key of the fake server, in paused time.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, Instant};

use crate::simulation::fake::{paused, Fake};
use crate::{Client, Limiter, LimiterBuilder, Mode, OnFailure, Quota, Request};

const LIMIT: u64 = 60;
const WINDOW: Duration = Duration::from_secs(1);
const RESOLUTION: Duration = Duration::from_millis(100);
const LENGTH: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(1);

fn builder(client: &Client) -> LimiterBuilder {
    client.limiter(Quota::of(LIMIT, WINDOW, Some(RESOLUTION)).unwrap()).warm_up(LENGTH).on_failure(OnFailure::Deny)
}

fn process(fake: &Fake, mode: Mode) -> Limiter {
    let client = Client::builder().timeout(Duration::from_millis(500)).over(fake.clone()).unwrap();
    builder(&client).mode(mode).strict().build().unwrap()
}

fn network() -> Fake {
    fastrand::seed(1);
    let fake = Fake::new().waiting();
    fake.delay([(500, 700)]);
    fake
}

/// One of the processes asks for so long, about every 40 ms; when it was granted a unit.
async fn asks(limiter: &Limiter, length: Duration) -> Vec<Instant> {
    let (end, mut grants) = (Instant::now() + length, Vec::new());
    while Instant::now() < end {
        if limiter.allow("k").await.unwrap().granted() {
            grants.push(Instant::now());
        }
        sleep(Duration::from_millis(40).mul_f64(0.5 + fastrand::f64())).await;
    }
    grants
}

/// How many of so many requests at once are granted.
async fn burst(limiter: &Limiter, requests: usize) -> usize {
    let all = join_all((0..requests).map(|_| limiter.allow("k"))).await;
    all.into_iter().filter(|decision| decision.as_ref().unwrap().granted()).count()
}

/// The limit in force, so long after a key has come into use.
fn in_force(used_for: Duration) -> usize {
    let part = (used_for.as_secs_f64() / LENGTH.as_secs_f64()).min(1.0);
    (LIMIT as f64 * (1.0 + 2.0 * part) / 3.0) as usize
}

/// No span of the window sees more than the limit at its end, each sees most of what it was at its beginning, and who
/// joins late gets what the others get.
#[test]
fn all_processes_share_the_limit_of_the_moment() {
    for mode in [Mode::Direct, Mode::Cached, Mode::Leased] {
        paused(async {
            let fake = network();
            let processes: Vec<_> = (0..8).map(|_| process(&fake, mode)).collect();
            let (begun, middle) = (Instant::now(), LENGTH / 2);
            let early = join_all(processes[..4].iter().map(|limiter| asks(limiter, 2 * middle + middle)));
            let late = async {
                sleep(middle).await;
                join_all(processes[4..].iter().map(|limiter| asks(limiter, 2 * middle))).await
            };
            let (early, late) = tokio::join!(early, late);
            let mut grants: Vec<_> = [early.concat(), late.concat()].concat();
            grants.sort();
            // Leased units are used for a resolution after they are counted.
            let span = WINDOW - if mode == Mode::Leased { RESOLUTION } else { Duration::ZERO } - 2 * TICK;
            let within = |from: Instant| grants.iter().filter(|at| (from..from + span).contains(at)).count();
            for from in &grants {
                let (granted, most) = (within(*from), in_force(*from + span - begun + 2 * TICK));
                assert!(granted <= most, "{mode:?}, {:?}: {granted} of {most}", *from - begun);
            }
            for second in 1..28 {
                let from = Duration::from_secs(second);
                let (granted, least) = (within(begun + from), in_force(from) * 6 / 10);
                assert!(granted >= least, "{mode:?}, {from:?}: {granted} of {least}");
            }
            let since = |grants: &[Vec<Instant>]| grants.concat().iter().filter(|at| **at > begun + middle).count();
            let (early, late) = (since(&early), since(&late));
            assert!(late * 10 >= early * 8, "{mode:?}: {late} beside {early}");
        });
    }
}

/// After idleness, what many ask for at once is granted up to the cold limit, in each mode.
#[test]
fn a_burst_after_idleness_finds_the_limit_cold() {
    for mode in [Mode::Direct, Mode::Cached, Mode::Leased, Mode::Eventual, Mode::Local] {
        paused(async {
            let limiter = process(&network(), mode);
            let cold = async || {
                let granted = burst(&limiter, 100).await;
                let is_exact = !matches!(mode, Mode::Leased | Mode::Eventual);
                assert!(granted == 20 || granted < 20 && !is_exact, "{mode:?}: {granted}");
            };
            cold().await;
            join_all((0..4).map(|_| asks(&limiter, LENGTH))).await;
            sleep(3 * WINDOW).await;
            cold().await;
            join_all((0..4).map(|_| asks(&limiter, LENGTH))).await;
            sleep(WINDOW * 3 / 2).await;
            // Nothing counts, but nothing has counted for less than a window.
            let limit = limiter.peek("k").await.unwrap().limit();
            assert!(limit > 50, "{mode:?}: {limit}");
        });
    }
}

#[test]
fn the_first_request_is_granted_whatever_it_costs() {
    for mode in [Mode::Direct, Mode::Cached, Mode::Leased, Mode::Eventual, Mode::Local] {
        paused(async {
            let limiter = process(&network(), mode);
            let dear = || Request::new("k").cost(40);
            if mode == Mode::Eventual {
                // Nothing is known of the key yet.
                assert!(!limiter.allow(dear()).await.unwrap().granted());
                sleep(RESOLUTION / 2).await;
            }
            let first = limiter.allow(dear()).await.unwrap();
            assert!(first.granted(), "{mode:?}: {first:?}");
            sleep(2 * RESOLUTION).await;
            let denied = limiter.allow(dear()).await.unwrap();
            assert!(!denied.granted(), "{mode:?}: {denied:?}");
            let never = limiter.allow(Request::new("k").cost(61)).await.unwrap();
            assert!(!never.granted() && never.retry_after().is_none(), "{mode:?}: {never:?}");
        });
    }
}

/// The limit in a reply to a dear request is not that of requests that cost less.
#[test]
fn a_dear_request_warms_no_other() {
    paused(async {
        let limiter = process(&network(), Mode::Eventual);
        assert!(!limiter.allow(Request::new("k").cost(40)).await.unwrap().granted());
        sleep(RESOLUTION / 2).await;
        assert_eq!(limiter.peek("k").await.unwrap().limit(), 20);
        assert_eq!(burst(&limiter, 100).await, 20);
    });
}

/// Of a key of which the server said nothing yet, or not just now, a share of the limit in force is lent.
#[test]
fn a_share_is_one_of_the_limit_in_force() {
    paused(async {
        let limiter = process(&network(), Mode::Eventual);
        let first = limiter.allow(Request::new("k").cost(60).partial()).await.unwrap();
        assert_eq!((first.units(), first.limit()), (2, 20));
        sleep(2 * WINDOW).await;
        let stale = limiter.allow(Request::new("k").cost(60).partial()).await.unwrap();
        assert_eq!((stale.units(), stale.limit()), (2, 20));
    });
}

#[test]
fn denials_say_when_the_limit_has_risen_enough() {
    paused(async {
        let limiter = process(&network(), Mode::Local);
        let dear = || Request::new("k").cost(15);
        assert!(limiter.allow(dear()).await.unwrap().granted());
        // So much that units slide out, and that the limit rises, are needed both.
        let wait = limiter.allow(dear()).await.unwrap().retry_after().unwrap();
        assert!(wait > WINDOW / 2, "{wait:?}");
        sleep(wait - TICK).await;
        assert!(!limiter.peek(dear()).await.unwrap().granted());
        sleep(TICK).await;
        assert!(limiter.peek(dear()).await.unwrap().granted());
    });
    paused(async {
        let limiter = process(&network(), Mode::Cached);
        let dear = || Request::new("k").cost(15);
        assert!(limiter.acquire(dear(), WINDOW).await.unwrap().granted());
        let begun = Instant::now();
        let wait = limiter.peek(dear()).await.unwrap().retry_after().unwrap();
        assert!(limiter.acquire(dear(), LENGTH).await.unwrap().granted());
        assert!(begun.elapsed() < wait + RESOLUTION + 4 * TICK, "{:?}, not {wait:?}", begun.elapsed());
    });
}

/// It follows the quota it is for.
#[test]
fn several_limits_of_which_one_rises() {
    paused(async {
        let fake = network();
        for mode in [Mode::Cached, Mode::Local] {
            let limiter = process(&fake, mode);
            let hourly = limiter.client().limiter(Quota::per_hour(1_000)).mode(mode).strict().build().unwrap();
            let both = || [(&limiter, Request::new("k").cost(20)), (&hourly, Request::new("h"))];
            let granted = limiter.client().allow_all(&both()).await.unwrap();
            assert_eq!((granted.granted(), granted.each()[0].limit(), granted.each()[1].limit()), (true, 20, 1_000));
            let denied = limiter.client().allow_all(&both()).await.unwrap();
            assert_eq!((denied.granted(), denied.each()[0].limit()), (false, 20), "{mode:?}");
        }
    });
}

#[tokio::test]
async fn what_no_limit_can_rise_by_is_refused() {
    let client = Client::local();
    let refused = |builder: LimiterBuilder, text: &str| assert_eq!(builder.build().unwrap_err().to_string(), text);
    refused(builder(&client).warm_up(WINDOW * 9), "warm_up must be at least ten times the window");
    refused(builder(&client).warm_up(Duration::MAX), "warm_up must be at most 3650 days");
    refused(builder(&client).cold(1), "cold must be an integer between 2 and 1000");
    refused(builder(&client).cold(1_001), "cold must be an integer between 2 and 1000");
    refused(client.limiter(Quota::per_second(1)).cold(2), "cold needs warm_up");
}
