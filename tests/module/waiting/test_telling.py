"""What replicas, the append-only file, statistics and subscribers see of grants that come after waiting."""

import random
import re

import pytest

from support import aof
from support.contents import info, same_data, statistics
from support.events import events
from support.model import Window
from support.replication import PROMPT, in_step, replica_of, synchronised
from support.resp import Connection
from support.server_modules import built
from support.waiters import BLOCKED, PATIENT, waiters, waiting
from support.waiting import eventually

DAY = ("1d", "1h")


def recorded(server):
    """The instants, costs and keys of the units in the append-only file."""
    effects = [effect for words in aof.commands(server) if words[0] == "SWLIMIT.APPLY"
               for effect in zip(words[1::2], words[2::2])]
    counts = [(key, re.fullmatch(r"c\d+\*\d+@(\d+)(?:\+(\d+))?[!~\d]*", word)) for key, word in effects
              if word[0] == "c"]
    return [(int(count[1]), int(count[2] or 1), key) for key, count in counts]


def test_replicas_and_files_hold_exactly_what_was_granted(start):
    """In several databases, several at a time and one by one; a restart too."""
    primary = start(options=PROMPT | {"appendonly": "yes", "aof-use-rdb-preamble": "no"})
    replica = start(options=replica_of(primary))
    synchronised(replica)
    with waiters(primary) as wait, Connection(primary.port) as admin:
        queue = []
        for database in (0, 9, 3):
            admin.call("SELECT", database)
            admin.calls([("SWLIMIT.BLOCK", key, BLOCKED) for key in ("a", "b")])
            queue += [wait(key, 3, *DAY, PATIENT, "COST", cost, first=[("SELECT", database)])
                      for key in ("a", "b") for cost in (1, 2, 3)]
        for database in (3, 0, 9):
            admin.call("SELECT", database)
            admin.calls([("SWLIMIT.UNBLOCK", "a"), ("SET", "between", 1), ("SWLIMIT.UNBLOCK", "b")])
        answers = [waiter.answer()[:3] for number, waiter in enumerate(queue) if number % 3 < 2]
        assert answers == [[1, 3, 2], [2, 3, 0]] * 6
        in_step(replica, primary)
        expected = same_data(primary, replica)
        assert [units for _, units, _ in recorded(primary)] == [1, 2] * 6
    assert same_data(primary.restart()) == expected


def test_what_somebody_has_not_taken_is_given_back(start, tmp_path):
    """Another module gets the event of a grant, and kills the client before it is answered."""
    primary = start(options=PROMPT | {"appendonly": "yes", "loadmodule": built("executioner", tmp_path)})
    replica = start(options=replica_of(primary))
    synchronised(replica)
    primary.cli("ACL", "SETUSER", "doomed", "on", "nopass", "allkeys", "+@all")
    with waiters(primary) as wait:
        primary.cli("-n", 2, "SWLIMIT.BLOCK", "k", BLOCKED)
        first = [("SELECT", 2)]
        doomed = wait("k", 5, *DAY, PATIENT, "COST", 4, first=[("AUTH", "doomed", ""), *first])
        others = [wait("k", 5, *DAY, PATIENT, "COST", cost, first=first) for cost in (2, 3)]
        primary.cli("-n", 2, "SWLIMIT.UNBLOCK", "k")
        assert [waiter.answer()[:3] for waiter in others] == [[2, 5, 3], [3, 5, 0]]
        with pytest.raises(ConnectionError):
            doomed.answer()
    in_step(replica, primary)
    expected = same_data(primary, replica)
    assert statistics(primary)["refunded"] == 1
    assert same_data(primary.restart()) == expected


