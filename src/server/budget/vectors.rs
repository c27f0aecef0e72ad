//! The test vectors that servers are tested with, too: `tests/conformance/vectors` describes them.

use std::collections::HashMap;

use serde_json::{json, Value};
use swlimit_window::{Decision, MAX_WINDOW};

use crate::*;

#[test]
fn budgets_alone() {
    let sequences: Vec<Value> =
        serde_json::from_str(include_str!("../../../tests/conformance/vectors/budgets.json")).unwrap();
    let sequence = sequences.iter().find(|sequence| sequence["name"] == "budgets alone").unwrap();
    let mut keys = HashMap::new();
    for step in sequence["steps"].as_array().unwrap() {
        let words: Vec<&str> = step["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(reply(&mut keys, &words), step["reply"], "{step}");
    }
}

fn reply(keys: &mut HashMap<String, Budget>, words: &[&str]) -> Value {
    let [command, key, words @ ..] = words else { panic!() };
    let option = |name| words.iter().position(|word| *word == name).map(|place| number(words[place + 1]));
    let (budget, now) = (keys.get_mut(*key), option("AT").unwrap());
    match (*command, words) {
        ("SWLIMIT.BUDGET", [limit, until, ..]) => {
            let cost = option("COST").unwrap_or(1);
            let request =
                Request { limit: number(limit), until: number(until), cost, partial: words.contains(&"PARTIAL") };
            if !(now + 1..=now + MAX_WINDOW).contains(&request.until) {
                // The caller must check this.
                return json!({"error": "ERR until must be a Unix time in milliseconds after now, at most 3650 days"});
            }
            let (count, decision) = match words.contains(&"FORCE") {
                false => Budget::decide(budget.as_deref(), now, &request),
                true => match Budget::force(budget.as_deref(), now, &request) {
                    Ok((count, decision)) => (Some(count), decision),
                    Err(_) => return json!({"error": "ERR count would overflow"}),
                },
            };
            if let Some(count) = count {
                keys.insert((*key).into(), count.budget());
            }
            let Decision { granted, limit, remaining, retry_after, reset_after } = decision;
            json!([granted, limit, remaining, retry_after.map_or(-1, |ms| ms as i64), reset_after])
        }
        ("SWLIMIT.REFUND", [units, ..]) => {
            let refundable = |budget: &Budget| budget.refundable(number(units), option("AGE"), now);
            let given = budget.as_deref().map_or(0, refundable);
            if let Some(budget) = budget {
                budget.refund(given);
            }
            json!(given)
        }
        _ => panic!("{command} {words:?}"),
    }
}

/// A number, or a duration in ms.
fn number(word: &str) -> u64 {
    word.trim_end_matches("ms").parse().unwrap()
}
