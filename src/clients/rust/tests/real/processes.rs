//! Many processes at once, each with a client of its own and many tasks: what all of them together were granted, and
//! what that took.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use swlimit_client::{Client, Limiter, Mode, Quota};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::support::server::Server;
use crate::support::{eventually, patient, report, MODES};

/// What each process does, as it is handed to it.
#[derive(Clone)]
struct Work {
    url: String,
    way: usize,
    limit: u64,
    window_ms: u64,
    resolution_ms: u64,
    is_strict: bool,
    keys: usize,
    tasks: usize,
    /// How long a task waits between two requests, about.
    pace_ms: u64,
    lasting_ms: u64,
}

/// A unit that was granted: in µs of Unix time, before it was asked for and when that was heard.
#[derive(Clone, Copy)]
struct Grant {
    key: usize,
    sent: u64,
    heard: u64,
}

/// The places of the ways of deciding in `MODES`.
const DIRECT: usize = 0;
const DENIALS: usize = 1;
const LEASES: usize = 2;
const BACKGROUND: usize = 3;

const WORK: &str = "SWLIMIT_WORK";

impl Work {
    fn new(server: &Server, way: usize) -> Self {
        Self {
            url: server.url(),
            way,
            limit: 200,
            window_ms: 2000,
            resolution_ms: 200,
            is_strict: false,
            keys: 4,
            tasks: 50,
            pace_ms: 50,
            lasting_ms: 4000,
        }
    }

    fn words(&self) -> String {
        let Self { url, way, limit, window_ms, resolution_ms, is_strict, keys, tasks, pace_ms, lasting_ms } = self;
        let is_strict = u8::from(*is_strict);
        format!("{url} {way} {limit} {window_ms} {resolution_ms} {is_strict} {keys} {tasks} {pace_ms} {lasting_ms}")
    }

    fn read(words: &str) -> Self {
        let (url, numbers) = words.split_once(' ').unwrap();
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let [way, limit, window_ms, resolution_ms, is_strict, keys, tasks, pace_ms, lasting_ms] = numbers[..] else {
            panic!("{words}")
        };
        let (way, keys, tasks) = (way as usize, keys as usize, tasks as usize);
        let (url, is_strict) = (url.into(), is_strict == 1);
        Self { url, way, limit, window_ms, resolution_ms, is_strict, keys, tasks, pace_ms, lasting_ms }
    }

    async fn limiter(&self) -> (Client, Limiter) {
        let client = patient().connect(&self.url).await.unwrap();
        let (window, resolution) = (Duration::from_millis(self.window_ms), Duration::from_millis(self.resolution_ms));
        let limiter = client.limiter(Quota::of(self.limit, window, Some(resolution)).unwrap()).mode(MODES[self.way]);
        let limiter = if self.is_strict { limiter.strict() } else { limiter };
        (client, limiter.build().unwrap())
    }

    /// A process that does it, and says what it was granted when it is done.
    fn spawn(&self) -> Child {
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.args(["--exact", "processes::one_of_them", "--nocapture"]).env(WORK, self.words());
        itself.stdout(std::process::Stdio::piped()).stdin(std::process::Stdio::piped()).kill_on_drop(true);
        itself.spawn().unwrap()
    }

    /// So many processes do it; what they were granted.
    async fn done_by(&self, processes: usize) -> Vec<Grant> {
        let mut children: Vec<_> = (0..processes).map(|_| self.spawn()).collect();
        for child in &mut children {
            ready(child).await;
        }
        for child in &mut children {
            begin(child).await;
        }
        join_all(children.into_iter().map(granted)).await.concat()
    }
}

/// What a process said it was granted, once it has ended.
async fn granted(child: Child) -> Vec<Grant> {
    let output = child.wait_with_output().await.unwrap();
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let grants = lines.filter_map(|line| line.strip_prefix("grant ")).map(|line| {
        let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Grant { key: next() as usize, sent: next(), heard: next() }
    });
    grants.collect()
}

async fn ready(child: &mut Child) {
    // Not a byte more is read than its lines.
    let mut lines = BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).lines();
    while lines.next_line().await.unwrap().expect("a process has ended") != "ready" {}
}

