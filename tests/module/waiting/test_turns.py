"""SWLIMIT.ACQUIRE: who waits, who does not, in which order, and for how long."""

import time

import pytest

from support.cli import ask, feed, numbers, stored
from support.contents import idle
from support.resp import Connection, Failed, encode
from support.waiters import BLOCKED, PATIENT, waiting
from support.waiting import eventually

DAY = ("1d", "1h")


def block(server, key="k", duration=BLOCKED):
    server.cli("SWLIMIT.BLOCK", key, duration)


def acquire(server, *words):
    return ask(server, "SWLIMIT.ACQUIRE", *words)


def near(reply, expected, ms=2_000):
    """The same reply except the times, which have gone on meanwhile."""
    return reply[:3] == expected[:3] and all(abs(one - other) < ms for one, other in zip(reply[3:], expected[3:]))


def test_at_once_when_it_fits(server, counted):
    assert acquire(server, "k", 3, *DAY, 0, "COST", 2)[:4] == [2, 3, 1, 0]
    assert acquire(server, "k", 3, *DAY, "1h")[:4] == [1, 3, 0, 0]
    assert counted() == {"granted": 2, "granted_units": 3}


@pytest.mark.parametrize("words", [(), ("COST", 3), ("STRICT",)])
@pytest.mark.parametrize("timeout", [0, "0ms", "1ms", "59m"])
def test_denied_at_once_where_there_is_nothing_to_hope_for(server, counted, timeout, words):
    ask(server, "SWLIMIT.ALLOW", "k", 3, *DAY, "COST", 3)
    peek = ask(server, "SWLIMIT.PEEK", "k", 3, *DAY, *words)
    assert near(acquire(server, "k", 3, *DAY, timeout, *words), peek)
    cost = words[1] if "COST" in words else 1
    assert counted() == {"granted": 1, "granted_units": 3, "denied": 1, "denied_units": cost}


def test_a_cost_above_the_limit_never_waits(server):
    assert acquire(server, "k", 3, *DAY, PATIENT, "COST", 4) == [0, 3, 3, -1, 0]
    block(server)
    assert acquire(server, "k", 0, *DAY, PATIENT)[:4] == [0, 0, 0, -1]


def test_granted_after_exactly_retry_after(server, counted):
    """A window of single milliseconds keeps the instant of each unit."""
    quota = ("k", 1, "300ms", "1ms")
    acquire(server, *quota, 0)
    first, = stored(server, "k")["counts"]
    for options in ((), ("STRICT",)):
        assert acquire(server, *quota, "5s", *options)[:4] == [1, 1, 0, 0]
        second = max(stored(server, "k")["counts"])
        # Strictly, the subinterval that slides out counts to its end.
        assert 300 + bool(options) <= second - first < 5_000, "never early, and long before the wait's end"
        first = second
    assert counted() == {"granted": 3, "granted_units": 3, "acquired": 2}


def test_first_come_first_served_whatever_each_costs(server, wait):
    block(server)
    queue = [wait("k", 4, *DAY, PATIENT, "COST", cost) for cost in (3, 2, 1)]
    server.cli("SWLIMIT.UNBLOCK", "k")
    assert queue[0].answer()[:3] == [3, 4, 1]
    time.sleep(0.05)
    assert not queue[1].is_answered and not queue[2].is_answered, "1 would fit, but 2 came first"
    assert ask(server, "SWLIMIT.REFUND", "k", 2) == [2]
    assert queue[1].answer()[:3] == [2, 4, 1] and queue[2].answer()[:3] == [1, 4, 0]


def test_who_comes_later_waits_behind_although_it_fits(server, wait):
    ask(server, "SWLIMIT.ALLOW", "k", 3, *DAY, "COST", 2)
    first = wait("k", 3, *DAY, "2d", "COST", 3)
    peek = ask(server, "SWLIMIT.PEEK", "k", 3, *DAY, "COST", 3)
    assert near(acquire(server, "k", 3, *DAY, 0), [0, 3, 1, peek[3], peek[4]]), "the turn comes after the first one's"
    second = wait("k", 3, *DAY, "2d")
    assert ask(server, "SWLIMIT.ALLOW", "k", 3, *DAY)[:3] == [1, 3, 0], "ALLOW does not queue"
    server.cli("DEL", "k")
    assert first.answer()[:3] == [3, 3, 0]
    assert not second.is_answered


