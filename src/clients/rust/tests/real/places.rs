//! Where servers are, and how one comes in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use swlimit_client::transport::ExistingConnection;
use swlimit_client::{Client, ClientBuilder, ConnectionOptions, Error, Mode, Quota, Reason, Request, Source};
use tokio::time::Instant;

use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::server::{command, free_port, Server};
use crate::support::{eventually, limiter, one_an_hour, patient, report, until, until_away, until_granted, MODES};

async fn works(url: &str, holder: impl Fn(&str) -> redis::Connection) {
    works_with(patient(), url, holder).await;
}

/// Everything works there, in each mode, and what the server tells is heard. `holder` has the keys.
async fn works_with(builder: ClientBuilder, url: &str, holder: impl Fn(&str) -> redis::Connection) {
    let client = eventually("a connection", async || builder.clone().connect(url).await.ok()).await;
    for mode in MODES {
        let key = format!("{mode:?}");
        let of = limiter(&client, Quota::with_resolution(3, "1h", "1m").unwrap(), mode);
        let mut granted = 0;
        eventually("three units", async || {
            granted += of.allow(&key).await.unwrap().units();
            (granted == 3).then_some(())
        })
        .await;
        assert!(!of.allow(&key).await.unwrap().granted());
        client.close().await;
        assert_eq!(client.info(&key).await.unwrap().unwrap().total, 3, "{mode:?}");
    }
    let of = limiter(&client, one_an_hour(), Mode::Cached);
    assert!(of.allow("key").await.unwrap().granted());
    until(&of, "key", Source::Cache).await;
    command(&["SWLIMIT.REFUND", "key", "1"]).exec(&mut holder("key")).unwrap();
    until_granted(&of, "key").await;
    assert!(!of.acquire("key", Duration::from_millis(10)).await.unwrap().granted());
    let both = [(&of, Request::new("{tag}:a")), (&of, Request::new("{tag}:b"))];
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

/// Sentinels may have a password of their own.
#[tokio::test]
async fn a_sentinel_with_a_password() {
    let master = Server::new();
    let sentinel = Server::sentinel_with(&master, "requirepass theirs");
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port);
    assert!(Client::connect(&url).await.is_err());
    let options = ConnectionOptions::new().sentinel_login(None, "theirs");
    works_with(patient().connection_options(options), &url, at(master.url())).await;
}

/// A certificate for `localhost` that nobody else vouches for, and its key, in PEM.
fn certificate(folder: &Path, name: &str) -> [(PathBuf, String); 2] {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    [("certificate", made.cert.pem()), ("key", made.signing_key.serialize_pem())].map(|(what, pem)| {
        let path = folder.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, &pem).unwrap();
        (path, pem)
    })
}

/// With TLS only servers are believed that a given authority vouches for, by their name; and they may ask for the
/// client's certificate.
#[tokio::test]
async fn tls() {
    let folder = tempfile::tempdir().unwrap();
    let [(own, authority), (own_key, _)] = certificate(folder.path(), "server");
    let [(theirs, client_certificate), (_, client_key)] = certificate(folder.path(), "client");
    let port = free_port();
    let server = Server::builder().with("tls-port", port).with("tls-cert-file", own.display());
    let server = server.with("tls-key-file", own_key.display()).with("tls-ca-cert-file", theirs.display());
    let server = match server.with("tls-auth-clients", "yes").try_start() {
        Err(log) if log.contains("Bad directive") || log.contains("Failed finding TLS support") => {
            return report("LACKING TLS in this build of the server")
        }
        server => server.unwrap(),
    };
    let [url, by_address] = ["localhost", "127.0.0.1"].map(|host| format!("rediss://{host}:{port}/"));
    let trusting = ConnectionOptions::new().authority(authority.as_str());
    let full = trusting.clone().certificate(client_certificate, client_key);
    let connect = async |options: &ConnectionOptions, url: &str| {
        Client::builder().connection_options(options.clone()).connect(url).await.err()
    };
    assert!(connect(&ConnectionOptions::new(), &url).await.is_some(), "nobody vouches for the server");
    assert!(connect(&trusting, &url).await.is_some(), "the client shows no certificate");
    assert!(connect(&full, &by_address).await.is_some(), "it is not the server's name");
    let distrusting = Client::builder().build(&url).unwrap();
    until_away(&distrusting, Reason::Certificate).await;
    works_with(patient().connection_options(full.clone()), &url, at(server.url())).await;

    let tls = format!(
        "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients yes",
        own.display(),
        own_key.display(),
        theirs.display(),
        port = free_port()
    );
    let sentinel = Server::sentinel_with(&server, &tls);
    let sentinel_port = tls.split([' ', '\n']).nth(1).unwrap();
    let url = format!("redis-sentinel://localhost:{sentinel_port}/mymaster");
    let server_url = server.url();
    assert!(connect(&full, &url).await.is_some(), "that port speaks TLS only");
    let by_sentinel = patient().connection_options(full.sentinel_tls(true));
    let client = eventually("a connection", async || by_sentinel.clone().connect(&url).await.ok()).await;
    assert!(limiter(&client, one_an_hour(), Mode::Direct).allow("by sentinel").await.is_ok(), "{server_url}");
    drop(sentinel);
}

