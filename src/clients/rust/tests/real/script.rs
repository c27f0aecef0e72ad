//! Servers without the module: the script decides, and nobody but operators notices.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, FutureExt};
use parking_lot::Mutex;
use swlimit_client::{
    Backend, Calendar, Client, Error, Hold, HoldLimiter, HoldRequest, Mode, Module, OnFailure, Period, Quota, Reason,
    Request, Source,
};
use tokio::time::Instant;

use crate::holds::{everything_at_once, lost, seats};
use crate::support::cluster::Cluster;
use crate::support::server::{by_script, Server};
use crate::support::{eventually, limiter, one_an_hour, patient, LONG, MODES};

fn backends(client: &Client) -> Vec<Option<Backend>> {
    client.servers().into_iter().map(|server| server.backend).collect()
}

/// Whatever the server forgets, also between the commands of a pipeline.
#[tokio::test]
async fn a_script_that_is_forgotten() {
    let server = Server::builder().bare().start();
    let client = patient().connect(&server.url()).await.unwrap();
    assert_eq!(backends(&client), [Some(Backend::Script)]);
    for mode in MODES {
        let of = limiter(&client, Quota::with_resolution(1000, "1h", "1m").unwrap(), mode);
        let name = format!("{mode:?}");
        for _ in 0..5 {
            server.say::<()>("SCRIPT FLUSH");
            assert!(of.allow(&name).await.unwrap().granted());
            let both = join_all([Request::new(&name), Request::new(&name).cost(2)].map(|request| of.allow(request)));
            assert!(both.await.into_iter().all(|decision| decision.unwrap().granted()));
        }
    }
    let (count, key) = (Quota::with_resolution(5, "1h", "1m").unwrap(), "{tag}:1");
    let (one, other) = (limiter(&client, count, Mode::Leased), limiter(&client, count, Mode::Leased));
    server.say::<()>("SCRIPT FLUSH");
    let both = [(&one, Request::new(key)), (&other, Request::new("{tag}:2").cost(5))];
    assert!(client.allow_all(&both).await.unwrap().granted());
    assert!(!client.allow_all(&both).await.unwrap().granted());
    assert_eq!(client.statistics().failures, 0);
    client.close().await;
    assert_eq!(client.info(key).await.unwrap().unwrap().total, 1);
}

/// What only the module has is said.
#[tokio::test]
async fn what_is_missing() {
    let server = Server::builder().bare().start();
    let client = patient().connect(&server.url()).await.unwrap();
    assert_eq!(client.top(10).await, Err(Error::NeedsModule));
    assert!(client.is_connected());
    assert_eq!(client.forbidden("probed", &[]).await.unwrap(), [""; 0]);
    server.say::<()>("ACL SETUSER short reset on >secret ~* &* +@all -setrange -eval -zmscore -pttl");
    let short = patient().build(&server.url().replace("//", "//short:secret@")).unwrap();
    assert_eq!(short.forbidden("probed", &["swlimit.allow"]).await.unwrap(), ["eval", "setrange"]);
    let held = ["eval", "setrange", "zmscore", "pttl"];
    assert_eq!(short.forbidden("probed", &["swlimit.hold"]).await.unwrap(), held);
    server.say::<()>("ACL SETUSER short resetkeys ~other");
    assert_eq!(short.forbidden("probed", &[]).await.unwrap(), ["~probed"]);
}

/// Budgets, and all at once.
#[tokio::test]
async fn budgets_and_admissions() {
    let server = Server::builder().bare().start();
    let client = patient().connect(&server.url()).await.unwrap();
    let plan = client.budget(10, Calendar::new(Period::Year)).build().unwrap();
    assert_eq!(plan.allow(Request::new("HOLD").cost(11)).await.unwrap().units(), 0);
    assert_eq!(plan.record(Request::new("HOLD").cost(2)).await.unwrap().remaining(), Some(8));
    let requests = limiter(&client, one_an_hour(), Mode::Direct);
    let parts = || [(&requests, "key").into(), (&plan, Request::new("HOLD").cost(7)).into()];
    let mut admission = client.admit(parts()).await.unwrap();
    assert!(admission.granted() && !client.admit(parts()).await.unwrap().granted());
    assert_eq!(admission.settle(&[1, 4]).await.unwrap(), Some(vec![0, -3]));
    assert_eq!(plan.refund(Request::new("HOLD").cost(10)).await.unwrap(), 6);
    // Whatever is asked first, and of any bytes: the server would quote them.
    let first = patient().build(&server.url()).unwrap();
    assert!(first.holds(1).build().unwrap().hold("seats").await.unwrap().granted());
    let first = patient().build(&server.url()).unwrap();
    let plan = first.budget(10, Calendar::new(Period::Year)).build().unwrap();
    assert_eq!(plan.allow(&b"\xff"[..]).await.unwrap().source(), Source::Server);
}

