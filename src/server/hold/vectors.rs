//! The test vectors that servers are tested with, too: `tests/conformance/vectors` describes them.

use std::collections::HashMap;

use serde_json::{json, Value};

use crate::*;

#[test]
fn holds_alone() {
    let sequences: Vec<Value> =
        serde_json::from_str(include_str!("../../../tests/conformance/vectors/holds.json")).unwrap();
    let sequence = sequences.iter().find(|sequence| sequence["name"] == "holds alone").unwrap();
    let mut keys = HashMap::new();
    for step in sequence["steps"].as_array().unwrap() {
        let words: Vec<&str> = step["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(reply(&mut keys, &words), step["reply"], "{step}");
    }
}

fn reply(keys: &mut HashMap<String, Holds>, words: &[&str]) -> Value {
    let [command, key, words @ ..] = words else { panic!() };
    let holds = keys.entry((*key).into()).or_default();
    match (*command, words) {
        ("SWLIMIT.HOLD", [limit, ttl, id, options @ ..]) => {
            let option = |name| options.chunks(2).find(|option| option[0] == name).map(|option| number(option[1]));
            let cost = option("COST").unwrap_or(1);
            hold(
                holds,
                option("AT").unwrap(),
                &Request { limit: number(limit), ttl: number(ttl), id: id.as_bytes(), cost },
            )
        }
        ("SWLIMIT.RELEASE", [ids @ .., "AT", now]) => {
            let (now, ids) = (number(now), bytes(ids));
            if !ids.iter().any(|id| holds.get(id, now).is_some()) {
                return json!(0);
            }
            let freed = change(holds, now, |holds| holds.release_all(ids.iter().copied()));
            json!(freed.iter().sum::<u64>())
        }
        ("SWLIMIT.RENEW", [ttl, ids @ .., "AT", now]) => {
            let (now, ids) = (number(now), bytes(ids));
            let live: Vec<u8> = ids.iter().map(|id| u8::from(holds.get(id, now).is_some())).collect();
            renew(holds, now, number(ttl), &ids);
            json!(live)
        }
        ("SWLIMIT.HOLDERS", [count @ .., "AT", now]) => {
            let (now, count) = (number(now), count.first().map_or(100, |count| number(count)));
            let shown = holds.oldest(now, count as usize).into_iter().map(|hold| {
                let id = std::str::from_utf8(hold.id()).unwrap();
                let held = now.saturating_sub(hold.token() / 1000);
                json!([id, hold.units(), held, hold.end() - now, hold.token()])
            });
            shown.collect()
        }
        _ => panic!("{command} {words:?}"),
    }
}

fn hold(holds: &mut Holds, now: u64, request: &Request) -> Value {
    let decision = match Holds::decide(Some(holds), now, request, u64::MAX) {
        Ok(Verdict::Granted(grant)) => change(holds, now, |holds| grant.apply(holds, None)),
        Ok(Verdict::Renewed(decision)) => {
            renew(holds, now, request.ttl, &[request.id]);
            decision
        }
        Ok(Verdict::Denied(decision)) => decision,
        Err(Refusal::OtherUnits(units)) => return json!({"error": format!("ERR id holds {units} units")}),
        Err(refusal) => panic!("{refusal:?}"),
    };
    let Decision { granted, limit, remaining, retry_after, expires_after, token } = decision;
    json!([granted, limit, remaining, retry_after.map_or(-1, |ms| ms as i64), expires_after, token])
}

fn renew(holds: &mut Holds, now: u64, ttl: u64, ids: &[&[u8]]) {
    let end = now + ttl;
    if ids.iter().filter_map(|id| holds.get(id, now)).any(|hold| hold.end() != end) {
        change(holds, now, |holds| holds.renew_all(ids.iter().copied(), end));
    }
}

/// Every change begins with a sweep, and leaves no key of which nothing matters any more.
fn change<T>(holds: &mut Holds, now: u64, change: impl FnOnce(&mut Holds) -> T) -> T {
    holds.sweep(now);
    let result = change(holds);
    if holds.end() <= now {
        *holds = Holds::default();
    }
    result
}

fn bytes<'a>(ids: &[&'a str]) -> Vec<&'a [u8]> {
    ids.iter().map(|id| id.as_bytes()).collect()
}

/// A number, or a duration in ms.
fn number(word: &str) -> u64 {
    word.trim_end_matches("ms").parse().unwrap()
}
