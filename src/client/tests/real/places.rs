//! Where servers are, and how one comes in.

use std::time::Duration;

use swlimit_client::wire::Given;
use swlimit_client::{Client, Deciding, Error, Quota, Request, Way};
use tokio::time::Instant;

use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::server::{free_port, Server};
use crate::support::{eventually, limiter, one_an_hour, patient, report, until, until_granted, WAYS};

/// Everything works there, each way of deciding, and what the server tells is heard. `holder` has the keys.
async fn works(url: &str, holder: impl Fn(&str) -> redis::Connection) {
    let client = patient().connect(url).await.unwrap();
    for way in WAYS {
        let key = format!("{way:?}");
        let of = limiter(&client, Quota::new(3, "1h", "1m").unwrap(), way);
        let mut granted = 0;
        eventually("three units", async || {
            granted += of.allow(&key).await.unwrap().units();
            (granted == 3).then_some(())
        })
        .await;
        assert!(!of.allow(&key).await.unwrap().granted());
        client.close().await;
        assert_eq!(client.info(&key).await.unwrap().unwrap().total, 3, "{way:?}");
    }
    let of = limiter(&client, one_an_hour(), Deciding::Denials);
    assert!(of.allow("key").await.unwrap().granted());
    until(&of, "key", Way::Denial).await;
    redis::cmd("SWLIMIT.REFUND").arg("key").arg(1).exec(&mut holder("key")).unwrap();
    until_granted(&of, "key").await;
    assert!(!of.acquire("key", Duration::from_millis(10)).await.unwrap().granted());
    let both = [(&of, Request::of("{tag}:a")), (&of, Request::of("{tag}:b"))];
    assert!(client.allow_all(&both).await.unwrap().granted());
    assert!(!client.allow_all(&both).await.unwrap().granted());
}

fn at(url: String) -> impl Fn(&str) -> redis::Connection {
    move |_| redis::Client::open(url.as_str()).unwrap().get_connection().unwrap()
}

#[tokio::test]
async fn a_port() {
    let server = Server::new();
    works(&server.url(), at(server.url())).await;
}

#[tokio::test]
async fn a_unix_socket() {
    let server = Server::builder().with("unixsocket", "socket").start();
    let url = format!("unix://{}", server.folder.path().join("socket").display());
    works(&url, at(url.clone())).await;
}

#[tokio::test]
async fn a_database_and_a_password() {
    let server = Server::new();
    server.say::<()>("ACL SETUSER somebody on >secret ~* &* +@all");
    let url = server.url().replace("//127", "//somebody:secret@127") + "3";
    works(&url, at(url.clone())).await;
    assert_eq!(server.say::<u64>("EXISTS key"), 0, "it is in database 3");
    let wrong = url.replace("secret", "wrong");
    let error = Client::connect(&wrong).await.err();
    assert!(error.is_some(), "with a wrong password");
}

#[tokio::test]
async fn a_cluster() {
    let cluster = Cluster::start(3).await;
    works(&cluster.url(), |key| at(cluster.0[cluster.owner(key)].url())(key)).await;
}

#[tokio::test]
async fn a_master_that_a_sentinel_knows() {
    let master = Server::new();
    let sentinel = Server::sentinel(&master);
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster/2", sentinel.port);
    works(&url, at(master.url() + "2")).await;
}

/// With TLS only those are believed whom a certificate vouches for, in a file that the process names as it starts.
#[tokio::test]
async fn tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let port = free_port();
    let server = Server::builder().with("tls-port", port).with("tls-cert-file", certificate.display());
    let server = server.with("tls-key-file", key.display()).with("tls-auth-clients", "no");
    let _server = match server.try_start() {
        Err(log) if log.contains("Bad directive") || log.contains("Failed finding TLS support") => {
            return report("LACKING TLS in this build of the server")
        }
        server => server.unwrap(),
    };
    let url = format!("rediss://localhost:{port}/");
    assert!(Client::connect(&url).await.is_err(), "nobody vouches for it");
    let mut itself = tokio::process::Command::new(std::env::current_exe().unwrap());
    itself.args(["--exact", "places::believing_a_certificate", "--nocapture"]);
    itself.env("SSL_CERT_FILE", &certificate).env("TLS_URL", &url).kill_on_drop(true);
    assert!(itself.status().await.unwrap().success());
}

