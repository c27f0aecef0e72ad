//! The module is loaded while clients of the script run: keys change hands with their counts, and nobody stops.

use std::time::Duration;

use swlimit_client::{
    Backend, Calendar, Client, Error, Hold, HoldLimiter, Mode, Module, OnFailure, Period, Quota, Source,
};

use crate::holds::seats;
use crate::support::cluster::Cluster;
use crate::support::server::{by_script, Server};
use crate::support::{eventually, limiter, one_an_hour, patient, MODES};

fn fifty_an_hour() -> Quota {
    Quota::with_resolution(50, "1h", "1m").unwrap()
}

fn decides(client: &Client) -> Option<Backend> {
    client.servers().iter().find_map(|server| server.backend)
}

async fn connected(server: &Server) -> Client {
    patient().connect(&server.url()).await.unwrap()
}

/// Fifty of each, of which some are used: what any client may take more.
async fn ask(client: &Client, holds: &HoldLimiter, kept: &mut Vec<Hold>) {
    let windows = limiter(client, fifty_an_hour(), Mode::Direct);
    let plan = client.budget(50, Calendar::new(Period::Year)).build().unwrap();
    assert!(windows.allow("{k}:window").await.unwrap().granted());
    assert!(plan.allow("{k}:budget").await.unwrap().granted());
    assert!(client.allow_all(&[(&windows, "{k}:a".into()), (&windows, "{k}:b".into())]).await.unwrap().granted());
    kept.push(holds.hold("{k}:holds").await.unwrap());
    let members = [(holds, "{k}:admitted").into(), (&windows, "{k}:b").into(), (&plan, "{k}:budget").into()];
    let (decisions, admitted) = client.admit_for_others(members).await.unwrap();
    assert!(decisions.granted());
    kept.extend(admitted);
}

/// What the module has of each key, of all clients.
async fn check(client: &Client, asked: u64) {
    for (key, total) in [("window", 1), ("budget", 2), ("a", 1), ("b", 2), ("holds", 1), ("admitted", 1)] {
        let info = client.info(&format!("{{k}}:{key}")).await.unwrap().unwrap();
        assert_eq!(info.total, total * asked, "{key}");
    }
}

/// Clients that ask the module first, or the script, whose connections learn of it by a key that is not the script's.
#[tokio::test]
async fn half_of_the_clients_ask_the_script_first() {
    if by_script() {
        return;
    }
    let server = Server::builder().bare().start();
    let (first, second) = (connected(&server).await, connected(&server).await);
    let (limiter, others, mut kept) = (seats(&first, 50), seats(&second, 10), Vec::new());
    for (client, limiter) in [(&first, &limiter), (&second, &others)] {
        ask(client, limiter, &mut kept).await;
    }
    check(&first, 2).await;
    let until = first.block("blocked", Duration::from_secs(3600)).await.unwrap();
    server.load();
    let third = connected(&server).await;
    let by_module = seats(&third, 50);
    // None of its keys is the module's yet, so this connection goes on with the script.
    ask(&first, &limiter, &mut kept).await;
    assert_eq!((decides(&first), first.statistics().taken_over), (Some(Backend::Script), 0));
    ask(&third, &by_module, &mut kept).await;
    assert_eq!((decides(&third), third.statistics().taken_over), (Some(Backend::Module), 6));
    ask(&second, &others, &mut kept).await;
    ask(&first, &limiter, &mut kept).await;
    for client in [&first, &second] {
        assert_eq!((decides(client), client.statistics().taken_over), (Some(Backend::Module), 0));
    }
    check(&third, 6).await;
    assert!(!crate::support::limiter(&third, one_an_hour(), Mode::Direct).allow("blocked").await.unwrap().granted());
    assert_eq!(first.info("blocked").await.unwrap().unwrap().blocked_until, Some(until));
    assert_eq!(server.say::<String>("TYPE {k}:holds"), "sw-holder");
    // Guards of before and after are renewed, released and settled alike, whatever they reserve.
    assert!(kept.iter().all(Hold::is_live));
    let reserved = [(&b"{k}:b"[..], 0), (&b"{k}:budget"[..], 3)];
    let id = kept[1].id().unwrap();
    assert_eq!(third.settle("{k}:admitted", id, &reserved).await.unwrap(), Some(vec![-1, 2]));
    let name = kept[0].id().unwrap();
    assert_eq!(second.renew("{k}:holds", Duration::from_secs(60), &[name]).await.unwrap(), [true]);
    drop(kept);
    eventually("released", async || by_module.holders("{k}:holds", 10).await.unwrap().is_empty().then_some(())).await;
    assert_eq!(third.statistics().failures + second.statistics().failures, 0);
}

