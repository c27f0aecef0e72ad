//! What the server announces: a key that was denied is asked about again at once when something may have been given
//! back.

use swlimit_client::{Client, Limiter, Mode, Quota, Request, Source};

use crate::support::server::{command, Server};
use crate::support::{eventually, limiter, one_an_hour, patient, report, until, until_granted, LONG};

/// A server, a client that gets invalidations, and `key`, of which the only unit is used up.
struct Denied {
    server: Server,
    client: Client,
    limiter: Limiter,
}

impl Denied {
    async fn new() -> Self {
        let server = Server::new();
        let client = patient().connect(&server.url()).await.unwrap();
        let limiter = limiter(&client, one_an_hour(), Mode::Cached);
        assert!(limiter.allow("key").await.unwrap().granted());
        until(&limiter, "key", Source::Cache).await;
        Self { server, client, limiter }
    }

    /// Other keys that hold something.
    async fn with_others(commands: &[&str]) -> Self {
        let denied = Self::new().await;
        denied.say(commands);
        until(&denied.limiter, "key", Source::Cache).await;
        denied
    }

    fn say(&self, commands: &[&str]) {
        for command in commands {
            self.server.say::<redis::Value>(command);
        }
    }

    /// Something happens, and the server is asked again, which denies.
    async fn asks_after(&self, event: impl FnOnce()) {
        let asked = self.client.statistics().commands;
        event();
        eventually("a question", async || {
            assert!(!self.limiter.allow("key").await.unwrap().granted());
            (self.client.statistics().commands > asked).then_some(())
        })
        .await;
        until(&self.limiter, "key", Source::Cache).await;
    }

    /// All events before this have arrived when it returns: another key was changed after them.
    async fn hear(&self) {
        self.server.say::<()>("SWLIMIT.ALLOW fence 1 1h 1m");
        until(&self.limiter, "fence", Source::Cache).await;
        self.say(&["DEL fence"]);
        until_granted(&self.limiter, "fence").await;
    }
}

/// Denied without asking, then these commands: the server is asked again, and grants.
async fn grants_after(commands: &[&str]) {
    let denied = Denied::with_others(&["SWLIMIT.ALLOW other 5 1h 1m"]).await;
    denied.say(commands);
    until_granted(&denied.limiter, "key").await;
}

/// Denied without asking, then these commands: the server is asked again, and denies.
async fn asks_after(commands: &[&str]) {
    let denied = Denied::with_others(&["SWLIMIT.ALLOW other 5 1h 1m COST 3"]).await;
    denied.asks_after(|| denied.say(commands)).await;
}

macro_rules! events {
    ($($name:ident: $then:ident($($command:literal),+);)+) => {
        $(#[tokio::test]
        async fn $name() {
            $then(&[$($command),+]).await;
        })+
    };
}

events! {
    refund: grants_after("SWLIMIT.REFUND key 1");
    del: grants_after("DEL key");
    unlink: grants_after("UNLINK key");
    rename_of_the_key: grants_after("RENAME key another");
    rename_of_another_to_it: asks_after("RENAME other key");
    pexpire: asks_after("PEXPIRE key 1000000");
    persist: asks_after("PERSIST key");
    grant_at_another_quota: asks_after("SWLIMIT.ALLOW key 2 1h 1m");
    record: asks_after("SWLIMIT.RECORD key 1 1h 1m");
    grant_of_several_limits: asks_after("SWLIMIT.MALLOW 2 key other 2 1h 1m 1 5 1h 1m 1");
    expiry: grants_after("PEXPIRE key 200");
    flushdb: grants_after("FLUSHDB");
    flushall: grants_after("FLUSHALL");
    block_and_unblock: asks_after("SWLIMIT.BLOCK key 1h", "SWLIMIT.UNBLOCK key");
}

#[tokio::test]
async fn unblock() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = limiter(&client, one_an_hour(), Mode::Cached);
    server.say::<()>("SWLIMIT.BLOCK key 1h");
    until(&limiter, "key", Source::Cache).await;
    server.say::<()>("SWLIMIT.UNBLOCK key");
    until_granted(&limiter, "key").await;
}

#[tokio::test]
async fn restore() {
    let denied = Denied::with_others(&["SWLIMIT.ALLOW other 5 1h 1m COST 3"]).await;
    let dump: redis::Value = denied.server.say("DUMP other");
    let redis::Value::BulkString(dump) = dump else { panic!("{dump:?}") };
    let words: [&[u8]; 5] = [b"RESTORE", b"key", b"0", &dump, b"REPLACE"];
    denied.asks_after(|| denied.server.say_words(&words)).await;
}

/// What has become something else is no denial any more.
#[tokio::test]
async fn set() {
    let denied = Denied::new().await;
    denied.say(&["SET key value"]);
    let error = eventually("the server's error", async || denied.limiter.allow("key").await.err()).await;
    assert!(error.to_string().starts_with("WRONGTYPE"), "{error}");
}

