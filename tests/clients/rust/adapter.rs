//! The Rust client for scenarios. Does what the runner says in lines of JSON, and judges nothing.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{json, Value};
use swlimit_client::{
    BudgetLimiter, Calendar, Client, Decision, Error, HoldLimiter, HoldRequest, Limiter, Mode, OnFailure, Period,
    Quota, Reason, Request, Source,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::AbortHandle;

#[derive(Clone)]
struct Made {
    client: Client,
    rate: Option<Limiter>,
    hold: Option<HoldLimiter>,
    budget: Option<BudgetLimiter>,
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
        _ => "refused",
    };
    json!({"id": id, "error": kind, "message": error.to_string()})
}

fn made(asked: &Value) -> Result<Made, Error> {
    let options = &asked["options"];
    let mut builder = Client::builder();
    if options["timeout"].is_string() {
        builder = builder.timeout(length(&options["timeout"]));
    }
    if options["max_untracked_age"].is_string() {
        builder = builder.max_untracked_age(length(&options["max_untracked_age"]));
    }
    if let Some(n) = options["max_waiting"].as_u64() {
        builder = builder.max_waiting(n as usize);
    }
    let addresses = asked["addresses"].as_object().unwrap();
    let url = if asked["topology"] == "sentinel" {
        let named: Vec<_> =
            addresses.iter().filter(|(name, _)| name.starts_with('N')).map(|(_, at)| at.as_str().unwrap()).collect();
        format!("redis-sentinel://{}/main", named.join(","))
    } else {
        format!("redis://{}/", addresses["S"].as_str().unwrap())
    };
    let client = builder.build(&url)?;
    let policy = match options["on_failure"].as_str() {
        Some("allow") => OnFailure::Allow,
        Some("deny") => OnFailure::Deny,
        Some("error") => OnFailure::Error,
        _ => OnFailure::Local,
    };
    let limit = options["limit"].as_u64().unwrap();
    let mut made = Made { client: client.clone(), rate: None, hold: None, budget: None };
    match asked["kind"].as_str().unwrap() {
        "hold" => made.hold = Some(client.holds(limit).on_failure(policy).build()?),
        "budget" => {
            made.budget = Some(client.budget(limit, Calendar::new(Period::Month)).on_failure(policy).build()?);
        }
        _ => {
            let quota = Quota::of(limit, length(&options["window"]), None)?;
            let mut limiter = client.limiter(quota).on_failure(policy);
            match options["mode"].as_str() {
                Some("direct") => limiter = limiter.mode(Mode::Direct),
                Some("leased") => limiter = limiter.mode(Mode::Leased),
                _ => {}
            }
            made.rate = Some(limiter.build()?);
        }
    }
    Ok(made)
}

async fn call(made: Made, asked: &Value) -> Result<Value, Error> {
    let key = asked["key"].as_str().unwrap_or_default();
    let cost = asked["cost"].as_u64().unwrap_or(1);
    let request = Request::new(key).cost(cost);
    match (asked["method"].as_str().unwrap(), &made.rate, &made.budget, &made.hold) {
        ("allow", Some(limiter), _, _) => Ok(told(&limiter.allow(request).await?)),
        ("acquire", Some(limiter), _, _) => Ok(told(&limiter.acquire(request, length(&asked["timeout"])).await?)),
        ("allow", _, Some(budget), _) => Ok(told(&budget.allow(request).await?)),
        ("hold", _, _, Some(holds)) => Ok(told(holds.hold(HoldRequest::new(key).cost(cost)).await?.decision())),
        _ => Err(Error::Invalid("no such method".into())),
    }
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
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut clients: HashMap<String, Made> = HashMap::new();
    let calls: Arc<Mutex<HashMap<u64, AbortHandle>>> = Arc::default();
    while let Ok(Some(line)) = lines.next_line().await {
        let asked: Value = serde_json::from_str(&line).unwrap();
        let id = asked["id"].clone();
        let name = asked["client"].as_str().unwrap_or_default().to_owned();
        match asked["do"].as_str().unwrap() {
            "hello" => say(json!({"id": id, "ok": ["cancel", "sentinel", "statistics", "reasons"]})),
            "limiter" => match made(&asked) {
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
                    match call(made, &asked).await {
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
