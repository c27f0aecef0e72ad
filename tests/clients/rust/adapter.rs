//! The Rust client for scenarios. Does what the runner says in lines of JSON, and judges nothing.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{json, Value};
use swlimit_client::{
    Admission, BudgetLimiter, Calendar, Client, Decision, Error, Hold, HoldLimiter, HoldRequest, Limiter, Member, Mode,
    OnFailure, Period, Quota, Reason, Request, Source,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::AbortHandle;
use tokio::time::Instant;

enum Any {
    Rate(Limiter),
    Hold(HoldLimiter),
    Budget(BudgetLimiter),
}

#[derive(Clone)]
struct Made {
    client: Client,
    limiters: Arc<Vec<Any>>,
    /// By the number of the call that returned it.
    holds: Arc<Mutex<HashMap<u64, Hold>>>,
    admissions: Arc<Mutex<HashMap<u64, Admission>>>,
}

fn say(value: Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{value}");
    let _ = out.flush();
}

fn length(text: &Value) -> Duration {
    let text = text.as_str().unwrap_or("0ms");
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..at].parse().unwrap_or(0);
    match &text[at..] {
        "ms" => Duration::from_millis(number),
        "m" => Duration::from_secs(60 * number),
        "h" => Duration::from_secs(3_600 * number),
        _ => Duration::from_secs(number),
    }
}

fn told(d: &Decision) -> Value {
    // None is "never" of a decision that is known; of one that is not, the type says the same.
    let ms = |d: Option<Duration>| d.map(|d| d.as_millis() as u64);
    let after = match (ms(d.retry_after()), d.source()) {
        (None, Source::Failure) => Value::Null,
        (None, _) => json!("never"),
        (Some(ms), _) => json!(ms),
    };
    json!({"granted": d.units(), "limit": d.limit(), "remaining": d.remaining(), "retry_after": after,
           "reset_after": ms(d.reset_after()), "source": d.source().as_str()})
}

fn failed(id: &Value, error: &Error) -> Value {
    let kind = match error {
        Error::Unavailable(_) => "unavailable",
        Error::ModuleMissing | Error::ModuleTooOld(_) | Error::NeedsModule => "module_missing",
        Error::Invalid(_) => "invalid",
        Error::Refused(_) => "refused",
        _ => "other",
    };
    json!({"id": id, "error": kind, "message": error.to_string(), "reason": reason(error.reason())})
}

fn made(asked: &Value) -> Result<Made, Error> {
    let of_client = &asked["limiters"][0];
    let mut builder = Client::builder();
    if of_client["timeout"].is_string() {
        builder = builder.timeout(length(&of_client["timeout"]));
    }
    if of_client["max_untracked_age"].is_string() {
        builder = builder.max_untracked_age(length(&of_client["max_untracked_age"]));
    }
    if let Some(n) = of_client["max_waiting"].as_u64() {
        builder = builder.max_waiting(n as usize);
    }
    if let Some(n) = of_client["max_keys"].as_u64() {
        builder = builder.max_keys(n as usize);
    }
    let addresses: Vec<_> = asked["addresses"].as_array().unwrap().iter().map(|at| at.as_str().unwrap()).collect();
    let login = asked["secret"].as_str().map(|secret| format!("ann:{secret}@")).unwrap_or_default();
    let client = match asked["topology"].as_str().unwrap() {
        _ if of_client["mode"] == "local" => builder.local()?,
        "sentinel" => builder.build(&format!("redis-sentinel://{login}{}/main", addresses.join(",")))?,
        "cluster" => builder.build(&format!("redis-cluster://{login}{}", addresses.join(",")))?,
        _ => builder.build(&format!("redis://{login}{}/", addresses[0]))?,
    };
    let limiters = asked["limiters"].as_array().unwrap().iter().map(|one| limiter(&client, one));
    let limiters = Arc::new(limiters.collect::<Result<_, _>>()?);
    Ok(Made { client, limiters, holds: Arc::default(), admissions: Arc::default() })
}

