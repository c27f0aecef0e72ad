//! A server: its keys, and what it answers.

use std::collections::HashMap;
use std::ops::Range;

use swlimit_hold::Holds;
use swlimit_window::{Decision, Entry, Geometry, Quota, Recording, Verdict, WarmUp};

use crate::transport::Reply;

/// What a server holds.
#[derive(Clone, Default)]
pub(super) struct Server {
    pub keys: HashMap<Vec<u8>, Entry>,
    pub holds: HashMap<Vec<u8>, Holds>,
    /// It has no module, and executes the script's calls.
    pub is_scripted: bool,
    /// It knows the script still, beside the module.
    pub was_scripted: bool,
    /// Which process it is, and which data it has.
    pub run_id: u64,
    pub replication_id: u64,
    /// With this it answers everything that writes; without the module, all commands of its own.
    pub failure: Option<String>,
    /// What it answers to writes on these keys.
    pub refused: HashMap<Vec<u8>, String>,
    /// Commands that the user may not use.
    pub forbidden: Vec<String>,
    /// Expiries that somebody has shortened, in Unix ms.
    pub expiries: HashMap<Vec<u8>, u64>,
    /// Commands so far, their words joined.
    pub commands: Vec<String>,
    /// Units that were counted, given back and recorded so far, by key.
    pub counted: HashMap<Vec<u8>, u64>,
    pub returned: HashMap<Vec<u8>, u64>,
    /// Units of those counted that were recorded.
    pub recorded: u64,
}

/// A reply, and the keys that were changed.
pub(super) struct Answer {
    pub reply: Reply,
    pub changed: Vec<Vec<u8>>,
    /// Units that were counted.
    pub units: u64,
}

/// Whether a command writes nothing.
pub(super) fn is_read(name: &[u8]) -> bool {
    matches!(name, b"TIME" | b"INFO" | b"PING" | b"PTTL" | b"SWLIMIT.PEEK" | b"SWLIMIT.INFO" | b"CLUSTER")
}

/// Whether the number of keys is before them.
fn is_counted(name: &[u8]) -> bool {
    matches!(name, b"SWLIMIT.MALLOW" | b"SWLIMIT.ADMIT" | b"SWLIMIT.SETTLE")
}

/// Whether a command is answered with this failure.
fn refuses(failure: &str, name: &[u8]) -> bool {
    match failure.starts_with("ERR unknown command") {
        true => name.starts_with(b"SWLIMIT."),
        false => !is_read(name),
    }
}

impl Server {
    /// What a key holds, unless it has expired.
    pub fn alive(&self, key: &[u8], now: u64) -> Option<&Entry> {
        self.keys.get(key).filter(|_| self.expiries.get(key).is_none_or(|at| *at > now))
    }

    /// A command as the module has it: here, a call of the script is one, and the module's own are unknown.
    pub fn understood(&self, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let [name, _, count, rest @ ..] = words else { return self.known(words) };
        if !(self.is_scripted || self.was_scripted) || !name.starts_with(b"EVALSHA") {
            return self.known(words);
        }
        let count = String::from_utf8_lossy(count).parse::<usize>().unwrap();
        let (keys, arguments) = rest.split_at(count);
        let command = |name: &[u8]| [b"SWLIMIT.", name].concat();
        let (name, options) = match arguments {
            [packed] if packed.len() == 33 => {
                let number = |at: usize| u64::from_le_bytes(packed[8 * at + 1..][..8].try_into().unwrap());
                let [limit, resolution, subintervals, cost] = [0, 1, 2, 3].map(number);
                let window = resolution * subintervals;
                let words = format!("{limit} {window}ms {resolution}ms COST {cost}");
                let name: &[u8] = if packed[0] & 1 > 0 { b"ALLOW" } else { b"PEEK" };
                (command(name), words.split(' ').map(|word| word.as_bytes().to_vec()).collect())
            }
            arguments => (command(&arguments[0]), arguments[1..].to_vec()),
        };
        let count = is_counted(&name).then(|| count.to_string().into_bytes());
        [&[name], count.as_slice(), keys, options.as_slice()].concat()
    }

    fn known(&self, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        match self.is_scripted && words[0].starts_with(b"SWLIMIT.") {
            true => vec![b"UNKNOWN".to_vec()],
            false => words.to_vec(),
        }
    }

    /// Executes a command at an instant of its clock, in Unix ms.
    pub fn execute(&mut self, words: &[Vec<u8>], now: u64) -> Answer {
        let text: Vec<String> = words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        self.commands.push(text.join(" "));
        let mut changed = Vec::new();
        let before: u64 = self.counted.values().sum();
        let reply = self.reply(&text, words, now, &mut changed).unwrap_or_else(Reply::Error);
        let units = self.counted.values().sum::<u64>() - before;
        Answer { reply, changed, units }
    }