/// Guards, admissions and losses are no others than the module's.
#[tokio::test]
async fn holds() {
    let server = Server::builder().bare().start();
    let client = patient().connect(&server.url()).await.unwrap();
    everything_at_once(&client, Source::Server).await;
    let limiter = seats(&client, 1);
    let hold = limiter.hold("key").await.unwrap();
    assert!(hold.granted() && !limiter.hold("key").await.unwrap().granted());
    assert!(!limiter.peek("key").await.unwrap().granted() && limiter.peek("free").await.unwrap().granted());
    assert_eq!(limiter.holders("key", 10).await.unwrap()[0].token, hold.token().unwrap());
    assert_eq!(client.renew("key", LONG, &[hold.id().unwrap(), b"other"]).await.unwrap(), [true, false]);
    drop(hold);
    let hold = patiently(&limiter).await;
    server.say::<()>("DEL key");
    lost(&hold).await;
    assert_eq!(client.statistics().holds_lost, 1);
}

async fn patiently(limiter: &HoldLimiter) -> Hold {
    let hold = limiter.hold(HoldRequest::new("key").wait(LONG)).await.unwrap();
    assert!(hold.granted());
    hold
}

/// One queue in the process: who came first, and at its end who releases and takes again; who asks for its own hold
/// again waits for nobody.
#[tokio::test]
async fn waiting_in_line() {
    let server = Server::builder().bare().start();
    let client = patient().connect(&server.url()).await.unwrap();
    let (limiter, order) = (seats(&client, 1), Arc::new(Mutex::new(Vec::new())));
    let mine = || limiter.hold(HoldRequest::new("key").id(b"mine").wait(LONG));
    let first = mine().await.unwrap();
    let wait = |number| {
        let (limiter, order) = (limiter.clone(), Arc::clone(&order));
        let mut waiting = Box::pin(async move {
            for round in 0..2 {
                let _hold = patiently(&limiter).await;
                order.lock().push((round, number));
            }
        });
        assert!((&mut waiting).now_or_never().is_none());
        tokio::spawn(waiting)
    };
    let waiting: Vec<_> = (0..4).map(wait).collect();
    // Dropped wherever it is, it leaves the line.
    waiting[1].abort();
    let again = mine().await.unwrap();
    assert_eq!(again.token(), first.token());
    assert!(!limiter.hold(HoldRequest::new("key").wait(Duration::from_millis(50))).await.unwrap().granted());
    assert!(again.detach().is_some());
    drop(first);
    for task in waiting {
        let done = task.await;
        assert!(done.is_ok() || done.unwrap_err().is_cancelled());
    }
    assert_eq!(*order.lock(), [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)]);
    // Another process holds it, and the server is unavailable before that has ended.
    let other = patient().connect(&server.url()).await.unwrap();
    let _held = patiently(&seats(&other, 1)).await;
    let lenient = client.holds(1).on_failure(OnFailure::Allow).build().unwrap();
    let both = [&lenient, &lenient].map(|limiter| {
        tokio::spawn({
            let limiter = limiter.clone();
            async move { patiently(&limiter).await.source() }
        })
    });
    drop(server);
    for waited in both {
        assert_eq!(waited.await.unwrap(), Source::Failure);
    }
}

/// Where a user's scripts may not ask for the time, the client's clock decides.
#[tokio::test]
async fn a_user_without_the_time() {
    let server = Server::builder().bare().start();
    server.say::<()>("ACL SETUSER timeless reset on >secret ~* &* +@all -time");
    let url = server.url().replace("//", "//timeless:secret@");
    let client = patient().connect(&url).await.unwrap();
    let of = limiter(&client, one_an_hour(), Mode::Direct);
    assert!(of.allow("key").await.unwrap().granted());
    assert!(!of.peek("key").await.unwrap().granted());
    let plan = client.budget(10, Calendar::new(Period::Year)).build().unwrap();
    assert_eq!(plan.allow("plan").await.unwrap().source(), Source::Server);
    assert_eq!(of.refund("key").await.unwrap(), 1);
}