/// The other half of `tls`, in a process of its own.
#[tokio::test]
async fn believing_a_certificate() {
    if let Ok(url) = std::env::var("TLS_URL") {
        works(&url, at(url.clone())).await;
    }
}

/// Where nothing is told of changes, a denial is remembered for a tenth of a second at most.
async fn denied_for_a_moment(server: &Server, client: &Client) {
    let limiter = limiter(client, one_an_hour(), Deciding::Denials);
    assert!(limiter.allow("key").await.unwrap().granted());
    for _ in 0..3 {
        until(&limiter, "key", Way::Server).await;
        until(&limiter, "key", Way::Denial).await;
        let remembered = Instant::now();
        until(&limiter, "key", Way::Server).await;
        assert!(remembered.elapsed() < Duration::from_secs(1), "{:?}", remembered.elapsed());
    }
    server.say::<()>("SWLIMIT.REFUND key 1");
    until_granted(&limiter, "key").await;
}

#[tokio::test]
async fn a_connection_that_is_given() {
    let server = Server::new();
    let connection = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let client = patient().over(Given::new(connection));
    denied_for_a_moment(&server, &client).await;
    assert!(!limiter(&client, one_an_hour(), Deciding::Denials)
        .acquire("key", Duration::ZERO)
        .await
        .unwrap()
        .granted());
}

#[tokio::test]
async fn a_user_who_may_not_be_told() {
    let server = Server::new();
    server.say::<()>("ACL SETUSER untracked on >secret ~* &* +@all -client|tracking");
    let client = patient().connect(&server.url().replace("//", "//untracked:secret@")).await.unwrap();
    denied_for_a_moment(&server, &client).await;
    assert_eq!(client.statistics().changes, 0);
}

/// What lies between does not know RESP3.
#[tokio::test]
async fn an_old_protocol() {
    let server = Server::new();
    let proxy = Proxy::replacing(server.port, Some(("HELLO", "HELLX"))).await;
    let client = patient().connect(&proxy.url()).await.unwrap();
    denied_for_a_moment(&server, &client).await;
    assert_eq!(client.statistics().changes, 0);
}

/// Who may not read the key is told so, and so is who may not use the command.
#[tokio::test]
async fn users_who_may_not_ask() {
    let server = Server::new();
    for (user, rights) in [("keyless", "~other:* +@all"), ("mute", "~* +@all -swlimit.allow")] {
        server.say::<()>(&format!("ACL SETUSER {user} on >secret &* {rights}"));
        let client = patient().connect(&server.url().replace("//", &format!("//{user}:secret@"))).await.unwrap();
        let error = limiter(&client, one_an_hour(), Deciding::Denials).allow("key").await.err();
        assert!(matches!(&error, Some(Error::Refused(text)) if text.starts_with("NOPERM")), "{error:?}");
    }
}

/// Whatever the client did, its connections are closed once it is gone.
#[tokio::test]
async fn left() {
    let server = Server::new();
    for way in WAYS {
        let client = Client::connect(&server.url()).await.unwrap();
        let limiter = limiter(&client, one_an_hour(), way);
        let key = format!("{way:?}");
        for _ in 0..3 {
            let _ = limiter.allow(key.as_str()).await.unwrap();
            let _ = limiter.acquire(key.as_str(), Duration::from_millis(10)).await.unwrap();
        }
        drop((limiter, client));
        // One is that which asks.
        eventually(&key, async || (server.info("clients", "connected_clients") == 1).then_some(())).await;
    }
}