fn limiter(client: &Client, options: &Value) -> Result<Any, Error> {
    let policy = match options["on_failure"].as_str() {
        Some("allow") => OnFailure::Allow,
        Some("deny") => OnFailure::Deny,
        Some("error") => OnFailure::Error,
        _ => OnFailure::Local,
    };
    let share = options["local_share"].as_f64().unwrap_or(0.1);
    let limit = options["limit"].as_u64().unwrap();
    Ok(match options["kind"].as_str().unwrap() {
        "hold" => {
            let ttl = if options["ttl"].is_string() { length(&options["ttl"]) } else { Duration::from_secs(30) };
            let mut holds = client.holds(limit).ttl(ttl).local_share(share);
            if options["on_failure"].is_string() {
                holds = holds.on_failure(policy);
            }
            Any::Hold(holds.build()?)
        }
        "budget" => {
            let period = match options["period"].as_str() {
                Some("hour") => Period::Hour,
                Some("day") => Period::Day,
                _ => Period::Month,
            };
            let budget = client.budget(limit, Calendar::new(period)).on_failure(policy).local_share(share);
            Any::Budget(budget.build()?)
        }
        _ => {
            let quota = Quota::of(limit, length(&options["window"]), None)?;
            let mut limiter = client.limiter(quota).on_failure(policy).local_share(share);
            match options["mode"].as_str() {
                Some("direct") => limiter = limiter.mode(Mode::Direct),
                Some("leased") => limiter = limiter.mode(Mode::Leased),
                Some("eventual") => limiter = limiter.mode(Mode::Eventual),
                _ => {}
            }
            if options["block_for"].is_string() {
                limiter = limiter.block_for(length(&options["block_for"]));
            }
            if options["warm_up"].is_string() {
                limiter = limiter.warm_up(length(&options["warm_up"]));
            }
            if let Some(parts) = options["cold"].as_u64() {
                limiter = limiter.cold(parts);
            }
            if options["sync_interval"].is_string() {
                limiter = limiter.sync_interval(length(&options["sync_interval"]));
            }
            Any::Rate(limiter.build()?)
        }
    })
}

fn each(granted: bool, after: Option<Duration>, each: &[Decision]) -> Value {
    let all: Vec<_> = each.iter().map(told).collect();
    json!({"granted": granted, "retry_after": after.map(|d| d.as_millis() as u64), "each": all})
}

async fn call(made: &Made, asked: &Value) -> Result<Value, Error> {
    let (options, id) = (&asked["options"], asked["id"].as_u64().unwrap());
    let keys: Vec<_> = asked["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
    let key = keys.first().copied().unwrap_or_default();
    let cost = options["cost"].as_u64().unwrap_or(1);
    let one = &made.limiters[asked["limiter"].as_u64().unwrap() as usize];
    let mut request = Request::new(key).cost(options["units"].as_u64().unwrap_or(cost));
    let mut holding = HoldRequest::new(key).cost(cost);
    if options["deadline"].is_string() {
        request = request.deadline(Instant::now() + length(&options["deadline"]));
        holding = holding.deadline(Instant::now() + length(&options["deadline"]));
    }
    if options["wait"].is_string() {
        holding = holding.wait(length(&options["wait"]));
    }
    if options["partial"] == true {
        request = request.partial();
    }
    if let Some(id) = options["id"].as_str() {
        holding = holding.id(id.as_bytes());
    }
    let of = options["of"].as_u64().unwrap_or_default();
    match (asked["method"].as_str().unwrap(), one) {
        ("allow_all", _) => {
            let rates = made.limiters.iter().zip(&keys).filter_map(|(one, key)| match one {
                Any::Rate(one) => Some((one, Request::new(*key).cost(cost))),
                _ => None,
            });
            let found = made.client.allow_all(&rates.collect::<Vec<_>>()).await?;
            Ok(each(found.granted(), found.retry_after(), found.each()))
        }
        ("admit", _) => {
            let members = made.limiters.iter().zip(&keys).map(|(one, key)| -> Member<'_> {
                match one {
                    Any::Rate(one) => (one, Request::new(*key).cost(cost)).into(),
                    Any::Budget(one) => (one, Request::new(*key).cost(cost)).into(),
                    Any::Hold(one) => (one, HoldRequest::new(*key).cost(cost)).into(),
                }
            });
            let found = made.client.admit(members).await?;
            let said = each(found.granted(), found.retry_after(), found.each());
            made.admissions.lock().unwrap().insert(id, found);
            Ok(said)
        }
        ("settle", _) => {
            let used: Vec<_> = options["used"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
            let mut admission = made.admissions.lock().unwrap().remove(&of).unwrap();
            Ok(json!({"value": admission.settle(&used).await?}))
        }
        ("hold", Any::Hold(holds)) => {
            let hold = holds.hold(holding).await?;
            let said = told(hold.decision());
            made.holds.lock().unwrap().insert(id, hold);
            Ok(said)
        }
        ("is_live", _) => Ok(json!({"value": made.holds.lock().unwrap()[&of].is_live()})),
        ("release", _) => {
            let hold = made.holds.lock().unwrap().remove(&of).unwrap();
            Ok(json!({"value": hold.release().await?}))
        }
        ("allow", Any::Budget(budget)) => Ok(told(&budget.allow(request).await?)),
        ("record", Any::Budget(budget)) => Ok(told(&budget.record(request).await?)),
        ("refund", Any::Budget(budget)) => Ok(json!({"value": budget.refund(request).await?})),
        ("allow", Any::Rate(limiter)) => match options["times"].as_u64() {
            Some(times) => burst(limiter, key, times).await,
            None => Ok(told(&limiter.allow(request).await?)),
        },
        ("acquire", Any::Rate(limiter)) => Ok(told(&limiter.acquire(request, length(&options["timeout"])).await?)),
        ("peek", Any::Rate(limiter)) => Ok(told(&limiter.peek(request).await?)),
        ("record", Any::Rate(limiter)) => Ok(told(&limiter.record(request).await?)),
        ("refund", Any::Rate(limiter)) => Ok(json!({"value": limiter.refund(request).await?})),
        ("block", Any::Rate(limiter)) => {
            limiter.block(key, length(&options["duration"])).await?;
            Ok(json!({"value": null}))
        }
        ("unblock", Any::Rate(limiter)) => Ok(json!({"value": limiter.unblock(key).await?})),
        ("reset", Any::Rate(limiter)) => Ok(json!({"value": limiter.reset(key).await?})),
        _ => Err(Error::Invalid("no such method".into())),
    }
}

/// So many requests at once: decisions by their source.
async fn burst(limiter: &Limiter, key: &str, times: u64) -> Result<Value, Error> {
    let all = futures_util::future::join_all((0..times).map(|_| limiter.allow(key))).await;
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for decision in all {
        *counts.entry(decision?.source().as_str()).or_default() += 1;
    }
    Ok(json!(counts))
}

/// Log lines as `{"log": sentence, "fields": …}`.
struct Log;

#[derive(Default)]
struct Fields(serde_json::Map<String, Value>);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().into(), json!(format!("{value:?}")));
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        *of.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let sentence = fields.0.remove("message").unwrap_or_default();
        say(json!({"log": sentence, "fields": fields.0}));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn reason(reason: Option<Reason>) -> Value {
    match reason {
        None => Value::Null,
        Some(Reason::Code(code)) => json!(code),
        Some(other) => {
            let mut text = String::new();
            for c in format!("{other:?}").chars() {
                if c.is_uppercase() && !text.is_empty() {
                    text.push('_');
                }
                text.push(c.to_ascii_lowercase());
            }
            json!(text)
        }
    }
}

