//! The client on a fake server, in paused time: what is decided near the request, beside what the server would have
//! said.

use std::collections::VecDeque;
use std::future::{poll_fn, Future};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, FutureExt};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tokio::task::yield_now;
use tokio::time::{advance, sleep, Instant};

use crate::simulation::fake::{paused, Fake, Fault};
use crate::{
    Backend, Calendar, Client, Decision, Decisions, Error, Limiter, Mode, Module, OnFailure, Period, Quota, Reason,
    Request, Source, State,
};

fn client(fake: &Fake) -> Client {
    Client::builder().over(fake.clone()).unwrap()
}

fn quota(limit: u64, window_ms: u64, subintervals: u64) -> Quota {
    let ms = Duration::from_millis;
    Quota::of(limit, ms(window_ms), Some(ms(window_ms / subintervals))).unwrap()
}

/// Connect, and let the server say who it is.
async fn connected(limiter: &Limiter) {
    let _ = limiter.peek("another").await;
    sleep(Duration::from_millis(100)).await;
}

async fn allow(limiter: &Limiter, key: &str) -> Decision {
    limiter.allow(key).await.unwrap()
}

/// Ask until nobody has to be asked: of a key that is seldom denied nothing is remembered.
async fn until_known(limiter: &Limiter, key: &str) {
    while allow(limiter, key).await.source() != Source::Cache {
        settle().await;
    }
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
        let limiter = client(&fake).limiter(quota(2, 10_000, 10)).build().unwrap();
        for commands in 1..=6 {
            settle().await;
            assert_eq!((allow(&limiter, "k").await.source(), fake.commands().len()), (Source::Server, commands));
        }
        settle().await;
        let asked = fake.commands().len();
        assert_eq!(asked, 8, "six ALLOWs, and PEEK and PTTL behind the fourth denial");
        let denied = allow(&limiter, "k").await;
        assert_eq!((denied.source(), denied.granted(), denied.remaining()), (Source::Cache, false, Some(0)));
        let wait = denied.retry_after().unwrap();
        let all = limiter.allow(Request::new("k").cost(2)).await.unwrap();
        assert_eq!((all.source(), fake.commands().len()), (Source::Cache, asked));
        assert_eq!(allow(&limiter, "other").await.source(), Source::Server);
        sleep(wait).await;
        assert!(allow(&limiter, "k").await.granted());
        // So many were denied that the next denial is worth a read, too.
        while allow(&limiter, "k").await.granted() {}
        settle().await;
        assert_eq!(allow(&limiter, "k").await.source(), Source::Cache);
    });
}

#[test]
fn what_is_given_back_is_heard_of() {
    let give_back =
        ["SWLIMIT.REFUND k 1", "SWLIMIT.UNBLOCK k", "SWLIMIT.RECORD k 9 10000ms 1000ms", "SWLIMIT.BLOCK k 1s"];
    for words in give_back {
        paused(async {
            let fake = Fake::new();
            let limiter = client(&fake).limiter(quota(1, 10_000, 10)).build().unwrap();
            until_known(&limiter, "k").await;
            fake.run(words);
            assert_eq!(allow(&limiter, "k").await.source(), Source::Server, "{words}");
        });
    }
}

/// A change is followed by the request itself, and by one read behind it: never by a read before it.
#[test]
fn a_request_waits_for_one_round_trip() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1, 10_000, 10)).build().unwrap();
        connected(&limiter).await;
        fake.delay([(15_000, 15_000)]);
        for _ in 0..40 {
            let begun = Instant::now();
            let decision = allow(&limiter, "k").await;
            assert_eq!(decision.source(), Source::Server);
            assert!(begun.elapsed() <= Duration::from_millis(32));
            sleep(Duration::from_millis(200)).await;
            if !decision.granted() {
                while allow(&limiter, "k").await.source() != Source::Cache {
                    sleep(Duration::from_millis(50)).await;
                }
                fake.run("SWLIMIT.RECORD k 9 10000ms 1000ms");
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
}

/// The server does not announce an expiry that it has not noticed: a denial holds no longer than the key.
#[test]
fn a_denial_ends_with_its_key() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1, 10_000, 10)).build().unwrap();
        until_known(&limiter, "k").await;
        // Somebody shortens the expiry before the denial, which says nothing of it.
        fake.expire("other", Duration::from_millis(300));
        fake.run("SWLIMIT.RECORD other 1 10000ms 1000ms");
        fake.expire("other", Duration::from_millis(300));
        until_known(&limiter, "other").await;
        sleep(Duration::from_millis(300)).await;
        assert!(allow(&limiter, "other").await.granted());
    });
}

#[test]
fn own_changes_are_heard_of_without_tracking() {
    paused(async {
        let fake = Fake::new().untracked();
        let limiter = client(&fake).limiter(quota(1, 10_000, 10)).build().unwrap();
        let fill = || async {
            for _ in 0..2 {
                let _ = allow(&limiter, "k").await;
            }
            settle().await;
            assert_eq!(allow(&limiter, "k").await.source(), Source::Cache);
        };
        fill().await;
        assert_eq!(limiter.refund("k").await, Ok(1));
        assert!(allow(&limiter, "k").await.granted());
        fill().await;
        limiter.block("k", Duration::from_secs(1)).await.unwrap();
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
        settle().await;
        assert_eq!(limiter.unblock("k").await, Ok(true));
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
        // A limiter is not needed for that.
        settle().await;
        assert_eq!(allow(&limiter, "k").await.source(), Source::Cache);
        let client = limiter.client();
        assert_eq!(client.refund(Request::new("k").cost(1)).await, Ok(1));
        assert!(allow(&limiter, "k").await.granted());
        settle().await;
        assert!(!allow(&limiter, "k").await.granted());
        // What others give back is noticed that much later.
        settle().await;
        assert_eq!(allow(&limiter, "k").await.source(), Source::Cache);
        fake.run("SWLIMIT.REFUND k 1");
        assert_eq!(allow(&limiter, "k").await.source(), Source::Cache);
        sleep(Duration::from_millis(100)).await;
        assert!(allow(&limiter, "k").await.granted());
    });
}

#[test]
fn a_cost_above_the_limit_needs_nobody() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(5, 1_000, 1)).build().unwrap();
        let never = limiter.allow(Request::new("k").cost(6)).await.unwrap();
        assert_eq!((never.granted(), never.retry_after(), fake.commands().len()), (false, None, 0));
        assert_eq!(limiter.allow(Request::new("k").cost(6).partial()).await.unwrap().units(), 5);
        // It would begin a block, so it goes to the server.
        let penalty = client(&fake).limiter(quota(5, 1_000, 1)).block_for(Duration::from_secs(60)).build().unwrap();
        let blocked = penalty.allow(Request::new("other").cost(6)).await.unwrap();
        assert_eq!((blocked.granted(), blocked.source()), (false, Source::Server));
    });
}

#[test]
fn a_block_is_begun_by_the_server() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let (plain, penalty) = (
            client.limiter(quota(1, 1_000, 1)).build().unwrap(),
            client.limiter(quota(1, 1_000, 1)).block_for(Duration::from_secs(60)).build().unwrap(),
        );
        until_known(&plain, "k").await;
        let begun = allow(&penalty, "k").await;
        assert_eq!((begun.source(), begun.retry_after()), (Source::Server, Some(Duration::from_secs(60))));
        settle().await;
        for limiter in [&plain, &penalty] {
            until_known(limiter, "k").await;
        }
    });
}

/// While a server loads the module it may have neither the module nor scripts. Connections made then use it later.
#[test]
fn a_connection_that_is_older_than_the_module() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(5, 10_000, 10)).mode(Mode::Direct).build().unwrap();
        fake.fail(Some("ERR unknown command 'SWLIMIT.ALLOW'"));
        assert!(matches!(limiter.allow("k").await, Err(Error::ModuleMissing)));
        fake.fail(None);
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
        fake.fail(Some("ERR unknown command 'SWLIMIT.ALLOW'"));
        fake.cut();
        assert_eq!(allow(&limiter, "k").await.source(), Source::Failure);
        fake.fail(None);
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
    });
}

