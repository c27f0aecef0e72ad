//! The commands of the module, and their replies.

use std::time::Duration;

use swlimit_window::Decision;

use crate::clock::ms;
use crate::demand::Demand;
use crate::error::Error;
use crate::wire::{Command, Reply};

pub(crate) fn allow(key: &[u8], demand: &Demand) -> Command {
    blocking(asking("SWLIMIT.ALLOW", key, demand), demand)
}

pub(crate) fn peek(key: &[u8], demand: &Demand) -> Command {
    asking("SWLIMIT.PEEK", key, demand)
}

/// `age` in ms.
pub(crate) fn record(key: &[u8], demand: &Demand, age: Option<u64>) -> Command {
    blocking(aged(asking("SWLIMIT.RECORD", key, demand), age), demand)
}

/// `timeout` in ms.
pub(crate) fn acquire(key: &[u8], demand: &Demand, timeout: u64) -> Command {
    optional(quota(Command::on("SWLIMIT.ACQUIRE", key), demand).ms(timeout), demand)
}

/// `age` in ms.
pub(crate) fn refund(key: &[u8], units: u64, age: Option<u64>) -> Command {
    aged(Command::on("SWLIMIT.REFUND", key).number(units), age)
}

/// `since` in Unix ms of the server's clock.
pub(crate) fn refund_since(key: &[u8], units: u64, since: u64) -> Command {
    Command::on("SWLIMIT.REFUND", key).number(units).word(b"SINCE").number(since)
}

pub(crate) fn time() -> Command {
    Command::named("TIME", usize::MAX)
}

/// Deletes a key, whatever it holds.
pub(crate) fn reset(key: &[u8]) -> Command {
    Command::on("DEL", key)
}

/// What the server holds of a key.
pub(crate) fn info(key: &[u8]) -> Command {
    Command::on("SWLIMIT.INFO", key)
}

pub(crate) fn pttl(key: &[u8]) -> Command {
    Command::on("PTTL", key)
}

/// The first four bytes of a string.
pub(crate) fn beginning(key: &[u8]) -> Command {
    Command::on("GETRANGE", key).number(0).number(3)
}

/// A write that changes nothing, of servers on which the script decides.
pub(crate) fn empty_write(key: &[u8]) -> Command {
    Command::on("SETRANGE", key).number(0).word(b"")
}

/// `duration` in ms.
pub(crate) fn block(key: &[u8], duration: u64, unless_blocked: bool) -> Command {
    let command = Command::on("SWLIMIT.BLOCK", key).ms(duration);
    if unless_blocked {
        command.word(b"NX")
    } else {
        command
    }
}

pub(crate) fn unblock(key: &[u8]) -> Command {
    Command::on("SWLIMIT.UNBLOCK", key)
}

/// What is asked of a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldWords<'a> {
    pub limit: u64,
    /// In ms.
    pub ttl: u64,
    pub id: &'a [u8],
    pub cost: u64,
}

/// `wait` in ms.
pub(crate) fn hold(key: &[u8], hold: &HoldWords<'_>, wait: Option<u64>) -> Command {
    let command = Command::on("SWLIMIT.HOLD", key).number(hold.limit).ms(hold.ttl).word(hold.id);
    let command = match hold.cost {
        1 => command,
        cost => command.word(b"COST").number(cost),
    };
    match wait {
        Some(ms) => command.word(b"WAIT").ms(ms),
        None => command,
    }
}

pub(crate) fn renew(key: &[u8], ttl: Duration, ids: &[impl AsRef<[u8]>]) -> Command {
    named(Command::on("SWLIMIT.RENEW", key).ms(ms(ttl)), ids)
}

pub(crate) fn release(key: &[u8], ids: &[impl AsRef<[u8]>]) -> Command {
    named(Command::on("SWLIMIT.RELEASE", key), ids)
}

/// The holds that a command is about.
fn named(command: Command, ids: &[impl AsRef<[u8]>]) -> Command {
    ids.iter().fold(command, |command, id| command.word(id.as_ref()))
}

pub(crate) fn holders(key: &[u8], count: u64) -> Command {
    Command::on("SWLIMIT.HOLDERS", key).number(count)
}

