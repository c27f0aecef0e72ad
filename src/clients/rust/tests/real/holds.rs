//! Things under way, budgets, and one decision of everything, on real servers.

use std::time::Duration;

use swlimit_client::{
    BudgetLimiter, Calendar, Client, Error, Hold, HoldLimiter, HoldRequest, OnFailure, Period, Quota, Request, Source,
};
use tokio::time::timeout;

use crate::support::server::{by_script, Server};
use crate::support::{eventually, patient, LONG};

/// So long that a busy machine renews in time.
const TTL: Duration = Duration::from_secs(9);
const A_MINUTE: Duration = Duration::from_secs(60);

pub fn seats(client: &Client, limit: u64) -> HoldLimiter {
    client.holds(limit).ttl(TTL).on_failure(OnFailure::Error).build().unwrap()
}

pub async fn freed(server: &Server) {
    eventually("released", async || server.say::<Vec<redis::Value>>("SWLIMIT.HOLDERS key").is_empty().then_some(()))
        .await;
}

pub async fn lost(hold: &Hold) {
    timeout(LONG, hold.lost().lost()).await.expect("the loss is noticed");
    assert!(!hold.is_live());
}

#[tokio::test]
async fn as_long_as_the_guard() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = seats(&client, 2);
    let hold = limiter.hold(HoldRequest::new("key").cost(2).id(b"mine")).await.unwrap();
    assert!(hold.granted() && hold.is_live() && hold.source() == Source::Server && hold.decision().units() == 2);
    let peeked = limiter.peek("key").await.unwrap();
    assert_eq!((peeked.units(), peeked.remaining(), peeked.source()), (0, Some(0), Source::Server));
    assert!(peeked.retry_after().is_some_and(|wait| wait <= TTL));
    assert!(limiter.peek("free").await.unwrap().granted());
    let denied = limiter.hold("key").await.unwrap();
    assert!(!denied.granted() && !denied.is_live() && denied.token().is_none());
    assert!(denied.decision().retry_after().is_some_and(|wait| wait <= TTL));
    let holders = limiter.holders("key", 10).await.unwrap();
    assert_eq!((holders.len(), holders[0].id.as_slice(), holders[0].units), (1, &b"mine"[..], 2));
    assert_eq!(Some(holders[0].token), hold.token());
    // It outlives its time to live, and ends with the guard.
    tokio::time::sleep(TTL + Duration::from_millis(500)).await;
    assert!(hold.is_live());
    assert!(by_script() || server.info("swlimit", "swlimit_holds_expired") == 0);
    let token = hold.token();
    drop(hold);
    freed(&server).await;
    let next = limiter.hold("key").await.unwrap();
    assert!(next.token() > token);
    assert_eq!(next.release().await.unwrap(), 1);
    // A cancelled caller leaves as well.
    let held = limiter.clone();
    let task = tokio::spawn(async move {
        let _hold = held.hold("key").await.unwrap();
        std::future::pending::<()>().await;
    });
    eventually("held", async || (limiter.holders("key", 1).await.unwrap().len() == 1).then_some(())).await;
    task.abort();
    freed(&server).await;
}

#[tokio::test]
async fn waiting_for_a_seat() {
    if by_script() {
        return; // nobody waits in the server then
    }
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = seats(&client, 1);
    let first = limiter.hold("key").await.unwrap();
    let waits = limiter.clone();
    let second = tokio::spawn(async move { waits.hold(HoldRequest::new("key").wait(A_MINUTE)).await.unwrap() });
    let waiting = async |expected: u64| {
        eventually("waiting", async || (server.info("swlimit", "swlimit_waiting") == expected).then_some(())).await;
    };
    waiting(1).await;
    let waits = limiter.clone();
    let cancelled = tokio::spawn(async move { waits.hold(HoldRequest::new("key").wait(A_MINUTE)).await });
    waiting(2).await;
    cancelled.abort();
    waiting(1).await;
    drop(first);
    let second = timeout(LONG, second).await.unwrap().unwrap();
    assert!(second.granted() && second.is_live());
    let short = limiter.hold(HoldRequest::new("key").wait(Duration::from_millis(50))).await.unwrap();
    assert!(!short.granted());
    drop(second);
    freed(&server).await;
}

