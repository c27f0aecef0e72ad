//! Holds on a fake server, in paused time: whose an id is, and who waits for what.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout, Instant};

use crate::simulation::fake::{paused, Fake, Fault};
use crate::{
    Admission, Calendar, Client, Decision, Error, Hold, HoldLimiter, HoldRequest, Limiter, Mode, OnFailure, Period,
    Quota, Request, Source,
};

const TTL: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// One at a time, of a client that has connected.
async fn one_at_a_time(fake: &Fake, client: &Client) -> HoldLimiter {
    let limiter = client.holds(1).ttl(TTL).on_failure(OnFailure::Error).build().unwrap();
    let _ = limiter.hold("another").await;
    sleep(500 * MS).await;
    drop(limiter.hold("another").await.unwrap());
    sleep(500 * MS).await;
    assert_eq!(fake.held("another"), 0);
    limiter
}

fn client(fake: &Fake) -> Client {
    Client::builder().over(fake.clone()).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum GivenUp {
    ByItsDeadline,
    ByItsCaller,
    /// Its connection is cut before the reply.
    Cut,
    WhileItWaits,
}

/// The first try is given up; what it is granted late belongs to the caller that chose the id, and tries again.
#[test]
fn what_a_chosen_id_is_granted_late_is_not_given_back() {
    for how in [GivenUp::ByItsDeadline, GivenUp::ByItsCaller, GivenUp::Cut, GivenUp::WhileItWaits] {
        paused(async {
            let fake = Fake::new().waiting();
            let (client, other) = (client(&fake), client(&fake));
            let (limiter, others) = (one_at_a_time(&fake, &client).await, one_at_a_time(&fake, &other).await);
            let request = HoldRequest::new("key").id(b"mine");
            fake.delay([(15_000, 15_000)]);
            match how {
                GivenUp::ByItsDeadline => {
                    let first = limiter.hold(request.deadline(Instant::now() + 20 * MS)).await;
                    assert!(matches!(first, Err(Error::Unavailable(_))), "{first:?}");
                }
                GivenUp::ByItsCaller => assert!(timeout(20 * MS, limiter.hold(request)).await.is_err()),
                GivenUp::Cut => {
                    let (first, ()) = tokio::join!(limiter.hold(request), async {
                        sleep(20 * MS).await;
                        fake.fault(Fault::Down);
                    });
                    assert!(matches!(first, Err(Error::Unavailable(_))), "{first:?}");
                    fake.fault(Fault::None);
                    for _ in 0..2 {
                        let _ = tokio::join!(limiter.hold("another"), others.hold("another"));
                        sleep(Duration::from_secs(1)).await;
                    }
                }
                GivenUp::WhileItWaits => {
                    let before = others.hold("key").await.unwrap();
                    let (first, ()) = tokio::join!(timeout(100 * MS, limiter.hold(request.wait(TTL))), async {
                        sleep(80 * MS).await;
                        drop(before);
                    });
                    assert!(first.is_err());
                }
            }
            // Another process tries again; the first one's reply comes meanwhile.
            let second = others.hold(request.wait(TTL)).await.unwrap();
            assert!(second.granted());
            sleep(Duration::from_secs(4)).await;
            assert!(fake.is_held("key", b"mine"), "{how:?}");
            assert!(!limiter.hold("key").await.unwrap().granted(), "{how:?}");
            assert!(second.is_live());
            drop(second);
            sleep(100 * MS).await;
            assert_eq!(fake.held("key"), 0, "its holder gives it back");
        });
    }
}

/// Nobody knows of an id that was drawn here: what is granted late is nobody's.
#[test]
fn what_an_own_id_is_granted_late_is_given_back() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = one_at_a_time(&fake, &client).await;
        fake.delay([(15_000, 15_000)]);
        assert!(limiter.hold(HoldRequest::new("key").deadline(Instant::now() + 20 * MS)).await.is_err());
        sleep(5 * MS).await;
        assert_eq!(fake.held("key"), 1);
        sleep(100 * MS).await;
        assert_eq!(fake.held("key"), 0);
    });
}

