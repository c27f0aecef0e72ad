"""Whatever gives quota back early lets the queue go on at once, when the command or transaction has ended."""

import time

import pytest

from support.cli import ask, feed
from support.contents import info
from support.resp import Connection, Failed
from support.waiters import BLOCKED, PATIENT, waiting
from support.waiting import eventually

DAY = ("1d", "1h")
MOST = 2  # seconds; a wait for the window or the block itself takes an hour


def soon(waiter):
    """The answer, which must not be long in coming."""
    started = time.monotonic()
    reply = waiter.answer()
    assert time.monotonic() - started < MOST
    return reply


@pytest.fixture
def waiter(server, wait):
    """Somebody who waits for `k`, which is blocked. There are also `free`, a window with room, and a payload of it."""
    ask(server, "SWLIMIT.ALLOW", "free", 2, *DAY)
    server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
    return wait("k", 2, *DAY, PATIENT)


RELEASING = [
    ["SWLIMIT.UNBLOCK k"], ["SWLIMIT.BLOCK k 1ms"], ["DEL k"], ["UNLINK k"], ["PEXPIRE k 1"], ["PEXPIREAT k 1"],
    ["FLUSHALL SYNC"], ["FLUSHALL ASYNC"], ["FLUSHDB"], ["FLUSHDB ASYNC"], ["SWAPDB 0 1"], ["SWAPDB 5 0"],
    ["RENAME k other"], ["RENAMENX k other"], ["MOVE k 1"], ["RENAME free k"], ["COPY free k REPLACE"],
    ["MULTI", "SWLIMIT.UNBLOCK k", "SET other 1", "EXEC"], ["MULTI", "DEL k", "RENAME free k", "EXEC"],
    ["EVAL \"return redis.call('DEL', 'k')\" 0"], ["RENAME k other", "RENAME other k", "SWLIMIT.UNBLOCK k"],
    ["DEBUG RELOAD", "SWLIMIT.UNBLOCK k"], ["SWAPDB 0 1", "SWAPDB 0 1", "SWLIMIT.UNBLOCK k"],
]


@pytest.mark.parametrize("lines", RELEASING, ids=" · ".join)
def test_what_lifts_the_block(server, waiter, lines):
    feed(server, *lines)
    assert soon(waiter)[:2] == [1, 2]


def test_restored(server, waiter):
    with Connection(server.port) as connection:
        payload = connection.call("DUMP", "free")
        assert connection.call("RESTORE", "k", 0, payload, "REPLACE") == b"OK"
    assert soon(waiter)[:3] == [1, 2, 0]


