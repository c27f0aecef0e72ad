//! Several clients that share a key and ask for more than the limit: the most that is granted in any span of a length.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{json, Value};
use swlimit_client::{Client, Limiter, Mode, Quota};

use crate::Result;

#[derive(Deserialize)]
pub struct Options {
    url: String,
    clients: usize,
    /// ms between synchronizations; none of clients that take leases.
    interval: Option<u64>,
    share: f64,
    limit: u64,
    window: u64,
    resolution: u64,
    /// Requests a second, by all clients together.
    rate: f64,
    seconds: f64,
    /// The length of the span, in ms.
    span: u64,
}

/// How often a client asks, for as many units as are due.
const TICK: Duration = Duration::from_millis(2);

pub fn measure(options: Options) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run(options))
}

async fn run(options: Options) -> Result<Value> {
    let ms = Duration::from_millis;
    let quota = Quota::of(options.limit, ms(options.window), Some(ms(options.resolution)))?;
    let connect = || Client::builder().timeout(Duration::from_secs(5)).connect(&options.url);
    let mut clients = Vec::new();
    for _ in 0..options.clients {
        let client = connect().await?;
        let limiter = client.limiter(quota).local_share(options.share).lease_share(options.share);
        let limiter = match options.interval {
            Some(interval) => limiter.mode(Mode::Eventual).sync_interval(ms(interval)),
            None => limiter.mode(Mode::Leased),
        };
        let limiter = limiter.build()?;
        clients.push((client, limiter));
    }
    let (begun, rate) = (Instant::now(), options.rate / options.clients as f64);
    let end = begun + Duration::from_secs_f64(options.seconds);
    let direct = connect().await?.limiter(quota).mode(Mode::Direct).build()?;
    let probe = tokio::spawn(probe(direct, end));
    let asking = clients.iter().map(|(_, limiter)| tokio::spawn(ask(limiter.clone(), "overshoot", rate, end)));
    let mut granted = Vec::new();
    for asking in asking.collect::<Vec<_>>() {
        granted.extend(asking.await.expect("a client's grants"));
    }
    granted.sort_unstable();
    let most = most_in(&granted, ms(options.span));
    for (client, _) in &clients {
        client.close().await;
    }
    let (late, round_trip) = probe.await.expect("a probe's figures")?;
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(json!({ "most": most, "late": ms(late), "round_trip": ms(round_trip) }))
}

/// How late timers were, and how long the server took to answer, at most.
async fn probe(limiter: Limiter, end: Instant) -> Result<(Duration, Duration)> {
    let (mut late, mut round_trip) = (Duration::ZERO, Duration::ZERO);
    while Instant::now() < end {
        let due = Instant::now() + TICK;
        tokio::time::sleep_until(due.into()).await;
        let asked = Instant::now();
        let _ = limiter.peek("probe").await?;
        late = late.max(asked - due);
        round_trip = round_trip.max(asked.elapsed());
    }
    Ok((late, round_trip))
}

/// When one client was granted a unit.
async fn ask(limiter: Limiter, key: &'static str, rate: f64, end: Instant) -> Vec<Instant> {
    let (begun, mut asked, mut granted) = (Instant::now(), 0, Vec::new());
    // A client that was held up does not ask for what it missed: the bound is for this rate.
    let most = (2.0 * TICK.as_secs_f64() * rate).ceil() as u64;
    while Instant::now() < end {
        let due = (begun.elapsed().as_secs_f64() * rate) as u64 + 1;
        for _ in asked.max(due.saturating_sub(most))..due {
            if limiter.allow(key).await.expect("a decision").granted() {
                granted.push(Instant::now());
            }
        }
        asked = due;
        tokio::time::sleep(TICK).await;
    }
    granted
}

/// The most instants, which are in order, that any span of a length has, both of its ends included.
fn most_in(instants: &[Instant], span: Duration) -> usize {
    let mut first = 0;
    let counts = instants.iter().enumerate().map(|(last, at)| {
        while *at > instants[first] + span {
            first += 1;
        }
        last + 1 - first
    });
    counts.max().unwrap_or(0)
}
