"""What operators, other commands and strangers can do to holds that the script keeps."""

import random
import time

import pytest

from support.bounds import T
from support.resp import Connection, Failed
from support.script import scripted, sha
from support.waiting import eventually

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
END = T + 3_600_000
SOON = int(time.time() * 1000) + 3_600_000
ADMIT = ("ADMIT", 4, "h", "r", "b", "s", "HOLD", 9, 60, "x", 1, "RATE", 5, 60, 5, 1, "BUDGET", 5, END, 1,
         "HOLD", 5, 60, "y", 2, "AT", T)
COMMANDS = [("HOLD", "h", 9, 60, "new", "AT", T), ("HOLD", "h", 9, 60, "new", "COST", 2, "AT", T),
            ("HOLD", "h", 9, 90, "a", "AT", T), ("RELEASE", "h", "a", "AT", T), ("RELEASE", "h", "b", "AT", T),
            ("RENEW", "h", 90, "a", "b", "AT", T), ("HOLDERS", "h", "AT", T), ("INFO", "h"), ADMIT,
            ("ADMIT", 2, "h", "r", "HOLD", 9, 70, "x", 1, "RATE", 5, 60, 5, 1, "AT", T),
            ("SETTLE", 4, "h", "r", "b", "s", "z", 4, 3, 0, "AT", T),
            ("SETTLE", 4, "h", "r", "b", "s", "z", 0, 0, 0, "AT", T)]


def named(words):
    return " ".join(map(str, words))


@pytest.fixture
def ask(plain):
    """The reply to a command of the module's, by the script, over any connection."""
    return lambda *words, by=plain: by.call(*scripted([f"SWLIMIT.{words[0]}", *words[1:]], sha()))


def hold_some(ask):
    """One unit, two units, and three keys reserved under a hold."""
    ask("HOLD", "h", 9, 60, "a", "AT", T)
    ask("HOLD", "h", 9, 60, "b", "COST", 2, "AT", T)
    assert ask(*[{"x": "z", "y": "w"}.get(word, word) for word in ADMIT])[0] == 1


def stored(plain):
    """All that is stored, with what it has left, in seconds."""
    found = {}
    for key in plain.call("KEYS", "*"):
        kind = plain.call("TYPE", key)
        value = plain.call("ZRANGE", key, 0, -1, "WITHSCORES") if kind == b"zset" else plain.call("GET", key)
        found[key] = value, round(plain.call("PTTL", key) / 1000, -1)
    return found


@pytest.mark.parametrize("words", COMMANDS + [("HOLD", "h", 9, "60000ms", "new"), ("RELEASE", "h", "a")], ids=named)
@pytest.mark.parametrize("other", [("SET", "h", "a string"), ("HSET", "h", "f", "v"), ("ZADD", "h", 1, "e"),
                                   ("ZADD", "h", -1, "l2", 5, "ea"), ("ZADD", "h", 1, "l"), ("ZADD", "h", 0, "l"),
                                   ("ZADD", "h", -2.0**60, "l"),
                                   ("ZADD", "h", "-inf", "l")], ids=named)
def test_foreign_values_are_refused_and_kept(plain, ask, words, other):
    plain.call(*other)
    before = plain.call("DUMP", "h")
    assert ask(*words) == WRONGTYPE
    assert plain.call("DUMP", "h") == before and plain.call("DBSIZE") == 1


def test_any_members_get_a_reply_or_wrongtype(plain, ask):
    """Never an error of Lua's."""
    draw, odd = random.Random(5), 0
    for _ in range(1500):
        plain.call("FLUSHALL")
        hold_some(ask)
        members = plain.call("ZRANGE", "h", 0, -1)
        for _ in range(draw.choice([1, 2, 5])):
            member = draw.choice(members + [b"e", b"t", b"u", b"v", b"ez", b"vx" * 20])
            if draw.random() < 0.4:
                plain.call("ZREM", "h", member)
            else:
                score = draw.choice([0, -1, 1, T, T + 5, 2.0**44, 2.0**60, -2.0**53, -2.0**70, 1.5, "inf", "-inf",
                                     2.0**110 * T, draw.uniform(-1e17, 1e17)])
                member = member[:draw.randrange(len(member) + 1)] if draw.random() < 0.3 else member
                plain.call("ZADD", "h", score, member)
        words = draw.choice(COMMANDS)
        reply = ask(*words)
        assert not isinstance(reply, Failed) or "script" not in reply and "Lua" not in reply, (reply, words)
        odd += reply == WRONGTYPE
    assert odd > 20