/// The server denied it, and is unavailable when the caller's time ends: its denial stands, whatever the failure policy.
#[test]
fn the_servers_denial_stands_at_the_end_of_a_wait() {
    for fake in [Fake::new, || Fake::new().waiting(), || Fake::new().scripted()] {
        for policy in [OnFailure::Allow, OnFailure::Local, OnFailure::Error] {
            paused(async {
                let fake = fake();
                let (client, other) = (client(&fake), client(&fake));
                let _held = one_at_a_time(&fake, &other).await.hold("key").await.unwrap();
                one_at_a_time(&fake, &client).await;
                let limiter = client.holds(1).ttl(TTL).on_failure(policy).build().unwrap();
                let goes_away = async {
                    sleep(995 * MS).await;
                    fake.fault(Fault::BlackHole);
                };
                let waits = limiter.hold(HoldRequest::new("key").wait(1_000 * MS));
                let (hold, ()) = tokio::join!(waits, goes_away);
                let hold = hold.unwrap();
                assert_eq!((hold.granted(), hold.source()), (false, Source::Server), "{policy:?}");
            });
        }
    }
}

/// Two callers wait with one id: the second takes over the place, and the first one's wait is over.
#[test]
fn a_wait_that_another_has_taken_over_ends() {
    paused(async {
        let fake = Fake::new().waiting();
        let client = client(&fake);
        let limiter = one_at_a_time(&fake, &client).await;
        let before = limiter.hold("key").await.unwrap();
        fake.delay([(1_000, 1_000)]);
        let asked = client.statistics().commands;
        let request = HoldRequest::new("key").id(b"mine").wait(Duration::from_secs(5));
        let waiting = async || {
            let hold = limiter.hold(request).await.unwrap();
            (hold.granted(), Instant::now(), hold)
        };
        let ((first, answered, _denied), (second, granted, hold), ()) = tokio::join!(
            waiting(),
            async {
                sleep(100 * MS).await;
                waiting().await
            },
            async {
                sleep(Duration::from_secs(2)).await;
                drop(before);
            }
        );
        assert!(!first && second && answered + Duration::from_secs(1) < granted);
        let asked = client.statistics().commands - asked;
        assert_eq!(asked, 6, "each asks at once and then waits, one releases and one renews");
        sleep(100 * MS).await;
        assert!(hold.is_live() && fake.is_held("key", b"mine"), "nothing was released for the first");
    });
}

/// Without the module one queue a key waits in the process: its first polls, and the server's word wakes it.
#[test]
fn the_script_s_waiters_poll_one_after_the_other() {
    for is_tracked in [true, false] {
        paused(async {
            let fake = Fake::new().waiting().scripted();
            let fake = if is_tracked { fake } else { fake.untracked() };
            let client = client(&fake);
            let limiter = one_at_a_time(&fake, &client).await;
            let held = limiter.hold("key").await.unwrap();
            fake.delay([(500, 500)]);
            let wait = async |number: u32, request: HoldRequest<'_>| {
                sleep(number * MS).await;
                let hold = limiter.hold(request).await.unwrap();
                (hold.granted(), hold.source(), Instant::now(), hold)
            };
            let (begun, asked) = (Instant::now(), client.statistics().commands);
            let request = HoldRequest::new("key").wait(TTL);
            let (first, second, late, short, cancelled, never, released) = tokio::join!(
                async {
                    let (granted, _, at, hold) = wait(0, request).await;
                    drop(hold);
                    (granted, at)
                },
                wait(1, request),
                wait(2, request.deadline(begun + 300 * MS)),
                wait(3, request.wait(200 * MS)),
                timeout(100 * MS, wait(4, request)),
                wait(5, request.cost(2)),
                async {
                    sleep(500 * MS).await;
                    let asked = client.statistics().commands - asked;
                    assert!((10..35).contains(&asked), "one of the callers asks every 20 to 60 ms: {asked}");
                    drop(held);
                    Instant::now()
                }
            );
            assert!(cancelled.is_err());
            assert!(!never.0 && never.3.decision().retry_after().is_none() && never.2 - begun <= 10 * MS);
            assert!(!late.0 && late.1 == Source::Server && late.2 - begun <= 310 * MS);
            assert!(!short.0 && short.1 == Source::Server && short.2 - begun <= 210 * MS);
            let longest = if is_tracked { 15 } else { 75 } * MS;
            assert!(first.0 && first.1 - released <= longest, "{:?}", first.1 - released);
            assert!(second.0 && second.2 > first.1 && second.2 - first.1 <= longest, "{:?}", second.2 - first.1);
        });
    }
}