#[tokio::test]
async fn what_is_lost_is_told() {
    let mut server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = seats(&client, 5);
    let hold = limiter.hold("key").await.unwrap();
    server.say::<()>("DEL key");
    lost(&hold).await;
    let hold = limiter.hold("key").await.unwrap();
    server.kill();
    lost(&hold).await;
    assert_eq!(client.statistics().holds_lost, 2);
    // The failure policy is for taking.
    assert!(matches!(limiter.hold("key").await, Err(Error::Unavailable(_))));
    let lenient = client.holds(20).ttl(TTL).on_failure(OnFailure::Local).build().unwrap();
    let here = (lenient.hold("key").await.unwrap(), lenient.hold("key").await.unwrap());
    assert!(here.0.granted() && here.1.is_live() && here.0.source() == Source::Failure && here.0.token().is_none());
    assert!(!lenient.hold("key").await.unwrap().granted(), "a tenth of 20");
    drop(here.0);
    assert!(lenient.hold("key").await.unwrap().granted());
}

/// Cut whenever it is: what the server granted to nobody is free again, long before its time to live.
#[tokio::test]
async fn connections_that_are_cut() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let limiter = client.holds(1000).ttl(Duration::from_secs(600)).on_failure(OnFailure::Deny).build().unwrap();
    let holds: Vec<_> = (0..200)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.hold("key").await.unwrap() })
        })
        .collect();
    for (at, task) in holds.iter().enumerate() {
        if at % 40 == 0 {
            server.say::<()>("CLIENT KILL TYPE normal");
        }
        if at % 3 == 0 {
            task.abort();
        }
        tokio::task::yield_now().await;
    }
    for hold in holds {
        let _ = hold.await;
    }
    freed(&server).await;
}

#[tokio::test]
async fn budgets() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let days = Calendar::new(Period::Day).time_zone("Europe/Berlin").unwrap();
    let plan = client.budget(10, days.clone()).build().unwrap();
    let decision = plan.allow(Request::new("key").cost(8)).await.unwrap();
    assert!(decision.granted() && decision.remaining() == Some(2) && decision.source() == Source::Server);
    assert!(decision.reset_after().unwrap() <= Duration::from_secs(25 * 3600));
    assert!(!plan.allow(Request::new("key").cost(3)).await.unwrap().granted());
    assert_eq!(plan.allow(Request::new("key").cost(3).partial()).await.unwrap().units(), 2);
    let _ = plan.record(Request::new("key").cost(5)).await.unwrap();
    assert_eq!(client.info("key").await.unwrap().map(|held| held.total), Some(15));
    assert_eq!(plan.refund(Request::new("key").cost(100)).await.unwrap(), 15);
    assert!(!plan.reset("key").await.unwrap());
    peeks(&plan).await;
    let _ = client.limiter(Quota::new(1, "1m").unwrap()).build().unwrap().allow("window").await.unwrap();
    assert!(matches!(plan.peek("window").await, Err(Error::Refused(text)) if text.starts_with("WRONGTYPE")));
    // The same without a server.
    let client = Client::local();
    let local = client.budget(10, days).build().unwrap();
    peeks(&local).await;
    assert!(!local.allow(Request::new("key").cost(3)).await.unwrap().granted());
    let statistics = client.statistics();
    assert_eq!((statistics.granted(Source::Local), statistics.denied(Source::Local)), (1, 1));
    assert_eq!(local.refund(Request::new("key").cost(100)).await.unwrap(), 8);
}

/// Eight of ten are used up, and looking counts nothing.
async fn peeks(plan: &BudgetLimiter) {
    let peeked = plan.peek(Request::new("key").cost(10)).await.unwrap();
    assert_eq!((peeked.units(), peeked.remaining(), peeked.reset_after()), (10, Some(10), Some(Duration::ZERO)));
    assert!(plan.allow(Request::new("key").cost(8)).await.unwrap().granted());
    let peeked = plan.peek(Request::new("key").cost(3)).await.unwrap();
    assert_eq!((peeked.units(), peeked.remaining(), peeked.retry_after()), (0, Some(2), peeked.reset_after()));
    assert!(peeked.reset_after().is_some_and(|left| left <= Duration::from_secs(25 * 3600)));
}

#[tokio::test]
async fn admissions() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    everything_at_once(&client, Source::Server).await;
    several_holds(&client, Source::Server).await;
    for key in ["{k}:streams", "{k}:model", "{k}:streams:reserved"] {
        eventually(key, async || client.holders(key, 1).await.unwrap().is_empty().then_some(())).await;
    }
    everything_at_once(&Client::local(), Source::Local).await;
    several_holds(&Client::local(), Source::Local).await;
}