def test_evicted(server, wait):
    """The key goes first, because it expires first; then so much goes that there is memory again."""
    server.cli("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    with Connection(server.port) as connection:
        connection.call("SET", "ballast", b"x" * 4_000_000, "EX", 100_000)
        connection.call("SWLIMIT.BLOCK", "k", BLOCKED)
        waiter = wait("k", 2, *DAY, PATIENT)
        server.cli("CONFIG", "SET", "maxmemory", info(server, "memory")["used_memory"] - 2_000_000)
        assert soon(waiter)[:3] == [1, 2, 1]
        assert connection.call("EXISTS", "ballast") == 0


def test_given_back(server, wait):
    ask(server, "SWLIMIT.ALLOW", "k", 2, *DAY, "COST", 2)
    waiter = wait("k", 2, *DAY, "30h")
    ask(server, "SWLIMIT.REFUND", "k", 1)
    assert soon(waiter)[:3] == [1, 2, 0]


def test_everything_given_back(server, wait):
    """The key is deleted."""
    ask(server, "SWLIMIT.ALLOW", "k", 2, *DAY, "COST", 2)
    waiter = wait("k", 2, *DAY, "30h")
    assert feed(server, "MULTI", "SWLIMIT.REFUND k 2", "SWLIMIT.RECORD k 2 1d 1h", "EXEC")[-6] == "2"
    assert soon(waiter)[:3] == [1, 2, 0]


def test_another_window_that_counts(server, wait):
    """A shorter one forgets what is older than it."""
    ask(server, "SWLIMIT.RECORD", "k", 2, *DAY, "COST", 2, "AGE", "2h")
    waiter = wait("k", 2, *DAY, "30h")
    ask(server, "SWLIMIT.RECORD", "k", 2, "1h", "1m")
    assert soon(waiter)[:3] == [1, 2, 0]


def test_a_transaction_that_ends_as_it_began_grants_nothing(server, waiter):
    feed(server, "MULTI", "SWLIMIT.UNBLOCK k", f"SWLIMIT.BLOCK k {BLOCKED}", "EXEC")
    feed(server, "SWAPDB 0 1", "SWAPDB 0 1", "SWLIMIT.RECORD k 2 1d 1h")
    time.sleep(0.1)
    assert not waiter.is_answered or soon(waiter)[:3] == [1, 2, 1]


@pytest.mark.parametrize("lines", [["SET k x"], ["SET k x", "APPEND k y"], ["LPUSH l 1", "SORT l STORE k"],
                                   ["SET s x", "RENAME s k"], ["SET s x", "COPY s k REPLACE"],
                                   ["MULTI", "DEL k", "HSET k f v", "EXEC"], ["SUNIONSTORE k k2", "SADD k 1"]],
                         ids=" · ".join)
def test_another_type(server, waiter, lines):
    if lines[-1] == "SADD k 1":
        lines = ["MULTI", "SADD k2 1", "SUNIONSTORE k k2", "EXEC"]
    feed(server, *lines)
    assert soon(waiter) == Failed("WRONGTYPE Operation against a key holding the wrong kind of value")
    assert server.cli("TYPE", "k") != "sw-window"


def test_a_key_that_is_not_there_yet_for_long(server, waiter):
    """What expires without anybody looking lets the queue go on when the server notices."""
    feed(server, "PEXPIRE k 50")
    assert soon(waiter)[0] == 1


@pytest.fixture
def crowded(server):
    """So many keys with an expiry that the server itself takes minutes to come by one that has passed."""
    with Connection(server.port) as connection:
        connection.calls([("SET", f"other:{number}", "x", "EX", 100_000) for number in range(20_000)])


SHORTENING = [["PEXPIRE k 200"], ["PEXPIRE k 100000", "PEXPIRE k 200"], ["PERSIST k", "PEXPIRE k 200"],
              ["MULTI", "PEXPIRE k 200", "EXEC"], ["EVAL \"return redis.call('PEXPIRE', 'k', 200)\" 0"],
              ["SWLIMIT.BLOCK short 1h", "PEXPIRE short 200", "RENAME short k"],
              ["SWLIMIT.BLOCK short 1h", "PEXPIRE short 200", "COPY short k REPLACE"]]


@pytest.mark.parametrize("lines", SHORTENING, ids=" · ".join)
def test_a_key_whose_expiry_somebody_shortened(server, crowded, waiter, lines):
    feed(server, *lines)
    assert soon(waiter)[:2] == [1, 2]


def test_a_key_whose_expiry_was_shortened_before_anybody_waited(server, crowded, wait):
    feed(server, f"SWLIMIT.BLOCK k {BLOCKED}", "PEXPIRE k 600")
    assert soon(wait("k", 2, *DAY, PATIENT))[:2] == [1, 2]


def test_expiries_that_are_lengthened_again(server, crowded, waiter):
    feed(server, "PEXPIRE k 100", "PERSIST k")
    time.sleep(0.3)
    assert not waiter.is_answered and server.cli("EXISTS", "k") == "1"
    feed(server, "SWLIMIT.UNBLOCK k")
    assert soon(waiter)[:2] == [1, 2]


def test_a_queue_of_many_goes_on_as_far_as_it_fits(server, wait):
    server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
    queue = [wait("k", 5, *DAY, PATIENT) for _ in range(8)]
    server.cli("SWLIMIT.UNBLOCK", "k")
    assert [soon(one)[2] for one in queue[:5]] == [4, 3, 2, 1, 0]
    ask(server, "SWLIMIT.REFUND", "k", 2)
    assert [soon(one)[0] for one in queue[5:7]] == [1, 1]
    assert waiting(server) == 1 and not queue[7].is_answered
    server.cli("FLUSHALL")
    assert soon(queue[7])[2] == 4
    eventually(lambda: waiting(server), 0)
