//! A server that is unavailable, or cannot decide: nobody waits longer than is allowed, the failure policy decides and is
//! counted, and the client notices when the server is back.

use std::time::Duration;

use futures_util::future::join_all;
use swlimit_client::{Client, Error, Limiter, Mode, Module, OnFailure, Quota, Reason, Request, Source, State};
use tokio::time::Instant;

use crate::support::proxy::Proxy;
use crate::support::server::{free_port, Server};
use crate::support::{eventually, limiter, one_an_hour, patient, report, until, until_away, within, LONG, MODES};

const TIMEOUT: Duration = Duration::from_millis(200);
/// How much later a busy machine may wake somebody up.
const SLACK: Duration = Duration::from_secs(5);

/// Why a server is unavailable is known, and that it is back.
#[tokio::test]
async fn reasons() {
    let server = Server::builder().with("requirepass", "secret").start();
    let address = server.url();
    until_away(&Client::builder().build(&address).unwrap(), Reason::Auth).await;
    let wrong = Client::builder().build(&address.replace("//", "//:wrong@")).unwrap();
    until_away(&wrong, Reason::Auth).await;
    drop(server);
    let client = Client::builder().build(&address).unwrap();
    until_away(&client, Reason::Refused).await;

    let mut server = Server::new();
    let client = Client::builder().build(&server.url()).unwrap();
    let replicated = format!("REPLICAOF 127.0.0.1 {}", free_port());
    for (begin, reason, end) in [
        (replicated.as_str(), Reason::Code("READONLY"), "REPLICAOF NO ONE"),
        ("CONFIG SET maxmemory 1", Reason::Code("OOM"), "CONFIG SET maxmemory 0"),
    ] {
        server.say::<()>(begin);
        until_away(&client, reason).await;
        server.say::<()>(end);
        eventually("it is back", async || (client.servers()[0].state == State::Up).then_some(())).await;
    }
    server.pause(true);
    until_away(&client, Reason::NoAnswer).await;
    server.pause(false);
    eventually("it is back", async || (client.servers()[0].state != State::Unavailable).then_some(())).await;
    server.kill();
    until_away(&client, Reason::Refused).await;
}

/// A server behind a proxy.
struct Setting {
    server: Server,
    proxy: Proxy,
}

/// Something befalls the server while each way of deciding is in use, for longer than a window, and passes. How soon
/// the client notices is measured and said; that it is soon enough is proved on the simulator's clock.
async fn endure(begin: impl FnOnce(&mut Setting), end: impl FnOnce(&mut Setting)) {
    let server = Server::new();
    let proxy = Proxy::before(server.port).await;
    let mut setting = Setting { server, proxy };
    let url = setting.proxy.url();
    let quota = Quota::with_resolution(100, "500ms", "100ms").unwrap();
    let limiters = MODES.map(|mode| {
        let client = Client::builder().timeout(TIMEOUT).build(&url).unwrap();
        let limiter = limiter(&client, quota, mode);
        (client, limiter, name(mode))
    });
    join_all(limiters.iter().map(|(_, limiter, key)| there(limiter, key))).await;
    begin(&mut setting);
    join_all(limiters.iter().map(|(client, limiter, key)| decided_without(client, limiter, key))).await;
    end(&mut setting);
    let back = join_all(limiters.iter().map(|(_, limiter, key)| there(limiter, key))).await;
    report(&format!("back after {back:?}"));
}

fn name(mode: Mode) -> String {
    format!("{mode:?}").split(' ').next().unwrap().into()
}

/// Not decided by the failure policy, and granted; how long it took.
async fn there(limiter: &Limiter, key: &str) -> Duration {
    let begun = Instant::now();
    eventually(key, async || {
        let decision = in_time(limiter, key).await;
        (decision.granted() && decision.source() != Source::Failure).then_some(())
    })
    .await;
    begun.elapsed()
}

/// The failure policy decides for a second, and that is counted.
async fn decided_without(client: &Client, limiter: &Limiter, key: &str) {
    let away = |client: &Client| client.statistics().denied(Source::Failure);
    let before = away(client);
    eventually(key, async || (in_time(limiter, key).await.source() == Source::Failure).then_some(())).await;
    let mut seen = 1;
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        let decision = in_time(limiter, key).await;
        assert_eq!((decision.source(), decision.granted()), (Source::Failure, false), "{key}");
        seen += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(away(client) - before, seen, "{key}");
}

