//! The client upon a fake server, in paused time: what is decided near the request, beside what the server would have
//! said.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::{advance, sleep, Instant};

use crate::fake::Fake;
use crate::wire::Failure;
use crate::{Client, Deciding, Decision, Error, Limiter, Quota, Request, Way, WhenAway};

/// Run in paused time: it passes when everybody waits, and only then.
fn paused<T>(what: impl std::future::Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(what)
}

fn client(fake: &Fake) -> Client {
    Client::builder().over(fake.clone())
}

fn quota(limit: u64, window_ms: u64, subintervals: u64) -> Quota {
    let ms = Duration::from_millis;
    Quota::of(limit, ms(window_ms), ms(window_ms / subintervals)).unwrap()
}

async fn allow(limiter: &Limiter, key: &str) -> Decision {
    limiter.allow(key).await.unwrap()
}

/// Let tasks that were spawned do what they can do at once.
async fn settle() {
    for _ in 0..10 {
        yield_now().await;
    }
}

#[test]
fn the_server_is_not_asked_again_what_it_denied() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(2, 10_000, 10)).build();
        for way in [Way::Server, Way::Server, Way::Server] {
            assert_eq!(allow(&limiter, "k").await.way(), way);
        }
        settle().await;
        let asked = fake.commands().len();
        assert_eq!(asked, 4, "three ALLOWs and the PEEK behind the denial");
        let denied = allow(&limiter, "k").await;
        assert_eq!((denied.way(), denied.granted(), denied.remaining()), (Way::Denial, false, 0));
        let wait = denied.retry_after().unwrap();
        let all = limiter.allow(Request::of("k").cost(2)).await.unwrap();
        assert_eq!((all.way(), fake.commands().len()), (Way::Denial, asked));
        assert_eq!(allow(&limiter, "other").await.way(), Way::Server);
        sleep(wait).await;
        assert!(allow(&limiter, "k").await.granted());
    });
}

#[test]
fn what_is_given_back_is_heard_of() {
    let give_back =
        ["SWLIMIT.REFUND k 1", "SWLIMIT.UNBLOCK k", "SWLIMIT.RECORD k 9 10000ms 1000ms", "SWLIMIT.BLOCK k 1s"];
    for words in give_back {
        paused(async {
            let fake = Fake::new();
            let limiter = client(&fake).limiter(quota(1, 10_000, 10)).build();
            for _ in 0..2 {
                let _ = allow(&limiter, "k").await;
            }
            settle().await;
            assert_eq!(allow(&limiter, "k").await.way(), Way::Denial);
            fake.run(words).unwrap();
            assert_eq!(allow(&limiter, "k").await.way(), Way::Server, "{words}");
        });
    }
}

/// A key in a flood whose units come back one by one: a command for the grant, and one to hear of the next.
#[test]
fn a_denial_in_a_flood_is_one_question() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1, 10_000, 10)).build();
        for _ in 0..2 {
            let _ = allow(&limiter, "k").await;
        }
        settle().await;
        for _ in 0..3 {
            fake.run("SWLIMIT.ALLOW k 9 10000ms 1000ms").unwrap();
            let commands = fake.commands().len();
            assert_eq!(allow(&limiter, "k").await.way(), Way::Server);
            assert_eq!(allow(&limiter, "k").await.way(), Way::Denial);
            settle().await;
            assert_eq!(fake.commands()[commands..].join("; "), "SWLIMIT.PEEK k 1 10000ms 1000ms");
        }
        // What was given back is granted by a second command, and the next again by one.
        fake.run("SWLIMIT.REFUND k 4").unwrap();
        let commands = fake.commands().len();
        for names in [["PEEK", "ALLOW"].as_slice(), &["PEEK", "ALLOW", "ALLOW"]] {
            let _ = allow(&limiter, "k").await;
            let sent: Vec<_> =
                fake.commands()[commands..].iter().map(|command| command[8..13].trim().to_owned()).collect();
            assert_eq!(sent, names);
        }
    });
}