/// All connections for waiting are taken by those who wait for one key: who waits for another is granted in its time.
#[test]
fn waiters_of_a_key_starve_no_others() {
    paused(async {
        let fake = Fake::new().waiting();
        let client = Client::builder().max_waiting(2).over(fake.clone()).unwrap();
        let limiter = one_at_a_time(&fake, &client).await;
        let (busy, free) = (limiter.hold("busy").await.unwrap(), limiter.hold("free").await.unwrap());
        let wait = |key: &'static str| limiter.hold(HoldRequest::new(key).wait(Duration::from_secs(5)));
        let begun = Instant::now();
        let (first, second, hold, ()) = tokio::join!(
            wait("busy"),
            wait("busy"),
            async {
                sleep(100 * MS).await;
                let hold = wait("free").await.unwrap();
                assert!(begun.elapsed() < 700 * MS);
                hold
            },
            async {
                sleep(500 * MS).await;
                drop(free);
            }
        );
        assert!(hold.granted() && hold.source() == Source::Server);
        assert!(!first.unwrap().granted() && !second.unwrap().granted());
        drop(busy);
    });
}

/// Who waits when the client is closed is answered at once, wherever it waits; nothing stays held or waited for.
#[test]
fn who_waits_is_answered_at_the_end() {
    paused(async {
        let fake = Fake::new().waiting();
        let client = Client::builder().max_waiting(1).over(fake.clone()).unwrap();
        let limiter = one_at_a_time(&fake, &client).await;
        let held = limiter.hold("key").await.unwrap();
        let in_process = Client::local();
        let local = in_process.holds(1).build().unwrap();
        let begun = Instant::now();
        let wait = || limiter.hold(HoldRequest::new("key").wait(Duration::from_secs(60)));
        let (place, poll, ()) = tokio::join!(wait(), wait(), async {
            sleep(200 * MS).await;
            client.close().await;
        });
        for hold in [place.unwrap(), poll.unwrap()] {
            assert!(!hold.granted() && hold.source() == Source::Server);
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        let seat = local.hold("key").await.unwrap();
        let (waited, ()) = tokio::join!(local.hold(HoldRequest::new("key").wait(TTL)), async {
            sleep(200 * MS).await;
            in_process.close().await;
        });
        assert!(!waited.unwrap().granted() && begun.elapsed() < Duration::from_secs(2));
        drop((held, seat));
    });
}

/// A caller that ends a hold has a deadline; the hold ends all the same.
#[test]
fn an_end_goes_on_behind_its_deadline() {
    paused(async {
        let fake = Fake::new();
        let client = client(&fake);
        let limiter = one_at_a_time(&fake, &client).await;
        let request = HoldRequest::new("key").id(b"mine");
        let begin = async || assert!(limiter.hold(request).await.unwrap().detach().is_some());
        begin().await;
        assert_eq!(limiter.end(request).await.unwrap(), 1);
        for fault in [Fault::Down, Fault::BlackHole] {
            begin().await;
            fake.fault(fault);
            let begun = Instant::now();
            assert!(matches!(limiter.end(request.deadline(begun + 20 * MS)).await, Err(Error::Unavailable(_))));
            assert!(begun.elapsed() <= 20 * MS, "{:?}", begun.elapsed());
            sleep(500 * MS).await;
            fake.fault(Fault::None);
            sleep(TTL / 10).await;
            assert_eq!(fake.held("key"), 0, "{fault:?}");
            let _ = limiter.hold("another").await;
            sleep(Duration::from_secs(2)).await;
        }
        assert!(matches!(limiter.end("key").await, Err(Error::Invalid(_))));
    });
}

/// A RELEASE that failed is sent again when the server is back, however long the time to live is.
#[test]
fn a_release_that_failed_is_repeated_when_the_server_is_back() {
    for fault in [Fault::Down, Fault::BlackHole] {
        paused(async {
            let fake = Fake::new();
            let client = client(&fake);
            let limiter = client.holds(1).ttl(60 * TTL).on_failure(OnFailure::Deny).build().unwrap();
            let _ = limiter.hold("another").await;
            sleep(500 * MS).await;
            let hold = limiter.hold("key").await.unwrap();
            assert!(hold.granted());
            fake.fault(fault);
            drop(hold);
            for _ in 0..20 {
                let _ = limiter.hold("another").await;
                sleep(100 * MS).await;
            }
            assert!(!client.is_connected(), "{fault:?}");
            fake.fault(Fault::None);
            sleep(Duration::from_millis(1_500)).await;
            assert!(client.is_connected(), "{fault:?}");
            assert_eq!(fake.held("key"), 0, "{fault:?}");
        });
    }
}

/// What each policy has counted without the server is put right, and nothing else.
#[test]
fn what_a_policy_granted_is_settled_in_this_process() {
    for (policy, changes) in [(OnFailure::Local, [[-40, 1], [-10, -1]]), (OnFailure::Allow, [[0, 0], [0, 0]])] {
        paused(async {
            let fake = Fake::new();
            fake.fault(Fault::Down);
            let client = client(&fake);
            let tokens = client.budget(1_000, Calendar::new(Period::Year)).on_failure(policy).build().unwrap();
            let requests = client.limiter(Quota::per_hour(30)).on_failure(policy).build().unwrap();
            let admit = async |tokens_cost| {
                let cost = Request::new("tokens").cost(tokens_cost);
                client.admit([(&tokens, cost).into(), (&requests, "requests").into()]).await.unwrap()
            };
            for (used, changed) in [[60, 2], [0, 0]].iter().zip(changes) {
                let mut admission = admit(if used[0] > 0 { 100 } else { 10 }).await;
                assert_eq!(admission.each()[0].source(), Source::Failure);
                assert_eq!(admission.settle(used).await.unwrap(), Some(changed.to_vec()));
            }
            // Of a share of 100 and 3 there are 40 and 1 left.
            assert_eq!(admit(41).await.granted(), policy == OnFailure::Allow);
            let mut rest = admit(40).await;
            assert_eq!(rest.settle(&[41, 1]).await.unwrap(), Some(vec![i64::from(policy == OnFailure::Local), 0]));
        });
    }
}

/// Two holds and a rate in one decision, of a client that has connected.
struct Admitting {
    client: Client,
    streams: HoldLimiter,
    model: HoldLimiter,
    tokens: Limiter,
}

impl Admitting {
    async fn new(fake: &Fake) -> Self {
        let client = client(fake);
        drop(one_at_a_time(fake, &client).await);
        let holds = |limit| client.holds(limit).ttl(TTL).on_failure(OnFailure::Error).build().unwrap();
        let tokens = client.limiter(Quota::with_resolution(100, "1h", "1h").unwrap()).mode(Mode::Direct);
        let tokens = tokens.on_failure(OnFailure::Error).build().unwrap();
        Self { streams: holds(1), model: holds(2), tokens, client }
    }

    async fn admit(&self, id: Option<&'static [u8]>, patience: Duration) -> Result<Admission, Error> {
        let streams = HoldRequest::new("streams").deadline(Instant::now() + patience);
        let streams = id.map_or(streams, |id| streams.id(id));
        let tokens = Request::new("tokens").cost(40);
        let members = [(&self.streams, streams).into(), (&self.model, "model").into(), (&self.tokens, tokens).into()];
        self.client.admit(members).await
    }
}

/// What is held of each key, and what is counted.
fn taken(fake: &Fake) -> ([u64; 3], u64) {
    (["streams", "model", "{streams}:reserved"].map(|key| fake.held(key)), fake.total("tokens"))
}

/// With the module, and by the script.
fn both() -> [Fake; 2] {
    [Fake::new(), Fake::new().scripted()]
}

/// Whatever is granted late to an admission under its own id goes back, all of it; under an id that its caller chose it
/// stays, and the next try takes nothing twice.
#[test]
fn what_an_admission_of_several_holds_is_granted_late() {
    for (fake, id) in both().into_iter().flat_map(|fake| [(fake.clone(), None), (fake, Some(&b"mine"[..]))]) {
        paused(async {
            let admitting = Admitting::new(&fake).await;
            let before = fake.total("tokens");
            fake.delay([(15_000, 15_000)]);
            assert!(admitting.admit(id, 20 * MS).await.is_err());
            sleep(5 * MS).await;
            assert_eq!(taken(&fake), ([1; 3], before + 40));
            sleep(100 * MS).await;
            assert_eq!(taken(&fake), if id.is_some() { ([1; 3], before + 40) } else { ([0; 3], before) });
            let mut admission = admitting.admit(id, TTL).await.unwrap();
            assert!(admission.granted() && admission.holds().len() == 2);
            assert_eq!(taken(&fake), ([1; 3], before + 40));
            assert!(!admitting.admit(None, TTL).await.unwrap().granted());
            assert_eq!(admission.settle(&[10]).await.unwrap(), Some(vec![-30]));
            assert_eq!(taken(&fake), ([0; 3], before + 10));
            assert_eq!(admitting.client.statistics().holds_lost, 0);
        });
    }
}

/// Its reply is lost with the connection: it is asked for again, and nothing is counted twice.
#[test]
fn an_admission_is_asked_for_again_and_counts_once() {
    for (fake, command) in both().into_iter().zip(["SWLIMIT.ADMIT", "EVALSHA"]) {
        paused(async {
            let admitting = Admitting::new(&fake).await;
            fake.lose_replies(command, 1, false);
            let admission = admitting.admit(None, TTL).await.unwrap();
            assert!(admission.granted() && fake.lost_replies() == 1);
            assert_eq!(taken(&fake), ([1; 3], 40));
            sleep(TTL * 2).await;
            assert!(admission.holds().iter().all(Hold::is_live), "each is renewed");
            drop(admission);
            sleep(100 * MS).await;
            assert_eq!(taken(&fake), ([0; 3], 40), "what was not settled stays counted");
        });
    }
}

/// Its reply is lost, and there is no second one: the server is unavailable, or the caller has gone. Once the server is back, what
/// nobody has goes back.
#[test]
fn an_admission_whose_second_try_is_not_answered_is_given_back() {
    for (fake, is_dropped) in both().into_iter().flat_map(|fake| [(fake.clone(), false), (fake, true)]) {
        paused(async {
            let admitting = Admitting::new(&fake).await;
            let before = fake.total("tokens");
            fake.delay([(1_000, 5_000)]);
            let patience = if is_dropped { 20 * MS } else { TTL };
            let goes_away = async {
                sleep(3 * MS).await;
                assert_eq!(taken(&fake), ([1; 3], before + 40));
                fake.fault(if is_dropped { Fault::BlackHole } else { Fault::Down });
                fake.cut();
            };
            let (admitted, ()) = tokio::join!(timeout(patience, admitting.admit(None, TTL)), goes_away);
            assert!(matches!(admitted, Err(_) | Ok(Err(Error::Unavailable(_)))));
            fake.fault(Fault::None);
            sleep(TTL / 3).await;
            assert_eq!(taken(&fake), ([0; 3], before), "{is_dropped}");
        });
    }
}

/// A denial that is known of a rate says nothing about an admission under an id that may be live.
#[test]
fn a_retry_is_granted_what_others_are_known_to_be_denied() {
    paused(async {
        let fake = Fake::new();
        let admitting = Admitting::new(&fake).await;
        let tokens = admitting.client.limiter(Quota::per_hour(1)).mode(Mode::Cached).build().unwrap();
        sleep(TTL / 3).await;
        let admit = |id: &'static [u8]| {
            let members = [(&admitting.model, HoldRequest::new("model").id(id)).into(), (&tokens, "tokens").into()];
            admitting.client.admit(members)
        };
        let first = admit(b"one").await.unwrap();
        assert!(first.granted());
        assert!(!admit(b"two").await.unwrap().granted());
        while tokens.allow("tokens").await.unwrap().source() != Source::Cache {
            sleep(MS).await;
        }
        assert!(admit(b"one").await.unwrap().granted());
    });
}