def test_a_wait_that_ends_in_vain(server, counted):
    """ALLOW took what was waited for."""
    block(server, duration="150ms")
    started = time.monotonic()
    with Connection(server.port) as waiter, Connection(server.port) as other:
        waiter.send(encode("SWLIMIT.ACQUIRE", "k", 1, *DAY, "200ms"))
        eventually(lambda: waiting(server), 1)
        other.call("SWLIMIT.RECORD", "k", 1, *DAY)
        reply = waiter.reply()
    assert 0.195 < time.monotonic() - started < 2
    assert near(reply, ask(server, "SWLIMIT.PEEK", "k", 1, *DAY))
    assert counted() == {"recorded": 1, "denied": 1, "denied_units": 1, "blocked": 1}


def test_the_next_one_s_turn_comes_when_the_first_gives_up(server, wait):
    block(server, duration="1s")  # on a busy machine it takes a while until both wait
    first, second = wait("k", 3, *DAY, "1500ms", "COST", 3), wait("k", 3, *DAY, PATIENT)
    ask(server, "SWLIMIT.RECORD", "k", 3, *DAY)
    assert first.answer()[:3] == [0, 3, 2]
    assert second.answer()[:3] == [1, 3, 1]


def test_a_grant_wins_a_tie_with_the_timeout(server, wait):
    """The server looks only when both have passed; also behind somebody who gives up at the same instant."""
    block(server, duration="100ms")
    queue = [wait("k", 3, *DAY, "150ms"), wait("k", 3, *DAY, "150ms", "COST", 3), wait("k", 3, *DAY, "150ms")]
    server.cli("DEBUG", "SLEEP", "0.3")
    assert [waiter.answer()[0] for waiter in queue] == [1, 0, 1]


def test_a_turn_that_is_an_hour_away_costs_nothing(server, wait):
    """Also after a change that was no turn, and when nobody waits any more."""
    block(server)
    waiter = wait("k", 2, *DAY, PATIENT)
    server.cli("SWLIMIT.RECORD", "k", 1, *DAY)
    assert idle(server, 1) < 0.1
    waiter.close()
    eventually(lambda: waiting(server), 0)
    assert idle(server, 1) < 0.1


def test_each_key_of_each_database_has_a_queue(server, wait):
    first = [("SELECT", 3)]
    for key in ("k", "other"):
        block(server, key)
    server.cli("-n", 3, "SWLIMIT.BLOCK", "k", BLOCKED)
    queue = [wait("k", 1, *DAY, PATIENT), wait("other", 1, *DAY, PATIENT),
             wait("k", 1, *DAY, PATIENT, first=first), wait("k", 1, *DAY, PATIENT, first=first)]
    server.cli("-n", 3, "SWLIMIT.UNBLOCK", "k")
    assert queue[2].answer()[0] == 1
    time.sleep(0.03)
    assert [waiter.is_answered for waiter in queue] == [False, False, False, False]
    assert server.cli("-n", 3, "DBSIZE") == "1"


def test_any_bytes_are_a_key(server, wait):
    name = b"\x00\xff \r\n'"
    with Connection(server.port) as connection:
        connection.call("SWLIMIT.BLOCK", name, BLOCKED)
        waiter = wait(name, 1, *DAY, PATIENT)
        connection.call("SWLIMIT.UNBLOCK", name)
        assert waiter.answer()[0] == 1


def test_what_is_sent_meanwhile_is_read_afterwards(server, wait):
    block(server)
    waiter = wait("k", 2, *DAY, PATIENT)
    connection = waiter.connection
    connection.send(b"".join([encode("PING"), encode("SWLIMIT.ACQUIRE", "k", 2, *DAY, "1h"),
                              encode("SWLIMIT.ACQUIRE", "k", 2, *DAY, "1h"), encode("ECHO", "end")]))
    time.sleep(0.03)
    assert not waiter.is_answered
    server.cli("SWLIMIT.UNBLOCK", "k")
    replies = [connection.reply() for _ in range(5)]
    assert [replies[0][0], replies[1], replies[2][0], replies[3][0], replies[4]] == [1, b"PONG", 1, 0, b"end"]


def test_resp3(server, wait):
    block(server)
    waiter = wait("k", 2, *DAY, PATIENT, "COST", 2, first=[("HELLO", 3)])
    server.cli("SWLIMIT.UNBLOCK", "k")
    assert waiter.answer()[:4] == [2, 2, 0, 0]