/// `until` in Unix ms.
pub(crate) fn budget(key: &[u8], limit: u64, until: u64, cost: u64) -> Command {
    Command::on("SWLIMIT.BUDGET", key).number(limit).number(until).word(b"COST").number(cost)
}

/// One of several decisions in one.
pub(crate) enum Clause<'a> {
    Rate(Demand),
    Hold(HoldWords<'a>),
    /// Limit, the period's end in Unix ms, and cost.
    Budget(u64, u64, u64),
}

/// The keys side by side, then their clauses.
pub(crate) fn admit(members: &[(&[u8], Clause<'_>)]) -> Command {
    let mut command = Command::named("SWLIMIT.ADMIT", 2).number(members.len() as u64);
    for (key, _) in members {
        command = command.word(key);
    }
    for (_, clause) in members {
        command = match clause {
            Clause::Rate(demand) => quota(command.word(b"RATE"), demand).number(demand.exact.cost),
            Clause::Hold(hold) => command.word(b"HOLD").number(hold.limit).ms(hold.ttl).word(hold.id).number(hold.cost),
            Clause::Budget(limit, until, cost) => command.word(b"BUDGET").number(*limit).number(*until).number(*cost),
        };
    }
    let is_strict = |(_, clause): &(&[u8], Clause<'_>)| matches!(clause, Clause::Rate(demand) if demand.exact.strict);
    if members.iter().any(is_strict) {
        command = command.word(b"STRICT");
    }
    command
}

/// The hold's key, then those it has reserved, each with what was used of it.
pub(crate) fn settle(key: &[u8], id: &[u8], reserved: &[(&[u8], u64)]) -> Command {
    let command = Command::named("SWLIMIT.SETTLE", 2).number(1 + reserved.len() as u64).word(key);
    let command = reserved.iter().fold(command, |command, (key, _)| command.word(key));
    reserved.iter().fold(command.word(id), |command, (_, used)| command.number(*used))
}

/// The keys side by side, then their quotas.
pub(crate) fn mallow(members: &[(&[u8], Demand)]) -> Command {
    let mut command = Command::named("SWLIMIT.MALLOW", 2).number(members.len() as u64);
    for (key, _) in members {
        command = command.word(key);
    }
    for (_, demand) in members {
        command = quota(command, demand).number(demand.exact.cost);
    }
    if members.iter().any(|(_, demand)| demand.exact.strict) {
        command = command.word(b"STRICT");
    }
    command
}

fn asking(name: &str, key: &[u8], demand: &Demand) -> Command {
    let command = optional(quota(Command::on(name, key), demand), demand);
    if demand.exact.partial {
        command.word(b"PARTIAL")
    } else {
        command
    }
}

fn quota(command: Command, demand: &Demand) -> Command {
    let quota = demand.exact.quota;
    command.number(quota.limit).ms(quota.geometry.window()).ms(quota.geometry.resolution())
}

fn optional(command: Command, demand: &Demand) -> Command {
    let command = match demand.exact.cost {
        1 => command,
        cost => command.word(b"COST").number(cost),
    };
    if demand.exact.strict {
        command.word(b"STRICT")
    } else {
        command
    }
}

fn blocking(command: Command, demand: &Demand) -> Command {
    match demand.block {
        Some(ms) => command.word(b"BLOCK").ms(ms),
        None => command,
    }
}

fn aged(command: Command, age: Option<u64>) -> Command {
    match age {
        Some(ms) => command.word(b"AGE").ms(ms),
        None => command,
    }
}

/// Whether a server that refuses writes, for whatever reason, refuses this.
pub(crate) fn is_refused_with_writes(command: &Command) -> bool {
    let name = command.name();
    let Some(name) = name.strip_prefix(b"SWLIMIT.") else { return false };
    [&b"ALLOW"[..], b"MALLOW", b"ACQUIRE", b"ADMIT", b"RECORD", b"BLOCK", b"HOLD", b"BUDGET"].contains(&name)
}

/// How many units this reply to a command granted.
pub(crate) fn granted(command: &Command, reply: &Reply) -> u64 {
    match command.name() {
        b"SWLIMIT.ALLOW" | b"SWLIMIT.ACQUIRE" | b"SWLIMIT.BUDGET" => {
            reply.decision().map_or(0, |decision| decision.granted)
        }
        b"SWLIMIT.MALLOW" => match reply.decisions() {
            Ok((true, each)) => each.iter().map(|decision| decision.granted).sum(),
            _ => 0,
        },
        _ => 0,
    }
}

/// What gives back what this reply to a command granted, if nobody took it: units that were counted since an instant of
/// the server's clock, by a command that was sent so many ms ago.
///
/// A hold is released by its keeper, and with it what it has reserved. Of ALLOW and MALLOW nothing is given back: whoever
/// gives up there is often a proxy that lets its request pass.
pub(crate) fn undo(command: &Command, reply: &Reply, since: u64, passed: u64) -> Vec<Command> {
    let words: Vec<&[u8]> = command.words().collect();
    match command.name() {
        b"SWLIMIT.ACQUIRE" | b"SWLIMIT.BUDGET" => match words.as_slice() {
            [name, key, clause @ ..] => clause_undone(name, key, clause, reply, since, passed).into_iter().collect(),
            _ => Vec::new(),
        },
        b"SWLIMIT.ADMIT" => admission_undone(&words, reply, since, passed).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn clause_undone(kind: &[u8], key: &[u8], words: &[&[u8]], reply: &Reply, since: u64, passed: u64) -> Option<Command> {
    let Decision { granted, reset_after, .. } = reply.decision().ok().filter(|decision| decision.granted > 0)?;
    match kind {
        // Once its period has ended, the units are another one's.
        b"BUDGET" | b"SWLIMIT.BUDGET" if passed < reset_after && !words.contains(&&b"FORCE"[..]) => {
            Some(refund(key, granted, None))
        }
        b"RATE" | b"SWLIMIT.ACQUIRE" => Some(refund_since(key, granted, since)),
        _ => None,
    }
}

/// `numkeys key [key …] clause [clause …]`; nothing where one of them is a hold.
fn admission_undone(words: &[&[u8]], reply: &Reply, since: u64, passed: u64) -> Option<Vec<Command>> {
    let (granted, replies) = reply.clauses().ok()?;
    let count: usize = std::str::from_utf8(words.get(1)?).ok()?.parse().ok()?;
    let (keys, mut clauses) = words.get(2..)?.split_at_checked(count)?;
    let mut undone = Vec::new();
    for (key, reply) in keys.iter().zip(replies).filter(|_| granted) {
        let kind = *clauses.first()?;
        let length = match kind {
            b"RATE" => 5,
            b"BUDGET" => 4,
            _ => return None,
        };
        let (clause, rest) = clauses.split_at_checked(length)?;
        undone.extend(clause_undone(kind, key, &clause[1..], reply, since, passed));
        clauses = rest;
    }
    Some(undone)
}

/// The server's decision about a hold, durations in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub granted: u64,
    pub remaining: u64,
    /// `None`: never.
    pub retry_after: Option<u64>,
    pub expires_after: u64,
    pub token: u64,
}

impl Reply {
    /// The five integers of a decision.
    pub fn decision(&self) -> Result<Decision, Error> {
        let integers = |replies: &[Reply]| replies.iter().map(Reply::integer).collect::<Option<Vec<i64>>>();
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let Some([granted, limit, remaining, retry_after, reset_after]) =
            integers(replies).and_then(|integers| <[i64; 5]>::try_from(integers).ok())
        else {
            return Err(self.unclear());
        };
        let natural = |integer: i64| u64::try_from(integer).map_err(|_| self.unclear());
        Ok(Decision {
            granted: natural(granted)?,
            limit: natural(limit)?,
            remaining: natural(remaining)?,
            retry_after: u64::try_from(retry_after).ok(),
            reset_after: natural(reset_after)?,
        })
    }

    /// Whether several limits granted, and the decision of each.
    pub fn decisions(&self) -> Result<(bool, Vec<Decision>), Error> {
        let (granted, each) = self.clauses()?;
        Ok((granted, each.iter().map(Reply::decision).collect::<Result<_, _>>()?))
    }

    /// The six integers of a hold, without the limit.
    pub(crate) fn hold(&self) -> Result<Held, Error> {
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let [granted, _, remaining, retry_after, expires_after, token] = replies.as_slice() else {
            return Err(self.unclear());
        };
        Ok(Held {
            granted: granted.natural()?,
            remaining: remaining.natural()?,
            retry_after: retry_after.natural().ok(),
            expires_after: expires_after.natural()?,
            token: token.natural()?,
        })
    }

    /// Whether all was granted, and the reply of each clause.
    pub fn clauses(&self) -> Result<(bool, &[Reply]), Error> {
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let Some((granted, each)) = replies.split_first() else { return Err(self.unclear()) };
        Ok((granted.integer() == Some(1), each))
    }

    /// What a settlement has changed; `None` where there was nothing to be settled any more.
    pub fn changes(&self) -> Result<Option<Vec<i64>>, Error> {
        let Self::Array(replies) = self else { return Err(self.unclear()) };
        let integers: Option<Vec<i64>> = replies.iter().map(Self::integer).collect();
        match integers.as_deref() {
            Some([0]) => Ok(None),
            Some([1, changes @ ..]) => Ok(Some(changes.to_vec())),
            _ => Err(self.unclear()),
        }
    }

    /// A number that is not negative.
    pub fn natural(&self) -> Result<u64, Error> {
        self.integer().and_then(|integer| u64::try_from(integer).ok()).ok_or_else(|| self.unclear())
    }

    /// The Unix time in ms that TIME tells.
    pub fn unix_ms(&self) -> Option<u64> {
        let number = |reply: &Self| match reply {
            Self::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
            _ => None,
        };
        let Self::Array(time) = self else { return None };
        let [seconds, micros] = time.as_slice() else { return None };
        number(seconds)?.checked_mul(1000)?.checked_add(number(micros)? / 1000)
    }

    fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    fn unclear(&self) -> Error {
        Error::Answer(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: [i64; 5] = [3, 9, 6, 0, 1_000];

    fn integers(integers: &[i64]) -> Reply {
        Reply::Array(integers.iter().copied().map(Reply::Integer).collect())
    }

    /// What undoes a command that was sent so long ago.
    fn undone(name: &str, words: &str, reply: &Reply, passed: u64) -> Vec<String> {
        let command = words.split(' ').fold(Command::named(name, 1), |command, word| command.word(word.as_bytes()));
        let text = |command: &Command| {
            command.words().map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>().join(" ")
        };
        undo(&command, reply, 7_000, passed).iter().map(text).collect()
    }

    #[test]
    fn each_command_is_undone_as_it_counts() {
        let granted = integers(&FIVE);
        for (name, words, expected) in [
            ("SWLIMIT.ACQUIRE", "k 9 60s 5s 0", &["SWLIMIT.REFUND k 3 SINCE 7000"][..]),
            ("SWLIMIT.BUDGET", "k 9 12345 COST 3", &["SWLIMIT.REFUND k 3"]),
            ("SWLIMIT.BUDGET", "k 9 12345 COST 3 FORCE", &[]),
            ("SWLIMIT.ALLOW", "k 9 60s 5s COST 3", &[]),
            ("SWLIMIT.RECORD", "k 9 60s 5s COST 3", &[]),
        ] {
            assert_eq!(undone(name, words, &granted, 999), expected, "{name} {words}");
            assert_eq!(undone(name, words, &integers(&[0, 9, 0, 5, 5]), 1), [""; 0], "denied: {name} {words}");
        }
        assert_eq!(undone("SWLIMIT.BUDGET", "k 9 12345", &granted, 1_000), [""; 0], "its period may have ended");
    }

    #[test]
    fn an_admission_without_a_hold_is_undone_clause_by_clause() {
        let both = "2 a b RATE 9 60s 5s 3 BUDGET 9 12345 3";
        let reply = |granted: i64| Reply::Array(vec![Reply::Integer(granted), integers(&FIVE), integers(&FIVE)]);
        let undo = |words: &str, granted| undone("SWLIMIT.ADMIT", words, &reply(granted), 5);
        assert_eq!(undo(both, 1), ["SWLIMIT.REFUND a 3 SINCE 7000", "SWLIMIT.REFUND b 3"]);
        assert_eq!(undo(both, 0), [""; 0]);
        assert_eq!(undo("2 a b RATE 9 60s 5s 3 HOLD 9 30s id 1", 1), [""; 0], "its keeper settles it");
    }
}