#[test]
fn several_limits_at_once() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let (few, many) = (
            client.limiter(quota(2, 10_000, 10)).build().unwrap(),
            client.limiter(quota(9, 60_000, 10)).build().unwrap(),
        );
        let ask = || client.allow_all(&[]);
        assert!(matches!(ask().await, Err(Error::Invalid(_))));
        let both = [(&few, Request::new("a")), (&many, Request::new("b").cost(3))];
        for (granted, way) in
            [(true, Source::Server); 2].into_iter().chain([(false, Source::Server); 4]).chain([(false, Source::Cache)])
        {
            let decisions = client.allow_all(&both).await.unwrap();
            settle().await;
            assert_eq!((decisions.granted(), decisions.each()[0].source()), (granted, way));
        }
        assert_eq!((fake.total("a"), fake.total("b")), (2, 6));
        let twice = [(&few, Request::new("a")), (&many, Request::new("a"))];
        assert_eq!(client.allow_all(&twice).await, Err(Error::Invalid("key named twice".into())));
        let local = client.limiter(quota(1, 10_000, 10)).mode(Mode::Local).build().unwrap();
        assert!(client.allow_all(&[(&local, Request::new("a"))]).await.unwrap().granted());
        assert!(matches!(client.allow_all(&[(&local, Request::new("a")), both[1]]).await, Err(Error::Invalid(_))));
        // Direct limits ask the server whatever is known.
        let direct = |limit| client.limiter(quota(limit, 10_000, 10)).mode(Mode::Direct).build().unwrap();
        let (one, other) = (direct(1), direct(9));
        for granted in [true, false, false] {
            let decisions = client.allow_all(&[(&one, Request::new("c")), (&other, Request::new("d"))]).await.unwrap();
            settle().await;
            assert_eq!((decisions.granted(), decisions.each()[0].source()), (granted, Source::Server));
        }
        // Each by its own policy, and all or nothing.
        fake.fault(Fault::Down);
        let of = |limit, policy| client.limiter(quota(limit, 10_000, 10)).on_failure(policy).build().unwrap();
        let (open, shared) = (of(1, OnFailure::Allow), of(20, OnFailure::Local));
        let away = [(&open, Request::new("x")), (&shared, Request::new("y"))];
        let before = client.statistics().granted(Source::Failure);
        for granted in [true, true, false] {
            let decisions = client.allow_all(&away).await.unwrap();
            assert_eq!((decisions.granted(), decisions.each()[1].source()), (granted, Source::Failure));
            assert_eq!(decisions.each()[0].remaining(), None);
        }
        // What was denied as a whole granted nothing.
        assert_eq!(client.statistics().granted(Source::Failure) - before, 4);
        let strict = of(1, OnFailure::Error);
        assert!(matches!(client.allow_all(&[(&strict, Request::new("x"))]).await, Err(Error::Unavailable(_))));
    });
}

/// The node that a slot is on its way to answers as the one that it leaves.
#[test]
fn several_limits_whose_slot_is_migrating() {
    for mode in [Mode::Cached, Mode::Leased] {
        paused(async {
            let fake = Fake::cluster(2);
            let client = client(&fake);
            let of = |limit| client.limiter(quota(limit, 60_000, 12)).mode(mode).build().unwrap();
            let (one, other, both) = (of(9), of(9), ["{a}1", "{a}2"]);
            let ask = async || {
                let members = [(&one, Request::new(both[0])), (&other, Request::new(both[1]))];
                client.allow_all(&members).await.unwrap()
            };
            assert!(ask().await.granted());
            fake.migrate(both[0], 1 - fake.node(both[0]));
            for asked in 2..6 {
                let decisions = ask().await;
                assert_eq!((decisions.granted(), decisions.each()[1].source()), (true, Source::Server));
                assert_eq!(both.map(|key| fake.total(key)), [asked; 2]);
            }
        });
    }
}

/// All from leases, or all from MALLOW, which brings new leases.
#[test]
fn several_leased_limits() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let of = |limit| client.limiter(quota(limit, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        let (few, many) = (of(1_000), of(5_000));
        let mut sources = std::collections::HashMap::new();
        for _ in 0..1_000 {
            let both = [(&few, Request::new("a")), (&many, Request::new("b").cost(2))];
            let decisions = client.allow_all(&both).await.unwrap();
            assert!(decisions.granted());
            *sources.entry(decisions.each()[1].source()).or_insert(0) += 1;
        }
        assert!(sources[&Source::Server] < 100 && sources[&Source::Lease] > 900, "{sources:?}");
        client.close().await;
        assert_eq!((fake.total("a"), fake.total("b")), (1_000, 2_000));
    });
}

/// A key of one of them is being taken over from the script when the connection ends: the failure policy decides, whether
/// or not the request was sent again. What was leased beside it is kept.
#[test]
fn several_limits_whose_connection_ends_while_a_key_is_taken_over() {
    for (lost, after, in_doubt) in [("EVALSHA", 0, 0), ("SWLIMIT.MALLOW", 1_500, 2)] {
        paused(async {
            let fake = Fake::new();
            let client = Client::builder().timeout(Duration::from_millis(100)).over(fake.clone()).unwrap();
            let of = |limit| client.limiter(quota(limit, 60_000, 12)).mode(Mode::Leased).on_failure(OnFailure::Deny);
            let (few, many) = (of(1_000).build().unwrap(), of(5_000).build().unwrap());
            connected(&few).await;
            let both = [(&few, Request::new("a")), (&many, Request::new("b"))];
            fake.delay([(500, 500)]);
            join_all((0..11).map(|_| client.allow_all(&both))).await;
            fake.refuse("b", "WRONGTYPE Operation against a key holding the wrong kind of value");
            let leased = client.statistics().leased;
            let (decided, _) = tokio::join!(client.allow_all(&both), async {
                sleep(Duration::from_micros(after)).await;
                fake.lose_replies(lost, 1, false);
            });
            let decided = decided.unwrap();
            assert_eq!((decided.granted(), decided.each()[0].source()), (false, Source::Failure));
            let statistics = client.statistics();
            assert_eq!((statistics.in_doubt, statistics.leased > leased), (in_doubt, true));
        });
    }
}

/// They wait for units on their way as those of one limit do: for one trip, and for all or none. Where one limit has too
/// few, nobody asks again, and the units of the other are there for others.
#[test]
fn several_leased_limits_wait_for_units_on_their_way() {
    let trip = Duration::from_millis(100);
    for (left, granted) in [(300, 24), (14, 14)] {
        paused(async {
            let fake = Fake::new();
            let client = Client::builder().timeout(4 * trip).over(fake.clone()).unwrap();
            let of = |limit| client.limiter(quota(limit, 60_000, 6)).mode(Mode::Leased).build().unwrap();
            let (few, many) = (of(300), of(6_000));
            connected(&few).await;
            fake.run(&format!("SWLIMIT.RECORD a 300 60s 10s COST {}", 300 - left));
            fake.delay([(50_000, 50_000)]);
            let ask = async || {
                let begun = Instant::now();
                let both = [(&few, Request::new("a")), (&many, Request::new("b").cost(2))];
                let decisions = client.allow_all(&both).await.unwrap();
                assert!(begun.elapsed() <= trip + Duration::from_millis(1), "{:?}", begun.elapsed());
                decisions
            };
            // The twelfth makes both keys hot for requests of both. Those behind it wait for what was asked for beside it.
            let asked = join_all((0..24).map(|_| ask())).await;
            assert_eq!(asked.iter().filter(|all| all.granted()).count(), granted);
            let mallows = fake.commands().iter().filter(|words| words.starts_with("SWLIMIT.MALLOW")).count();
            let is_by_lease = |all: &&Decisions| all.each()[0].source() == Source::Lease;
            assert_eq!((mallows, asked.iter().filter(is_by_lease).count()), (12, 12));
            let denied = asked.iter().filter(|all| !all.granted());
            assert!(denied.into_iter().all(|all| all.retry_after() > Some(trip)));
            client.close().await;
            assert_eq!((fake.total("a"), fake.total("b")), (300 - left + granted as u64, 2 * granted as u64));
            assert_eq!(client.statistics().written_off, 0);
        });
    }
}

/// What is on its way to a server that is unavailable is waited for by nobody who comes later.
#[test]
fn several_leased_limits_wait_for_no_server_that_is_away() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = |limit| client.limiter(quota(limit, 60_000, 6)).on_failure(OnFailure::Deny);
        let of = |limit| limiter(limit).mode(Mode::Leased).build().unwrap();
        let (few, many, direct) = (of(3_000), of(6_000), limiter(10).build().unwrap());
        connected(&few).await;
        let ask = async || client.allow_all(&[(&few, Request::new("a")), (&many, Request::new("b"))]).await.unwrap();
        fake.delay([(15_000, 15_000)]);
        join_all((0..24).map(|_| ask())).await;
        fake.fault(Fault::BlackHole);
        let unanswered = async || join_all(["c", "d", "e"].map(|key| direct.allow(key))).await;
        let (_, ahead) = tokio::join!(unanswered(), async {
            sleep(Duration::from_millis(35)).await;
            // Until all in hand is used, and more is on its way.
            while ask().now_or_never().is_some() {}
            // What one silence leaves unanswered is one failure: the breaker opens after a silence of three.
            let silent = Instant::now();
            while client.servers()[0].state != State::Unavailable {
                assert!(silent.elapsed() < Duration::from_secs(1));
                sleep(Duration::from_millis(1)).await;
            }
            let begun = Instant::now();
            assert_eq!(ask().await.each()[0].source(), Source::Failure);
            begun.elapsed()
        });
        assert_eq!(ahead, Duration::ZERO);
    });
}