#[test]
fn own_changes_are_heard_of_without_tracking() {
    paused(async {
        let fake = Fake::new().untracked();
        let limiter = client(&fake).limiter(quota(1, 10_000, 10)).build();
        let fill = || async {
            for _ in 0..2 {
                let _ = allow(&limiter, "k").await;
            }
            settle().await;
            assert_eq!(allow(&limiter, "k").await.way(), Way::Denial);
        };
        fill().await;
        assert_eq!(limiter.refund("k").await, Ok(1));
        assert!(allow(&limiter, "k").await.granted());
        fill().await;
        limiter.block("k", Duration::from_secs(1)).await.unwrap();
        assert_eq!(allow(&limiter, "k").await.way(), Way::Server);
        settle().await;
        assert_eq!(limiter.unblock("k").await, Ok(true));
        assert_eq!(allow(&limiter, "k").await.way(), Way::Server);
        // What others give back is noticed that much later.
        settle().await;
        assert_eq!(allow(&limiter, "k").await.way(), Way::Denial);
        fake.run("SWLIMIT.REFUND k 1").unwrap();
        assert_eq!(allow(&limiter, "k").await.way(), Way::Denial);
        sleep(Duration::from_millis(100)).await;
        assert!(allow(&limiter, "k").await.granted());
    });
}

#[test]
fn a_cost_above_the_limit_needs_nobody() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(5, 1_000, 1)).build();
        let never = limiter.allow(Request::of("k").cost(6)).await.unwrap();
        assert_eq!((never.granted(), never.retry_after(), fake.commands().len()), (false, None, 0));
        assert_eq!(limiter.allow(Request::of("k").cost(6).partial()).await.unwrap().units(), 5);
        // It would begin a block, so the server has to hear of it.
        let penalty = client(&fake).limiter(quota(5, 1_000, 1)).blocking(Duration::from_secs(60)).build();
        let blocked = penalty.allow(Request::of("other").cost(6)).await.unwrap();
        assert_eq!((blocked.granted(), blocked.way()), (false, Way::Server));
    });
}

#[test]
fn a_block_is_begun_by_the_server() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let (plain, penalty) = (
            client.limiter(quota(1, 1_000, 1)).build(),
            client.limiter(quota(1, 1_000, 1)).blocking(Duration::from_secs(60)).build(),
        );
        for _ in 0..2 {
            let _ = allow(&plain, "k").await;
        }
        settle().await;
        assert_eq!(allow(&plain, "k").await.way(), Way::Denial);
        let begun = allow(&penalty, "k").await;
        assert_eq!((begun.way(), begun.retry_after()), (Way::Server, Some(Duration::from_secs(60))));
        settle().await;
        for limiter in [&plain, &penalty] {
            settle().await;
            let _ = allow(limiter, "k").await;
            settle().await;
            assert_eq!(allow(limiter, "k").await.way(), Way::Denial);
        }
    });
}

#[test]
fn several_limits_at_once() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let (few, many) = (client.limiter(quota(2, 10_000, 10)).build(), client.limiter(quota(9, 60_000, 10)).build());
        let ask = || client.allow_all(&[]);
        assert!(matches!(ask().await, Err(Error::Invalid(_))));
        let both = [(&few, Request::of("a")), (&many, Request::of("b").cost(3))];
        for (granted, way) in [(true, Way::Server), (true, Way::Server), (false, Way::Server), (false, Way::Denial)] {
            let decisions = client.allow_all(&both).await.unwrap();
            settle().await;
            assert_eq!((decisions.granted(), decisions.each()[0].way()), (granted, way));
        }
        assert_eq!((fake.total("a"), fake.total("b")), (2, 6));
        let twice = [(&few, Request::of("a")), (&many, Request::of("a"))];
        assert_eq!(client.allow_all(&twice).await, Err(Error::Invalid("key named twice".into())));
        let local = client.limiter(quota(1, 10_000, 10)).deciding(Deciding::OnlyLocal).build();
        assert!(client.allow_all(&[(&local, Request::of("a"))]).await.unwrap().granted());
        assert!(matches!(client.allow_all(&[(&local, Request::of("a")), both[1]]).await, Err(Error::Invalid(_))));
        // Each by its own policy, and all or nothing.
        fake.fail(Some(Failure::Connection("gone".into())));
        let (open, shared) = (
            client.limiter(quota(1, 10_000, 10)).when_away(WhenAway::Allow).build(),
            client.limiter(quota(20, 10_000, 10)).when_away(WhenAway::Local { share: 0.1 }).build(),
        );
        let away = [(&open, Request::of("x")), (&shared, Request::of("y"))];
        for granted in [true, true, false] {
            let decisions = client.allow_all(&away).await.unwrap();
            assert_eq!((decisions.granted(), decisions.each()[1].way()), (granted, Way::Away));
        }
    });
}