def test_nobody_waits_in_a_transaction(server):
    block(server)
    line = f"SWLIMIT.ACQUIRE k 1 1d 1h {PATIENT}"
    lines = feed(server, "MULTI", line, "SWLIMIT.UNBLOCK k", line, line, "EXEC")
    replies = numbers(" ".join(lines[5:]))
    assert [replies[0], replies[5], replies[6], replies[11]] == [0, 1, 1, 0]
    assert 3_500_000 < replies[3] <= 3_600_000


@pytest.mark.parametrize("script", ["EVAL", "FCALL"])
def test_nobody_waits_in_a_script(server, script):
    block(server)
    call = "redis.call('SWLIMIT.ACQUIRE', 'k', 1, '1d', '1h', '2h')"
    code = f"return {call}"
    if script == "FCALL":
        server.cli("FUNCTION", "LOAD", "REPLACE",
                   f"#!lua name=lib\nredis.register_function('try', function() return {call} end)")
        code = "try"
    assert ask(server, script, code, 0)[:3] == [0, 1, 0]


def test_how_many_wait(server, wait):
    block(server)
    denied = Failed("ERR too many clients are waiting")
    server.cli("CONFIG", "SET", "swlimit.max-waiting", 2)
    queue = [wait("k", 5, *DAY, PATIENT) for _ in range(2)]
    with Connection(server.port) as connection:
        assert connection.call("SWLIMIT.ACQUIRE", "k", 5, *DAY, PATIENT) == denied
        assert connection.call("SWLIMIT.ACQUIRE", "k", 5, *DAY, "1s")[0] == 0, "it would not have waited"
        server.cli("CONFIG", "SET", "swlimit.max-waiting", 0)
        assert connection.call("SWLIMIT.ACQUIRE", "free", 5, *DAY, PATIENT)[0] == 1
        assert connection.call("SWLIMIT.ACQUIRE", "k", 5, *DAY, PATIENT) == denied
        assert waiting(server) == 2, "who waits already goes on"
        connection.call("SWLIMIT.UNBLOCK", "k")
        assert [waiter.answer()[0] for waiter in queue] == [1, 1]
    assert server.cli("CONFIG", "SET", "swlimit.max-waiting", 1_000_001).startswith("ERR")


@pytest.mark.parametrize("words, error", [
    (("k", 1, 60, 5), "ERR wrong number of arguments for 'swlimit.acquire' command"),
    (("k", 1, 60, 5, -1), "ERR timeout must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (("k", 1, 60, 5, "3651d"), "ERR timeout must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (("k", 1, 60, 7, 0), "ERR resolution must divide the window evenly"),
    (("k", "x", 60, 5, 0), "ERR limit must be an integer between 0 and 9007199254740991"),
    (("k", 1, 60, 5, 0, "COST", 0), "ERR cost must be an integer between 1 and 9007199254740991"),
    (("k", 1, 60, 5, 0, "PARTIAL"), "ERR syntax error near 'PARTIAL'"),
    (("k", 1, 60, 5, 0, "AT", 1), "ERR syntax error near 'AT'"),
    (("k", 1, 60, 5, 0, "STRICT", "strict"), "ERR syntax error near 'strict'"),
    (("string", 1, 60, 5, PATIENT), "WRONGTYPE Operation against a key holding the wrong kind of value"),
])
def test_errors(server, counted, words, error):
    server.cli("SET", "string", "x")
    assert server.cli("SWLIMIT.ACQUIRE", *words) == error
    assert counted() == {} and server.cli("DBSIZE") == "1"


def test_access_control(server):
    server.cli("ACL", "SETUSER", "worker", "on", "nopass", "~jobs:*", "+swlimit.acquire", "+client")
    with Connection(server.port) as connection:
        connection.call("AUTH", "worker", "")
        assert connection.call("SWLIMIT.ACQUIRE", "jobs:1", 1, *DAY, 0)[0] == 1
        assert connection.call("SWLIMIT.ACQUIRE", "other", 1, *DAY, 0).startswith("NOPERM")
        assert connection.call("SWLIMIT.ALLOW", "jobs:1", 1, *DAY).startswith("NOPERM")
    server.cli("ACL", "DELUSER", "worker")


def test_a_user_may_wait_who_may_do_nothing_else(server, wait):
    """The grant does not need the right to any other command."""
    server.cli("ACL", "SETUSER", "worker", "on", "nopass", "~jobs:*", "+swlimit.acquire", "+client")
    block(server, "jobs:1")
    waiter = wait("jobs:1", 1, *DAY, PATIENT, first=[("AUTH", "worker", "")])
    server.cli("SWLIMIT.UNBLOCK", "jobs:1")
    assert waiter.answer()[0] == 1
    server.cli("ACL", "DELUSER", "worker")