async fn in_time(limiter: &Limiter, key: &str) -> swlimit_client::Decision {
    let begun = Instant::now();
    let decision = limiter.allow(key).await.unwrap();
    assert!(begun.elapsed() < TIMEOUT + SLACK, "{key}: {:?}", begun.elapsed());
    decision
}

#[tokio::test]
async fn standing_still() {
    endure(|at| at.server.pause(true), |at| at.server.pause(false)).await;
}

#[tokio::test]
async fn killed() {
    endure(|at| at.server.kill(), |at| at.server.start()).await;
}

#[tokio::test]
async fn a_line_that_falls_silent() {
    endure(|at| at.proxy.fall_silent(true), |at| at.proxy.fall_silent(false)).await;
}

#[tokio::test]
async fn slower_than_anybody_waits() {
    endure(|at| at.proxy.delay(Duration::from_secs(1)), |at| at.proxy.delay(Duration::ZERO)).await;
}

#[tokio::test]
async fn out_of_memory() {
    endure(|at| at.server.say("CONFIG SET maxmemory 1"), |at| at.server.say("CONFIG SET maxmemory 0")).await;
}

#[tokio::test]
async fn refusing_to_write() {
    let replicas =
        |number| move |at: &mut Setting| at.server.say(&format!("CONFIG SET min-replicas-to-write {number}"));
    endure(replicas(1), replicas(0)).await;
}

/// Of a master that nobody ever reaches, so that it keeps what it has.
#[tokio::test]
async fn a_read_only_replica() {
    let nobody = Proxy::before(1).await;
    let master = format!("REPLICAOF 127.0.0.1 {}", nobody.port);
    endure(move |at| at.server.say(&master), |at| at.server.say("REPLICAOF NO ONE")).await;
}

/// Busy with a script that does not end.
#[tokio::test]
async fn busy() {
    let begin = |at: &mut Setting| {
        at.server.say::<()>("CONFIG SET busy-reply-threshold 1");
        let mut connection = redis::Client::open(at.server.url()).unwrap().get_connection().unwrap();
        connection
            .send_packed_command(&redis::cmd("EVAL").arg("while true do end").arg(0).get_packed_command())
            .unwrap();
    };
    endure(begin, |at| at.server.say("SCRIPT KILL")).await;
}

