"""INFO swlimit: counters of what was decided, and how many windows there are and how large."""

import random
import re

import pytest
import redis

from support.bounds import MAX, T
from support.cli import ask, batch
from support.commands import random_commands
from support.contents import counted, held, statistics
from support.resp import Connection
from support.waiting import eventually

QUOTA = "k", 10, 60, 5


def test_fields(server):
    found = statistics(server)
    assert list(found) == ["granted", "denied", "recorded", "refunded", "blocked", "waiting", "acquired",
                           "granted_units", "denied_units", "held", "released", "renewed", "settled", "holds_expired",
                           "keys", "hold_keys", "budget_keys", "memory", "version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", found["version"])
    assert server.cli("INFO", "swlimit").startswith("# swlimit")
    assert "swlimit_granted:" in server.cli("INFO", "everything")


@pytest.mark.parametrize("command, counted", [
    (("ALLOW", *QUOTA), {"granted": 1, "granted_units": 1}),
    (("ALLOW", *QUOTA, "COST", 4), {"granted": 1, "granted_units": 4}),
    (("ALLOW", *QUOTA, "COST", 9, "PARTIAL"), {"granted": 1, "granted_units": 7}),
    (("ALLOW", *QUOTA, "COST", 9), {"denied": 1, "denied_units": 9}),
    (("ALLOW", "k", 3, 60, 5, "COST", 2, "PARTIAL"), {"denied": 1, "denied_units": 2}),
    (("PEEK", *QUOTA), {}),
    (("PEEK", *QUOTA, "COST", 9), {}),
    (("RECORD", *QUOTA, "COST", 99), {"recorded": 1}),
    (("RECORD", *QUOTA, "AT", 0), {}),
    (("REFUND", "k", 2), {"refunded": 1}),
    (("REFUND", "missing", 2), {}),
    (("INFO", "k"), {}),
    (("BLOCK", "k", "1m"), {"blocked": 1}),
    (("BLOCK", "k", "1m", "NX"), {"blocked": 1}),
    (("UNBLOCK", "k"), {}),
    (("ALLOW", *QUOTA, "BLOCK", "1m"), {"granted": 1, "granted_units": 1}),
    (("ALLOW", *QUOTA, "COST", 9, "BLOCK", "1m"), {"denied": 1, "denied_units": 9, "blocked": 1}),
    (("RECORD", *QUOTA, "COST", 9, "BLOCK", "1m"), {"recorded": 1, "blocked": 1}),
    (("RECORD", *QUOTA, "COST", 9, "BLOCK", "1m", "AT", 0), {}),
    (("MALLOW", 2, "k", "other", *QUOTA[1:], 3, 10, 60, 5, 2), {"granted": 1, "granted_units": 5}),
    (("MALLOW", 2, "k", "other", *QUOTA[1:], 8, 10, 60, 5, 2), {"denied": 1, "denied_units": 10}),
    (("ALLOW", "k", 10, 60, 7), {}),
], ids=lambda words: " ".join(map(str, words)) if isinstance(words, tuple) else "")
def test_counters(server, command, counted):
    ask(server, "SWLIMIT.RECORD", *QUOTA, "COST", 3, "AT", T)
    before = statistics(server)
    at = [] if command[0] == "INFO" or "AT" in command else ["AT", T]
    server.cli(f"SWLIMIT.{command[0]}", *command[1:], *at)
    after = statistics(server)
    names = [name for name in before if name not in ("keys", "memory", "version")]
    assert {name: after[name] - before[name] for name in names if after[name] != before[name]} == counted


def test_units_stop_at_the_largest_number_that_every_reader_takes(start):
    """The largest costs make no counter begin again; 2^63 - 1 is the most that a signed reader holds."""
    server = start()
    with Connection(server.port) as connection:
        for name, limit in [("granted", MAX), ("denied", 0)]:
            ask_for = ["SWLIMIT.ALLOW", "k", limit, "1ms", "1ms", "COST", MAX, "AT"]
            replies = list(connection.stream([*ask_for, T + 1_000 * number] for number in range(2_100)))
            assert {reply[0] for reply in replies} == {limit}
            assert statistics(server)[f"{name}_units"] == 2**63 - 1 and statistics(server)[name] == 2_100
        keys = [f"key:{number}" for number in range(2_100)]
        denied = connection.call("SWLIMIT.MALLOW", len(keys), *keys, *[0, 1, 1, MAX] * len(keys))
        assert denied[0] == 0 and statistics(server)["denied_units"] == 2**63 - 1