#[test]
fn the_failure_policy_decides_at_once() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let of = |policy| client.limiter(quota(30, 10_000, 10)).on_failure(policy).build().unwrap();
        let (open, closed, local) = (of(OnFailure::Allow), of(OnFailure::Deny), of(OnFailure::Local));
        connected(&open).await;
        // It takes too long, every time.
        fake.delay([(1_000_000, 0)]);
        let begun = Instant::now();
        assert!(allow(&open, "k").await.granted());
        assert!(begun.elapsed() <= Duration::from_millis(51));
        assert!(!allow(&closed, "k").await.granted());
        let mut grants = 0;
        for _ in 0..5 {
            settle().await;
            let decision = allow(&local, "k").await;
            assert_eq!((decision.source(), decision.limit()), (Source::Failure, 30));
            grants += u64::from(decision.granted());
        }
        assert_eq!(grants, 3);
        assert!(begun.elapsed() < Duration::from_millis(160), "three waited, the others did not");
        assert!(!client.is_connected());
        assert!(limiter_error(local.refund("k").await).starts_with("the server is unavailable: "));
        assert!(matches!(of(OnFailure::Error).allow("k").await, Err(Error::Unavailable(_))));
        let statistics = client.statistics();
        assert_eq!((statistics.granted(Source::Failure), statistics.denied(Source::Failure)), (4, 3));
        assert_eq!((statistics.failures, statistics.opened), (3, 1));
    });
}

/// Where the round trip is above the timeout, no request waits, one probe at a time is sent, and nothing is a failure of
/// the server's: a hold, which has more time, is decided by it.
#[test]
fn a_link_that_is_slower_than_requests_wait() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(1_000, 10_000, 10)).mode(Mode::Direct).on_failure(OnFailure::Deny).build();
        let (limiter, holds) = (limiter.unwrap(), client.holds(10).build().unwrap());
        assert!(allow(&limiter, "k").await.granted());
        fake.delay([(30_000, 30_000)]);
        let begun = Instant::now();
        let (mut late, mut sent) = (0, 0);
        while begun.elapsed() < Duration::from_secs(20) {
            let (begun, commands) = (Instant::now(), client.statistics().commands);
            assert_eq!(allow(&limiter, "k").await.source(), Source::Failure);
            late += u32::from(begun.elapsed() > Duration::ZERO);
            sent += client.statistics().commands - commands;
            sleep(Duration::from_millis(20)).await;
        }
        assert!(late <= 3 && sent <= 3, "{late} waited, {sent} were sent");
        assert!(holds.hold("place").await.unwrap().granted());
        let statistics = client.statistics();
        assert_eq!((statistics.opened, client.servers()[0].reason), (0, Some(Reason::Slow)));
        assert!((30..80).contains(&statistics.commands), "probes, and few others: {}", statistics.commands);
        fake.delay([(1_000, 1_000)]);
        sleep(Duration::from_millis(600)).await;
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
    });
}

/// More requests at once than may be unanswered on a connection wait for their turn, over the one connection.
#[test]
fn a_burst_is_decided_by_the_server() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100_000, 10_000, 10)).mode(Mode::Direct).build().unwrap();
        connected(&limiter).await;
        fake.delay([(1_000, 1_000)]);
        let most = AtomicUsize::new(0);
        let requests = (0..10_000).map(|_| async {
            let decision = allow(&limiter, "k").await;
            most.fetch_max(fake.connections(), Ordering::Relaxed);
            decision
        });
        let decided = join_all(requests).await;
        assert!(decided.iter().all(|decision| decision.source() == Source::Server));
        let statistics = client.statistics();
        assert_eq!((most.load(Ordering::Relaxed), statistics.failures, statistics.slow), (1, 0, 0));
        // A request that gets no turn in time is no failure of the server's.
        fake.delay([(30_000, 19_000)]);
        let decided = join_all((0..3_000).map(|_| allow(&limiter, "k"))).await;
        let by_server = decided.iter().filter(|decision| decision.source() == Source::Server).count();
        assert_eq!((by_server, client.statistics().failures), (1_000, 0));
    });
}

/// Once the module is loaded, it decides within two minutes, though the connection stays.
#[test]
fn the_module_is_looked_for_while_the_script_decides() {
    paused(async {
        let fake = Fake::new().scripted();
        let client = client(&fake);
        let limiter = client.limiter(quota(1_000, 10_000, 10)).mode(Mode::Direct).build().unwrap();
        assert!(allow(&limiter, "k").await.granted());
        assert_eq!(client.servers()[0].backend, Some(Backend::Script));
        fake.load_module();
        let begun = Instant::now();
        while client.servers()[0].backend == Some(Backend::Script) {
            assert!(begun.elapsed() < Duration::from_secs(120));
            sleep(Duration::from_secs(1)).await;
            assert!(allow(&limiter, "k").await.granted());
        }
        assert_eq!(fake.connections(), 1);
    });
}

/// `servers` shows each server's state, since when, and why.
#[test]
fn what_is_known_of_a_server() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(30, 10_000, 10)).on_failure(OnFailure::Deny).build().unwrap();
        let state = || client.servers().pop().unwrap();
        assert_eq!((state().state, state().reason, state().round_trip), (State::Up, None, None));
        fake.delay([(2_000, 3_000)]);
        assert!(allow(&limiter, "k").await.granted());
        let up = state();
        assert_eq!((up.address.as_str(), up.round_trip), ("fake", Some(Duration::from_millis(5))));
        // Replies are late: the server is slow until a probe is in time.
        fake.delay([(30_000, 40_000)]);
        for _ in 0..2 {
            assert_eq!(state().state, State::Up);
            let _ = allow(&limiter, "k").await;
            sleep(Duration::from_millis(100)).await;
        }
        let slow = state();
        assert_eq!((slow.state, slow.reason, slow.message.as_str()), (State::Slow, Some(Reason::Slow), ""));
        assert_eq!(slow.round_trip, Some(Duration::from_millis(70)));
        assert!(slow.since >= up.since);
        fake.delay([(2_000, 3_000)]);
        assert_eq!(allow(&limiter, "k").await.source(), Source::Failure);
        sleep(Duration::from_millis(600)).await;
        assert_eq!(state().state, State::Up);
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
        for (error, reason) in [("READONLY You can't write", Reason::Code("READONLY")), ("WRONGPASS no", Reason::Auth)]
        {
            fake.fail(Some(error));
            for _ in 0..3 {
                let _ = allow(&limiter, "k").await;
            }
            let away = state();
            assert_eq!((away.state, away.reason, away.message.as_str()), (State::Unavailable, Some(reason), error));
            assert!(away.since >= slow.since);
            fake.fail(None);
            sleep(Duration::from_secs(1)).await;
            assert_eq!((state().state, state().reason), (State::Up, None));
        }
        for (fault, reason) in [(Fault::Down, Reason::Refused), (Fault::BlackHole, Reason::NoAnswer)] {
            fake.fault(fault);
            for _ in 0..4 {
                let _ = allow(&limiter, "k").await;
            }
            sleep(Duration::from_secs(2)).await;
            assert_eq!((state().state, state().reason), (State::Unavailable, Some(reason)));
            fake.fault(Fault::None);
            sleep(Duration::from_secs(2)).await;
            assert_eq!(state().state, State::Up);
        }
    });
}

/// The log names the right that a user lacks, and the client does without it: without `TIME` or `INFO`,
/// leases decide as the denial cache does.
#[test]
fn rights_that_are_missing() {
    for right in ["TIME", "INFO"] {
        paused(without_leases(right));
    }
}

async fn without_leases(right: &str) {
    let fake = Fake::new();
    fake.forbid(right);
    fake.forbid("PTTL");
    let client = client(&fake);
    let of = |mode| client.limiter(quota(3, 60_000, 12)).mode(mode).build().unwrap();
    let (leased, cached) = (of(Mode::Leased), of(Mode::Cached));
    connected(&leased).await;
    let right = right.to_lowercase();
    assert_eq!(client.servers()[0].lacks, [&right]);
    for decided in [true, true, true, false, false, false, false] {
        for (limiter, key) in [(&leased, "leased"), (&cached, "cached")] {
            let decision = allow(limiter, key).await;
            assert_eq!((decision.granted(), decision.source()), (decided, Source::Server));
        }
    }
    settle().await;
    let lacks = &client.servers()[0].lacks;
    assert!(lacks.len() == 2 && lacks.contains(&"pttl") && lacks.contains(&&*right), "{lacks:?}");
    let statistics = client.statistics();
    assert_eq!((statistics.granted(Source::Server), statistics.leased, statistics.written_off), (6, 0, 0));
    for (limiter, key) in [(&leased, "leased"), (&cached, "cached")] {
        assert_eq!(allow(limiter, key).await.source(), Source::Cache);
    }
    // Untracked, the denial is not remembered for long.
    sleep(Duration::from_millis(101)).await;
    assert_eq!(allow(&cached, "cached").await.source(), Source::Server);
}

/// A caller gives up sooner than the client would. The breaker opens all the same.
#[test]
fn callers_that_go_away_hide_no_outage() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(30, 10_000, 10)).on_failure(OnFailure::Deny).build().unwrap();
        assert!(allow(&limiter, "k").await.granted());
        fake.fault(Fault::BlackHole);
        let begun = Instant::now();
        while client.is_connected() {
            let _ = tokio::time::timeout(Duration::from_millis(20), limiter.allow("k")).await;
            assert!(begun.elapsed() <= Duration::from_millis(170), "three times the timeout, and a request's time");
        }
        // The same with a deadline, a little before which it is decided.
        fake.fault(Fault::None);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
        fake.fault(Fault::BlackHole);
        let begun = Instant::now();
        let request = Request::new("k").deadline(begun + Duration::from_millis(20));
        let decision = limiter.allow(request).await.unwrap();
        assert_eq!((decision.source(), decision.granted()), (Source::Failure, false));
        assert!((18..20).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        let late = Request::new("k").deadline(Instant::now() + Duration::from_millis(1));
        let begun = Instant::now();
        assert_eq!((limiter.allow(late).await.unwrap().source(), begun.elapsed()), (Source::Failure, Duration::ZERO));
    });
}