    fn reply(
        &mut self,
        text: &[String],
        words: &[Vec<u8>],
        now: u64,
        changed: &mut Vec<Vec<u8>>,
    ) -> Result<Reply, String> {
        let key = words.get(1).cloned().unwrap_or_default();
        if let Some(failure) = self.failure.as_ref().filter(|failure| refuses(failure, &words[0])) {
            return Err(failure.clone());
        }
        if self.forbidden.contains(&text[0]) {
            return Err(format!(
                "NOPERM User default has no permissions to run the '{}' command",
                text[0].to_lowercase()
            ));
        }
        if words.len() == 1 && text[0].starts_with("SWLIMIT.") {
            // Whether it is known is asked by its name alone.
            return Err(format!("ERR wrong number of arguments for '{}' command", text[0].to_lowercase()));
        }
        if self.expiries.get(&key).is_some_and(|at| *at <= now) {
            self.expiries.remove(&key);
            self.keys.remove(&key);
        }
        let keys = match text[0].as_str() {
            "SWLIMIT.MALLOW" => &words[2..][..text[1].parse().unwrap()],
            _ => std::slice::from_ref(&key),
        };
        if let Some(refused) = keys.iter().find_map(|key| self.refused.get(key)) {
            return Err(refused.clone());
        }
        Ok(match text[0].as_str() {
            "PING" => Reply::Bytes(b"PONG".to_vec()),
            "TIME" => {
                let word = |number: u64| Reply::Bytes(number.to_string().into_bytes());
                Reply::Array(vec![word(now / 1000), word(now % 1000 * 1000)])
            }
            "INFO" => {
                let text = format!("run_id:{}\r\nmaster_replid:{}\r\n", self.run_id, self.replication_id);
                Reply::Bytes(text.into_bytes())
            }
            "PTTL" => Reply::Integer(
                match self
                    .keys
                    .get(&key)
                    .map(|entry| self.expiries.get(&key).map_or(entry.end(), |at| entry.end().min(*at)))
                {
                    Some(end) if end > now => (end - now) as i64,
                    _ => -2,
                },
            ),
            "DEL" => {
                let deleted = self.keys.remove(&key).is_some();
                changed.push(key);
                Reply::Integer(deleted.into())
            }
            "SWLIMIT.ALLOW" | "SWLIMIT.ACQUIRE" => {
                let is_waiting = text[0] == "SWLIMIT.ACQUIRE";
                // Behind the quota comes how long one waits.
                let words = [&text[2..5], &text[if is_waiting { 6 } else { 5 }..]].concat();
                let (demand, options) = demand(&words);
                let entry = self.keys.entry(key.clone()).or_default();
                match Entry::decide(Some(entry), now, &demand).map_err(|_| "ERR count would overflow")? {
                    Verdict::Granted(grant) => {
                        let decision = grant.apply(entry);
                        *self.counted.entry(key.clone()).or_default() += decision.granted;
                        changed.push(key);
                        five(decision)
                    }
                    Verdict::Denied(decision) => match options.get("BLOCK") {
                        Some(ms) if entry.blocked_for(now).is_none() => {
                            entry.block(now + ms);
                            changed.push(key);
                            five(decision.blocked_for(Some(*ms)))
                        }
                        _ => five(decision),
                    },
                }
            }
            "SWLIMIT.PEEK" => five(Entry::peek(self.keys.get(&key), now, &demand(&text[2..]).0).unwrap()),
            "SWLIMIT.RECORD" => {
                let (demand, options) = demand(&text[2..]);
                let entry = self.keys.entry(key.clone()).or_default();
                let dated = options.get("AGE").map(|age| now.saturating_sub(*age));
                match Entry::record(Some(entry), now, dated, &demand).map_err(|_| "ERR count would overflow")? {
                    Recording::Dropped(decision) => five(decision),
                    Recording::Counted(record) => {
                        *self.counted.entry(key.clone()).or_default() += demand.cost;
                        self.recorded += demand.cost;
                        changed.push(key);
                        five(record.apply(entry))
                    }
                }
            }
            "SWLIMIT.REFUND" => {
                let ms = |word: &String| swlimit_window::duration_or_zero(word.as_bytes()).unwrap();
                let age = match text.get(3).map(String::as_str) {
                    Some("AGE") => Some(ms(&text[4])),
                    Some("SINCE") => Some(now.saturating_sub(text[4].parse().unwrap())),
                    _ => None,
                };
                let units = text[2].parse().unwrap();
                let given = self.keys.get_mut(&key).map_or(0, |entry| entry.refund(units, age, now));
                *self.returned.entry(key.clone()).or_default() += given;
                if given > 0 {
                    changed.push(key);
                }
                Reply::Integer(given as i64)
            }
            "SWLIMIT.BLOCK" => {
                let ms = swlimit_window::duration(text[2].as_bytes()).unwrap();
                self.keys.entry(key.clone()).or_default().block(now + ms);
                changed.push(key);
                Reply::Integer((now + ms) as i64)
            }
            "SWLIMIT.UNBLOCK" => {
                self.keys.entry(key.clone()).or_default().unblock();
                changed.push(key);
                Reply::Integer(1)
            }
            "SETRANGE" => Reply::Integer(0),
            "SWLIMIT.HOLD" => self.hold(words, text, now)?,
            "SWLIMIT.RENEW" => self.renew(words, text, now),
            "SWLIMIT.RELEASE" => {
                changed.push(key);
                self.release(words, now)
            }
            "SWLIMIT.INFO" => self.info(&key, now)?,
            "SWLIMIT.MALLOW" => self.mallow(text, words, now, changed),
            "SWLIMIT.ADMIT" => self.admit(text, words, now, changed),
            "SWLIMIT.SETTLE" => self.settle(text, words, now, changed),
            name => return Err(format!("ERR unknown command '{name}'")),
        })
    }

