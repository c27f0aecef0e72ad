//! A server that is stopped for a while: how soon the client decides without it, who waited without result, and how soon
//! the server is asked again.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{json, Value};
use swlimit_client::{Client, Limiter, OnFailure, Quota, Source};

use crate::{mode, Result};

#[derive(Deserialize)]
pub struct Options {
    url: String,
    mode: String,
    /// The server's process.
    pid: u32,
    /// So many tasks ask, each again so many ms after its decision.
    tasks: usize,
    every: u64,
    /// How long the server is stopped, and how long it is there before.
    seconds: f64,
}

/// A request, by whom it was decided, and how long that took.
struct Asked {
    at: Instant,
    took: Duration,
    source: Source,
}

/// The usual time that a request waits for the server.
const TIMEOUT: Duration = Duration::from_millis(50);
/// What a decision may take that waits for nobody, and how late a timer may be.
const AT_ONCE: Duration = Duration::from_millis(5);
/// The longest that the client is given to notice that the server is back.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn measure(options: Options) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run(options))
}

async fn run(options: Options) -> Result<Value> {
    let client = Client::builder().timeout(TIMEOUT).connect(&options.url).await?;
    let limiter = client.limiter(Quota::with_resolution(1 << 40, "1m", "1s")?).mode(mode(&options.mode));
    let limiter = limiter.on_failure(OnFailure::Deny).build()?;
    let every = Duration::from_millis(options.every);
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..options.tasks)
        .map(|task| tokio::spawn(ask(limiter.clone(), format!("outage:{task}"), every, Arc::clone(&is_over))))
        .collect();
    let lasting = Duration::from_secs_f64(options.seconds);
    tokio::time::sleep(lasting).await;

    let (stopped, before) = (Instant::now(), client.statistics().opened);
    signal("-STOP", options.pid);
    let opened = until(|| client.statistics().opened > before).await;
    tokio::time::sleep(lasting.saturating_sub(stopped.elapsed())).await;
    let resumed = Instant::now();
    signal("-CONT", options.pid);
    until(|| client.is_connected()).await;
    tokio::time::sleep(lasting.min(Duration::from_secs(1))).await;

    is_over.store(true, Ordering::Relaxed);
    let mut asked = Vec::new();
    for task in tasks {
        asked.extend(task.await.expect("a task's requests"));
    }
    client.close().await;
    let without: Vec<_> = asked.iter().filter(|one| one.at >= stopped && one.at < resumed).collect();
    let waited = without.iter().filter(|one| one.took > AT_ONCE).count();
    let late = without.iter().filter(|one| one.took > TIMEOUT + AT_ONCE).count();
    let longest = without.iter().map(|one| one.took).max().unwrap_or_default();
    let back = asked.iter().filter(|one| one.at >= resumed && one.source != Source::Failure).map(|one| one.at).min();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(json!({
        "asked": without.len(), "waited": waited, "late": late, "longest": ms(longest),
        "open": ms(opened - stopped), "back": back.map(|back| ms(back - resumed)),
    }))
}

/// What one task asked until it was over.
async fn ask(limiter: Limiter, key: String, every: Duration, is_over: Arc<AtomicBool>) -> Vec<Asked> {
    let mut asked = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let at = Instant::now();
        let source = limiter.allow(&key).await.expect("a decision").source();
        asked.push(Asked { at, took: at.elapsed(), source });
        tokio::time::sleep(every).await;
    }
    asked
}

/// When something was seen to be so.
async fn until(is_so: impl Fn() -> bool) -> Instant {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "the client has not noticed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Instant::now()
}

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill {name} {pid}");
}