/// A connection may fall silent when one request has just been answered and the next is on its way.
#[test]
fn a_connection_that_falls_silent_behind_a_reply() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(9, 10_000, 10)).mode(Mode::Direct).build().unwrap();
        connected(&limiter).await;
        fake.delay([(5_000, 5_000)]);
        let (one, other) = (limiter.clone(), limiter.clone());
        let first = tokio::spawn(async move { allow(&one, "k").await });
        sleep(Duration::from_millis(5)).await;
        let second = tokio::spawn(async move { allow(&other, "k").await });
        assert_eq!(first.await.unwrap().source(), Source::Server);
        fake.half_open();
        assert_eq!(second.await.unwrap().source(), Source::Failure);
        sleep(Duration::from_millis(500)).await;
        assert_eq!(limiter.client().statistics().opened, 1);
        assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
    });
}

/// Looking up a cluster's slots takes longer than a request may wait. Nobody has to wait for it.
#[test]
fn a_cluster_that_is_far_away() {
    paused(async {
        let fake = Fake::cluster(3);
        fake.delay([(18_000, 18_000)]);
        let client = client(&fake);
        let limiter = client.limiter(quota(3, 10_000, 10)).on_failure(OnFailure::Deny).build().unwrap();
        for source in [Source::Failure, Source::Failure, Source::Server] {
            assert_eq!(allow(&limiter, "k").await.source(), source);
            sleep(Duration::from_millis(100)).await;
        }
        let states = client.servers();
        let addresses: Vec<_> = states.iter().map(|state| state.address.as_str()).collect();
        assert_eq!(addresses, ["fake:0", "fake:1", "fake:2"]);
    });
}

/// A node that has left the cluster tells an empty table: the others know more. While only such a node answers, no table is
/// known, and what was known stays.
#[test]
fn a_seed_that_has_left_the_cluster() {
    paused(async {
        let fake = Fake::cluster(3);
        fake.forget_slots(0);
        let client = client(&fake);
        let limiter = client.limiter(quota(30, 10_000, 10)).on_failure(OnFailure::Deny).build().unwrap();
        let keys: Vec<_> = (0..20).map(|key| key.to_string()).filter(|key| fake.node(key) > 0).collect();
        for key in &keys {
            assert_eq!(allow(&limiter, key).await.source(), Source::Server, "{key}");
        }
        fake.fault_at(1, Fault::Down);
        fake.fault_at(2, Fault::Down);
        for key in &keys {
            assert_eq!(allow(&limiter, key).await.source(), Source::Failure, "{key}");
        }
        sleep(Duration::from_secs(1)).await;
        fake.fault(Fault::None);
        sleep(Duration::from_secs(2)).await;
        for key in &keys {
            assert_eq!(allow(&limiter, key).await.source(), Source::Server, "{key}");
        }
    });
}

/// A cluster of which nothing is known yet, and of which no node answers, is unavailable as one server would be.
#[test]
fn a_cluster_that_is_away_from_the_beginning() {
    for fault in [Fault::Down, Fault::BlackHole] {
        paused(async {
            let fake = Fake::cluster(3);
            fake.fault(fault);
            let client = client(&fake);
            let limiter = client.limiter(quota(3, 10_000, 10)).on_failure(OnFailure::Deny).build().unwrap();
            let begun = Instant::now();
            while client.is_connected() {
                assert_eq!(allow(&limiter, "k").await.source(), Source::Failure);
                assert!(begun.elapsed() < Duration::from_millis(1_100));
            }
            let asked = Instant::now();
            assert_eq!((allow(&limiter, "k").await.source(), asked.elapsed()), (Source::Failure, Duration::ZERO));
            assert_eq!(client.servers()[0].state, State::Unavailable);
            fake.fault(Fault::None);
            sleep(Duration::from_secs(2)).await;
            assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
            assert!(client.is_connected());
        });
    }
}

/// A node is asked for a key that another one has by now: it is back all the same.
#[test]
fn a_node_whose_slot_has_moved_while_it_was_away() {
    paused(async {
        let fake = Fake::cluster(2);
        let client = client(&fake);
        let limiter = client.limiter(quota(30, 10_000, 10)).on_failure(OnFailure::Deny).build().unwrap();
        let keys: Vec<_> = (0..100).map(|key| key.to_string()).filter(|key| fake.node(key) == 1).collect();
        let [moved, stays, ..] = keys.as_slice() else { panic!("{keys:?}") };
        for key in [moved, stays] {
            assert!(allow(&limiter, key).await.granted());
        }
        fake.fail_at(1, Some("LOADING data"));
        for _ in 0..3 {
            assert_eq!(allow(&limiter, moved).await.source(), Source::Failure);
        }
        fake.reshard(moved, 0);
        fake.fail_at(1, None);
        sleep(Duration::from_secs(2)).await;
        for key in [moved, stays] {
            assert_eq!(allow(&limiter, key).await.source(), Source::Server, "{key}");
        }
        assert!(client.is_connected());
    });
}

/// A server that refuses writes is unavailable, also for those who read between them.
#[test]
fn reads_that_succeed_say_nothing_about_writes() {
    for error in ["READONLY You can't write", "OOM command not allowed", "MISCONF Redis", "NOREPLICAS Not enough"] {
        paused(async {
            let fake = Fake::new();
            let client = client(&fake);
            let limiter = client.limiter(quota(3, 10_000, 10)).on_failure(OnFailure::Deny).build().unwrap();
            assert!(allow(&limiter, "k").await.granted());
            fake.fail(Some(error));
            for _ in 0..3 {
                assert!(client.is_connected(), "{error}");
                assert_eq!(allow(&limiter, "k").await.source(), Source::Failure);
                let _ = limiter.peek("k").await;
            }
            assert!(!client.is_connected(), "{error}");
            fake.fail(None);
            sleep(Duration::from_secs(1)).await;
            // Reads are failures, and successes, among themselves.
            for _ in 0..3 {
                fake.delay([(40_000, 40_000), (0, 0)]);
                assert_eq!(limiter.peek("k").await.unwrap().source(), Source::Failure);
                sleep(Duration::from_millis(100)).await;
                assert_eq!(limiter.peek("k").await.unwrap().source(), Source::Server);
            }
            assert!(client.is_connected());
        });
    }
}

/// Several limits that were granted too late are leased where they can be, and go back where they cannot.
#[test]
fn late_grants_of_several_limits() {
    for mode in [Mode::Leased, Mode::Cached, Mode::Direct] {
        paused(async {
            let fake = Fake::new();
            let client = client(&fake);
            let of = |limit| {
                let builder = client.limiter(quota(limit, 60_000, 12)).mode(mode).on_failure(OnFailure::Deny);
                builder.build().unwrap()
            };
            let (one, other) = (of(100), of(50));
            connected(&one).await;
            fake.delay([(40_000, 40_000), (1_000, 1_000)]);
            let both = [(&one, Request::new("a").cost(2)), (&other, Request::new("b").cost(3))];
            let decisions = client.allow_all(&both).await.unwrap();
            assert!(!decisions.granted() && decisions.each().iter().all(|each| each.source() == Source::Failure));
            sleep(Duration::from_millis(50)).await;
            let statistics = client.statistics();
            if mode == Mode::Leased {
                assert_eq!((statistics.leased, statistics.unclaimed), (5, 0));
                assert_eq!(one.allow("a").await.unwrap().source(), Source::Lease);
                sleep(Duration::from_secs(2)).await;
                assert_eq!((fake.total("a"), fake.total("b"), client.statistics().returned), (1, 0, 4));
            } else {
                assert_eq!((fake.total("a"), fake.total("b")), (0, 0));
                assert_eq!((statistics.leased, statistics.unclaimed), (0, 5));
            }
        });
    }
}

/// Units that were granted to callers that have gone stay counted; where the policy denied, they go back.
#[test]
fn late_grants_of_one_limit() {
    for (mode, is_leased) in [(Mode::Leased, true), (Mode::Cached, false), (Mode::Direct, false)] {
        paused(async {
            let fake = Fake::new();
            let client = client(&fake);
            let builder = client.limiter(quota(100, 60_000, 12)).mode(mode).on_failure(OnFailure::Deny);
            let limiter = builder.build().unwrap();
            connected(&limiter).await;
            fake.delay([(40_000, 40_000)]);
            assert!(!limiter.allow(Request::new("k").cost(4)).await.unwrap().granted());
            sleep(Duration::from_millis(100)).await;
            fake.delay([(10_000, 10_000)]);
            let gone = tokio::time::timeout(Duration::from_millis(15), limiter.allow(Request::new("k").cost(5))).await;
            sleep(Duration::from_millis(100)).await;
            assert!(gone.is_err());
            let statistics = client.statistics();
            let expected = if is_leased { (0, 9, 9) } else { (9, 0, 5) };
            assert_eq!((statistics.unclaimed, statistics.leased, fake.total("k")), expected);
        });
    }
}