pub async fn everything_at_once(client: &Client, source: Source) {
    let requests = client.limiter(Quota::with_resolution(10, "1h", "1h").unwrap()).build().unwrap();
    let tokens = client.budget(1000, Calendar::new(Period::Year)).build().unwrap();
    let streams = seats(client, 2);
    let admit = async |cost: u64| {
        let cost = Request::new("{k}:tokens").cost(cost);
        client
            .admit([(&streams, "{k}:streams").into(), (&requests, "{k}:requests").into(), (&tokens, cost).into()])
            .await
    };
    let used = async || {
        let tokens = tokens.allow(Request::new("{k}:tokens").cost(1)).await.unwrap().remaining().unwrap();
        (requests.peek("{k}:requests").await.unwrap().remaining().unwrap(), tokens)
    };
    let mut first = admit(400).await.unwrap();
    assert!(first.granted() && first.each().iter().all(|decision| decision.source() == source));
    assert!(first.hold().is_some_and(Hold::is_live));
    assert_eq!(
        first.settle(&[1]).await.err(),
        Some(Error::Invalid("used must be 2 numbers: of all but the holds".into()))
    );
    assert_eq!(first.settle(&[1, 150]).await.unwrap(), Some(vec![0, -250]));
    assert_eq!(first.settle(&[1, 150]).await.unwrap(), None, "once");
    assert_eq!(used().await, (9, 849));
    let mut second = admit(100).await.unwrap();
    assert_eq!(second.settle(&[2, 300]).await.unwrap(), Some(vec![1, 200]));
    assert_eq!(used().await, (7, 548));
    // All, or nothing.
    let denied = admit(549).await.unwrap();
    assert!(!denied.granted() && denied.hold().is_none() && denied.each()[0].granted() && !denied.each()[2].granted());
    // Left without being settled, it stays as reserved.
    drop(admit(100).await.unwrap());
    assert_eq!(used().await, (6, 447));
    // Two under way are as many as there may be.
    let both = (admit(1).await.unwrap(), admit(1).await.unwrap());
    assert!(both.0.granted() && both.1.granted() && !admit(1).await.unwrap().granted());
    drop(both);
    let mut without = client
        .admit([(&requests, "{k}:others").into(), (&tokens, Request::new("{k}:tokens").cost(100)).into()])
        .await
        .unwrap();
    assert!(without.granted() && without.hold().is_none());
    assert_eq!(without.settle(&[1, 40]).await.unwrap(), Some(vec![0, -60]));
}

/// Two of a user and three of a model at once, with tokens: each hold by itself, and what they use settled once.
pub async fn several_holds(client: &Client, source: Source) {
    let (streams, model) = (seats(client, 2), seats(client, 3));
    let tokens = client.budget(1000, Calendar::new(Period::Year)).build().unwrap();
    let admit = async |user: &str, cost: u64| {
        let user = format!("{{k}}:{user}");
        let tokens = (&tokens, Request::new("{k}:used").cost(cost)).into();
        client.admit([(&streams, &user).into(), tokens, (&model, "{k}:model").into()]).await.unwrap()
    };
    let left = async || {
        let left = [streams.peek("{k}:streams").await, model.peek("{k}:model").await];
        let [streams, model] = left.map(|decision| decision.unwrap().remaining().unwrap());
        (streams, model, tokens.peek("{k}:used").await.unwrap().remaining().unwrap())
    };
    let mut first = admit("streams", 400).await;
    assert!(first.granted() && first.holds().len() == 2 && first.holds().iter().all(Hold::is_live));
    assert!(first.each().iter().all(|decision| decision.source() == source));
    assert_eq!(left().await, (1, 2, 600));
    // One of them ends before the usage is known, which is settled all the same.
    let mut holds = first.take_holds();
    assert!(first.hold().is_none() && holds.remove(0).release().await == Ok(1));
    assert_eq!(left().await, (2, 2, 600));
    assert!(holds[0].is_live());
    assert_eq!(
        first.settle(&[1, 2, 3]).await.err(),
        Some(Error::Invalid("used must be 1 numbers: of all but the holds".into()))
    );
    assert_eq!(first.settle(&[150]).await.unwrap(), Some(vec![-250]));
    drop(holds);
    assert_eq!(first.settle(&[150]).await.unwrap(), None, "once");
    eventually("ended", async || (left().await == (2, 3, 850)).then_some(())).await;
    // All, or nothing: the model's places are taken by others.
    let others = [admit("other streams", 1).await, admit("other streams", 1).await, admit("streams", 1).await];
    let denied = admit("streams", 1).await;
    assert!(others.iter().all(|one| one.granted()) && !denied.granted() && denied.holds().is_empty());
    assert_eq!(denied.each().iter().map(|decision| decision.granted()).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(left().await, (1, 0, 847));
    // Ended together, and settled then.
    let [mut ended, dropped, settled] = others;
    ended.release().await.unwrap();
    assert!(ended.holds().is_empty() && left().await == (1, 1, 847));
    assert_eq!(ended.settle(&[3]).await.unwrap(), Some(vec![2]));
    drop(dropped);
    let mut settled = settled;
    assert_eq!(settled.settle(&[0]).await.unwrap(), Some(vec![-1]));
    eventually("ended", async || (left().await == (2, 3, 846)).then_some(())).await;
    // Holds alone reserve nothing.
    let mut alone = client.admit([(&streams, "{k}:streams").into(), (&model, "{k}:model").into()]).await.unwrap();
    assert!(alone.granted() && left().await == (1, 2, 846));
    assert_eq!(alone.settle(&[]).await.unwrap(), Some(vec![]));
    eventually("ended", async || (left().await == (2, 3, 846)).then_some(())).await;
}

/// Each is lost for itself, and what they have used is settled all the same.
#[tokio::test]
async fn one_of_several_is_lost() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let tokens = client.budget(1000, Calendar::new(Period::Year)).build().unwrap();
    let (streams, model) = (seats(&client, 2), seats(&client, 3));
    let tokens = (&tokens, Request::new("{k}:used").cost(400)).into();
    let members = [(&streams, "{k}:streams").into(), (&model, "{k}:model").into(), tokens];
    let mut admission = client.admit(members).await.unwrap();
    server.say::<()>("DEL {k}:streams");
    lost(&admission.holds()[0]).await;
    assert!(admission.holds()[1].is_live() && client.statistics().holds_lost == 1);
    assert_eq!(admission.settle(&[150]).await.unwrap(), Some(vec![-250]));
    assert_eq!(client.statistics().holds_lost, 1);
    assert!(client.holders("{k}:model", 1).await.unwrap().is_empty());
}