/// While the server is unavailable, a settlement goes on, with all holds.
#[test]
fn a_settlement_of_several_holds_goes_on() {
    for fake in both() {
        paused(async {
            let admitting = Admitting::new(&fake).await;
            let mut admission = admitting.admit(None, TTL).await.unwrap();
            fake.fault(Fault::Down);
            assert!(matches!(admission.settle(&[10]).await, Err(Error::Unavailable(_))));
            sleep(TTL / 3).await;
            assert_eq!(taken(&fake), ([1; 3], 40));
            fake.fault(Fault::None);
            sleep(TTL / 3).await;
            assert_eq!(taken(&fake), ([0; 3], 10));
            assert_eq!(admitting.client.statistics().holds_lost, 0);
        });
    }
}

/// It is given up when all that it could end has ended by itself.
#[test]
fn a_settlement_is_given_up_with_the_last_hold() {
    paused(async {
        let fake = Fake::new();
        let admitting = Admitting::new(&fake).await;
        let mut admission = admitting.admit(None, TTL).await.unwrap();
        fake.fault(Fault::Down);
        assert!(admission.settle(&[10]).await.is_err());
        let renewer = admitting.client.0.renewer.as_ref().unwrap();
        assert!(timeout(TTL + TTL / 3, renewer.settled()).await.is_ok());
    });
}