    fn mallow(&mut self, text: &[String], words: &[Vec<u8>], now: u64, changed: &mut Vec<Vec<u8>>) -> Reply {
        let count: usize = text[1].parse().unwrap();
        let strict = text.last().unwrap() == "STRICT";
        let clauses = clauses(text, count, 4).into_iter().zip(&words[2..]);
        let of = |clause: Range<usize>| swlimit_window::Request { strict, ..member(&text[clause]) };
        let members: Vec<_> = clauses.map(|(clause, key)| (key.clone(), of(clause))).collect();
        let denied =
            members.iter().any(|(key, demand)| Entry::peek(self.keys.get(key), now, demand).unwrap().granted == 0);
        let mut replies = vec![Reply::Integer(i64::from(!denied))];
        for (key, demand) in members {
            let entry = self.keys.entry(key.clone()).or_default();
            match Entry::decide(Some(entry), now, &demand).unwrap() {
                Verdict::Granted(grant) if !denied => {
                    replies.push(five(grant.apply(entry)));
                    *self.counted.entry(key.clone()).or_default() += demand.cost;
                    changed.push(key);
                }
                _ => replies.push(five(Entry::peek(Some(entry), now, &demand).unwrap())),
            }
        }
        Reply::Array(replies)
    }
}

/// Where the clauses of several limits are: so many, each of so many words, and of how its limit rises.
pub(super) fn clauses(text: &[String], count: usize, length: usize) -> Vec<Range<usize>> {
    let mut next = 2 + count;
    let clause = |_| {
        let begin = next;
        next += length;
        for option in ["WARMUP", "COLD"] {
            next += if text.get(next).is_some_and(|word| word == option) { 2 } else { 0 };
        }
        begin..next
    };
    (0..count).map(clause).collect()
}

/// `limit window resolution cost [WARMUP ms [COLD n]]`
pub(super) fn member(words: &[String]) -> swlimit_window::Request {
    demand(&[&words[..3], &["COST".into()], &words[3..]].concat()).0
}

/// `limit window resolution [COST n] [PARTIAL] [STRICT] [AGE ms] [WARMUP ms [COLD n]] [BLOCK ms]`: the demand, and the durations by their
/// names.
pub(super) fn demand(words: &[String]) -> (swlimit_window::Request, HashMap<&str, u64>) {
    let ms = |word: &String| swlimit_window::duration_or_zero(word.as_bytes()).unwrap();
    let geometry = Geometry::new(ms(&words[1]), ms(&words[2])).unwrap();
    let quota = Quota { limit: words[0].parse().unwrap(), geometry };
    let mut demand = swlimit_window::Request { quota, cost: 1, partial: false, strict: false, warm_up: None };
    let (mut durations, mut cold) = (HashMap::new(), WarmUp::COLD);
    let mut options = words[3..].iter();
    while let Some(option) = options.next() {
        match option.as_str() {
            "COST" => demand.cost = options.next().unwrap().parse().unwrap(),
            "PARTIAL" => demand.partial = true,
            "STRICT" => demand.strict = true,
            "COLD" => cold = options.next().unwrap().parse().unwrap(),
            name => drop(durations.insert(name, ms(options.next().unwrap()))),
        }
    }
    demand.warm_up = durations.get("WARMUP").map(|duration| WarmUp::new(*duration, cold).unwrap());
    (demand, durations)
}

pub(super) fn five(decision: Decision) -> Reply {
    let Decision { granted, limit, remaining, retry_after, reset_after } = decision;
    let never = |ms: Option<u64>| ms.map_or(-1, |ms| ms as i64);
    let integers = [granted as i64, limit as i64, remaining as i64, never(retry_after), reset_after as i64];
    Reply::Array(integers.map(Reply::Integer).to_vec())
}