#[tokio::test]
async fn eviction() {
    let denied = Denied::new().await;
    let used = denied.server.info("memory", "used_memory");
    denied.say(&["CONFIG SET maxmemory-policy allkeys-random", &format!("CONFIG SET maxmemory {}", used + 1_000_000)]);
    let filler = "x".repeat(10_000);
    for number in 0.. {
        denied.say(&[&format!("SET filler:{number} {filler}")]);
        if denied.server.say::<u64>("EXISTS key") == 0 {
            break;
        }
    }
    denied.say(&["CONFIG SET maxmemory 0"]);
    until_granted(&denied.limiter, "key").await;
}

/// The server does not announce what changes nothing, which would only cost commands.
#[tokio::test]
async fn denials_and_questions_are_not_told() {
    let denied = Denied::new().await;
    denied.say(&["SWLIMIT.ALLOW key 1 1h 1m", "SWLIMIT.PEEK key 1 1h 1m", "SWLIMIT.INFO key"]);
    denied.say(&["SWLIMIT.MALLOW 2 key other 1 1h 1m 1 5 1h 1m 1"]);
    denied.hear().await;
    assert_eq!(denied.limiter.allow("key").await.unwrap().source(), Source::Cache);
}

/// The known hole: of databases that are swapped the server tells nothing. A denial then lasts as long as it would
/// have.
#[tokio::test]
async fn swapped_databases_are_not_told() {
    let denied = Denied::new().await;
    denied.say(&["SWAPDB 0 1"]);
    denied.hear().await;
    assert_eq!(denied.limiter.allow("key").await.unwrap().source(), Source::Cache);
    assert_eq!(denied.server.say::<u64>("EXISTS key"), 0);
}

/// What the client itself gives back is not announced on the connection of the denial, but it knows.
#[tokio::test]
async fn what_the_client_itself_gives_back() {
    let Denied { limiter, .. } = &Denied::new().await;
    assert_eq!(limiter.refund("key").await.unwrap(), 1);
    assert!(limiter.allow("key").await.unwrap().granted());
    limiter.block("key", std::time::Duration::from_secs(60)).await.unwrap();
    assert_eq!(limiter.refund("key").await.unwrap(), 1);
    until(limiter, "key", Source::Cache).await;
    assert!(limiter.unblock("key").await.unwrap());
    assert!(limiter.allow("key").await.unwrap().granted());
}

/// A key may expire at the read that registers it for invalidations: the event that comes then is for
/// whatever else it was denied, too.
#[tokio::test]
async fn expiry_that_the_question_itself_brings_about() {
    let denied = Denied::new().await;
    denied.say(&["DEBUG SET-ACTIVE-EXPIRE 0"]);
    let limiter = limiter(&denied.client, Quota::with_resolution(2, "1h", "1m").unwrap(), Mode::Cached);
    for time in 0..100_u64 {
        let key = &format!("key:{time}");
        let two = Request::new(key).cost(2);
        denied.say(&[&format!("SWLIMIT.RECORD {key} 2 1h 1m COST 2"), &format!("PEXPIRE {key} 30")]);
        let begun = std::time::Instant::now();
        while limiter.allow(two).await.unwrap().source() == Source::Server {
            tokio::task::yield_now().await;
        }
        // Two are denied without asking. Around the end, one is asked for.
        while begun.elapsed() < std::time::Duration::from_micros(29_000 + 20 * time) {
            tokio::task::yield_now().await;
        }
        let _ = limiter.allow(key).await.unwrap();
        while begun.elapsed() < std::time::Duration::from_millis(32) {
            tokio::task::yield_now().await;
        }
        let peeked: Vec<u64> = denied.server.say(&format!("SWLIMIT.PEEK {key} 2 1h 1m COST 2"));
        denied.hear().await;
        let decision = limiter.allow(two).await.unwrap();
        assert!(peeked[0] == 0 || decision.granted(), "{time}: {decision:?}, but {peeked:?}");
    }
}

/// The same where one of several limits is known to be denied.
#[tokio::test]
async fn several_limits_at_once() {
    let denied = Denied::new().await;
    let other = limiter(&denied.client, Quota::with_resolution(5, "1h", "1m").unwrap(), Mode::Cached);
    let both = [(&denied.limiter, Request::new("key")), (&other, Request::new("other"))];
    let commands = denied.server.commands();
    let decisions = denied.client.allow_all(&both).await.unwrap();
    assert!(!decisions.granted() && decisions.each().iter().any(|decision| decision.source() != Source::Server));
    assert_eq!(denied.server.commands(), commands);
    denied.say(&["SWLIMIT.REFUND key 1"]);
    eventually("a grant of both", async || denied.client.allow_all(&both).await.unwrap().granted().then_some(())).await;
    assert_eq!((denied.server.held("key"), denied.server.held("other")), (1, 1));
    eventually("both denied without asking", async || {
        let decisions = denied.client.allow_all(&both).await.unwrap();
        (!decisions.granted() && decisions.each().iter().any(|decision| decision.source() != Source::Server))
            .then_some(())
    })
    .await;
}