#[tokio::main]
async fn main() {
    let _ = tracing::subscriber::set_global_default(Log);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut clients: HashMap<String, Made> = HashMap::new();
    let calls: Arc<Mutex<HashMap<u64, AbortHandle>>> = Arc::default();
    while let Ok(Some(line)) = lines.next_line().await {
        let asked: Value = serde_json::from_str(&line).unwrap();
        let id = asked["id"].clone();
        let name = asked["client"].as_str().unwrap_or_default().to_owned();
        match asked["do"].as_str().unwrap() {
            "hello" => say(
                json!({"id": id, "ok": ["cancel", "cancel_refund", "sentinel", "cluster", "url", "leases", "eventual", "statistics",
                "reasons", "logs", "partial", "deadline", "ids", "burst", "tracking", "guards", "local_blocks", "settle"]}),
            ),
            "limiters" => match made(&asked) {
                Ok(made) => {
                    clients.insert(name, made);
                    say(json!({"id": id, "ok": null}));
                }
                Err(error) => say(failed(&id, &error)),
            },
            "call" => {
                let made = clients[&name].clone();
                let number = id.as_u64().unwrap();
                let task = tokio::spawn(async move {
                    match call(&made, &asked).await {
                        Ok(found) => say(json!({"id": asked["id"], "ok": found})),
                        Err(error) => say(failed(&asked["id"], &error)),
                    }
                });
                calls.lock().unwrap().insert(number, task.abort_handle());
                tokio::spawn(async move {
                    if task.await.is_err_and(|error| error.is_cancelled()) {
                        say(json!({"id": id, "error": "cancelled"}));
                    }
                });
            }
            "cancel" => {
                if let Some(task) = calls.lock().unwrap().get(&asked["call"].as_u64().unwrap()) {
                    task.abort();
                }
            }
            "statistics" => {
                let s = clients[&name].client.statistics();
                let of = |source| s.granted(source) + s.denied(source);
                say(json!({"id": id, "ok": {"server": of(Source::Server), "cache": of(Source::Cache),
                    "failure": of(Source::Failure), "local": of(Source::Local)}}));
            }
            "health" => {
                let states = clients[&name].client.servers();
                let state = states.iter().find(|one| one.reason.is_some()).or(states.first());
                let word = state.map(|one| format!("{:?}", one.state).to_lowercase());
                say(json!({"id": id, "ok": {"state": word, "reason": reason(state.and_then(|one| one.reason))}}));
            }
            _ => {
                let made = clients.remove(&name);
                tokio::spawn(async move {
                    if let Some(made) = made {
                        made.client.close().await;
                    }
                    say(json!({"id": id, "ok": null}));
                });
            }
        }
    }
}
