//! The test vectors that clients in other languages use, too: `tests/conformance/vectors` describes them.

use std::collections::HashMap;
use std::num::NonZeroU64;

use serde_json::{json, Value};

use crate::*;

fn vectors(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

fn geometry(of: &Value) -> Geometry {
    Geometry::new(of["window"].as_u64().unwrap(), of["resolution"].as_u64().unwrap()).unwrap()
}

/// An entry that holds the counts of `stored`, a block, and since when it is in use.
fn entry(stored: &Value, blocked_until: u64, since: Option<u64>) -> Entry {
    let counts = stored["counts"].as_array().filter(|counts| !counts.is_empty());
    let mut entry = counts.map_or_else(Entry::default, |counts| {
        let geometry = geometry(stored);
        let counts = counts.iter().map(|count| Count {
            subinterval: geometry.subinterval_at(count[0].as_u64().unwrap()),
            units: count[1].as_u64().unwrap(),
        });
        let window = Window::with_counts(geometry, counts).unwrap();
        since.map_or_else(
            || window.clone().into(),
            |since| Entry::in_use(NonZeroU64::new(since).unwrap(), 0, window.clone()).unwrap(),
        )
    });
    if blocked_until > 0 {
        entry.block(blocked_until);
    }
    entry
}

#[test]
fn durations() {
    for case in vectors(include_str!("../../../tests/conformance/vectors/durations.json")) {
        assert_eq!(duration(case["text"].as_str().unwrap().as_bytes()), case["ms"].as_u64(), "{case}");
    }
}

#[test]
fn decisions() {
    for case in vectors(include_str!("../../../tests/conformance/vectors/decisions.json")) {
        let request = &case["request"];
        let integer = |field: &str| request[field].as_u64().unwrap();
        let flag = |field: &str| request[field].as_bool().unwrap();
        let quota = Quota { limit: integer("limit"), geometry: geometry(request) };
        let cold = request["cold"].as_u64().unwrap_or(WarmUp::COLD);
        let warm_up = request["warm_up"].as_u64().map(|duration| WarmUp::new(duration, cold).unwrap());
        let (partial, strict) = (flag("partial"), flag("strict"));
        let request = Request { quota, cost: integer("cost"), partial, strict, warm_up };
        let entry = entry(&case["stored"], case["blocked_until"].as_u64().unwrap(), case["since"].as_u64());
        let decision = Entry::peek(Some(&entry), case["now"].as_u64().unwrap(), &request).unwrap();
        assert_eq!(integers(decision), case["decision"], "{case}");
    }
}

fn integers(decision: Decision) -> Value {
    let Decision { granted, limit, remaining, retry_after, reset_after } = decision;
    json!([granted, limit, remaining, retry_after.map_or(-1, |ms| ms as i64), reset_after])
}

#[test]
fn replies() {
    let sequences = vectors(include_str!("../../../tests/conformance/vectors/replies.json"));
    for sequence in sequences.iter().filter(|sequence| sequence["name"].as_str().unwrap().starts_with("workload")) {
        let mut keys = HashMap::new();
        for step in sequence["steps"].as_array().unwrap() {
            let words: Vec<&str> = step["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let entry = keys.entry(words[1].to_owned()).or_insert_with(Entry::default);
            let (before, now) = (encode(entry), option(&words, "AT").unwrap());
            let reply =
                reply(entry, now, &words).unwrap_or_else(|Overflow| json!({"error": "ERR count would overflow"}));
            if encode(entry) != before && entry.end() <= now {
                // A change deletes a key in which nothing matters any more.
                *entry = Entry::default();
            }
            assert_eq!(reply, step["reply"], "{step}");
        }
    }
}

/// A number, or a duration in ms.
fn number(word: &str) -> u64 {
    word.trim_end_matches("ms").parse().unwrap()
}

fn option(words: &[&str], name: &str) -> Option<u64> {
    words.iter().position(|word| *word == name).map(|place| number(words[place + 1]))
}

/// The reply to a command on a key at an instant.
fn reply(entry: &mut Entry, now: u64, words: &[&str]) -> Result<Value, Overflow> {
    let (number, option) = (|place: usize| number(words[place]), |name| option(words, name));
    let blocked = entry.blocked_for(now);
    let quota = || Quota { limit: number(2), geometry: Geometry::new(number(3), number(4)).unwrap() };
    let request = || Request {
        quota: quota(),
        cost: option("COST").unwrap_or(1),
        partial: words.contains(&"PARTIAL"),
        strict: words.contains(&"STRICT"),
        warm_up: option("WARMUP").map(|ms| WarmUp::new(ms, option("COLD").unwrap_or(WarmUp::COLD)).unwrap()),
    };
    let begin_block = |entry: &mut Entry, decision: Decision, is_denied: bool| {
        let block = option("BLOCK").filter(|_| is_denied && blocked.is_none());
        block.into_iter().for_each(|ms| entry.block(now + ms));
        integers(decision.blocked_for(block))
    };
    Ok(match words[0] {
        "SWLIMIT.ALLOW" => match Entry::decide(Some(entry), now, &request())? {
            Verdict::Granted(grant) => integers(grant.apply(entry)),
            Verdict::Denied(decision) => begin_block(entry, decision, true),
        },
        "SWLIMIT.PEEK" => integers(Entry::peek(Some(entry), now, &request())?),
        "SWLIMIT.RECORD" => {
            let dated = option("AGE").map_or(now, |age| now.saturating_sub(age));
            match Entry::record(Some(entry), now, Some(dated), &request())? {
                Recording::Dropped(decision) => integers(decision),
                Recording::Counted(record) => {
                    let is_denied = record.is_denied();
                    let decision = record.apply(entry);
                    begin_block(entry, decision, is_denied)
                }
            }
        }
        "SWLIMIT.REFUND" => {
            let age = option("AGE").map(|age| age.min(now)).or(option("SINCE").map(|since| now.saturating_sub(since)));
            json!(entry.refund(number(2), age, now))
        }
        "SWLIMIT.BLOCK" => {
            match blocked.filter(|ms| words.contains(&"NX") || words.contains(&"GT") && *ms >= number(2)) {
                Some(ms) => json!(now + ms),
                None => {
                    entry.block(now + number(2));
                    json!(now + number(2))
                }
            }
        }
        "SWLIMIT.UNBLOCK" => {
            if blocked.is_some() {
                entry.unblock();
            }
            json!(u8::from(blocked.is_some()))
        }
        _ => panic!("{words:?}"),
    })
}

#[test]
fn encodings() {
    for case in vectors(include_str!("../../../tests/conformance/vectors/encodings.json")) {
        let hex = case["value"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let value: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let expected = entry(&case, case["blocked_until"].as_u64().unwrap(), case["since"].as_u64());
        assert_eq!(encode(&expected), value, "{case}");
        assert_eq!(encode(&decode(VERSION, &value).unwrap()), value, "{case}");
    }
}
