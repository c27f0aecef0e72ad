//! What a user needs to be allowed. Each is tried with words that the server refuses after it has checked the user's rights:
//! nothing is counted, changed or shown.

use super::command::KEY;
use super::script_fallback::SCRIPT;

/// A right as ACLs name it, and the words with which it is tried.
pub(crate) type Trial = (&'static str, &'static [&'static str]);

/// The module's commands.
pub(crate) const MODULE: [Trial; 13] = [
    ("swlimit.peek", &["swlimit.peek", KEY, "?", "1ms", "1ms"]),
    ("swlimit.allow", &["swlimit.allow", KEY, "?", "1ms", "1ms"]),
    ("swlimit.mallow", &["swlimit.mallow", "1", KEY, "?", "1ms", "1ms", "1"]),
    ("swlimit.record", &["swlimit.record", KEY, "?", "1ms", "1ms"]),
    ("swlimit.refund", &["swlimit.refund", KEY, "?"]),
    ("swlimit.block", &["swlimit.block", KEY, "?"]),
    ("swlimit.unblock", &["swlimit.unblock", KEY, "AT", "?"]),
    ("swlimit.info", &["swlimit.info", KEY]),
    ("swlimit.top", &["swlimit.top", "1"]),
    ("swlimit.budget", &["swlimit.budget", KEY, "?", "?"]),
    ("swlimit.hold", &["swlimit.hold", KEY, "?", "3s", "?"]),
    ("swlimit.release", &["swlimit.release", KEY, "?"]),
    ("swlimit.admit", &["swlimit.admit", "1", KEY, "?"]),
];

/// As long as a digest: a shorter one would be a NOSCRIPT, which is a failure of the server.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// What the script needs.
pub(crate) const SCRIPTED: [Trial; 8] = [
    ("evalsha", &["EVALSHA", NO_SCRIPT, "?", KEY]),
    ("evalsha_ro", &["EVALSHA_RO", NO_SCRIPT, "?", KEY]),
    ("eval", &["EVAL", SCRIPT, "?", KEY]),
    ("eval_ro", &["EVAL_RO", SCRIPT, "?", KEY]),
    ("getrange", &["GETRANGE", KEY, "0", "0"]),
    ("setrange", &["SETRANGE", KEY, "0", ""]),
    ("set", &["SET", KEY, "?", "?"]),
    ("del", &["DEL", KEY]),
];

/// What the script needs for holds besides.
pub(crate) const HELD: [Trial; 10] = [
    ("zadd", &["ZADD", KEY, "XX", "0", "?"]),
    ("zrem", &["ZREM", KEY, "?"]),
    ("zmscore", &["ZMSCORE", KEY, "?"]),
    ("zcount", &["ZCOUNT", KEY, "0", "0"]),
    ("zcard", &["ZCARD", KEY]),
    ("zrange", &["ZRANGE", KEY, "0", "0"]),
    ("zrangebyscore", &["ZRANGEBYSCORE", KEY, "0", "0"]),
    ("zrevrangebyscore", &["ZREVRANGEBYSCORE", KEY, "0", "0"]),
    ("pexpire", &["PEXPIRE", KEY, "?"]),
    ("pexpireat", &["PEXPIREAT", KEY, "?"]),
];

/// What both need.
pub(crate) const BOTH: [Trial; 6] = [
    ("time", &["TIME"]),
    ("pttl", &["PTTL", KEY]),
    ("client|id", &["CLIENT", "ID"]),
    ("client|tracking", &["CLIENT", "TRACKING", "OFF"]),
    ("ping", &["PING"]),
    ("info", &["INFO", "replication"]),
];