#[test]
fn the_failure_policy_decides_at_once() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let of = |policy| client.limiter(quota(30, 10_000, 10)).when_away(policy).build();
        let (open, closed, local) = (of(WhenAway::Allow), of(WhenAway::Deny), of(WhenAway::default()));
        // It takes too long, every time.
        fake.delay([(1_000_000, 0)]);
        let begun = Instant::now();
        assert!(allow(&open, "k").await.granted());
        assert!(begun.elapsed() <= Duration::from_millis(51));
        assert!(!allow(&closed, "k").await.granted());
        let mut grants = 0;
        for _ in 0..5 {
            let decision = allow(&local, "k").await;
            assert_eq!((decision.way(), decision.limit()), (Way::Away, 30));
            grants += u64::from(decision.granted());
        }
        assert_eq!(grants, 3);
        assert!(begun.elapsed() < Duration::from_millis(160), "three waited, the others did not");
        assert!(!client.is_connected());
        assert_eq!(limiter_error(local.refund("k").await), "the server is away: it did not answer lately");
        let statistics = client.statistics();
        assert_eq!((statistics.granted(Way::Away), statistics.denied(Way::Away)), (4, 3));
        assert_eq!((statistics.failures, statistics.opened), (3, 1));
    });
}

fn limiter_error<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn errors_that_are_the_callers_are_said() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1, 1_000, 1)).build();
        for (reply, expected) in [
            ("WRONGTYPE Operation", Error::Refused("WRONGTYPE Operation".into())),
            ("ERR unknown command 'SWLIMIT.ALLOW', with args beginning with: ", Error::ModuleMissing),
        ] {
            fake.fail(Some(Failure::Reply(reply.into())));
            assert_eq!(limiter.allow("k").await, Err(expected));
        }
        assert!(limiter_error::<()>(Err(Error::ModuleMissing)).contains("--loadmodule"));
        for reply in ["OOM command not allowed", "LOADING Redis is loading", "READONLY You can't write", "MISCONF no"] {
            fake.fail(Some(Failure::Reply(reply.into())));
            assert_eq!(allow(&limiter, "k").await.way(), Way::Away);
        }
        assert!(matches!(limiter.allow(Request::of("k").cost(0)).await, Err(Error::Invalid(_))));
    });
}

#[test]
fn only_local_is_a_window_like_any_other() {
    paused(async {
        let client = Client::only_local();
        let limiter = client.limiter(quota(3, 1_000, 10)).strict().build();
        for granted in [true, true, true, false] {
            let decision = allow(&limiter, "k").await;
            assert_eq!((decision.granted(), decision.way()), (granted, Way::OnlyLocal));
        }
        let wait = limiter.peek("k").await.unwrap().retry_after().unwrap();
        sleep(wait - Duration::from_millis(1)).await;
        assert!(!allow(&limiter, "k").await.granted());
        sleep(Duration::from_millis(1)).await;
        assert!(allow(&limiter, "k").await.granted());
        assert_eq!(limiter.record(Request::of("r").cost(7)).await.unwrap().units(), 0);
        assert_eq!(limiter.refund(Request::of("r").cost(9)).await, Ok(7));
        limiter.block("b", Duration::from_secs(5)).await.unwrap();
        assert_eq!(allow(&limiter, "b").await.retry_after(), Some(Duration::from_secs(5)));
        assert_eq!((limiter.unblock("b").await, limiter.unblock("b").await), (Ok(true), Ok(false)));
        assert!(client.allow_all(&[(&limiter, Request::of("b"))]).await.unwrap().granted());
        assert_eq!(client.top(1).await, Err(Error::OnlyLocal("top")));
    });
}

