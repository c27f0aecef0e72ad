//! Requests through a mode, or through the crate `redis` alone: how many, how long they took, and what they
//! cost.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use hdrhistogram::Histogram;
use serde::Deserialize;
use serde_json::{json, Value};
use swlimit_client::{Client, Limiter, Quota};
use tokio::task::LocalSet;

use crate::{mode, Result};

#[derive(Clone, Deserialize)]
pub struct Options {
    url: String,
    /// A mode, or `redis`.
    mode: String,
    strict: bool,
    limit: u64,
    window: String,
    resolution: String,
    keys: usize,
    /// So many ask at the same time.
    tasks: usize,
    /// How many requests a second all of them make; without it, each asks again as soon as it is answered.
    rate: Option<f64>,
    seconds: f64,
}

/// The longest latency that the histogram distinguishes, in ns.
const LONGEST: u64 = 60_000_000_000;

/// Who is asked.
#[derive(Clone)]
enum Asked {
    Limiter(Limiter),
    Redis(redis::aio::MultiplexedConnection),
}

struct Seen {
    latencies: Histogram<u64>,
    granted: u64,
}

impl Seen {
    fn add(&mut self, ns: u64, granted: bool) {
        self.latencies.saturating_record(ns);
        self.granted += u64::from(granted);
    }
}

/// On one thread: what it takes is what one core takes.
pub fn measure(options: Options) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, run(options))
}

async fn run(options: Options) -> Result<Value> {
    let client = Client::builder().timeout(Duration::from_secs(5)).connect(&options.url).await?;
    let asked = match options.mode.as_str() {
        "redis" => {
            let server = redis::Client::open(options.url.as_str()).expect("the same URL");
            Asked::Redis(server.get_multiplexed_async_connection().await.expect("the same server"))
        }
        name => {
            let quota = Quota::with_resolution(options.limit, &options.window, &options.resolution)?;
            let limiter = client.limiter(quota).mode(mode(name));
            Asked::Limiter(if options.strict { limiter.strict() } else { limiter }.build()?)
        }
    };
    let seen = Rc::new(RefCell::new(Seen {
        latencies: Histogram::new_with_max(LONGEST, 3).expect("three digits"),
        granted: 0,
    }));
    let (commands, cpu, begun) = (client.statistics().commands, ProcessTime::now(), Instant::now());
    let tasks: Vec<_> = (0..options.tasks)
        .map(|task| tokio::task::spawn_local(ask(asked.clone(), options.clone(), task, begun, Rc::clone(&seen))))
        .collect();
    for task in tasks {
        task.await.expect("a task's end");
    }
    let (cpu, seconds) = (cpu.elapsed().as_secs_f64(), begun.elapsed().as_secs_f64());
    let seen = Rc::into_inner(seen).expect("all tasks have ended").into_inner();
    let requests = seen.latencies.len();
    let commands = match asked {
        Asked::Redis(_) => requests,
        Asked::Limiter(_) => client.statistics().commands - commands,
    };
    client.close().await;
    let us = |quantile| seen.latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(json!({
        "requests": requests, "granted": seen.granted, "commands": commands, "seconds": seconds, "cpu": cpu,
        "p50": us(0.5), "p99": us(0.99),
    }))
}

/// What one task does until the time is up.
async fn ask(asked: Asked, options: Options, task: usize, begun: Instant, seen: Rc<RefCell<Seen>>) {
    let keys: Vec<_> = (0..options.keys).map(|key| format!("requests:{key:07}")).collect();
    let mut next = keys.iter().cycle().skip(task * keys.len() / options.tasks);
    let every = options.rate.map(|rate| Duration::from_secs_f64(options.tasks as f64 / rate));
    // Tasks take turns, so that a rate is even.
    let mut due = begun + every.unwrap_or_default() * task as u32 / options.tasks as u32;
    while begun.elapsed().as_secs_f64() < options.seconds {
        if let Some(every) = every {
            tokio::time::sleep_until(due.into()).await;
            due += every;
        }
        let (asked_at, key) = (Instant::now(), next.next().expect("keys"));
        let granted = match &asked {
            Asked::Limiter(limiter) => limiter.allow(key).await.expect("a decision").granted(),
            Asked::Redis(connection) => {
                let mut command = redis::cmd("SWLIMIT.ALLOW");
                command.arg(key).arg(options.limit).arg(&options.window).arg(&options.resolution);
                let reply: (u64, u64, u64, i64, u64) =
                    command.query_async(&mut connection.clone()).await.expect("a reply");
                reply.0 > 0
            }
        };
        let latency = asked_at.elapsed().as_nanos() as u64;
        seen.borrow_mut().add(latency, granted);
        // What is decided at once would never let anybody else have a turn.
        tokio::task::consume_budget().await;
    }
}