/// After an error all goes back, unless the caller may pass: then what the server granted late stays counted.
#[test]
fn late_grants_after_an_error() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).on_failure(OnFailure::Error).build().unwrap();
        connected(&limiter).await;
        for (keeps, kept) in [(false, 0), (true, 4)] {
            let of = |key| if keeps { Request::new(key).cost(4).keep_late_grant() } else { Request::new(key).cost(4) };
            fake.delay([(40_000, 40_000), (0, 0)]);
            assert!(limiter.allow(of("one")).await.is_err());
            sleep(Duration::from_millis(100)).await;
            connected(&limiter).await; // in time: the server is not slow
            fake.delay([(40_000, 40_000), (0, 0)]);
            assert!(client.allow_all(&[(&limiter, of("all")), (&limiter, Request::new("and"))]).await.is_err());
            sleep(Duration::from_millis(100)).await;
            connected(&limiter).await; // in time: the server is not slow
            fake.delay([(40_000, 40_000), (0, 0)]);
            assert!(client.admit([(&limiter, of("admitted")).into(), (&limiter, "and").into()]).await.is_err());
            sleep(Duration::from_millis(100)).await;
            connected(&limiter).await; // in time: the server is not slow
            let totals = ["one", "all", "admitted"].map(|key| fake.total(key));
            assert_eq!(totals, [kept; 3], "keeps: {keeps}");
        }
    });
}

/// What a request that waits was granted when it was gone goes back, exactly; what others were granted stays.
#[test]
fn what_is_acquired_for_nobody_goes_back() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(10, 60_000, 12)).build().unwrap();
        connected(&limiter).await;
        fake.delay([(15_000, 15_000)]);
        let patience = Duration::from_millis(10);
        let gone = tokio::time::timeout(patience, limiter.acquire(Request::new("k").cost(3), patience * 100)).await;
        assert!(gone.is_err());
        let gone = tokio::time::timeout(patience, limiter.allow("passed")).await;
        assert!(gone.is_err());
        sleep(Duration::from_millis(200)).await;
        assert_eq!((fake.total("k"), fake.total("passed"), client.statistics().unclaimed), (0, 1, 4));
        let commands = fake.commands();
        let refund = commands.iter().find(|words| words.starts_with("SWLIMIT.REFUND k 3 SINCE ")).unwrap();
        let since: u64 = refund.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((fake.unix_ms() - 221..=fake.unix_ms() - 205).contains(&since), "{refund}");
    });
}

/// Dropped requests lose no units: late leases are leases, too.
#[test]
fn dropped_requests_lose_no_units() {
    paused(async {
        let fake = Fake::new();
        fake.delay([(10_000, 10_000)]);
        let client = client(&fake);
        let limiter = client.limiter(quota(10_000, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        let mut used = 0;
        for request in 0..2_005 {
            let patience = Duration::from_millis(if request % 401 == 0 { 15 } else { 100 });
            if let Ok(decision) = tokio::time::timeout(patience, limiter.allow("k")).await {
                used += decision.unwrap().units();
            }
            if request % 100 == 0 {
                sleep(Duration::from_millis(20)).await;
            }
        }
        client.close().await;
        assert_eq!(fake.total("k"), used);
        let statistics = client.statistics();
        assert_eq!((statistics.written_off, statistics.in_doubt), (0, 0));
    });
}

/// However long a refund travels, it takes nobody else's units; and units never go back to another server.
#[test]
fn leased_units_go_back_to_their_server() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        for _ in 0..8 {
            let _ = allow(&limiter, "k").await;
            settle().await;
        }
        let held = fake.total("k");
        assert!(held > 8);
        fake.restart(0, true);
        sleep(Duration::from_secs(2)).await;
        let _ = allow(&limiter, "other").await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fake.total("k"), held);
        assert_eq!(client.statistics().written_off, held - 8);
    });
}

fn limiter_error<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn errors_that_are_the_callers_are_said() {
    paused(async {
        let fake = Fake::new();
        let client = Client::builder().module(Module::Always).over(fake.clone()).unwrap();
        let limiter = client.limiter(quota(1, 1_000, 1)).build().unwrap();
        for (reply, expected) in [
            ("ERR unknown command 'SWLIMIT.ALLOW', with args beginning with: ", Error::ModuleMissing),
            ("WRONGTYPE Operation", Error::Refused("WRONGTYPE Operation".into())),
        ] {
            fake.fail(Some(reply));
            assert_eq!(limiter.allow("k").await, Err(expected));
        }
        assert!(limiter_error::<()>(Err(Error::ModuleMissing)).contains("--loadmodule"));
        for reply in ["OOM command not allowed", "LOADING Redis is loading", "READONLY You can't write", "MISCONF no"] {
            fake.fail(Some(reply));
            assert_eq!(allow(&limiter, "k").await.source(), Source::Failure);
        }
        assert!(matches!(limiter.allow(Request::new("k").cost(0)).await, Err(Error::Invalid(_))));
    });
}

#[test]
fn only_local_is_a_window_like_any_other() {
    paused(async {
        let client = Client::local();
        let limiter = client.limiter(quota(3, 1_000, 10)).strict().build().unwrap();
        for granted in [true, true, true, false] {
            let decision = allow(&limiter, "k").await;
            assert_eq!((decision.granted(), decision.source()), (granted, Source::Local));
        }
        let wait = limiter.peek("k").await.unwrap().retry_after().unwrap();
        sleep(wait - Duration::from_millis(1)).await;
        assert!(!allow(&limiter, "k").await.granted());
        sleep(Duration::from_millis(1)).await;
        assert!(allow(&limiter, "k").await.granted());
        assert_eq!(limiter.record(Request::new("r").cost(7)).await.unwrap().units(), 0);
        assert_eq!(limiter.refund(Request::new("r").cost(9)).await, Ok(7));
        limiter.block("b", Duration::from_secs(5)).await.unwrap();
        assert_eq!(allow(&limiter, "b").await.retry_after(), Some(Duration::from_secs(5)));
        assert_eq!((limiter.unblock("b").await, limiter.unblock("b").await), (Ok(true), Ok(false)));
        assert!(client.allow_all(&[(&limiter, Request::new("b"))]).await.unwrap().granted());
        assert_eq!(client.top(1).await, Err(Error::NoServer("top")));
    });
}

/// The server denied it, and is unavailable when the caller's time ends: its denial stands, whatever the failure policy.
#[test]
fn the_servers_denial_stands_at_the_end_of_a_wait() {
    let fakes: [(fn() -> Fake, bool); 3] =
        [(Fake::new, true), (|| Fake::new().waiting(), true), (|| Fake::new().scripted(), false)];
    for (fake, asks_at_once) in fakes {
        for policy in [OnFailure::Allow, OnFailure::Local, OnFailure::Error] {
            paused(async {
                let fake = fake();
                let client = client(&fake);
                let limiter =
                    client.limiter(quota(1, 1_000, 10)).mode(Mode::Direct).on_failure(policy).build().unwrap();
                connected(&limiter).await;
                assert!(allow(&limiter, "k").await.granted());
                let longest = allow(&limiter, "k").await.retry_after().unwrap();
                let goes_away = async {
                    sleep(longest / 2).await;
                    fake.fault(Fault::BlackHole);
                };
                // The second one's turn does not come: unless it was asked for before, nobody has denied it.
                let waits = async || limiter.acquire("k", longest).await;
                let (first, second, ()) = tokio::join!(waits(), waits(), goes_away);
                for decision in [Some(first), asks_at_once.then_some(second)].into_iter().flatten() {
                    let decision = decision.unwrap();
                    assert_eq!((decision.granted(), decision.source()), (false, Source::Server), "{policy:?}");
                }
                // Nothing was counted in this process.
                if policy == OnFailure::Local {
                    assert!(allow(&limiter, "k").await.granted());
                }
            });
        }
    }
}

/// The time of whom others were before is over when it looks: that is no failure of the server's.
#[test]
fn whose_turn_does_not_come_is_denied() {
    paused(async {
        let fake = Fake::new().scripted();
        let client = client(&fake);
        let limiter = client.limiter(quota(1, 1_000, 10)).mode(Mode::Direct).on_failure(OnFailure::Error);
        let limiter = limiter.build().unwrap();
        connected(&limiter).await;
        assert!(allow(&limiter, "k").await.granted());
        let longest = allow(&limiter, "k").await.retry_after().unwrap();
        let request = || Request::new("k").deadline(Instant::now() + longest);
        let waits = async || limiter.acquire(request(), 2 * longest).await;
        let (first, second) = tokio::join!(waits(), waits());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((first.granted(), second.granted(), second.source()), (true, false, Source::Server));
    });
}