#[test]
fn turns_are_in_the_order_of_arrival() {
    paused(async {
        let client = Client::only_local();
        let limiter = client.limiter(quota(1, 100, 1)).strict().build();
        assert!(allow(&limiter, "k").await.granted());
        let order = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..5)
            .map(|number| {
                let (limiter, order) = (limiter.clone(), order.clone());
                tokio::spawn(async move {
                    sleep(Duration::from_micros(number)).await;
                    let decision = limiter.acquire("k", Duration::from_millis(650)).await.unwrap();
                    order.lock().push((number, decision.granted()));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // A unit every 200 ms: three in 650 ms. Who has nothing to hope for is told so when it is its turn.
        let granted: Vec<_> = order.lock().iter().filter(|(_, granted)| *granted).map(|(number, _)| *number).collect();
        assert_eq!(granted, [0, 1, 2]);
    });
}

#[test]
fn a_lease_follows_demand_and_what_is_left_goes_back_dated() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1_000, 60_000, 12)).deciding(Deciding::LEASES).build();
        for _ in 0..1_000 {
            assert!(allow(&limiter, "k").await.granted());
        }
        assert_eq!(allow(&limiter, "k").await.way(), Way::Server);
        let asked: Vec<_> = fake.commands().iter().map(|words| words.split(' ').nth(6).map(str::to_owned)).collect();
        let asked: Vec<_> = asked.iter().flatten().map(String::as_str).collect();
        // Doubled while demand lasts, up to a tenth of the limit.
        assert_eq!(&asked[..9], ["2", "4", "8", "16", "32", "64", "100", "100", "100"], "{asked:?}");
        assert_eq!(fake.total("k"), 1_000);

        // One unit for a key that is quiet, and more for one that is not; what is not used goes back after a second.
        for _ in 0..3 {
            let _ = allow(&limiter, "other").await;
        }
        assert_eq!(fake.total("other"), 4);
        sleep(Duration::from_millis(1_001)).await;
        settle().await;
        assert_eq!(fake.commands().last().unwrap(), "SWLIMIT.REFUND other 1 AGE 1050ms");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(fake.commands().iter().filter(|words| words.contains("REFUND other")).count(), 1);
        assert_eq!(fake.total("other"), 3);
    });
}

#[test]
fn one_asks_for_a_lease_and_the_others_wait_for_it() {
    paused(async {
        let fake = Fake::new();
        fake.delay([(5_000, 5_000)]);
        let limiter = client(&fake).limiter(quota(100, 60_000, 12)).deciding(Deciding::LEASES).build();
        let together = |requests: usize| {
            let tasks: Vec<_> = (0..requests)
                .map(|_| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move { limiter.allow("k").await.unwrap() })
                })
                .collect();
            async move {
                let mut granted = 0;
                for task in tasks {
                    granted += usize::from(task.await.unwrap().granted());
                }
                granted
            }
        };
        assert_eq!(together(8).await, 8);
        assert_eq!(fake.commands().len(), 4, "of 1, 1, 2 and 4 units");
        // What is denied to one is denied to those who waited for the answer.
        fake.run("SWLIMIT.RECORD k 0 60000ms 5000ms COST 92").unwrap();
        sleep(Duration::from_secs(2)).await;
        let before = fake.commands().len();
        assert_eq!(together(50).await, 0);
        let commands = fake.commands();
        assert_eq!(commands[before..].iter().filter(|words| words.contains("ALLOW")).count(), 1, "{commands:?}");
    });
}

