//! Events can be missed: then everything is forgotten, and events come again afterwards.

use std::time::Duration;

use swlimit_client::{Client, Limiter, Mode, Source};

use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{eventually, limiter, one_an_hour, until, until_granted};

async fn denied_at(url: &str, key: &str) -> (Client, Limiter) {
    let client = Client::builder().timeout(Duration::from_millis(500)).build(url).unwrap();
    let limiter = limiter(&client, one_an_hour(), Mode::Cached);
    // On a busy machine the first requests may be decided without the server, and counted all the same.
    until(&limiter, key, Source::Cache).await;
    (client, limiter)
}

/// The client notices what is given back, now and later.
async fn hears(limiter: &Limiter, server: &Server, key: &str) {
    for _ in 0..2 {
        until(limiter, key, Source::Cache).await;
        server.say::<()>(&format!("SWLIMIT.REFUND {key} 1"));
        until_granted(limiter, key).await;
    }
}

#[tokio::test]
async fn connections_that_are_killed() {
    let server = Server::new();
    let (_client, limiter) = denied_at(&server.url(), "key").await;
    for _ in 0..3 {
        until(&limiter, "key", Source::Cache).await;
        server.say::<()>("CLIENT KILL TYPE normal");
        server.say::<()>("DEL key"); // told to nobody
        until_granted(&limiter, "key").await;
    }
    hears(&limiter, &server, "key").await;
}

#[tokio::test]
async fn a_server_that_is_started_again() {
    let mut server = Server::new();
    let (_client, limiter) = denied_at(&server.url(), "key").await;
    server.kill();
    server.start(); // with nothing in it
    until_granted(&limiter, "key").await;
    hears(&limiter, &server, "key").await;
}

/// Nobody closes the connections, nothing is ever heard on them again, and everything is denied without asking.
#[tokio::test]
async fn connections_that_fall_silent() {
    let server = Server::new();
    let proxy = Proxy::before(server.port).await;
    let (client, limiter) = denied_at(&proxy.url(), "key").await;
    proxy.fall_silent(false);
    server.say::<()>("DEL key");
    eventually("noticing", async || (client.statistics().forgotten > 0).then_some(())).await;
    until_granted(&limiter, "key").await;
    hears(&limiter, &server, "key").await;
}

#[tokio::test]
async fn a_server_that_stands_still() {
    let server = Server::new();
    let (client, limiter) = denied_at(&server.url(), "key").await;
    server.pause(true);
    eventually("noticing", async || (client.statistics().forgotten > 0).then_some(())).await;
    until(&limiter, "key", Source::Failure).await;
    server.pause(false);
    server.say::<()>("DEL key");
    until_granted(&limiter, "key").await;
    hears(&limiter, &server, "key").await;
}

/// A master becomes a replica, and forgets what only it knew.
#[tokio::test]
async fn a_master_that_becomes_a_replica_and_a_master_again() {
    let (server, other) = (Server::new(), Server::new());
    let (_client, limiter) = denied_at(&server.url(), "key").await;
    server.say::<()>(&format!("REPLICAOF 127.0.0.1 {}", other.port));
    until(&limiter, "key", Source::Failure).await;
    eventually("a replica without the key", async || (server.say::<u64>("EXISTS key") == 0).then_some(())).await;
    server.say::<()>("REPLICAOF NO ONE");
    until_granted(&limiter, "key").await;
    hears(&limiter, &server, "key").await;
}

#[tokio::test]
async fn a_master_that_is_replaced_by_its_replica() {
    let mut master = Server::new();
    let replica = Server::builder().with("replicaof", format!("127.0.0.1 {}", master.port)).start();
    let sentinel = Server::sentinel(&master);
    eventually("a sentinel that knows the replica", async || {
        let masters: String = sentinel.say("INFO sentinel");
        masters.contains("status=ok").then_some(()).filter(|()| masters.contains("slaves=1"))
    })
    .await;
    eventually("a replica in step", async || {
        replica.say::<String>("INFO replication").contains("master_link_status:up").then_some(())
    })
    .await;
    let (_client, limiter) = denied_at(&format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port), "key").await;
    eventually("a replica with the key", async || (replica.say::<u64>("EXISTS key") == 1).then_some(())).await;
    master.kill();
    until(&limiter, "key", Source::Failure).await;
    // The replica holds the key.
    assert!(!until(&limiter, "key", Source::Server).await);
    hears(&limiter, &replica, "key").await;
}

#[tokio::test]
async fn a_key_that_moves_to_another_node() {
    let cluster = Cluster::start(2).await;
    let (_client, limiter) = denied_at(&cluster.url(), "key").await;
    hears(&limiter, &cluster.0[cluster.owner("key")], "key").await;
    for _ in 0..2 {
        let to = 1 - cluster.owner("key");
        until(&limiter, "key", Source::Cache).await;
        cluster.reshard("key", to);
        assert_eq!(cluster.owner("key"), to);
        // Nothing was given back.
        assert!(!limiter.allow("key").await.unwrap().granted());
        hears(&limiter, &cluster.0[to], "key").await;
    }
}

#[tokio::test]
async fn a_node_that_is_started_again() {
    let mut cluster = Cluster::start(2).await;
    let owner = cluster.owner("key");
    let (_client, limiter) = denied_at(&cluster.url(), "key").await;
    cluster.0[owner].kill();
    cluster.0[owner].start();
    until_granted(&limiter, "key").await;
    hears(&limiter, &cluster.0[owner], "key").await;
}
