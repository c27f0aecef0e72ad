//! Every command of `tests/conformance/vectors/commands.json`: its words, keys, script call and undo.

use serde_json::Value;
use swlimit_window::{Geometry, Quota, Request, WarmUp};

use super::command::Writer;
use super::*;
use crate::demand::Demand;
use crate::transport::{Reply, Words};

const VECTORS: &str = include_str!("../../../../tests/conformance/vectors/commands.json");
/// The instant of what is dated.
const NOW: u64 = 1_760_054_400_000;

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name} of {of}"))
}

fn is(of: &Value, name: &str) -> bool {
    of[name].as_bool().unwrap_or_else(|| panic!("{name} of {of}"))
}

fn bytes(of: &Value) -> Vec<u8> {
    match of.as_str() {
        Some(text) => text.into(),
        None => unhex(of["hex"].as_str().unwrap()),
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn each<T: FromIterator<U>, U>(of: &Value, one: impl FnMut(&Value) -> U) -> T {
    of.as_array().unwrap().iter().map(one).collect()
}

/// A request; what its command has no field for is not set.
fn demand(of: &Value) -> Demand {
    let geometry = Geometry::new(number(of, "window"), number(of, "resolution")).unwrap();
    let quota = Quota { limit: number(of, "limit"), geometry };
    let option = |name: &str| of[name].as_bool().unwrap_or_default();
    let (partial, strict) = (option("partial"), option("strict"));
    let warm_up = of["warm_up"].as_u64().and_then(|duration| WarmUp::new(duration, number(of, "cold")));
    let exact = Request { quota, cost: number(of, "cost"), partial, strict, warm_up };
    Demand { exact, block: of["block"].as_u64().filter(|block| *block > 0) }
}

fn hold(of: &Value) -> HoldClause {
    let (limit, ttl, cost) = (number(of, "limit"), number(of, "ttl"), number(of, "cost"));
    HoldClause { limit, ttl, id: bytes(&of["id"]).into(), cost, own_id: is(of, "own_id") }
}

fn budget(of: &Value) -> BudgetClause {
    BudgetClause { limit: number(of, "limit"), until: number(of, "until"), cost: number(of, "cost") }
}

fn command(name: &str, of: &Value) -> Command {
    let key = || Bytes::from(bytes(&of["key"]));
    let ids = || each(&of["ids"], |id| bytes(id).into());
    let with_key = |one: &Value| Bytes::from(bytes(&one["key"]));
    match name {
        "ALLOW" => Command::Allow { key: key(), demand: demand(of) },
        "PEEK" => Command::Peek { key: key(), demand: demand(of) },
        "RECORD" => Command::Record { key: key(), demand: demand(of), age: number(of, "age") },
        "ACQUIRE" => Command::Acquire { key: key(), demand: demand(of), timeout: number(of, "timeout") },
        "REFUND" => {
            let counted = Counted::of(of["since"].as_u64(), of["age"].as_u64());
            Command::Refund { key: key(), units: number(of, "units"), counted }
        }
        "BLOCK" => Command::Block { key: key(), duration: number(of, "duration"), unless_blocked: is(of, "nx") },
        "UNBLOCK" => Command::Unblock { key: key() },
        "INFO" => Command::Info { key: key() },
        "MALLOW" => {
            let strict = is(of, "strict");
            Command::Mallow { members: each(&of["members"], |one| (with_key(one), demand(one))), strict }
        }
        "HOLD" => Command::Hold { key: key(), hold: hold(of), wait: of["wait"].as_u64() },
        "RENEW" => Command::Renew { key: key(), ttl: number(of, "ttl"), ids: ids() },
        "RELEASE" => Command::Release { key: key(), ids: ids() },
        "HOLDERS" => Command::Holders { key: key(), count: number(of, "count") },
        "BUDGET" => {
            let (partial, force) = (is(of, "partial"), is(of, "force"));
            Command::Budget { key: key(), budget: budget(of), partial, force }
        }
        "ADMIT" => {
            let clause = |one: &Value| match one["kind"].as_str().unwrap() {
                "RATE" => Clause::Rate(demand(one)),
                "HOLD" => Clause::Hold(hold(one)),
                _ => Clause::Budget(budget(one)),
            };
            let members = each(&of["clauses"], |one| (with_key(one), clause(one)));
            Command::Admit { members, strict: is(of, "strict") }
        }
        "SETTLE" => {
            let reserved = each(&of["reserved"], |one| (with_key(one), number(one, "used")));
            Command::Settle { key: key(), id: bytes(&of["id"]).into(), reserved }
        }
        "TOP" => Command::Top { count: number(of, "count") },
        _ => panic!("{name} is no command of the client"),
    }
}

fn reply(of: &Value) -> Reply {
    match (of.as_i64(), of.as_array()) {
        (Some(integer), _) => Reply::Integer(integer),
        (_, Some(_)) => Reply::Array(each(of, reply)),
        _ => Reply::Error(of["error"].as_str().unwrap().into()),
    }
}

fn words(command: &Command) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    command.each(&mut |word| words.push(word.to_vec()));
    words
}

fn arguments(command: &Command, at: Option<u64>) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    command.write_arguments(at, &mut Writer(&mut |word| words.push(word.to_vec())));
    words
}

#[test]
fn every_command() {
    let entries: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
    assert!(entries.len() > 100);
    for entry in &entries {
        let command = command(entry["command"].as_str().unwrap(), &entry["fields"]);
        let all = |of: &Value| each::<Vec<_>, _>(of, bytes);
        assert_eq!(words(&command), all(&entry["words"]), "{entry}");
        assert_eq!(command.keys().collect::<Vec<_>>(), all(&entry["keys"]), "{entry}");
        assert_eq!(command.reads(), is(entry, "reads"), "{entry}");
        let script = &entry["script"];
        assert_eq!(command.is_scripted(), !script.is_null(), "{entry}");
        for (name, at) in [("packed", None), ("words", None), ("dated", Some(NOW))] {
            match &script[name] {
                Value::Null => {}
                Value::String(hex) => assert_eq!(arguments(&command, at), [unhex(hex)], "{name} of {entry}"),
                words => assert_eq!(arguments(&command, at), all(words), "{name} of {entry}"),
            }
        }
    }
}

#[test]
fn every_undo() {
    let entries: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
    let mut cases = 0;
    for entry in &entries {
        let name = entry["command"].as_str().unwrap();
        let command = command(name, &entry["fields"]);
        for case in entry["undo"].as_array().unwrap() {
            let reply = Some(&case["reply"]).filter(|reply| !reply.is_null()).map(reply);
            let undone = command.undo(reply.as_ref(), case["since"].as_u64().unwrap_or_default(), 0);
            let undone: Vec<_> = undone.iter().map(words).collect();
            let expected = each::<Vec<_>, _>(&case["commands"], |words| each::<Vec<_>, _>(words, bytes));
            assert_eq!(undone, expected, "{entry}");
            cases += 1;
        }
    }
    assert!(cases > 100, "{cases}");
}
