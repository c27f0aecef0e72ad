//! Decisions that need no answer of the server: ns and allocations of each, on one thread and on two at a time.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use serde::Deserialize;
use serde_json::{json, Value};
use swlimit_client::{Client, Limiter, Quota, Source};
use tokio::runtime::Handle;

use crate::{mode, Result};

#[derive(Deserialize)]
pub struct Options {
    url: String,
    /// One of `cached`, `leased`, `eventual`, `local granted`, `local denied`, `governor granted`, `governor denied`.
    case: String,
    keys: usize,
    /// How many the client remembers.
    max_keys: usize,
    threads: usize,
    seconds: f64,
}

/// Decisions between two looks at the clock.
const BATCH: usize = 200;
const PLENTY: u64 = 1 << 40;

pub fn measure(options: Options) -> Result<Value> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (case, outcome) = options.case.split_once(' ').unwrap_or((&options.case, "granted"));
    let (handle, keys) = (runtime.handle(), names(options.keys));
    let (name, kind, limit) = match case {
        "governor" => {
            let quota = match outcome {
                "denied" => governor::Quota::per_hour(NonZeroU32::MIN),
                _ => governor::Quota::per_second(NonZeroU32::MAX),
            };
            let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota);
            let decide = |key: &String| limiter.check_key(key).is_ok() == (outcome == "granted");
            return Ok(on_threads(handle, &options, &keys, &decide));
        }
        "cached" => ("cached", Source::Cache, 1),
        "leased" => ("leased", Source::Lease, PLENTY),
        "eventual" => ("eventual", Source::Eventual, PLENTY),
        _ => ("local", Source::Local, if outcome == "denied" { 1 } else { PLENTY }),
    };
    let client = runtime.block_on(Client::builder().max_keys(options.max_keys).connect(&options.url))?;
    let limiter = client.limiter(Quota::with_resolution(limit, "1d", "1d")?).mode(mode(name)).build()?;
    let decide = |key: &String| decide(handle, &limiter, key) == kind;
    Ok(on_threads(handle, &options, &keys, &decide))
}

fn names(keys: usize) -> Vec<String> {
    (0..keys).map(|key| format!("near:{key:011}")).collect()
}

/// Who decided. What is decided near the request is ready at once; anything else is waited for.
fn decide(handle: &Handle, limiter: &Limiter, key: &str) -> Source {
    let mut decision = pin!(limiter.allow(key));
    let decided = match decision.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decided) => decided,
        Poll::Pending => handle.block_on(decision),
    };
    decided.expect("a decision").source()
}

/// Ask on each thread until the time is up; `decide` says whether a decision was of the kind that is measured.
fn on_threads(
    handle: &Handle,
    options: &Options,
    keys: &[String],
    decide: &(impl Fn(&String) -> bool + Sync),
) -> Value {
    let _entered = handle.enter();
    // Until all of them are decided as they will be.
    let deadline = Instant::now() + Duration::from_secs(20);
    while keys.iter().filter(|key| decide(key)).count() < keys.len() {
        assert!(Instant::now() < deadline, "{} is not what decides", options.case);
        std::thread::sleep(Duration::from_millis(10));
    }
    let start = Barrier::new(options.threads);
    let measured: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads)
            .map(|thread| {
                let start = &start;
                scope.spawn(move || {
                    let _entered = handle.enter();
                    start.wait();
                    one_thread(options, keys, thread, decide)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread's figures")).collect()
    });
    let mean = |figure: fn(&Measured) -> f64| measured.iter().map(figure).sum::<f64>() / options.threads as f64;
    json!({ "ns": mean(|one| one.ns), "allocations": mean(|one| one.allocations) })
}

struct Measured {
    ns: f64,
    allocations: f64,
}

fn one_thread(options: &Options, keys: &[String], thread: usize, decide: &impl Fn(&String) -> bool) -> Measured {
    // Each thread begins elsewhere, so that they meet at a key by chance only, unless there is but one.
    let mut next = keys.iter().cycle().skip(thread * keys.len() / options.threads);
    // A batch counts if all in it were of the kind: now and then a lease has to be asked for.
    let mut batch = || next.by_ref().take(BATCH).filter(|key| decide(key)).count() == BATCH;
    // Leases are as large as what was used in their length, of a second.
    let begun = Instant::now();
    while options.case == "leased" && begun.elapsed() < Duration::from_secs(2) {
        batch();
    }
    let (begun, mut spent, mut batches) = (Instant::now(), Duration::ZERO, 0);
    while begun.elapsed().as_secs_f64() < options.seconds || batches == 0 {
        let begun = Instant::now();
        if batch() {
            spent += begun.elapsed();
            batches += 1;
        }
    }
    let mut is_of_kind = false;
    let mut allocated = 0;
    while !is_of_kind {
        allocated = allocation_counter::measure(|| is_of_kind = batch()).count_total;
    }
    let each = |sum: f64, batches: usize| sum / (batches * BATCH) as f64;
    Measured { ns: each(spent.as_nanos() as f64, batches), allocations: each(allocated as f64, 1) }
}