/// The server lets nobody wait, so the process keeps the queue.
#[tokio::test]
async fn turns_in_order() {
    let server = Server::builder().bare().start();
    let client = patient().connect(&server.url()).await.unwrap();
    let of = limiter(&client, Quota::with_resolution(2, "400ms", "400ms").unwrap(), Mode::Cached);
    let (begun, order) = (Instant::now(), tokio::sync::Mutex::new(Vec::new()));
    join_all((0..6).map(async |number| {
        assert!(of.acquire("key", LONG).await.unwrap().granted());
        order.lock().await.push(number);
    }))
    .await;
    assert!(begun.elapsed() > Duration::from_millis(400));
    assert_eq!(*order.lock().await, [0, 1, 2, 3, 4, 5]);
}

/// A server that cannot write is unavailable, although its script goes on denying.
#[tokio::test]
async fn a_server_that_cannot_write() {
    let server = Server::builder().bare().start();
    let client = patient().connect(&server.url()).await.unwrap();
    let of = limiter(&client, one_an_hour(), Mode::Direct);
    server.say::<()>("CONFIG SET maxmemory 1");
    eventually("away", async || {
        let _ = of.allow(&fastrand::u64(..).to_string()).await;
        (client.servers()[0].reason == Some(Reason::Code("OOM"))).then_some(())
    })
    .await;
    eventually("a probe that writes", async || {
        server.say::<String>("INFO commandstats").contains("cmdstat_setrange:").then_some(())
    })
    .await;
    assert!(!client.is_connected());
    server.say::<()>("CONFIG SET maxmemory 0");
    eventually("back", async || client.is_connected().then_some(())).await;
}

/// Each connection finds out for itself.
#[tokio::test]
async fn a_server_with_the_module_in_its_place() {
    if by_script() {
        return; // no server has the module then
    }
    let mut bare = Server::builder().bare().start();
    let client = patient().connect(&bare.url()).await.unwrap();
    let of = limiter(&client, one_an_hour(), Mode::Direct);
    assert!(of.allow("key").await.unwrap().granted());
    let found = async |backend| {
        eventually("another one", async || {
            let _ = of.allow("key").await;
            (backends(&client) == [Some(backend)]).then_some(())
        })
        .await;
    };
    bare.kill();
    let mut loaded = Server::at(bare.port);
    found(Backend::Module).await;
    loaded.kill();
    bare.start();
    found(Backend::Script).await;
}

/// Where it is not to be used, it is not used.
#[tokio::test]
async fn never_the_module() {
    let server = Server::new();
    let client = patient().module(Module::Never).connect(&server.url()).await.unwrap();
    let of = limiter(&client, one_an_hour(), Mode::Cached);
    assert!(of.allow("key").await.unwrap().granted());
    assert_eq!(server.say::<String>("TYPE key"), "string");
}

/// Each node is given the script, and the commands follow the slots.
#[tokio::test]
async fn a_cluster_that_forgets_and_moves() {
    let cluster = Cluster::bare(2).await;
    let client = eventually("a connection", async || patient().connect(&cluster.url()).await.ok()).await;
    let of = limiter(&client, Quota::with_resolution(100, "1h", "1m").unwrap(), Mode::Leased);
    let mut granted = [0; 4];
    for round in 0..4 {
        for (number, granted) in granted.iter_mut().enumerate() {
            *granted += of.allow(&format!("key:{number}")).await.unwrap().units();
        }
        match round {
            0 => cluster.0.iter().for_each(|server| server.say("SCRIPT FLUSH")),
            1 => cluster.reshard("key:0", 1 - cluster.owner("key:0")),
            _ => {}
        }
    }
    assert_eq!(granted, [4; 4]);
    assert!(backends(&client).iter().all(|backend| *backend == Some(Backend::Script)));
    client.close().await;
    assert_eq!(client.info("key:0").await.unwrap().unwrap().total, 4);
}