/// The reservation has ended: what was used beyond is counted, and the holds end by themselves.
#[test]
fn holds_end_with_a_settlement_that_comes_too_late() {
    for fake in both() {
        paused(async {
            let admitting = Admitting::new(&fake).await;
            let mut admission = admitting.admit(None, TTL).await.unwrap();
            let id = admission.hold().and_then(Hold::id).unwrap().to_vec();
            admitting.client.release("{streams}:reserved", &[&id]).await.unwrap();
            assert_eq!(admission.settle(&[50]).await.unwrap(), None);
            sleep(100 * MS).await;
            assert_eq!(taken(&fake), ([0; 3], 50));
        });
    }
}

/// Each part has a failure policy of its own, and one that denies, or is an error, leaves nothing of the others.
#[test]
fn each_part_has_its_own_failure_policy() {
    paused(async {
        let fake = Fake::new();
        fake.fault(Fault::Down);
        let client = client(&fake);
        let holds = |limit, policy| client.holds(limit).local_share(1.0).on_failure(policy).build().unwrap();
        let (local, lenient, denies) =
            (holds(1, OnFailure::Local), holds(1, OnFailure::Allow), holds(1, OnFailure::Deny));
        let fails = holds(1, OnFailure::Error);
        let tokens =
            client.limiter(Quota::per_hour(100)).local_share(0.4).on_failure(OnFailure::Local).build().unwrap();
        let admit = async |last: &HoldLimiter| {
            let tokens = (&tokens, Request::new("tokens").cost(30)).into();
            let holds = [(&local, "local").into(), (&lenient, "lenient").into(), (last, "last").into()];
            client.admit([tokens].into_iter().chain(holds)).await
        };
        let denied = admit(&denies).await.unwrap();
        assert_eq!(denied.each().iter().map(Decision::granted).collect::<Vec<_>>(), [true, true, true, false]);
        assert!(!denied.granted() && denied.holds().is_empty());
        assert!(matches!(admit(&fails).await, Err(Error::Unavailable(_))));
        let mut granted = admit(&lenient).await.unwrap();
        assert!(granted.granted() && granted.holds().len() == 3);
        assert!(granted.each().iter().all(|decision| decision.source() == Source::Failure));
        assert!(!admit(&lenient).await.unwrap().granted(), "one at a time here");
        assert_eq!(granted.settle(&[40]).await.unwrap(), Some(vec![10]));
        assert!(!admit(&lenient).await.unwrap().granted(), "40 of 40 units are used");
    });
}

