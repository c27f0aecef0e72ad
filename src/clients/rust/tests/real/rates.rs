//! Limits that are rates as text, on every kind of server.

use swlimit_client::{Client, Error, Limiter, Limits, OnFailure, Quota, Request, Source};

use crate::support::cluster::Cluster;
use crate::support::patient;
use crate::support::server::Server;

async fn several_rates(client: &Client) {
    let limits = client.limits("3/hour; 2/10m").on_failure(OnFailure::Deny).build().unwrap();
    assert!(limits.peek("user:1").await.unwrap().granted());
    assert!(limits.allow("user:1").await.unwrap().granted());
    let granted = limits.allow("user:1").await.unwrap();
    let all: Vec<_> = granted.each().iter().map(|one| (one.limit(), one.remaining(), one.source())).collect();
    assert_eq!(all, [(3, Some(1), Source::Server), (2, Some(0), Source::Server)]);
    let denied = limits.allow("user:1").await.unwrap();
    assert!(!denied.granted() && denied.each()[0].granted() && !denied.each()[1].granted());
    assert_eq!(client.info("{user:1}:3600000").await.unwrap().unwrap().total, 2);
    assert_eq!(client.info("{user:1}:600000").await.unwrap().unwrap().total, 2);

    assert!(!limits.record(Request::new("user:1").cost(4)).await.unwrap().granted());
    assert!(!limits.peek("user:1").await.unwrap().granted());
    assert_eq!(limits.refund(Request::new("user:1").cost(6)).await.unwrap(), [6, 6]);
    assert!(limits.allow("user:1").await.unwrap().granted());
    assert!(limits.reset("user:1").await.unwrap() && !limits.reset("user:1").await.unwrap());
    assert_eq!(client.info("{user:1}:600000").await.unwrap(), None);
    let partial = limits.allow(Request::new("user:1").partial()).await;
    assert!(matches!(partial, Err(Error::Invalid(_))), "{partial:?}");
}

#[tokio::test]
async fn by_the_module() {
    let server = Server::builder().start();
    let client = patient().connect(&server.url()).await.unwrap();
    several_rates(&client).await;
    let commands = client.statistics().commands;
    assert!(client.limits("9/s; 8/m; 7/h").build().unwrap().allow("user:2").await.unwrap().granted());
    assert_eq!(client.statistics().commands, commands + 1, "one command decides");

    let limiter = Limiter::from_url(&server.url(), "1/hour").await.unwrap();
    assert_eq!(limiter.quota(), &Quota::per_hour(1));
    assert!(limiter.allow("user:3").await.unwrap().granted() && !limiter.allow("user:3").await.unwrap().granted());
    let limits = Limits::from_url(&server.url(), "5/second, 1/hour").await.unwrap();
    assert!(limits.allow("user:3").await.unwrap().granted() && !limits.allow("user:3").await.unwrap().granted());
    limits.client().close().await;
}

#[tokio::test]
async fn by_the_script() {
    let server = Server::builder().bare().start();
    several_rates(&patient().connect(&server.url()).await.unwrap()).await;
}

#[tokio::test]
async fn in_a_cluster() {
    let cluster = Cluster::start(3).await;
    several_rates(&patient().connect(&cluster.url()).await.unwrap()).await;
}

/// What is wrong with a text is said before a server is looked for.
#[tokio::test]
async fn wrong_texts() {
    let nowhere = "redis://127.0.0.1:1/";
    let month = Limiter::from_url(nowhere, "100/month").await.unwrap_err().to_string();
    assert!(month.contains("write days, such as 100/30 days"), "{month}");
    let several = Limiter::from_url(nowhere, "100/hour; 5/second").await.unwrap_err().to_string();
    assert!(several.ends_with("has 2 rates, and a limiter takes one: use Limits"), "{several}");
    let nginx = Limits::from_url(nowhere, "1/h; 10r/s").await.unwrap_err().to_string();
    assert!(nginx.contains("1/100ms"), "{nginx}");
    assert_eq!(Client::local().limits("").build().unwrap_err().to_string(), "no rate: write one such as 100/minute");
}