def test_a_thousand_on_one_key(start):
    """Granted in the order of arrival, whatever each costs: what the model grants at those instants, not one more."""
    limit, window, resolution, count = 400, 400, 50, 1000
    rng = random.Random(11)
    costs = [rng.randint(1, 5) for _ in range(count)]
    server = start(options={"appendonly": "yes"})
    with waiters(server) as wait, Connection(server.port) as admin:
        admin.call("SWLIMIT.BLOCK", "k", BLOCKED)
        queue = [wait("k", limit, f"{window}ms", f"{resolution}ms", PATIENT, "COST", cost) for cost in costs]
        admin.call("SWLIMIT.UNBLOCK", "k")
        assert [waiter.answer()[0] for waiter in queue] == costs
        eventually(lambda: waiting(server), 0)
    granted = recorded(server)
    assert [units for _, units, _ in granted] == costs
    model = Window(window, resolution)
    for instant, units, _ in granted:
        assert model.estimate(instant, strict=False) + units <= limit, instant
        subinterval = instant // resolution
        model.counts[subinterval] = model.counts.get(subinterval, 0) + units
    assert granted[-1][0] - granted[0][0] > window * (sum(costs) // limit - 2), "the window has held them back"


def test_statistics_and_events(server, wait, counted):
    server.cli("SWLIMIT.BLOCK", "counted", "2s")  # on a busy machine it takes a while until both wait
    with events(server, "Ed") as heard:
        granted, denied = wait("counted", 2, *DAY, PATIENT, "COST", 2), wait("counted", 2, *DAY, "3s")
        assert counted() == {"blocked": 1, "waiting": 2}
        assert [granted.answer()[0], denied.answer()[0]] == [2, 0]
    assert heard == [("keyevent:swlimit.granted", "counted"), ("keyevent:swlimit.denied", "counted")]
    assert "counted" in server.cli("SWLIMIT.TOP", 1000).split()
    assert counted() == {"blocked": 1, "granted": 1, "granted_units": 2, "acquired": 1, "denied": 1, "denied_units": 1}


def test_a_watch_and_a_cache_hear_of_the_grant(server, wait):
    server.cli("SWLIMIT.BLOCK", "k", BLOCKED)
    waiter = wait("k", 2, *DAY, PATIENT)
    with Connection(server.port) as watching, Connection(server.port) as caching:
        server.cli("SWLIMIT.BLOCK", "k", "100ms")
        caching.call("HELLO", 3)
        caching.call("CLIENT", "TRACKING", "ON")
        watching.call("WATCH", "k")
        caching.call("SWLIMIT.PEEK", "k", 2, *DAY)
        assert waiter.answer()[0] == 1
        assert watching.calls([("MULTI",), ("PING",), ("EXEC",)])[-1] is None
        caching.call("PING")
        assert [b"invalidate", [b"k"]] in caching.pushed


def rounds_of_waiting(server, rounds, count):
    """Let many wait, and end each wait in one of all ways."""
    for number in range(rounds):
        with waiters(server) as wait, Connection(server.port) as admin:
            admin.calls([("FLUSHALL",), *(("SWLIMIT.BLOCK", f"k:{key}", BLOCKED) for key in range(10))])
            queue = [wait(f"k:{each % 10}", 3, *DAY, PATIENT) for each in range(count)]
            for each, waiter in enumerate(queue[::2]):
                if each % 4 == 0:
                    waiter.close()
                else:
                    admin.call("CLIENT", *[("UNBLOCK", waiter.id), ("UNBLOCK", waiter.id, "ERROR"),
                                           ("KILL", "ID", waiter.id)][each % 4 - 1])
            admin.calls([("SWLIMIT.BLOCK", f"k:{key}", "20ms") for key in range(5)])
            admin.call("SET", "k:5", "another type")
            assert queue[1].answer()[0] == 1
            admin.call("FLUSHALL", "ASYNC" if number % 2 else "SYNC")
        eventually(lambda: info(server, "clients")["connected_clients"], 1)


@pytest.mark.parametrize("rounds, count", [(3, 60), pytest.param(40, 300, marks=pytest.mark.long)])
def test_nothing_is_left_of_those_who_waited(start, rounds, count, report):
    """The server itself keeps what it has made for blocked clients for a few seconds."""
    server = start()

    def used():
        server.cli("FLUSHALL", "SYNC")
        return info(server, "memory")["used_memory"]

    before = used()
    rounds_of_waiting(server, rounds, count)
    after = eventually(lambda: (now := used()) < before + 500_000 and now, log=lambda: f"{before} … {used()}")
    report(f"{rounds} rounds of {count} waits, ended in all ways: {before} bytes used before, {after} after")
