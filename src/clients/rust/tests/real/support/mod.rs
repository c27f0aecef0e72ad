//! Servers, what lies between them and the client, and waiting for what they do.

pub mod cluster;
pub mod proxy;
pub mod server;

use std::time::Duration;

use swlimit_client::{Client, ClientBuilder, Decision, Limiter, Mode, OnFailure, Quota, Reason, Source};
use tokio::time::Instant;

/// How long anything may take on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

/// A client to whom a busy machine does not look like a server that is unavailable.
pub fn patient() -> ClientBuilder {
    Client::builder().timeout(Duration::from_secs(5))
}

/// A unit an hour.
pub fn one_an_hour() -> Quota {
    Quota::with_resolution(1, "1h", "1m").unwrap()
}

/// The modes that ask a server.
pub const MODES: [Mode; 4] = [Mode::Direct, Mode::Cached, Mode::Leased, Mode::Eventual];

/// A limiter of the client that denies when the server is unavailable, so that it shows.
pub fn limiter(client: &Client, quota: Quota, mode: Mode) -> Limiter {
    client.limiter(quota).mode(mode).on_failure(OnFailure::Deny).build().unwrap()
}

/// Wait until something is there, and no longer than anything may take.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    within(LONG, what, &mut probe).await
}

/// Wait until something is there, so long at most.
pub async fn within<T>(longest: Duration, what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + longest;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {longest:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Ask until a decision has this source; whether it granted.
pub async fn until(limiter: &Limiter, key: &str, source: Source) -> bool {
    eventually(&format!("a decision by {}", source.as_str()), async || {
        let decision = limiter.allow(key).await.ok();
        decision.filter(|decision| decision.source() == source).map(|decision| decision.granted())
    })
    .await
}

/// Ask until it is granted, by the server.
pub async fn until_granted(limiter: &Limiter, key: &str) {
    eventually("a grant by the server", async || {
        let is_servers = |decision: Decision| decision.granted() && decision.source() == Source::Server;
        limiter.allow(key).await.is_ok_and(is_servers).then_some(())
    })
    .await;
}

/// Ask until the only server is unavailable for this reason.
pub async fn until_away(client: &Client, reason: Reason) {
    let limiter = limiter(client, one_an_hour(), Mode::Direct);
    eventually(reason.as_str(), async || {
        let _ = limiter.allow("key").await;
        client.servers().iter().any(|server| server.reason == Some(reason)).then_some(())
    })
    .await;
}

/// Say what was measured, past what captures a test's output.
pub fn report(figures: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{}: {figures}", std::thread::current().name().unwrap_or_default());
}