#[test]
fn turns_are_in_the_order_of_arrival() {
    paused(async {
        let client = Client::local();
        let limiter = client.limiter(quota(1, 100, 1)).strict().build().unwrap();
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
        // A unit every 200 ms: three in 650 ms. A caller without hope is denied when it is its turn.
        let granted: Vec<_> = order.lock().iter().filter(|(_, granted)| *granted).map(|(number, _)| *number).collect();
        assert_eq!(granted, [0, 1, 2]);
    });
}

/// A hot key is renewed before its units are used up, so that nobody waits; what is left goes back, dated.
#[test]
fn a_hot_key_is_renewed_ahead_of_need() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(10_000, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        fake.delay([(10_000, 10_000)]);
        connected(&limiter).await;
        let (mut used, mut waited) = (0, 0);
        for request in 0..2_000 {
            let begun = Instant::now();
            let decision = allow(&limiter, "k").await;
            assert!(decision.granted());
            used += decision.units();
            waited += u32::from(request >= 20 && decision.source() != Source::Lease);
            assert!(begun.elapsed() <= Duration::from_millis(22));
            sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(waited, 0);
        let commands = fake.commands().len();
        assert!(commands < 100, "{commands}");
        sleep(Duration::from_secs(4)).await;
        assert_eq!(fake.total("k"), used, "nothing is leased when nobody asks");
        let refund = fake.commands().into_iter().rfind(|words| words.starts_with("SWLIMIT.REFUND k ")).unwrap();
        let since: u64 = refund.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(since < fake.unix_ms() - 1_000, "{refund}");
        assert_eq!(client.statistics().written_off, 0);
    });
}

/// A key that is not hot takes no lease, and nobody waits for anybody.
#[test]
fn a_quiet_key_takes_no_lease() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1_000, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        fake.delay([(10_000, 10_000)]);
        connected(&limiter).await;
        for _ in 0..20 {
            sleep(Duration::from_millis(700)).await;
            let begun = Instant::now();
            assert_eq!(allow(&limiter, "k").await.source(), Source::Server);
            assert!(begun.elapsed() <= Duration::from_millis(22));
        }
        assert_eq!(fake.commands().len(), 21, "{:?}", fake.commands());
        // Nor does one that leases would not cover.
        for _ in 0..20 {
            sleep(Duration::from_millis(10)).await;
            let _ = limiter.allow(Request::new("dear").cost(34)).await.unwrap();
        }
        assert!(!fake.commands().iter().any(|words| words.contains("PARTIAL")));
    });
}

/// A request that has no time left when it is to wait leaves the units on their way to others; and a client that was
/// closed denies no key because it was dry.
#[test]
fn nobody_waits_for_units_without_time() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(1_000, 6_000, 6)).mode(Mode::Leased).on_failure(OnFailure::Deny);
        let limiter = limiter.build().unwrap();
        fake.delay([(10_000, 10_000)]);
        connected(&limiter).await;
        let mut used = 0;
        for _ in 0..50 {
            used += allow(&limiter, "k").await.units();
            sleep(Duration::from_millis(10)).await;
        }
        let mut late = 0;
        for _ in 0..500 {
            let request = Request::new("k").cost(9).deadline(Instant::now() + Duration::from_millis(1));
            let decision = limiter.allow(request).await.unwrap();
            used += decision.units();
            late += u32::from(decision.source() == Source::Failure);
            sleep(Duration::from_millis(1)).await;
        }
        assert!(late > 10, "{late}");
        client.close().await;
        assert_eq!(fake.total("k"), used);
        // It was dry.
        sleep(Duration::from_secs(8)).await;
        for _ in 0..20 {
            assert!(allow(&limiter, "k").await.granted());
        }
    });
}

/// Of requests that the units in hand do not cover, one trip decides all: from units on their way, or by the server. What
/// comes short is denied to those behind, and none asks again.
#[test]
fn requests_share_units_on_their_way() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1_000, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        fake.delay([(10_000, 10_000)]);
        connected(&limiter).await;
        for _ in 0..50 {
            assert!(allow(&limiter, "k").await.granted());
            sleep(Duration::from_millis(10)).await;
        }
        let together = |requests: usize| {
            let tasks: Vec<_> = (0..requests)
                .map(|_| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        let begun = Instant::now();
                        let decision = limiter.allow("k").await.unwrap();
                        assert!(begun.elapsed() <= Duration::from_millis(22));
                        decision.units()
                    })
                })
                .collect();
            async move {
                let mut granted = 0;
                for task in tasks {
                    granted += task.await.unwrap();
                }
                granted
            }
        };
        let allowed = || fake.commands().iter().filter(|words| words.contains("ALLOW")).count();
        let before = allowed();
        assert_eq!(together(90).await, 90);
        assert!(allowed() - before < 20, "{:?}", fake.commands());
        // The server has few units left.
        let left = 1_000 - fake.total("k");
        fake.run(&format!("SWLIMIT.RECORD k 1000 60000ms 5000ms COST {}", left - 5));
        let before = allowed();
        let granted = together(90).await;
        assert!((5..90).contains(&granted), "{granted}");
        assert!(allowed() - before < 20, "{}", allowed() - before);
        // It is dry: it is asked about now and then. Nothing else is known behind a new connection.
        fake.cut();
        connected(&limiter).await;
        let before = allowed();
        for _ in 0..100 {
            let _ = together(10).await;
            sleep(Duration::from_millis(10)).await;
        }
        assert!(allowed() - before < 30, "{}", allowed() - before);
        assert_eq!(fake.total("k"), 1_000);
    });
}

/// Units that come free while others are in hand are asked for soon, whatever the server said of the time until then.
#[test]
fn a_dry_key_hears_of_units_while_others_are_in_hand() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1_000, 3_600_000, 12)).mode(Mode::Leased).build().unwrap();
        fake.delay([(1_000, 1_000)]);
        connected(&limiter).await;
        fake.run("SWLIMIT.RECORD k 1000 3600000ms 300000ms COST 950");
        while fake.total("k") < 1_000 {
            assert!(allow(&limiter, "k").await.granted());
            sleep(Duration::from_millis(5)).await;
        }
        fake.run("SWLIMIT.REFUND k 500");
        let mut granted = 0;
        for _ in 0..400 {
            granted += allow(&limiter, "k").await.units();
            sleep(Duration::from_millis(5)).await;
        }
        assert!(granted > 300, "{granted}");
    });
}

/// Who waits for units on their way gets the error with which the server refuses them, and nobody later.
#[test]
fn a_refusal_is_told_once() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(1_000, 60_000, 12)).mode(Mode::Leased).on_failure(OnFailure::Deny);
        let limiter = limiter.build().unwrap();
        fake.delay([(10_000, 10_000)]);
        connected(&limiter).await;
        let several = || {
            let one = |_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.allow("k").await })
            };
            (0..6).map(one).collect::<Vec<_>>()
        };
        fake.refuse("k", "NOPERM no");
        for refused in several() {
            assert_eq!(refused.await.unwrap(), Err(Error::Refused("NOPERM no".into())));
        }
        fake.accept("k");
        let several = several();
        sleep(Duration::from_millis(5)).await;
        fake.cut();
        for cut in several {
            assert_eq!(cut.await.unwrap().unwrap().source(), Source::Failure);
        }
    });
}

/// A caller that is gone after the client was closed leaves no units behind.
#[test]
fn units_of_who_goes_away_after_the_close_go_back() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(1_000, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        fake.delay([(10_000, 10_000)]);
        connected(&limiter).await;
        let spawned = (0..3).map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.allow("k").await.unwrap().units() })
        });
        let spawned: Vec<_> = spawned.collect();
        settle().await;
        let mut waiting = Box::pin(limiter.allow(Request::new("k").cost(2)));
        assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
        client.close().await;
        for used in spawned {
            assert_eq!(used.await.unwrap(), 1);
        }
        assert_eq!(fake.total("k"), 5, "it was granted, and does not know yet");
        drop(waiting);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(fake.total("k"), 3);
        assert_eq!(client.statistics().written_off, 0);
    });
}

#[test]
fn leases_go_back_when_the_client_closes() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        for _ in 0..8 {
            let _ = allow(&limiter, "k").await;
        }
        let held = fake.total("k");
        assert!(held > 8);
        client.close().await;
        client.close().await;
        assert_eq!(fake.total("k"), 8);
        assert_eq!(client.statistics().returned, held - 8);
        // A limiter that is dropped hands over what it holds.
        for _ in 0..5 {
            let _ = allow(&limiter, "k").await;
        }
        drop(limiter);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(fake.total("k"), 13);
    });
}

#[test]
fn eventual_tells_and_asks() {
    paused(async {
        let fake = Fake::new();
        let limiter = client(&fake).limiter(quota(100, 60_000, 12)).mode(Mode::Eventual).build().unwrap();
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
        fake.run("SWLIMIT.REFUND k 5");
        assert!(!allow(&limiter, "k").await.granted());
        sleep(Duration::from_millis(100)).await;
        assert!(fake.commands().last().unwrap().starts_with("SWLIMIT.PEEK k"));
        assert!(limiter.allow(Request::new("k").cost(5)).await.unwrap().granted());
        // Nobody asks, and nothing is sent but that.
        sleep(Duration::from_secs(1)).await;
        assert!(fake.commands().len() <= 5, "{:?}", fake.commands());
    });
}

