//! Waiting for one's turn: on the server, over connections of its own; in the process where the server lets nobody
//! wait.

use std::time::Duration;

use futures_util::future::join_all;
use swlimit_client::{Client, Error, Limiter, Mode, Quota, Source};
use tokio::time::{timeout, Instant};

use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{eventually, limiter, one_an_hour, patient, LONG};

const A_MINUTE: Duration = Duration::from_secs(60);

async fn used_up(client: &Client) -> Limiter {
    let limiter = limiter(client, one_an_hour(), Mode::Cached);
    assert!(limiter.allow("key").await.unwrap().granted());
    limiter
}

async fn waiting(server: &Server, expected: u64) {
    eventually(&format!("{expected} waiting"), async || {
        (server.info("swlimit", "swlimit_waiting") == expected).then_some(())
    })
    .await;
}

/// Ask for the only unit, which is given back as soon as somebody waits for it: the first to come gets it.
async fn first_come_first_served(server: &Server, limiter: &Limiter, is_waiting: impl AsyncFn(usize)) {
    let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 1..=4 {
        let (limiter, told) = (limiter.clone(), told.clone());
        tokio::spawn(async move {
            let decision = limiter.acquire("key", A_MINUTE).await.unwrap();
            told.send((number, decision.granted())).unwrap();
        });
        is_waiting(number).await;
    }
    for number in 1..=4 {
        server.say::<()>("SWLIMIT.REFUND key 1");
        assert_eq!(timeout(LONG, order.recv()).await.unwrap(), Some((number, true)));
    }
}

#[tokio::test]
async fn turns_on_the_server() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = used_up(&client).await;
    let quota = Quota::with_resolution(1, "30s", "1s").unwrap();
    let nobody = Duration::from_millis(100);
    // There is nothing to hope for in a tenth of a second.
    let decision = limiter.acquire("key", nobody).await.unwrap();
    assert!(!decision.granted() && decision.source() == Source::Server && decision.retry_after() > Some(nobody));
    assert!(self::limiter(&client, quota, Mode::Cached).acquire("another", nobody).await.unwrap().granted());
    // Nobody foresees what is given back, so a waiting caller must have something else to hope for.
    server.say::<()>("DEL key");
    let limiter = self::limiter(&client, quota, Mode::Cached);
    server.say::<()>("SWLIMIT.ALLOW key 1 30s 1s");
    first_come_first_served(&server, &limiter, async |number| waiting(&server, number as u64).await).await;
}

/// An older server does not know the command, and a user may be forbidden to use it: then the process keeps the queue.
#[tokio::test]
async fn turns_in_the_process() {
    let server = Server::new();
    let proxy = Proxy::replacing(server.port, Some(("SWLIMIT.ACQUIRE", "SWLIMIT.ACQUIRX"))).await;
    let older = patient().connect(&proxy.url()).await.unwrap();
    turns_without_acquire(&server, &older).await;

    server.say::<()>("ACL SETUSER cautious on >secret ~* &* +@all -swlimit.acquire");
    let forbidden = patient().connect(&server.url().replace("//", "//cautious:secret@")).await.unwrap();
    server.say::<()>("FLUSHALL");
    turns_without_acquire(&server, &forbidden).await;
}

async fn turns_without_acquire(server: &Server, client: &Client) {
    let quota = Quota::with_resolution(2, "400ms", "400ms").unwrap();
    let limiter = limiter(client, quota, Mode::Cached);
    let begun = Instant::now();
    let decisions = join_all((0..6).map(|_| limiter.acquire("key", LONG))).await;
    assert!(decisions.into_iter().all(|decision| decision.unwrap().granted()));
    assert!(begun.elapsed() > Duration::from_millis(400), "six were granted in {:?}", begun.elapsed());
    assert_eq!(server.info("swlimit", "swlimit_acquired"), 0);
    // Neither the wait nor the turn is longer than the timeout.
    let short = Duration::from_millis(50);
    let hour = self::limiter(client, one_an_hour(), Mode::Cached);
    assert!(hour.acquire("hour", short).await.unwrap().granted());
    for decision in join_all((0..3).map(|_| hour.acquire("hour", short))).await {
        assert!(!decision.unwrap().granted());
    }
}