/// Leases, and what was counted in the background: pipelines of several keys.
#[tokio::test]
async fn in_every_mode() {
    if by_script() {
        return;
    }
    // Else what is written while the disk is busy waits in the server, which is killed.
    let mut server = Server::builder().bare().with("appendonly", "yes").with("appendfsync", "no").start();
    let client = connected(&server).await;
    let all = MODES.map(|mode| limiter(&client, Quota::with_resolution(100, "1h", "1m").unwrap(), mode));
    let each = async || {
        for (number, limiter) in all.iter().enumerate() {
            for key in 0..5 {
                assert!(limiter.allow(&format!("{number}:{key}")).await.unwrap().granted());
            }
        }
    };
    each().await;
    client.close().await;
    // The configuration had forgotten it.
    server.kill();
    server.begin(&["--loadmodule", &Server::module()]);
    eventually("back with the module", async || {
        let info = client.info("0:0").await;
        (info.is_ok() && decides(&client) == Some(Backend::Module)).then_some(())
    })
    .await;
    each().await;
    client.close().await;
    assert_eq!(client.statistics().taken_over, 20);
    for number in 0..all.len() {
        for key in 0..5 {
            let info = client.info(&format!("{number}:{key}")).await.unwrap().unwrap();
            assert_eq!(info.total, 2, "{number}:{key}");
        }
    }
}

/// Refused, it leaves the key to the script, with the error of the request.
#[tokio::test]
async fn what_is_refused() {
    if by_script() {
        return;
    }
    let server = Server::builder().bare().start();
    let before = connected(&server).await;
    let fine = limiter(&before, fifty_an_hour(), Mode::Direct);
    assert!(fine.allow("key").await.unwrap().granted() && fine.allow("other").await.unwrap().granted());
    server.load();
    let refused = async |client: &Client, key: &str, error: &str| {
        let limiter = client.limiter(fifty_an_hour()).mode(Mode::Direct).on_failure(OnFailure::Error).build().unwrap();
        let denied = limiter.allow(key).await;
        assert!(matches!(&denied, Err(Error::Refused(text)) if text.starts_with(error)), "{error}: {denied:?}");
        let shown: redis::Value = server.say_words(&["TYPE", key]);
        assert_ne!(shown, redis::Value::SimpleString("sw-window".into()));
    };
    let client = connected(&server).await;
    server.say::<()>("CONFIG SET swlimit.max-subintervals 10");
    refused(&client, "key", "ERR window / resolution is 60 subintervals").await;
    server.say::<()>("CONFIG SET swlimit.max-subintervals 4096");
    server.say::<()>("SET text x");
    refused(&client, "text", "WRONGTYPE").await;
    server.say::<()>("ACL SETUSER short reset on >secret ~* &* +@all -type");
    let short = patient().build(&server.url().replace("//", "//short:secret@")).unwrap();
    refused(&short, "key", "ERR ").await;
    server.say::<()>("ACL SETUSER short reset on >secret ~* &* +@all -evalsha");
    refused(&short, "key", "NOPERM").await;
    let never = patient().module(Module::Never).connect(&server.url()).await.unwrap();
    assert_eq!(limiter(&never, fifty_an_hour(), Mode::Direct).peek("key").await.unwrap().remaining(), Some(49));
    assert!(limiter(&client, fifty_an_hour(), Mode::Direct).allow("key").await.unwrap().granted());
    assert_eq!(client.info("key").await.unwrap().unwrap().total, 2);
    // Out of memory is the server's failure, as for any write.
    server.say::<()>("CONFIG SET maxmemory 1");
    let decision = limiter(&client, fifty_an_hour(), Mode::Direct).allow("other").await.unwrap();
    assert_eq!((decision.granted(), decision.source()), (false, Source::Failure));
    server.say::<()>("CONFIG SET maxmemory 0");
    eventually("taken over", async || {
        let _ = limiter(&client, fifty_an_hour(), Mode::Direct).allow("other").await;
        (server.say::<String>("TYPE other") == "sw-window").then_some(())
    })
    .await;
    assert_eq!(client.statistics().taken_over, 2);
}

/// Node by node, while a slot moves to the one that has the module.
#[tokio::test]
async fn a_cluster() {
    if by_script() {
        return;
    }
    let cluster = Cluster::bare(2).await;
    let client = eventually("a connection", async || patient().connect(&cluster.url()).await.ok()).await;
    let (limiter, mut kept) = (seats(&client, 50), Vec::new());
    ask(&client, &limiter, &mut kept).await;
    let of = crate::support::limiter(&client, one_an_hour(), Mode::Cached);
    let keys: Vec<_> = (0..8).map(|number| format!("key:{number}")).collect();
    for key in &keys {
        assert!(of.allow(key).await.unwrap().granted());
    }
    cluster.0.iter().for_each(Server::load);
    let next = eventually("a connection", async || patient().connect(&cluster.url()).await.ok()).await;
    let next_limiter = seats(&next, 50);
    ask(&next, &next_limiter, &mut kept).await;
    let of = crate::support::limiter(&next, one_an_hour(), Mode::Cached);
    for key in &keys {
        assert!(!of.allow(key).await.unwrap().granted());
    }
    assert_eq!(next.statistics().taken_over, 14);
    cluster.reshard("key:0", 1 - cluster.owner("key:0"));
    assert!(!of.allow("key:0").await.unwrap().granted());
    ask(&client, &limiter, &mut kept).await;
    check(&client, 3).await;
    assert_eq!(client.statistics().taken_over, 0);
}