fn policy(name: &str) -> OnFailure {
    let all = [OnFailure::Local, OnFailure::Allow, OnFailure::Deny, OnFailure::Error];
    all.into_iter().find(|policy| format!("{policy:?}").to_lowercase() == name).unwrap()
}

/// What several limits come to together while the server is unavailable, as the vectors say.
#[test]
fn several_limits_fail_as_the_vectors_say() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../../tests/conformance/vectors/defaults.json")).unwrap();
    let failures = vectors["failures"].as_array().unwrap();
    assert!(failures.len() >= 25);
    for (case, is_admitted) in failures.iter().flat_map(|case| [(case, false), (case, true)]) {
        paused(async {
            let fake = Fake::new();
            fake.fault(Fault::Down);
            let client = client(&fake);
            let parts = case["parts"].as_array().unwrap();
            let limiters = parts.iter().map(|part| {
                let quota = Quota::new(part["limit"].as_u64().unwrap(), "1h").unwrap();
                let limiter = client.limiter(quota).mode(Mode::Direct);
                limiter.on_failure(policy(part["on_failure"].as_str().unwrap())).build().unwrap()
            });
            let limiters: Vec<_> = limiters.collect();
            let cost = |number: usize| parts[number]["cost"].as_u64().unwrap();
            let keys: Vec<_> = (0..parts.len()).map(|number| number.to_string()).collect();
            let requests = limiters.iter().zip(&keys).enumerate();
            let requests = requests.map(|(number, (limiter, key))| (limiter, Request::new(key).cost(cost(number))));
            let granted = match is_admitted {
                true => client.admit(requests.map(Into::into)).await.map(|admission| admission.granted()),
                false => client.allow_all(&requests.collect::<Vec<_>>()).await.map(|decisions| decisions.granted()),
            };
            let outcome = match granted {
                Ok(true) => "granted",
                Ok(false) => "denied",
                Err(Error::Unavailable(_)) => "error",
                Err(error) => panic!("{error}"),
            };
            assert_eq!(outcome, case["outcome"], "{case}");
            for ((limiter, key), left) in limiters.iter().zip(&keys).zip(case["left"].as_array().unwrap()) {
                if let Some(left) = left.as_u64() {
                    assert_eq!(limiter.peek(key).await.unwrap().remaining(), Some(left), "{case}");
                }
            }
        });
    }
}