/// A caller that gives up does not hold up the others, nor does the server go on waiting.
#[tokio::test]
async fn giving_up() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = limiter(&client, Quota::with_resolution(1, "30s", "1s").unwrap(), Mode::Cached);
    assert!(limiter.allow("key").await.unwrap().granted());
    let clients = server.info("clients", "connected_clients");
    for _ in 0..3 {
        let acquiring: Vec<_> = (0..3)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.acquire("key", A_MINUTE).await })
            })
            .collect();
        waiting(&server, 3).await;
        acquiring.iter().for_each(|task| task.abort());
        waiting(&server, 0).await;
    }
    eventually("connections closed", async || (server.info("clients", "connected_clients") <= clients).then_some(()))
        .await;
    server.say::<()>("SWLIMIT.REFUND key 1");
    assert!(limiter.acquire("key", A_MINUTE).await.unwrap().granted());
}

/// However many wait, so many connections at most; and nobody who does not wait is held up by them.
#[tokio::test]
async fn a_bounded_number_of_connections() {
    let server = Server::new();
    let client = patient().max_waiting(4).connect(&server.url()).await.unwrap();
    let limiter = limiter(&client, Quota::with_resolution(1, "30s", "1s").unwrap(), Mode::Cached);
    assert!(limiter.allow("key").await.unwrap().granted());
    let clients = server.info("clients", "connected_clients");
    let acquiring: Vec<_> = (0..20)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire("key", A_MINUTE).await.unwrap().granted() })
        })
        .collect();
    waiting(&server, 4).await;
    assert!(limiter.allow("another").await.unwrap().granted());
    assert!(server.info("clients", "connected_clients") <= clients + 4 + 1, "the tracking connection is one more");
    eventually("all served", async || {
        server.say::<()>("SWLIMIT.REFUND key 1");
        assert!(server.info("swlimit", "swlimit_waiting") <= 4);
        acquiring.iter().all(tokio::task::JoinHandle::is_finished).then_some(())
    })
    .await;
    for granted in join_all(acquiring).await {
        assert!(granted.unwrap());
    }
}

/// Idle connections that were closed meanwhile are in nobody's way.
#[tokio::test]
async fn after_a_server_was_started_again() {
    let mut server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = limiter(&client, Quota::with_resolution(1, "30s", "1s").unwrap(), Mode::Cached);
    assert!(limiter.acquire("key", A_MINUTE).await.unwrap().granted());
    server.kill();
    server.start();
    assert!(limiter.acquire("key", A_MINUTE).await.unwrap().granted());
    let waits = limiter.clone();
    let acquiring = tokio::spawn(async move { waits.acquire("key", A_MINUTE).await });
    waiting(&server, 1).await;
    server.kill();
    server.start();
    // It goes on waiting, by then for a key that nobody has used.
    let decision = timeout(LONG, acquiring).await.unwrap().unwrap().unwrap();
    assert!(decision.granted());
}

/// Too many for the server: that is said, and is no failure of the server's.
#[tokio::test]
async fn more_than_the_server_lets_wait() {
    let server = Server::new();
    server.say::<()>("CONFIG SET swlimit.max-waiting 1");
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = limiter(&client, Quota::with_resolution(1, "30s", "1s").unwrap(), Mode::Cached);
    assert!(limiter.allow("key").await.unwrap().granted());
    let waits = limiter.clone();
    let first = tokio::spawn(async move { waits.acquire("key", A_MINUTE).await });
    waiting(&server, 1).await;
    let error = limiter.acquire("key", A_MINUTE).await.err();
    assert!(matches!(&error, Some(Error::Refused(text)) if text.contains("too many")), "{error:?}");
    assert!(client.is_connected());
    first.abort();
}