def test_counters_of_a_blocked_key(server):
    """Requests during a block are denied and begin none; nor does BLOCK with NX, or what lifts it."""
    ask(server, "SWLIMIT.BLOCK", "k", "1m", "AT", T)
    before = statistics(server)
    batch(server, [["SWLIMIT.ALLOW", *QUOTA, "COST", 3, "BLOCK", "1h", "AT", T],
                   ["SWLIMIT.RECORD", *QUOTA, "BLOCK", "1h", "AT", T],
                   ["SWLIMIT.BLOCK", "k", "1h", "NX", "AT", T], ["SWLIMIT.UNBLOCK", "k", "AT", T]])
    after = statistics(server)
    assert {name: after[name] - before[name] for name in ("denied", "denied_units", "recorded", "blocked", "keys")} == {
        "denied": 1, "denied_units": 3, "recorded": 1, "blocked": 0, "keys": 0}


def fill(server, keys=("a", "b", "c", "d")):
    """Windows with a list of counts each."""
    batch(server, [["SWLIMIT.RECORD", key, 10, "1h", "1m", "AT", T + minute * 60_000] for key in keys
                   for minute in range(5)])


def soon(server, windows):
    """So many windows are left, and INFO knows their number and size, soon: some are freed in the background."""
    there = held(server)
    assert there[0] == windows
    eventually(lambda: counted(server), there)


@pytest.mark.parametrize("commands, left", [
    ("", 4),
    ("DEL a b", 2),
    ("UNLINK a b", 2),
    ("FLUSHALL SYNC", 0),
    ("FLUSHALL ASYNC", 0),
    ("FLUSHDB", 0),
    ("RENAME a b", 3),
    ("RENAME a new", 4),
    ("COPY a b REPLACE", 4),
    ("COPY a new", 5),
    ("SET a text", 3),
    ("MOVE a 5", 4),
    ("SWAPDB 0 5", 4),
    ("EXPIRE a 0", 3),
    ("PEXPIRE a 1", 3),
    (f"SWLIMIT.REFUND a 99 AT {T}", 3),
    ("DEBUG RELOAD", 4),
    ("DEBUG RELOAD|DEL a|DEBUG RELOAD", 3),
    ("COPY a b DB 3|SWAPDB 0 3|FLUSHDB", 4),
], ids=lambda words: words if isinstance(words, str) else "")
def test_windows_are_counted(server, commands, left):
    fill(server)
    for command in commands.split("|"):
        server.cli(*command.split())
    eventually(lambda: held(server)[0], left)
    soon(server, left)


def test_windows_are_counted_while_they_change(server):
    for seed in range(3):
        batch(server, random_commands(random.Random(seed), 700))
        soon(server, int(server.cli("DBSIZE")))


def test_expired_windows_are_not_counted(server):
    fill(server)
    batch(server, [["SWLIMIT.ALLOW", f"short:{number}", 10, "50ms", "50ms"] for number in range(100)])
    eventually(lambda: server.cli("DBSIZE"), "4")
    soon(server, 4)


def test_restored_windows_are_counted_once(server):
    fill(server)
    client = server.client()
    payload = client.dump("a")
    client.restore("b", 0, payload, replace=True)
    client.restore("new", 0, payload)
    soon(server, 5)
    with pytest.raises(redis.ResponseError):
        client.restore("new", 0, payload)
    with pytest.raises(redis.ResponseError):
        client.restore("another", 0, payload[:-1] + bytes([payload[-1] ^ 1]))
    client.restore("gone", 1, payload, absttl=True)
    soon(server, 5)