#[test]
fn a_lease_that_is_too_small_goes_back_with_the_question_for_more() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(10, 60_000, 12)).deciding(Deciding::Leases { share: 0.5 }).build();
        for _ in 0..3 {
            let _ = allow(&limiter, "k").await;
        }
        assert_eq!(fake.total("k"), 4);
        assert_eq!(limiter.allow(Request::of("k").cost(7)).await.unwrap().units(), 7);
        let commands = fake.commands();
        assert_eq!(commands[3], "SWLIMIT.REFUND k 1 AGE 50ms");
        assert_eq!(fake.total("k"), 10);
        // Less than the cost comes: it goes back, too, and the wait is that of the cost.
        fake.run("SWLIMIT.REFUND k 3").unwrap();
        let denied = limiter.allow(Request::of("k").cost(4)).await.unwrap();
        assert_eq!((denied.granted(), fake.total("k")), (false, 7));
        assert_eq!(
            denied.retry_after(),
            fake.would("k", &limiter.demand(&Request::of("k").cost(4)).exact).retry_after.map(Duration::from_millis)
        );
        assert_eq!(limiter.allow(Request::of("k").cost(4).partial()).await.unwrap().units(), 3);
    });
}

#[test]
fn leases_go_back_when_the_client_closes() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).deciding(Deciding::LEASES).build();
        for _ in 0..5 {
            let _ = allow(&limiter, "k").await;
        }
        assert_eq!(fake.total("k"), 8);
        client.close().await;
        client.close().await;
        assert_eq!(fake.total("k"), 5);
        assert_eq!((client.statistics().leased, client.statistics().returned), (8, 3));
    });
}

#[test]
fn the_background_tells_and_asks() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(100, 60_000, 12)).deciding(Deciding::BACKGROUND).build();
        let mut granted = 0;
        for _ in 0..30 {
            granted += u64::from(allow(&limiter, "k").await.granted());
        }
        assert_eq!((granted, fake.commands().len()), (10, 0), "a tenth of a key that nothing is known of");
        sleep(Duration::from_millis(1)).await;
        assert_eq!(fake.commands(), ["SWLIMIT.RECORD k 100 60000ms 5000ms COST 10"]);
        for _ in 0..200 {
            granted += u64::from(allow(&limiter, "k").await.granted());
        }
        assert_eq!(granted, 100);
        sleep(Duration::from_millis(100)).await;
        assert_eq!(fake.total("k"), 100);
        // Somebody gives back: the key that is asked for is asked about.
        fake.run("SWLIMIT.REFUND k 5").unwrap();
        assert!(!allow(&limiter, "k").await.granted());
        sleep(Duration::from_millis(100)).await;
        assert!(fake.commands().last().unwrap().starts_with("SWLIMIT.PEEK k"));
        assert!(limiter.allow(Request::of("k").cost(5)).await.unwrap().granted());
        // Nobody asks, and nothing is sent but that.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fake.commands().len(), 5, "{:?}", fake.commands());
    });
}

#[test]
fn what_is_under_way_at_the_end_is_told_once() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).deciding(Deciding::BACKGROUND).build();
        fake.delay([(10_000, 10_000)]);
        let _ = allow(&limiter, "k").await;
        sleep(Duration::from_millis(5)).await;
        let _ = allow(&limiter, "k").await;
        client.close().await;
        assert_eq!(fake.total("k"), 2);
    });
}