def test_what_only_the_module_has(plain, ask):
    assert ask("HOLD", "h", 9, 60, "a", "WAIT", "1s") == "ERR WAIT needs the module"
    assert ask("HOLD", "h", 9, 60, "a", "UNTIL", 0) == "ERR syntax error near 'UNTIL'"
    assert ask("RELEASE", "h", "a", "UNTIL", 0) == 0
    assert ask("ADMIT", 65, *range(65), *["HOLD", 5, 60, "id", 1] * 65) == (
        "ERR numkeys must be a positive integer that matches the keys given")
    assert plain.call("DBSIZE") == 0


def test_out_of_memory(plain, ask):
    """What would hold more is refused, whole; denials, renewals, and all that gives back work."""
    hold_some(ask)
    before = stored(plain)
    plain.call("CONFIG", "SET", "maxmemory", 1)
    try:
        assert ask("HOLD", "h", 1, 60, "new", "AT", T)[0] == 0
        for words in [COMMANDS[0], COMMANDS[1], COMMANDS[2], ("HOLD", "k", 9, 60, "new"), ADMIT]:
            reply = ask(*words)
            assert isinstance(reply, Failed) and reply.startswith("OOM command not allowed"), (words, reply)
        # What has ended is not let go of for a hold that is refused.
        assert "OOM" in ask("HOLD", "h", 9, 60, "new", "COST", 2, "AT", T + 60_000)
        assert stored(plain) == before
        assert ask("RENEW", "h", 90, "a", "b", "AT", T) == [1, 1]
        assert ask("RELEASE", "h", "b", "AT", T) == 2
        assert ask("SETTLE", 4, "h", "r", "b", "s", "z", 4, 0, 0, "AT", T) == [1, 3, -1, -2]
    finally:
        plain.call("CONFIG", "SET", "maxmemory", 0)
    assert ask("HOLDERS", "h", "AT", T) == [[b"a", 1, 0, 90_000, 1000 * T]]


@pytest.mark.parametrize("words", COMMANDS + [("HOLD", "k", 9, 60, "new"),
                                              ("HOLD", "h", 9, 60, "new", "AT", T + 59_999),
                                              ("RELEASE", "h", "a", "b", "z", "AT", T)], ids=named)
