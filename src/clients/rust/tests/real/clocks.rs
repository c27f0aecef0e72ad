//! A server whose clock jumps.

use std::path::Path;
use std::time::Duration;

use swlimit_client::{Mode, Quota, Source};

use crate::support::server::Server;
use crate::support::{limiter, one_an_hour, patient, until, until_granted, MODES};

/// A server whose wall clock can be put forward and back; its monotonic clock goes on.
struct Jumping {
    server: Server,
    folder: tempfile::TempDir,
}

impl Jumping {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) =
            (concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/support/clock.c"), folder.path().join("clock.so"));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let mut compile = std::process::Command::new(compiler);
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
        assert!(compile.status().unwrap().success());
        jump(folder.path(), 0);
        let server = Server::builder()
            .env("LD_PRELOAD", library.display())
            .env("CLOCK_SKEW", folder.path().join("skew").display());
        Self { server: server.start(), folder }
    }

    fn jump(&self, seconds: i64) {
        jump(self.folder.path(), seconds);
    }
}

fn jump(folder: &Path, seconds: i64) {
    std::fs::write(folder.join("new"), seconds.to_string()).unwrap();
    std::fs::rename(folder.join("new"), folder.join("skew")).unwrap(); // at once: it is read all the time
}

const HOURS: i64 = 3600;

/// Where the key has expired by the new time, the server announces that.
#[tokio::test]
async fn forward() {
    let jumping = Jumping::start();
    let client = patient().connect(&jumping.server.url()).await.unwrap();
    let limiter = limiter(&client, one_an_hour(), Mode::Cached);
    assert!(limiter.allow("key").await.unwrap().granted());
    until(&limiter, "key", Source::Cache).await;
    jumping.jump(2 * HOURS);
    until_granted(&limiter, "key").await;
}

/// What was denied by the time that was put back, for longer than it should be, is asked about again once the time is
/// right.
#[tokio::test]
async fn back_and_right_again() {
    let jumping = Jumping::start();
    let client = patient().connect(&jumping.server.url()).await.unwrap();
    let limiter = limiter(&client, Quota::with_resolution(1, "2s", "1s").unwrap(), Mode::Cached);
    assert!(limiter.allow("key").await.unwrap().granted());
    jumping.jump(-HOURS);
    // At the end of what it said first, the server is asked again: to it, the key is used up for an hour more.
    let decision = crate::support::eventually("a denial for an hour", async || {
        let decision = limiter.allow("key").await.unwrap();
        (decision.source() == Source::Cache && decision.retry_after() > Some(Duration::from_secs(3000)))
            .then_some(decision)
    })
    .await;
    assert!(!decision.granted());
    jumping.jump(0);
    until_granted(&limiter, "key").await;
}

/// However it jumps back, no more is granted than the limit.
#[tokio::test]
async fn back_for_every_way_of_deciding() {
    let jumping = Jumping::start();
    let client = patient().connect(&jumping.server.url()).await.unwrap();
    for (number, mode) in MODES.into_iter().enumerate() {
        let (limiter, key) =
            (limiter(&client, Quota::with_resolution(40, "1h", "1m").unwrap(), mode), format!("key:{number}"));
        let mut granted = 0;
        for seconds in [0, -2 * HOURS, -60, 0] {
            jumping.jump(seconds);
            for _ in 0..20 {
                granted += limiter.allow(&key).await.unwrap().units();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        client.close().await;
        assert!((1..=40).contains(&granted), "{mode:?}: {granted}");
        assert_eq!(jumping.server.held(&key), granted, "{mode:?}");
    }
}