/// When the server can't send invalidations, a denial is remembered for a tenth of a second at most.
async fn denied_for_a_moment(server: &Server, client: &Client) {
    let limiter = limiter(client, one_an_hour(), Mode::Cached);
    assert!(limiter.allow("key").await.unwrap().granted());
    for _ in 0..3 {
        until(&limiter, "key", Source::Server).await;
        until(&limiter, "key", Source::Cache).await;
        let remembered = Instant::now();
        until(&limiter, "key", Source::Server).await;
        assert!(remembered.elapsed() < Duration::from_secs(1), "{:?}", remembered.elapsed());
    }
    server.say::<()>("SWLIMIT.REFUND key 1");
    until_granted(&limiter, "key").await;
}

#[tokio::test]
async fn a_connection_that_is_given() {
    let server = Server::new();
    let connection = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let client = patient().over(ExistingConnection::new(connection)).unwrap();
    denied_for_a_moment(&server, &client).await;
    assert!(!limiter(&client, one_an_hour(), Mode::Cached).acquire("key", Duration::ZERO).await.unwrap().granted());
}

#[tokio::test]
async fn a_user_who_may_not_be_told() {
    let server = Server::new();
    for right in ["client|tracking", "pttl"] {
        server.say::<()>(&format!("ACL SETUSER untracked reset on >secret ~* &* +@all -{right}"));
        let client = patient().connect(&server.url().replace("//", "//untracked:secret@")).await.unwrap();
        denied_for_a_moment(&server, &client).await;
        assert_eq!(client.servers()[0].lacks, [right]);
        assert!(right == "pttl" || client.statistics().changes == 0);
        server.say::<()>("DEL key");
    }
}

/// Units that cannot be given back exactly are not leased.
#[tokio::test]
async fn a_user_who_may_not_ask_who_the_server_is_or_the_time() {
    let server = Server::new();
    for right in ["time", "info"] {
        server.say::<()>(&format!("ACL SETUSER leasing reset on >secret ~* &* +@all -{right}"));
        let client = patient().connect(&server.url().replace("//", "//leasing:secret@")).await.unwrap();
        assert!(client.servers()[0].lacks.is_empty(), "nothing leases yet");
        let leased = limiter(&client, Quota::with_resolution(20, "1h", "1m").unwrap(), Mode::Leased);
        eventually(right, async || (client.servers()[0].lacks == [right]).then_some(())).await;
        for _ in 0..10 {
            assert_eq!(leased.allow(right).await.unwrap().source(), Source::Server);
        }
        assert_eq!((server.held(right), client.statistics().leased), (10, 0));
    }
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

/// A user who may not read the key, or not use the command, gets that error.
#[tokio::test]
async fn users_who_may_not_ask() {
    let server = Server::new();
    for (user, rights) in [("keyless", "~other:* +@all"), ("mute", "~* +@all -swlimit.allow")] {
        server.say::<()>(&format!("ACL SETUSER {user} on >secret &* {rights}"));
        let client = patient().connect(&server.url().replace("//", &format!("//{user}:secret@"))).await.unwrap();
        let error = limiter(&client, one_an_hour(), Mode::Cached).allow("key").await.err();
        assert!(matches!(&error, Some(Error::Refused(text)) if text.starts_with("NOPERM")), "{error:?}");
    }
}

/// Whatever the client did, its connections are closed once it is gone.
#[tokio::test]
async fn left() {
    let server = Server::new();
    for mode in MODES {
        let client = Client::connect(&server.url()).await.unwrap();
        let limiter = limiter(&client, one_an_hour(), mode);
        let key = format!("{mode:?}");
        for _ in 0..3 {
            let _ = limiter.allow(key.as_str()).await.unwrap();
            let _ = limiter.acquire(key.as_str(), Duration::from_millis(10)).await.unwrap();
        }
        drop((limiter, client));
        // One is that which asks.
        eventually(&key, async || (server.info("clients", "connected_clients") == 1).then_some(())).await;
    }
}