/// Who asks again with the id that it chose takes nothing twice. The first hold reserves for a caller that holds for others,
/// and who knows it settles.
#[tokio::test]
async fn admitted_for_others() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let tokens = client.budget(10_000, Calendar::new(Period::Year)).build().unwrap();
    let (streams, model) = (seats(&client, 2), seats(&client, 3));
    let members = || {
        let cost = Request::new("{k}:used").cost(400);
        let own = HoldRequest::new("{k}:streams").id(b"mine");
        [(&model, "{k}:model").into(), (&streams, own).into(), (&tokens, cost).into()]
    };
    for _ in 0..2 {
        let (decisions, holds) = client.admit_for_others(members()).await.unwrap();
        assert!(decisions.granted() && decisions.each()[2].remaining() == Some(9_600));
        let ids: Vec<_> = holds.into_iter().map(|hold| hold.detach().unwrap()).collect();
        assert_eq!(ids, [b"mine", b"mine"]);
    }
    assert!(client.holders("{k}:model:reserved", 1).await.unwrap().is_empty());
    assert_eq!(client.release("{k}:streams", &[b"mine"]).await.unwrap(), 1);
    let used = [(&b"{k}:streams"[..], 0), (&b"{k}:used"[..], 150)];
    assert_eq!(client.settle("{k}:model", b"mine", &used).await.unwrap(), Some(vec![0, -250]));
    assert!(client.holders("{k}:model", 1).await.unwrap().is_empty());
    // Under the key of a reservation the same id counts nothing twice, either.
    let (first, second) = (client.admit(members()).await.unwrap(), client.admit(members()).await.unwrap());
    assert!(first.granted() && second.granted() && second.each()[2].remaining() == Some(9_450));
    assert_eq!(client.holders("{k}:model:reserved", 9).await.unwrap().len(), 1);
    // Together with its reservation an admission has 64 limits.
    let places: Vec<_> = (0..64).map(|number| format!("{{k}}:{number}")).collect();
    let most = |count: usize| places[..count].iter().map(|key| (&model, key).into()).chain(members()).skip(1);
    assert!(matches!(client.admit(most(62)).await, Err(Error::Invalid(text)) if text.contains("at most 63")));
    assert!(client.admit_for_others(most(62)).await.unwrap().0.granted());
    assert!(client.admit(most(61)).await.unwrap().granted());
}

/// A settlement whose reservation has ended counts what was used beyond, and gives nothing back.
#[tokio::test]
async fn settled_too_late() {
    let server = Server::new();
    let client = patient().connect(&server.url()).await.unwrap();
    let tokens = client.budget(1000, Calendar::new(Period::Year)).build().unwrap();
    let streams = seats(&client, 2);
    for (used, counted) in [(150, 150), (50, 100)] {
        let members = [(&streams, "key").into(), (&tokens, Request::new("tokens").cost(100)).into()];
        let mut admission = client.admit(members).await.unwrap();
        server.say::<()>("DEL {key}:reserved");
        assert_eq!(admission.settle(&[used]).await.unwrap(), None);
        assert_eq!(tokens.refund(Request::new("tokens").cost(10_000)).await.unwrap(), counted);
    }
}
