//! The test vectors that clients in other languages use, too: `tests/vectors` describes them.

use serde_json::Value;

use crate::*;

fn vectors(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

fn geometry(of: &Value) -> Geometry {
    Geometry::new(of["window"].as_u64().unwrap(), of["resolution"].as_u64().unwrap()).unwrap()
}

/// An entry that holds the counts of `stored`, and a block.
fn entry(stored: &Value, blocked_until: u64) -> Entry {
    let counts = stored["counts"].as_array().filter(|counts| !counts.is_empty());
    let mut entry = counts.map_or_else(Entry::default, |counts| {
        let geometry = geometry(stored);
        let counts = counts.iter().map(|count| Count {
            subinterval: geometry.subinterval_at(count[0].as_u64().unwrap()),
            units: count[1].as_u64().unwrap(),
        });
        Window::with_counts(geometry, counts).unwrap().into()
    });
    if blocked_until > 0 {
        entry.block(blocked_until);
    }
    entry
}

#[test]
fn durations() {
    for case in vectors(include_str!("../../tests/vectors/durations.json")) {
        assert_eq!(duration(case["text"].as_str().unwrap().as_bytes()), case["ms"].as_u64(), "{case}");
    }
}

#[test]
fn decisions() {
    for case in vectors(include_str!("../../tests/vectors/decisions.json")) {
        let request = &case["request"];
        let integer = |field: &str| request[field].as_u64().unwrap();
        let flag = |field: &str| request[field].as_bool().unwrap();
        let quota = Quota { limit: integer("limit"), geometry: geometry(request) };
        let request = Request { quota, cost: integer("cost"), partial: flag("partial"), strict: flag("strict") };
        let entry = entry(&case["stored"], case["blocked_until"].as_u64().unwrap());
        let decision = Entry::peek(Some(&entry), case["now"].as_u64().unwrap(), &request).unwrap();
        let Decision { granted, limit, remaining, retry_after, reset_after } = decision;
        let retry_after = retry_after.map_or(-1, |ms| ms as i64);
        assert_eq!(
            serde_json::json!([granted, limit, remaining, retry_after, reset_after]),
            case["decision"],
            "{case}"
        );
    }
}

#[test]
fn encodings() {
    for case in vectors(include_str!("../../tests/vectors/encodings.json")) {
        let hex = case["value"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let value: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let expected = entry(&case, case["blocked_until"].as_u64().unwrap());
        assert_eq!(encode(&expected), value, "{case}");
        assert_eq!(encode(&decode(VERSION, &value).unwrap()), value, "{case}");
    }
}