#[test]
fn what_is_under_way_at_the_end_is_told_once() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).mode(Mode::Eventual).build().unwrap();
        fake.delay([(10_000, 10_000)]);
        let _ = allow(&limiter, "k").await;
        sleep(Duration::from_millis(5)).await;
        let _ = allow(&limiter, "k").await;
        client.close().await;
        assert_eq!(fake.total("k"), 2);
    });
}

/// `close` waits for a server that is unavailable: counts and leases are sent if it is back in time.
#[test]
fn what_is_closed_while_the_server_is_away_is_told_when_it_is_back() {
    for mode in [Mode::Eventual, Mode::Leased] {
        for fault in [Fault::Down, Fault::BlackHole] {
            paused(async {
                let fake = Fake::new();
                let client = client(&fake);
                let limiter = client.limiter(quota(1_000, 60_000, 12)).mode(mode).build().unwrap();
                connected(&limiter).await;
                let mut used = 0;
                for _ in 0..3 {
                    sleep(Duration::from_millis(101)).await;
                    for _ in 0..30 {
                        used += allow(&limiter, "k").await.units();
                    }
                }
                fake.fault(fault);
                for _ in 0..5 {
                    let _ = client.info("k").await;
                }
                assert!(!client.is_connected());
                let ((), ()) = tokio::join!(client.close(), async {
                    sleep(Duration::from_millis(400)).await;
                    fake.fault(Fault::None);
                });
                let statistics = client.statistics();
                assert_eq!(fake.total("k"), used, "{mode:?} {fault:?}: {statistics:?}");
                assert_eq!((statistics.lost, statistics.written_off), (0, 0), "{mode:?} {fault:?}");
            });
        }
    }
}

/// A server that stays away costs no more than the time that closing has; what is lost is said.
#[test]
fn closing_has_its_time() {
    for mode in [Mode::Eventual, Mode::Leased] {
        paused(async {
            let fake = Fake::new();
            let client = client(&fake);
            let limiter = client.limiter(quota(1_000, 60_000, 12)).mode(mode).build().unwrap();
            connected(&limiter).await;
            for _ in 0..20 {
                let _ = allow(&limiter, "k").await;
            }
            fake.fault(Fault::Down);
            let begun = Instant::now();
            client.close().await;
            let took = begun.elapsed();
            assert!((Duration::from_millis(1_500)..Duration::from_millis(1_600)).contains(&took), "{took:?}");
            let statistics = client.statistics();
            let expected = if mode == Mode::Eventual { (20, 0) } else { (0, fake.total("k") - 20) };
            assert_eq!((statistics.lost, statistics.written_off), expected);
        });
    }
}

/// What is granted to nobody while the client is being closed goes back, too.
#[test]
fn a_lease_that_is_granted_late_goes_back_at_the_end() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(1_000, 60_000, 12)).mode(Mode::Leased).build().unwrap();
        connected(&limiter).await;
        let mut used = 0;
        for _ in 0..20 {
            used += allow(&limiter, "k").await.units();
        }
        // Units in hand have ended, and the key is hot no more.
        sleep(Duration::from_millis(2_500)).await;
        fake.delay([(60_000, 60_000)]);
        assert!(tokio::time::timeout(Duration::from_millis(10), limiter.allow("k")).await.is_err());
        client.close().await;
        let statistics = client.statistics();
        assert_eq!((fake.total("k"), statistics.written_off), (used, 0), "{statistics:?}");
    });
}

#[test]
fn what_could_not_be_told_is_told_later_and_dated() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).mode(Mode::Eventual).local_share(0.6).build().unwrap();
        let _ = allow(&limiter, "k").await;
        sleep(Duration::from_millis(101)).await;
        fake.fail(Some("MISCONF no"));
        assert_eq!(limiter.allow(Request::new("k").cost(20)).await.unwrap().source(), Source::Eventual);
        sleep(Duration::from_millis(120)).await;
        assert_eq!(limiter.allow(Request::new("k").cost(30)).await.unwrap().units(), 30);
        sleep(Duration::from_millis(300)).await;
        // Three have failed: the policy decides.
        assert_eq!(allow(&limiter, "k").await.source(), Source::Failure);
        fake.fail(None);
        sleep(Duration::from_millis(1_000)).await;
        assert_eq!(allow(&limiter, "k").await.source(), Source::Eventual);
        assert_eq!(fake.total("k"), 51);
        let told = fake.commands().into_iter().filter(|words| words.contains("COST 50 AGE")).count();
        assert!(told >= 1, "within a tenth of the resolution they are one batch: {:?}", fake.commands());
    });
}

/// With a round trip longer than any deadline, what was sent is not sent again.
#[test]
fn a_late_synchronization_is_done() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(1_000, 60_000, 12)).mode(Mode::Eventual).build().unwrap();
        let _ = allow(&limiter, "k").await;
        sleep(Duration::from_millis(200)).await;
        fake.delay([(125_000, 125_000)]);
        let mut used = 1;
        for _ in 0..4 {
            used += allow(&limiter, "k").await.units();
            sleep(Duration::from_millis(300)).await;
        }
        fake.delay([(2_500_000, 2_500_000)]); // and once by seconds
        used += allow(&limiter, "k").await.units();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(fake.counted(), fake.total("k"));
        assert!(fake.total("k") <= used, "{} of {used}", fake.total("k"));
    });
}

/// What closed connections leave in doubt is sent once more; in doubt twice it is lost, and said so.
#[test]
fn a_unit_counts_at_most_twice() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(1_000, 60_000, 12)).mode(Mode::Eventual).build().unwrap();
        let _ = allow(&limiter, "k").await;
        sleep(Duration::from_millis(200)).await;
        fake.delay([(1_000, 40_000)]);
        let _ = limiter.allow(Request::new("k").cost(5)).await.unwrap();
        for _ in 0..6 {
            sleep(Duration::from_millis(20)).await;
            fake.cut(); // behind the command, before its reply
            sleep(Duration::from_millis(80)).await;
        }
        sleep(Duration::from_secs(2)).await;
        let (held, lost) = (fake.total("k"), client.statistics().lost);
        assert!((6..=11).contains(&held) && lost <= 5, "{held} held, {lost} lost");
    });
}

/// A key that the server refuses holds up no other, and its callers get the error.
#[test]
fn a_refused_key_is_said_to_its_callers() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = client.limiter(quota(100, 60_000, 12)).mode(Mode::Eventual).build().unwrap();
        fake.refuse("bad", "WRONGTYPE Operation against a key holding the wrong kind of value");
        for _ in 0..3 {
            let _ = limiter.allow("bad").await;
            let _ = allow(&limiter, "good").await;
            sleep(Duration::from_millis(150)).await;
        }
        assert!(matches!(limiter.allow("bad").await, Err(Error::Refused(text)) if text.starts_with("WRONGTYPE")));
        assert_eq!((fake.total("good"), client.statistics().refused > 0), (3, true));
        assert!(client.is_connected());
    });
}

/// What is forgotten because the map is full does not get its share again.
#[test]
fn forgotten_keys_get_no_second_share() {
    paused(async {
        let fake = Fake::new();
        let client = Client::builder().max_keys(50).over(fake.clone()).unwrap();
        let limiter = client.limiter(quota(100, 60_000, 12)).mode(Mode::Eventual).build().unwrap();
        let mut used = 0;
        for round in 0..60 {
            for _ in 0..10 {
                used += allow(&limiter, "k").await.units();
            }
            sleep(Duration::from_millis(150)).await;
            for other in 0..60 {
                let _ = allow(&limiter, &format!("{round}:{other}")).await;
            }
            sleep(Duration::from_millis(150)).await;
        }
        assert!(used <= 110, "{used} of 100");
    });
}

/// What many rules cost that nobody has asked for yet.
#[cfg(target_os = "linux")]
#[test]
fn a_limiter_costs_little_before_its_first_request() {
    const LIMITERS: usize = 5_000;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    };
    paused(async {
        let (client, local) = (client(&Fake::new()), Client::local());
        let before = resident();
        let mut limiters = Vec::new();
        for mode in [Mode::Cached, Mode::Leased, Mode::Eventual, Mode::Local] {
            limiters.extend((0..LIMITERS).map(|_| client.limiter(quota(5, 1_000, 10)).mode(mode).build().unwrap()));
        }
        let budgets: Vec<_> =
            (0..LIMITERS).map(|_| local.budget(5, Calendar::new(Period::Day)).build().unwrap()).collect();
        let each = resident().saturating_sub(before) / (limiters.len() + budgets.len());
        assert!(each < 2_000, "{each} bytes");
    });
}

/// An idle limiter takes no time, and a dropped one leaves nothing unsaid and no task.
/// What is granted while there is no room for a key would be unknown to its next request.
#[test]
fn a_key_that_there_is_no_room_for_is_decided_by_the_server() {
    paused(async {
        let fake = Fake::new();
        let client = Client::builder().max_keys(1).over(fake.clone()).unwrap();
        let limiter = client.limiter(quota(1, 10_000, 10)).mode(Mode::Eventual).build().unwrap();
        connected(&limiter).await;
        // Nothing can be forgotten before it is sent.
        assert_eq!(allow(&limiter, "first").await.source(), Source::Eventual);
        let decided = [allow(&limiter, "second").await, allow(&limiter, "second").await];
        assert_eq!(
            decided.map(|decision| (decision.source(), decision.granted())),
            [(Source::Server, true), (Source::Server, false),]
        );
    });
}

