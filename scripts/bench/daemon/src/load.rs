//! Requests one after the other, so many at the same time, over one connection, as one worker of a proxy has it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use hdrhistogram::Histogram;
use serde::Deserialize;
use serde_json::{json, Value};
use tokio::task::LocalSet;
use tonic::transport::Channel;

#[derive(Deserialize)]
pub struct Options {
    port: u16,
    /// What the descriptors' key is called; its values are numbers.
    kind: String,
    keys: usize,
    /// So many ask at the same time.
    tasks: usize,
    /// How often each key is asked for at least, and how long it goes on at least.
    times: usize,
    seconds: f64,
}

/// The longest latency that the histogram distinguishes, in ns.
const LONGEST: u64 = 60_000_000_000;

struct Seen {
    latencies: Histogram<u64>,
    /// What was granted of each key.
    granted: Vec<u64>,
    errors: u64,
    asked: usize,
}

pub async fn run(options: Options) -> Value {
    let channel = Channel::from_shared(format!("http://127.0.0.1:{}", options.port)).expect("an address");
    let client = RateLimitServiceClient::new(channel.connect().await.expect("a service"));
    let seen = Rc::new(RefCell::new(Seen {
        latencies: Histogram::new_with_max(LONGEST, 3).expect("three digits"),
        granted: vec![0; options.keys],
        errors: 0,
        asked: 0,
    }));
    let (begun, options) = (Instant::now(), Rc::new(options));
    let tasks = LocalSet::new();
    for _ in 0..options.tasks {
        tasks.spawn_local(ask(client.clone(), Rc::clone(&options), begun, Rc::clone(&seen)));
    }
    tasks.await;
    let seconds = begun.elapsed().as_secs_f64();
    let seen = seen.borrow();
    let us = |quantile| seen.latencies.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "requests": seen.asked, "errors": seen.errors, "seconds": seconds,
        "granted": seen.granted.iter().sum::<u64>(), "most": seen.granted.iter().max(),
        "p50": us(0.5), "p99": us(0.99), "longest": us(1.0),
    })
}

/// What one task does until the time is up.
async fn ask(
    mut client: RateLimitServiceClient<Channel>,
    options: Rc<Options>,
    begun: Instant,
    seen: Rc<RefCell<Seen>>,
) {
    loop {
        let turn = seen.borrow().asked;
        if turn >= options.times * options.keys && begun.elapsed() >= Duration::from_secs_f64(options.seconds) {
            return;
        }
        seen.borrow_mut().asked += 1;
        let key = turn % options.keys;
        let entry = Entry { key: options.kind.clone(), value: format!("{key:07}") };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let request = RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 0 };
        let asked = Instant::now();
        let reply = client.should_rate_limit(request).await;
        let mut seen = seen.borrow_mut();
        seen.latencies.saturating_record(asked.elapsed().as_nanos() as u64);
        match reply {
            Ok(reply) => seen.granted[key] += u64::from(reply.get_ref().overall_code() == Code::Ok),
            Err(_) => seen.errors += 1,
        }
    }
}