/// The only unit is given back again and again, while several ask for it: each time one of them gets it. A caller that
/// remembered a denial from before would hold it for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_is_given_back_is_granted_again() {
    given_back(300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long"]
async fn a_unit_that_is_given_back_often_is_granted_again() {
    given_back(20_000).await;
}

async fn given_back(times: usize) {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = limiter(&client, one_an_hour(), Mode::Cached);
    let direct = direct(&server).await;
    let giving: Vec<_> = ["a", "b", "c", "d"]
        .map(|key| {
            let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
            for _ in 0..3 {
                let (limiter, granted) = (limiter.clone(), granted.clone());
                tokio::spawn(async move {
                    while !granted.is_closed() {
                        if limiter.allow(key).await.unwrap().granted() {
                            let _ = granted.send(());
                        }
                        tokio::task::yield_now().await;
                    }
                });
            }
            let mut direct = direct.clone();
            tokio::spawn(async move {
                for time in 0..times {
                    let granted = tokio::time::timeout(LONG, grants.recv()).await;
                    assert!(granted.is_ok(), "{key} was not granted again after {time} times");
                    let refund = command(&["SWLIMIT.REFUND", key, "1"]);
                    let refunded: u64 = refund.query_async(&mut direct).await.unwrap();
                    assert_eq!(refunded, 1);
                }
            })
        })
        .into();
    for giving in giving {
        giving.await.unwrap();
    }
    let statistics = client.statistics();
    assert!(statistics.denied(Source::Cache) > 0);
    report(&format!(
        "{times} refunds of 4 keys, {} denied without asking, none stale",
        statistics.denied(Source::Cache)
    ));
}

/// Whatever several do at the same time to the same keys: the events that came until they are done leave no denial in memory
/// that the server would not give.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stale_after_any_workload() {
    nothing_stale(150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long"]
async fn nothing_stale_after_many_workloads() {
    nothing_stale(2000).await;
}

async fn nothing_stale(rounds: u64) {
    const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let denied = Denied::new().await;
    let limiter = limiter(&denied.client, Quota::with_resolution(6, "10s", "1s").unwrap(), Mode::Cached);
    let direct = direct(&denied.server).await;
    let (mut local, mut compared) = (0, 0);
    for round in 0..rounds {
        let busy: Vec<_> = (0..6)
            .map(|task| {
                let (limiter, mut direct) = (limiter.clone(), direct.clone());
                let mut chance = fastrand::Rng::with_seed(round * 6 + task);
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let at = chance.usize(0..KEYS.len());
                        let (key, other) = (KEYS[at], KEYS[(at + 1) % KEYS.len()]);
                        let cost = chance.u64(1..4);
                        if chance.f32() < 0.6 {
                            let _ = limiter.allow(Request::new(key).cost(cost)).await.unwrap();
                            continue;
                        }
                        let words = match chance.u8(0..20) {
                            0..6 => format!("SWLIMIT.REFUND {key} {cost}"),
                            6..9 => format!("PEXPIRE {key} {}", chance.u8(1..40)),
                            9 => format!("DEL {key}"),
                            10 => format!("SWLIMIT.BLOCK {key} 1h"),
                            11..13 => format!("SWLIMIT.UNBLOCK {key}"),
                            13..16 => format!("SWLIMIT.ALLOW {key} 9 10s 1s COST {cost}"),
                            16 => format!("SWLIMIT.RECORD {key} 6 10s 1s COST {cost}"),
                            17 => format!("COPY {other} {key} REPLACE"),
                            _ => ["FLUSHDB", "FLUSHALL ASYNC"][chance.usize(0..2)].into(),
                        };
                        let words: Vec<&str> = words.split(' ').collect();
                        command(&words).exec_async(&mut direct).await.unwrap();
                    }
                })
            })
            .collect();
        for task in busy {
            task.await.unwrap();
        }
        let costs = KEYS.map(|_| fastrand::u64(1..4));
        let peeked: Vec<Vec<i64>> = (KEYS.iter().zip(costs))
            .map(|(key, cost)| denied.server.say(&format!("SWLIMIT.PEEK {key} 6 10s 1s COST {cost}")))
            .collect();
        // A key that has expired may have been deleted and announced only when it was read.
        denied.hear().await;
        for ((key, cost), peeked) in KEYS.iter().zip(costs).zip(peeked) {
            let decision = limiter.allow(Request::new(key).cost(cost)).await.unwrap();
            assert!(
                peeked[0] == 0 || decision.granted(),
                "round {round}, {cost} of {key}: {decision:?}, but {peeked:?}"
            );
            local += u32::from(decision.source() == Source::Cache);
            compared += 1;
        }
    }
    assert!(local > 0);
    report(&format!("{compared} decisions compared, {local} of them denied without asking, none stale"));
}

async fn direct(server: &Server) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}