async fn begin(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"begin\n").await.unwrap();
}

/// The body of the processes. Where there is no work for it, it is no test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_them() {
    let Ok(work) = std::env::var(WORK) else { return };
    let work = Work::read(&work);
    let (client, limiter) = work.limiter().await;
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let end = Instant::now() + Duration::from_millis(work.lasting_ms);
    let tasks: Vec<_> = (0..work.tasks)
        .map(|task| {
            let (limiter, work) = (limiter.clone(), work.clone());
            tokio::spawn(async move {
                for request in task.. {
                    let pace = fastrand::u64(work.pace_ms * 500..=work.pace_ms * 1500);
                    tokio::time::sleep(Duration::from_micros(pace)).await;
                    if Instant::now() > end {
                        break;
                    }
                    let (key, sent) = (request % work.keys, micros());
                    if limiter.allow(&format!("key:{key}")).await.unwrap().granted() {
                        println!("grant {key} {sent} {}", micros());
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    client.close().await;
}

fn micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// The most units of one key that were, for certain, granted within so long.
fn most_within(grants: &[Grant], keys: usize, ms: u64) -> usize {
    let most = (0..keys).map(|key| {
        let of_key: Vec<_> = grants.iter().filter(|grant| grant.key == key).collect();
        let within =
            |from: u64| of_key.iter().filter(|grant| grant.sent >= from && grant.heard <= from + ms * 1000).count();
        of_key.iter().map(|grant| within(grant.sent)).max().unwrap_or_default()
    });
    most.max().unwrap_or_default()
}

/// Eight processes with fifty tasks each, on the same keys: all of them together are granted no more than is promised
/// in a span that is `shorter` than the window by so many ms.
async fn promise(way: usize, is_strict: bool, shorter: impl Fn(&Work) -> u64) {
    const PROCESSES: usize = 8;
    let server = Server::new();
    let work = Work { is_strict, ..Work::new(&server, way) };
    let grants = work.done_by(PROCESSES).await;
    // The server's clock has whole milliseconds.
    let span = work.window_ms - shorter(&work) - 1;
    let most = most_within(&grants, work.keys, span);
    let unseen = match MODES[way] {
        // Bounded by what others grant between two synchronizations, which may be late on a busy machine.
        Mode::Eventual => most_within(&grants, work.keys, 500),
        _ => 0,
    };
    let commands = server.commands() as f64 / grants.len() as f64;
    report(&format!(
        "at most {most} of {} in any {span} ms; {} granted, {commands:.2} commands each",
        work.limit,
        grants.len()
    ));
    assert!(most <= work.limit as usize + unseen, "{most} in {span} ms, {unseen} of them unseen");
    // Nor was much less granted than could be.
    let windows = work.lasting_ms / work.window_ms;
    assert!(grants.len() as u64 > work.keys as u64 * work.limit * windows / 2, "{}", grants.len());
}

#[tokio::test]
async fn direct() {
    promise(DIRECT, false, |work| work.resolution_ms).await;
}

#[tokio::test]
async fn denials() {
    promise(DENIALS, false, |work| work.resolution_ms).await;
}

#[tokio::test]
async fn denials_strict() {
    promise(DENIALS, true, |_| 0).await;
}

/// A unit may be used as long after it was counted as a lease lasts: a resolution here.
#[tokio::test]
async fn leases() {
    promise(LEASES, false, |work| 2 * work.resolution_ms).await;
}

#[tokio::test]
async fn leases_strict() {
    promise(LEASES, true, |work| work.resolution_ms).await;
}

#[tokio::test]
async fn background() {
    promise(BACKGROUND, false, |work| work.resolution_ms).await;
}

/// What is asked for of a key in a flood: ten times what may be granted.
#[derive(Clone, Copy)]
struct Flood {
    processes: usize,
    is_strict: bool,
    /// Units granted in a second, on the whole.
    a_second: u64,
    /// Whether as many were used in each second before. Else the window is empty, and what is granted at once at first
    /// is free again at once, window after window.
    is_spread: bool,
}

impl Flood {
    /// How often the server is asked for each request that it grants.
    async fn commands(self, lasting_ms: u64) -> f64 {
        let Self { processes, is_strict, a_second, is_spread } = self;
        let server = Server::new();
        let limit = a_second * 5;
        let tasks = 100 / processes;
        let work = Work {
            is_strict,
            limit,
            tasks,
            keys: 1,
            window_ms: 5000,
            resolution_ms: 500,
            pace_ms: 10_000 / a_second,
            lasting_ms,
            ..Work::new(&server, DENIALS)
        };
        if is_spread {
            for at in 0..10 {
                server.say::<()>(&format!(
                    "SWLIMIT.RECORD key:0 {limit} 5s 500ms COST {} AGE {}ms",
                    limit / 10,
                    at * 500
                ));
            }
        }
        let grants = work.done_by(processes).await.len();
        let calls = |name: &str| server.calls(name) as f64 / grants as f64;
        let (allow, peek) = (calls("allow"), calls("peek"));
        report(&format!(
            "{processes} processes, {a_second} a second{}{}: {grants} granted, {allow:.2} ALLOW and {peek:.2} PEEK each",
            if is_strict { ", strict" } else { "" },
            if is_spread { ", spread" } else { "" },
        ));
        allow + peek
    }
}

/// A hundred connections' worth of requests at ten times the limit ask the server less often than directly, which is
/// ten times for each grant: a fraction of that where units come back many at a time.
#[tokio::test]
async fn floods() {
    for processes in [1, 8] {
        let flood = Flood { processes, is_strict: false, a_second: 100, is_spread: false };
        assert!(flood.commands(6000).await < 5.0);
        assert!(Flood { is_strict: true, ..flood }.commands(6000).await < 2.5);
    }
}

/// Where units come back one by one, each is asked for by itself.
#[tokio::test]
#[ignore = "takes long"]
async fn floods_of_units_one_by_one() {
    for processes in [1, 8] {
        for a_second in [10, 100] {
            for is_strict in [false, true] {
                Flood { processes, is_strict, a_second, is_spread: true }.commands(8000).await;
            }
        }
    }
}

/// What a process has in hand when it is killed is lost: no more than a lease, and no longer than until the window has
/// passed it. One that ends in good order loses nothing.
#[tokio::test]
async fn leases_of_a_process_that_is_killed() {
    let server = Server::new();
    let (limit, window_ms, resolution_ms) = (1000, 10_000, 1000);
    let (keys, tasks, pace_ms) = (1, 10, 20);
    let work =
        Work { limit, window_ms, resolution_ms, keys, tasks, pace_ms, lasting_ms: 1000, ..Work::new(&server, LEASES) };
    let used = work.done_by(1).await.len() as u64;
    assert!(used > 100);
    assert_eq!(server.held("key:0"), used);

    let mut child = Work { lasting_ms: 60_000, ..work }.spawn();
    ready(&mut child).await;
    begin(&mut child).await;
    eventually("a lease", async || (server.held("key:0") > used + 200).then_some(())).await;
    child.kill().await.unwrap();
    let used = used + granted(child).await.len() as u64;
    let lost = server.held("key:0") - used;
    report(&format!("{lost} of {} units lost", used + lost));
    // A tenth of the limit, and what each task was granted and had not said yet.
    assert!(lost <= limit / 10 + tasks as u64, "{lost}");
    let (seconds, micros): (u64, u64) = server.say("TIME");
    let later = seconds * 1000 + micros / 1000 + window_ms + resolution_ms;
    let peeked: Vec<u64> = server.say(&format!("SWLIMIT.PEEK key:0 {limit} 10s 1s AT {later}"));
    assert_eq!(peeked[2], limit);
}

/// Of a hot key, a lease serves many requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_hot_key() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter =
        client.limiter(Quota::with_resolution(100_000, "1m", "5s").unwrap()).mode(Mode::Leased).build().unwrap();
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut granted = 0;
                for _ in 0..400 {
                    granted += limiter.allow("key").await.unwrap().units();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                granted
            })
        })
        .collect();
    let granted: u64 = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
    let commands = server.commands();
    client.close().await;
    report(&format!("{granted} granted by {commands} commands"));
    assert_eq!(granted, 50 * 400);
    assert_eq!(server.held("key"), granted);
    assert!(granted >= 20 * commands);
}