/// Where the disk fails, nothing may be written.
#[tokio::test]
async fn unable_to_save() {
    let begin = |at: &mut Setting| {
        std::fs::create_dir(at.server.folder.path().join("dump.rdb")).unwrap();
        at.server.say_words::<(), _>(&["CONFIG", "SET", "save", "3600 1"]);
        at.server.say::<()>("BGSAVE");
        while !at.server.say::<String>("INFO persistence").contains("rdb_last_bgsave_status:err") {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    endure(begin, |at| at.server.say("CONFIG SET stop-writes-on-bgsave-error no")).await;
}

/// Reading its data, slowly, as it starts.
#[tokio::test]
async fn loading() {
    let begin = |at: &mut Setting| {
        at.server.say::<()>("DEBUG POPULATE 2000");
        at.server.say::<()>("SAVE");
        at.server.kill();
        at.server.begin(&["--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"]);
    };
    endure(begin, |at| at.server.say("CONFIG SET key-load-delay 0")).await;
}

/// Slow, but not too slow: nothing is decided without the server.
#[tokio::test]
async fn slow() {
    let server = Server::new();
    let proxy = Proxy::before(server.port).await;
    proxy.delay(Duration::from_millis(10));
    let client = patient().connect(&proxy.url()).await.unwrap();
    for mode in MODES {
        let (limiter, key) = (limiter(&client, Quota::with_resolution(10, "1h", "1m").unwrap(), mode), name(mode));
        let mut granted = 0;
        for _ in 0..30 {
            let decision = limiter.allow(&key).await.unwrap();
            assert_ne!(decision.source(), Source::Failure);
            granted += decision.units();
        }
        let background = matches!(mode, Mode::Eventual);
        assert!(granted == 10 || (background && granted > 0), "{mode:?}: {granted}");
        client.close().await;
        assert_eq!(server.held(&key), granted, "{mode:?}");
    }
}

#[tokio::test]
async fn policies() {
    let client = Client::builder().build("redis://127.0.0.1:1/").unwrap();
    let quota = Quota::with_resolution(100, "1h", "1m").unwrap();
    let of = |policy| client.limiter(quota).on_failure(policy).build().unwrap();
    let (allow, deny, local) = (of(OnFailure::Allow), of(OnFailure::Deny), of(OnFailure::Local));
    for _ in 0..20 {
        assert!(allow.allow("key").await.unwrap().granted());
        assert!(!deny.allow("key").await.unwrap().granted());
        let _ = local.allow("key").await.unwrap();
    }
    let statistics = client.statistics();
    assert_eq!((statistics.granted(Source::Failure), statistics.denied(Source::Failure)), (20 + 10, 20 + 10));
    assert!(statistics.opened > 0 && !client.is_connected());
    // Until the circuit opened each was tried.
    assert!(statistics.commands < 60, "{}", statistics.commands);

    let both = [(&allow, Request::new("a")), (&deny, Request::new("b"))];
    assert!(!client.allow_all(&both).await.unwrap().granted());
    assert!(client.allow_all(&[(&allow, Request::new("a")), (&local, Request::new("b"))]).await.unwrap().granted());
    for error in [local.record("key").await.err(), local.refund("key").await.err(), local.unblock("key").await.err()] {
        assert!(matches!(error, Some(Error::Unavailable(_))), "{error:?}");
    }
    assert!(matches!(Client::connect("redis://127.0.0.1:1/").await.err(), Some(Error::Unavailable(_))));
}

/// What the server denied holds on while it is unavailable.
#[tokio::test]
async fn denials_outlast_a_server_that_cannot_write() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = client.limiter(one_an_hour()).on_failure(OnFailure::Allow).build().unwrap();
    assert!(limiter.allow("key").await.unwrap().granted());
    until(&limiter, "key", Source::Cache).await;
    server.say::<()>("CONFIG SET maxmemory 1");
    assert!(limiter.allow("another").await.unwrap().granted());
    assert_eq!(limiter.allow("key").await.unwrap().source(), Source::Cache);
}

/// Said in words that tell what to do, whatever is asked.
#[tokio::test]
async fn without_the_module() {
    let server = Server::builder().bare().start();
    let always = || patient().module(Module::Always);
    let error = always().connect(&server.url()).await.err().unwrap();
    assert_eq!(error, Error::ModuleMissing);
    assert!(error.to_string().contains("--loadmodule"), "{error}");
    let client = always().build(&server.url()).unwrap();
    for mode in [Mode::Direct, Mode::Cached, Mode::Leased] {
        let limiter = client.limiter(one_an_hour()).mode(mode).build().unwrap();
        assert_eq!(limiter.allow("key").await.err(), Some(Error::ModuleMissing), "{mode:?}");
        assert_eq!(limiter.acquire("key", SLACK).await.err(), Some(Error::ModuleMissing), "{mode:?}");
    }
    let eventual = limiter(&client, one_an_hour(), Mode::Eventual);
    eventually("an error", async || (eventual.allow("key").await.err() == Some(Error::ModuleMissing)).then_some(()))
        .await;
}

/// What the server refuses for good is no failure of the server's.
#[tokio::test]
async fn refusals() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = client.limiter(one_an_hour()).build().unwrap();
    server.say::<()>("SET key value");
    for _ in 0..10 {
        let error = limiter.allow("key").await.err();
        assert!(matches!(&error, Some(Error::Refused(text)) if text.starts_with("WRONGTYPE")), "{error:?}");
    }
    assert!(client.is_connected());
    assert_eq!(client.statistics().failures, 0);
}

/// Nor does a key that is something else take the others with it, which are synchronized in the same go.
#[tokio::test]
async fn a_refusal_in_the_background() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = limiter(&client, Quota::with_resolution(100, "1m", "1s").unwrap(), Mode::Eventual);
    server.say::<()>("SET bad value");
    within(LONG, "synchronizations", async || {
        match limiter.allow("bad").await {
            Ok(decision) => assert_eq!(decision.source(), Source::Eventual),
            Err(error) => assert!(matches!(&error, Error::Refused(text) if text.starts_with("WRONGTYPE")), "{error}"),
        }
        (client.statistics().synchronized >= 6).then_some(())
    })
    .await;
    assert_eq!(client.statistics().unsynchronized, 0);
    assert!(limiter.allow("good").await.unwrap().granted());
}