def test_missing_rights_change_nothing(plain, ask, words):
    """A user who lacks one right is answered as others are, or refused with nothing changed."""
    refused = 0
    for right in ("zadd", "zrem", "zmscore", "zcount", "zrange", "zrangebyscore", "zrevrangebyscore", "pexpire",
                  "pexpireat", "pttl", "del", "set", "setrange", "getrange", "time"):
        plain.call("FLUSHALL")
        hold_some(ask)
        before = stored(plain)
        plain.call("ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "+@all", f"-{right}")
        with Connection(plain.port) as unable:
            assert unable.call("AUTH", "u", "x") == b"OK"
            reply = ask(*words, by=unable)
        if isinstance(reply, Failed):
            refused += 1
            assert "can't run this command" in reply or "permission" in reply, (right, reply)
            assert stored(plain) == before, right
    plain.call("ACL", "DELUSER", "u")
    assert refused >= 3


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("words", [
    ("ADMIT", 3, "h", "r", "b", "HOLD", 9, "60000ms", "new", 1, "RATE", 9, "60000ms", "60000ms", 1,
     "BUDGET", 9, SOON, 1),
    ("SETTLE", 3, "h", "r", "b", "a", 1, 3)], ids=lambda words: words[0])
def test_missing_rights_change_nothing_by_the_clock(plain, ask, words, beside):
    """Where ADMIT and SETTLE go a way of their own."""
    refused = 0
    for right in ("zadd", "zrem", "zmscore", "zcard", "zcount", "zrangebyscore", "zrevrangebyscore", "pexpireat",
                  "pttl", "del", "set", "setrange", "getrange", "time"):
        plain.call("FLUSHALL")
        for id in ["a", "c"][:1 + beside]:
            assert ask("ADMIT", 3, "h", "r", "b", "HOLD", 9, "60000ms", id, 1, "RATE", 9, "60000ms", "60000ms", 2,
                       "BUDGET", 9, SOON, 2)[0] == 1
        before = stored(plain)
        plain.call("ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "+@all", f"-{right}")
        with Connection(plain.port) as unable:
            assert unable.call("AUTH", "u", "x") == b"OK"
            reply = ask(*words, by=unable)
        if isinstance(reply, Failed):
            refused += 1
            assert "can't run this command" in reply or "permission" in reply, (right, reply)
            assert stored(plain) == before, right
        else:
            assert reply[0] == 1
            assert len(ask("HOLDERS", "h")) == 1 + beside + (1 if words[0] == "ADMIT" else -1)
    plain.call("ACL", "DELUSER", "u")
    assert refused >= 7


@pytest.mark.parametrize("right", ["zadd", "zrem", "zmscore", "zcard", "zcount", "zrangebyscore", "zrevrangebyscore",
                                   "pexpireat", "pttl", "del", "time"])
def test_a_missing_right_loses_no_other_hold(plain, ask, right):
    """By the clock, where HOLD and RELEASE go a way of their own."""
    ask("HOLD", "h", 9, "60000ms", "a")
    ask("HOLD", "h", 9, "90000ms", "b")
    eventually(lambda: ask("HOLDERS", "h")[-1][2] > 2)
    plain.call("ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "+@all", f"-{right}")
    with Connection(plain.port) as unable:
        assert unable.call("AUTH", "u", "x") == b"OK"
        freed = ask("RELEASE", "h", "b", by=unable)
        taken = ask("HOLD", "h", 9, "99000ms", "c", by=unable)
    plain.call("ACL", "DELUSER", "u")
    expected = {b"a"} | ({b"b"} if freed != 1 else set()) | ({b"c"} if not isinstance(taken, Failed) else set())
    assert {id for id, *_ in ask("HOLDERS", "h")} == expected


def test_a_refused_repetition_leaves_the_reservations(plain, ask):
    """Of an ADMIT whose further hold has ended, so that the first would reserve another."""
    hold_some(ask)
    ask("HOLD", "s", 9, 3600, "other", "AT", T)
    ask("RELEASE", "s", "w", "AT", T)
    before = stored(plain)
    plain.call("ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "+@all", "-pexpire")
    with Connection(plain.port) as unable:
        assert unable.call("AUTH", "u", "x") == b"OK"
        repeated = [{"x": "z", "y": "w"}.get(word, 70 if word == 60 else word) for word in ADMIT]
        assert isinstance(ask(*repeated, by=unable), Failed)
    plain.call("ACL", "DELUSER", "u")
    assert stored(plain) == before


def test_many_holds_end_at_once_within_the_time_limit(plain, ask):
    """10,000 of two units each, which have to be summed, and as many of one, which go one after the other."""
    plain.call("CONFIG", "SET", "lua-time-limit", 1000)
    with Connection(plain.port) as other:
        for cost in (1, 2):
            plain.call("DEL", "h")
            plain.calls([scripted(["SWLIMIT.HOLD", "h", 2**53 - 1, 60, number, "COST", cost, "AT", T], sha())
                         for number in range(10_000)])
            for words in [("HOLD", "h", 9_999 * cost, 60, "new", "COST", cost, "AT", T),
                          ("HOLDERS", "h", 10_000, "AT", T), ("RENEW", "h", 61, *range(10_000), "AT", T),
                          ("HOLD", "h", 9, 60, "new", "AT", T + 61_000),
                          ("RELEASE", "h", *range(10_000), "AT", T + 60_000)]:
                assert not isinstance(ask(*words), Failed), words
                assert other.call("PING") == b"PONG"
    slow = plain.call("SLOWLOG", "GET", 128)
    plain.call("CONFIG", "SET", "lua-time-limit", 5000)
    assert all(entry[2] < 1_000_000 for entry in slow if entry[3][:1] == [b"EVALSHA"]), slow


def put_holds(plain, count, units=1, ended=0):
    """As the script keeps them: hold number n ends n ms after T, and of them the first `ended` end before."""
    members = [-1000 * (T + count), b"l"]
    for number in range(count):
        members += [T + number + 1 - (0 if number >= ended else count + 1), b"e%d" % number,
                    -1000 * T - number, b"t%d" % number]
        if units > 1:
            members += [units * 2.0**44, b"u%d" % number]
    if units > 1:
        members += [str(count * (units - 1) - 2**53), b"n"]
    for start in range(0, len(members), 2000):
        plain.call("ZADD", "h", *members[start:start + 2000])


def test_an_end_is_found_by_its_rank(plain, ask):
    """However many holds stand before it, where each has one unit."""
    put_holds(plain, 20_000)
    for limit in (1, 2, 9_999, 19_999, 20_000):
        assert ask("HOLD", "h", limit, 60, "new", "AT", T) == [0, limit, 0, 20_001 - limit, 0, 0]
    ask("HOLD", "h", 20_009, 60, "weighs", "COST", 2, "AT", T)
    assert ask("RELEASE", "h", "weighs", "AT", T) == 2
    assert ask("HOLD", "h", 7, 60, "new", "AT", T) == [0, 7, 0, 19_994, 0, 0]


def test_no_denial_takes_more_than_a_thousand_holds_to_find(plain, ask):
    """With other units: exact up to there, and not after the true instant beyond."""
    put_holds(plain, 3_000, units=2)
    assert ask("HOLD", "h", 6_000, 60, "new", "AT", T)[3] == 1
    assert ask("HOLD", "h", 6_000, 60, "new", "COST", 1_997, "AT", T)[3] == 999
    for limit in (4_001, 4_000, 3_999, 1):
        assert ask("HOLD", "h", limit, 60, "new", "AT", T) == [0, limit, 0, 1_000, 0, 0]
    plain.call("COPY", "h", "h2")
    denied = ask("ADMIT", 2, "h", "h2", "HOLD", 1, 60, "new", 1, "HOLD", 1, 60, "new", 1, "AT", T)
    assert denied == [0, [0, 1, 0, 999, 0, 0], [0, 1, 0, 1, 0, 0]]


def test_no_denial_sums_more_than_a_thousand_holds(plain, ask):
    """Where as many have ended as are live, a retry_after that is not after the true instant takes no sum of units."""
    put_holds(plain, 20_000, units=2, ended=10_000)
    assert ask("HOLD", "h", 9_999, 60, "new", "AT", T) == [0, 9_999, 0, 10_001, 0, 0]
    assert ask("HOLD", "h", 9_000, 60, "new", "AT", T) == [0, 9_000, 0, 10_501, 0, 0]


@pytest.mark.parametrize("units", [1, 2])
def test_the_live_are_found_behind_those_that_ended(plain, ask, units):
    put_holds(plain, 50_000, units, ended=49_999)
    plain.call("SLOWLOG", "RESET")
    assert ask("HOLDERS", "h", "AT", T) == [[b"49999", units, 0, 50_000, 1000 * T + 49_999]]
    assert ask("HOLD", "h", 1, 60, "new", "AT", T) == [0, 1, 0, 50_000, 0, 0]
    assert ask("HOLD", "h", units + 9, 60, "new", "COST", 10, "AT", T) == [0, units + 9, 9, 50_000, 0, 0]
    assert [entry for entry in plain.call("SLOWLOG", "GET", 128) if entry[3][0].startswith(b"EVALSHA")] == []


def test_holders_of_many(plain, ask):
    """Of more than a thousand, those that end first; all, where all are asked for."""
    put_holds(plain, 3_000, units=2)
    ask("RENEW", "h", 60, 0, "AT", T)
    assert [id for id, *_ in ask("HOLDERS", "h", 3, "AT", T)] == [b"1", b"2", b"3"]
    assert [id for id, *_ in ask("HOLDERS", "h", 10_000, "AT", T)] == [b"%d" % number for number in range(3_000)]
    ask("RELEASE", "h", *range(1, 2_001), "AT", T)
    assert [id for id, *_ in ask("HOLDERS", "h", 3, "AT", T)] == [b"0", b"2001", b"2002"]


AGAIN, NEW, WHO = ("HOLD", "h", 9, 90, "b", "COST", 2, "AT", T), COMMANDS[0], COMMANDS[6]


@pytest.mark.parametrize("score, member, words", [
    (T + 0.5, "eb", AGAIN), (T + 0.5, "ez", NEW), (T + 0.5, "ea", WHO), (-1.5, "tb", AGAIN), (0, "tb", WHO),
    (1.5, "l", NEW), (-1.5, "l", NEW), (2.0**44 * 1.5, "ub", AGAIN), ("inf", "ub", WHO), (1.5, "n", NEW),
    (-2.0**53 - 2, "n", NEW)])
def test_scores_that_stand_for_no_number_are_refused(plain, ask, score, member, words):
    hold_some(ask)
    plain.call("ZADD", "h", score, member)
    if member == "ez":  # the last of them
        ask("RELEASE", "h", "a", "b", "AT", T)
    before = plain.call("DUMP", "h")
    assert ask(*words) == WRONGTYPE
    assert plain.call("DUMP", "h") == before