#[test]
fn what_the_background_could_not_tell_is_told_later_and_dated() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let deciding = Deciding::Background { interval: Duration::from_millis(100), share: 0.6 };
        let limiter = client.limiter(quota(100, 60_000, 12)).deciding(deciding).build();
        let _ = allow(&limiter, "k").await;
        sleep(Duration::from_millis(101)).await;
        fake.fail(Some(Failure::Connection("gone".into())));
        assert_eq!(limiter.allow(Request::of("k").cost(20)).await.unwrap().way(), Way::Background);
        sleep(Duration::from_millis(120)).await;
        assert_eq!(limiter.allow(Request::of("k").cost(30)).await.unwrap().units(), 30);
        sleep(Duration::from_millis(300)).await;
        // Three have failed: the policy decides.
        assert_eq!(allow(&limiter, "k").await.way(), Way::Away);
        fake.fail(None);
        // The circuit takes real time to close again.
        std::thread::sleep(Duration::from_millis(250));
        sleep(Duration::from_millis(200)).await;
        assert_eq!(allow(&limiter, "k").await.way(), Way::Background);
        let told: Vec<_> = fake.commands().into_iter().filter(|words| words.contains("COST")).collect();
        assert_eq!((told.len(), fake.total("k")), (2, 51), "{told:?}");
        assert!(told[0].contains("COST 20 AGE") && told[1].contains("COST 30 AGE"), "{told:?}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// Whatever happens on other connections, and however long commands and replies take, a request is denied near
    /// itself only when the server would deny it at that instant.
    #[test]
    fn local_denials_are_the_servers(
        limit in 1u64..6,
        window in prop_oneof![Just((1_000u64, 10u64)), Just((500, 1)), Just((2_000, 4))],
        strict: bool,
        steps in prop::collection::vec((0u64..60_000, 1u64..4, 0u8..12), 1..120),
        delays in prop::collection::vec(prop_oneof![Just((0, 0)), (0u64..3_000, 0u64..3_000)], 1..40),
        offset in 0u64..1_000,
    ) {
        paused(async {
            let fake = Fake::new();
            advance(Duration::from_micros(offset)).await;
            fake.delay(delays);
            let quota = quota(limit, window.0, window.1);
            let builder = client(&fake).limiter(quota);
            let limiter = if strict { builder.strict() } else { builder }.build();
            let mut nearly = Duration::ZERO;
            for (micros, cost, step) in steps {
                // Often to where a denial ends, almost or just: in µs, which timers have not.
                let micros = Duration::from_micros(micros);
                advance(if step > 5 && nearly > micros { nearly - micros / 20 } else { micros }).await;
                let partial = step == 1;
                let request = Request { partial, ..Request::of("k").cost(cost) };
                match step {
                    10 => drop(fake.run(&format!("SWLIMIT.REFUND k {cost}"))),
                    11 => drop(limiter.refund(request).await),
                    // Nobody waits for this one.
                    9 => drop(tokio::spawn({
                        let limiter = limiter.clone();
                        async move { limiter.allow(Request::of("k")).await }
                    })),
                    _ => {
                        let decision = limiter.allow(request).await.unwrap();
                        nearly = decision.retry_after().unwrap_or_default();
                        if decision.way() == Way::Denial {
                            let would = fake.would("k", &limiter.demand(&request).exact);
                            assert_eq!(would.granted, 0, "{decision:?} but {would:?}");
                            let (told, would) = (decision.exact.retry_after, would.retry_after);
                            // Of a larger cost only that is known what a smaller one was told.
                            let least = if partial { 1 } else { cost };
                            let is_late = least > 1 || told >= would;
                            assert!(is_late && told.is_none() == would.is_none(), "{told:?} but {would:?}");
                        }
                    }
                }
            }
        });
    }

    /// No unit is used later than a lease's length after it was counted, and none that was not counted: so no span of
    /// W − R − T sees more than the limit, and with STRICT none of W − T.
    #[test]
    fn leases_keep_their_promise(
        limit in 1u64..60,
        window in prop_oneof![Just((1_000u64, 10u64)), Just((2_000, 2)), Just((6_000, 3))],
        strict: bool,
        share in 0.01f64..1.0,
        steps in prop::collection::vec((0u64..40_000, 1u64..5, 0u8..10), 1..400),
        delays in prop::collection::vec((0u64..3_000, 0u64..3_000), 1..20),
    ) {
        paused(async {
            let fake = Fake::new();
            fake.delay(delays);
            let quota = quota(limit, window.0, window.1);
            let of = || {
                let builder = client(&fake).limiter(quota).deciding(Deciding::Leases { share });
                if strict { builder.strict() } else { builder }.build()
            };
            let limiters = [of(), of()];
            let length = Duration::from_millis(window.0 / window.1).min(Duration::from_secs(1));
            let span = quota.window() - length - if strict { Duration::ZERO } else { quota.resolution() };
            let mut used = VecDeque::new();
            for (micros, cost, step) in steps {
                sleep(Duration::from_micros(if step == 0 { micros * 20 } else { micros })).await;
                let request = Request { partial: step == 1, ..Request::of("k").cost(cost) };
                let decision = limiters[usize::from(step % 2)].allow(request).await.unwrap();
                let now = Instant::now();
                used.push_back((now, decision.units()));
                while used.front().is_some_and(|(at, _)| now >= *at + span) {
                    used.pop_front();
                }
                let units: u64 = used.iter().map(|(_, units)| units).sum();
                assert!(units <= limit, "{units} of {limit} in {span:?}");
                assert!(fake.total("k") <= 2 * limit);
            }
        });
    }

    /// Whatever was granted can be given back, wherever it is: known here alone, on its way, or told. In the end the
    /// server counts what is left.
    #[test]
    fn what_the_background_granted_can_be_given_back(
        steps in prop::collection::vec((0u64..80, 1u64..9, 0..4u8), 1..100),
        delay in 0u64..10_000,
    ) {
        paused(async {
            let fake = Fake::new();
            fake.delay([(delay, delay)]);
            let client = client(&fake);
            let limiter = client.limiter(quota(1_000, 1_000_000_000, 10)).deciding(Deciding::BACKGROUND).build();
            let mut used = 0;
            for (wait, cost, what) in steps {
                let request = Request::of("k").cost(cost);
                match what {
                    0 => sleep(Duration::from_millis(wait)).await,
                    1 if used >= cost => {
                        assert_eq!(limiter.refund(request).await.unwrap(), cost);
                        used -= cost;
                    }
                    2 => used += limiter.record(request).await.map(|_| cost).unwrap(),
                    _ => used += limiter.allow(request).await.unwrap().units(),
                }
            }
            client.close().await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(fake.total("k"), used);
        });
    }

    /// At any instant, what was granted in a window is the limit at most, and what the other clients granted in the
    /// time that the bound names before.
    #[test]
    fn background_keeps_its_bound(
        limit in 5u64..60,
        clients in 1usize..5,
        interval in 5u64..60,
        steps in prop::collection::vec((0u64..8_000, 0usize..5), 1..400),
        delays in prop::collection::vec((0u64..10_000, 0u64..10_000), 1..20),
    ) {
        paused(async {
            let fake = Fake::new();
            let longest = delays.iter().map(|(there, back)| there + back).max().unwrap_or_default();
            fake.delay(delays);
            let (quota, interval) = (quota(limit, 2_000, 10), Duration::from_millis(interval));
            let limiters: Vec<_> = (0..clients)
                .map(|_| client(&fake).limiter(quota).deciding(Deciding::Background { interval, share: 0.0 }).build())
                .collect();
            // Timers have whole ms: each may be late by one.
            let late = Duration::from_millis(1);
            let round_trip = Duration::from_micros(longest) + 2 * late;
            let unseen = 2 * (interval + late).max(round_trip) + round_trip;
            let mut granted: Vec<(Instant, usize)> = Vec::new();
            for (micros, who) in steps {
                sleep(Duration::from_micros(micros)).await;
                let who = who % clients;
                if !allow(&limiters[who], "k").await.granted() {
                    continue;
                }
                let now = Instant::now();
                let certain = quota.window() - quota.resolution();
                let in_window = granted.iter().filter(|(at, _)| now < *at + certain).count();
                let others = granted.iter().filter(|(at, other)| *other != who && now <= *at + unseen).count();
                assert!(in_window < limit as usize + others, "{in_window} of {limit}, {others} unseen");
                granted.push((now, who));
            }
        });
    }
}