/// While the server is unavailable, a key that there is no room for is not queued: each of its requests would be.
#[test]
fn a_key_that_there_is_no_room_for_is_not_synchronized() {
    paused(async {
        let fake = Fake::new();
        let client = Client::builder().max_keys(1).over(fake.clone()).unwrap();
        let builder = client.limiter(quota(100, 60_000, 10)).mode(Mode::Eventual).on_failure(OnFailure::Deny);
        let limiter = builder.build().unwrap();
        connected(&limiter).await;
        assert_eq!(allow(&limiter, "first").await.source(), Source::Eventual);
        sleep(Duration::from_secs(1)).await;
        fake.fault(Fault::BlackHole);
        while allow(&limiter, "first").await.source() != Source::Failure {
            sleep(Duration::from_millis(100)).await;
        }
        for _ in 0..100 {
            assert_eq!(allow(&limiter, "second").await.source(), Source::Failure);
        }
        fake.fault(Fault::None);
        let before = fake.commands().len();
        sleep(Duration::from_secs(15)).await;
        let commands = fake.commands().split_off(before);
        let is_of_second = |words: &&String| words.contains(" second ");
        assert_eq!(commands.iter().filter(is_of_second).count(), 0, "{commands:?}");
        assert_eq!(allow(&limiter, "first").await.source(), Source::Eventual);
    });
}

#[test]
fn nothing_is_left() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let quota = quota(100, 60_000, 12);
        for mode in [Mode::Direct, Mode::Cached, Mode::Leased, Mode::Eventual] {
            let limiter = client.limiter(quota).mode(mode).build().unwrap();
            for _ in 0..5 {
                let _ = allow(&limiter, &format!("{mode:?}")).await;
            }
            drop(limiter);
        }
        sleep(Duration::from_secs(3)).await;
        for mode in ["Direct", "Cached", "Leased", "Eventual"] {
            assert_eq!(fake.total(mode), 5, "{mode}");
        }
        drop(client);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(fake.connections(), 0);
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
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
            let limiter = if strict { builder.strict() } else { builder }.build().unwrap();
            let mut nearly = Duration::ZERO;
            let (mut given_back, mut unheard) = (None, None);
            let upstream = limiter.deciding().upstream().unwrap();
            let ms = Duration::from_millis;
            // Without hearing of changes, a denial is remembered while the connection that tracks is replaced, or where it
            // is too short for a read. Time passes while a reply is on its way, too: trips seem long then.
            let may_remember_unheard = || !upstream.is_tracked(b"k") || 4 * upstream.round_trip(b"k") > ms(20);
            for (micros, cost, step) in steps {
                // Often to where a denial ends, almost or just: in µs, which timers have not.
                let micros = Duration::from_micros(micros);
                advance(if step > 5 && nearly > micros { nearly - micros / 20 } else { micros }).await;
                // The clock jumps before what is due by then has run, and a message goes through several tasks.
                settle().await;
                unheard = may_remember_unheard().then(Instant::now).or(unheard);
                let partial = step == 1;
                let request = Request { partial, ..Request::new("k").cost(cost) };
                match step {
                    10 => {
                        drop(fake.run(&format!("SWLIMIT.REFUND k {cost}")));
                        given_back = Some(Instant::now());
                    }
                    11 => drop(limiter.refund(request).await),
                    // Nobody waits for this one.
                    9 => drop(tokio::spawn({
                        let limiter = limiter.clone();
                        async move { limiter.allow(Request::new("k")).await }
                    })),
                    _ => {
                        let decision = limiter.allow(request).await.unwrap();
                        nearly = decision.retry_after().unwrap_or_default();
                        unheard = may_remember_unheard().then(Instant::now).or(unheard);
                        if decision.source() == Source::Cache {
                            let would = fake.would("k", &limiter.demand(&request).exact);
                            let was_unheard = unheard.is_some_and(|at| at.elapsed() < ms(100));
                            let longest = if was_unheard { ms(100) } else { ms(20) } + ms(5);
                            let is_short = |at: Instant| at.elapsed() < longest;
                            if would.granted > 0 && given_back.is_some_and(is_short) {
                                continue;
                            }
                            assert_eq!(would.granted, 0, "{decision:?} but {would:?}");
                            let (told, would) = (decision.retry_after, would.retry_after);
                            // Of a larger cost, only the reply to a smaller one is known.
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
                let builder = client(&fake).limiter(quota).mode(Mode::Leased).lease_share(share);
                if strict { builder.strict() } else { builder }.build().unwrap()
            };
            let limiters = [of(), of()];
            let length = Duration::from_millis(window.0 / window.1).min(Duration::from_secs(1));
            let span = quota.window() - length - if strict { Duration::ZERO } else { quota.resolution() };
            let mut used = VecDeque::new();
            for (micros, cost, step) in steps {
                sleep(Duration::from_micros(if step == 0 { micros * 20 } else { micros })).await;
                let request = Request { partial: step == 1, ..Request::new("k").cost(cost) };
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

    /// Of one limit and of two, some given up: no request takes more than one trip, and what is counted in the end is
    /// what was used, of both limits as often.
    #[test]
    fn no_unit_of_two_limits_is_lost_or_used_twice(
        limits in (20u64..3_000, 20u64..3_000),
        steps in prop::collection::vec((0u64..20_000, 1u64..5, 0u8..10), 1..300),
        delays in prop::collection::vec((0u64..12_000, 0u64..12_000), 1..20),
    ) {
        paused(async {
            let fake = Fake::new();
            let client = client(&fake);
            let of = |limit| client.limiter(quota(limit, 60_000, 12)).mode(Mode::Leased).build().unwrap();
            let limiters = [of(limits.0), of(limits.1)];
            connected(&limiters[0]).await;
            fake.delay(delays);
            let mut tasks = tokio::task::JoinSet::new();
            for (micros, cost, step) in steps {
                sleep(Duration::from_micros(micros)).await;
                let (client, limiters) = (client.clone(), limiters.clone());
                tasks.spawn(async move {
                    let (begun, request) = (Instant::now(), |key| Request::new(key).cost(cost));
                    let deciding = async {
                        let both = [(&limiters[0], request("0")), (&limiters[1], request("1"))];
                        let asked = if step == 0 { &both[..1] } else if step == 1 { &both[1..] } else { &both };
                        let decisions = client.allow_all(asked).await.unwrap();
                        assert!(begun.elapsed() <= Duration::from_millis(26), "{:?}", begun.elapsed());
                        let used = if decisions.granted() { cost } else { 0 };
                        [if step == 1 { 0 } else { used }, if step == 0 { 0 } else { used }]
                    };
                    let patience = Duration::from_millis(if step == 9 { 8 } else { 1_000 });
                    tokio::time::timeout(patience, deciding).await.unwrap_or_default()
                });
            }
            let used = tasks.join_all().await.into_iter().fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
            client.close().await;
            let unclaimed = client.statistics().unclaimed;
            assert_eq!((unclaimed, client.statistics().written_off), (0, 0));
            assert_eq!(["0", "1"].map(|key| fake.total(key)), used);
        });
    }

    /// Whatever was granted can be given back, wherever it is: known here alone, on its way, or told. In the end the
    /// server counts what is left.
    #[test]
    fn what_eventual_granted_can_be_given_back(
        steps in prop::collection::vec((0u64..80, 1u64..9, 0..4u8), 1..100),
        delay in 0u64..10_000,
    ) {
        paused(async {
            let fake = Fake::new();
            fake.delay([(delay, delay)]);
            let client = client(&fake);
            let limiter = client.limiter(quota(1_000, 1_000_000_000, 10)).mode(Mode::Eventual).build().unwrap();
            let mut used = 0;
            for (wait, cost, what) in steps {
                let request = Request::new("k").cost(cost);
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
    fn eventual_keeps_its_bound(
        limit in 5u64..60,
        clients in 1usize..5,
        interval in 5u64..60,
        steps in prop::collection::vec((0u64..8_000, 0usize..5), 1..400),
        delays in prop::collection::vec((0u64..10_000, 0u64..10_000), 1..20),
    ) {
        paused(async {
            let fake = Fake::new();
            let longest = |way: fn(&(u64, u64)) -> u64| delays.iter().map(way).max().unwrap_or_default();
            // Nothing overtakes what was sent before.
            let longest = longest(|(there, _)| *there) + longest(|(_, back)| *back);
            let (quota, interval) = (quota(limit, 2_000, 10), Duration::from_millis(interval));
            let limiters: Vec<_> = (0..clients)
                .map(|_| {
                    let limiter = client(&fake).limiter(quota).mode(Mode::Eventual);
                    limiter.sync_interval(interval).local_share(0.0).build().unwrap()
                })
                .collect();
            for limiter in &limiters {
                connected(limiter).await;
            }
            fake.delay(delays);
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
