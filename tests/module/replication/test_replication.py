"""Replicas hold what their primary holds, and obey whatever it has accepted."""

import random

import pytest

from support.bounds import MAX_WINDOW, T
from support.cli import ask, batch, feed, stored
from support.clock import clock_of
from support.commands import expiring, random_commands
from support.contents import counted, digest, expiries, held, info, statistics
from support.replication import PROMPT, follow, in_step
from support.waiting import eventually

pytestmark = pytest.mark.as_run


@pytest.fixture
def primary(start):
    return start(options=PROMPT)


@pytest.fixture
def replica(start):
    return start(options=PROMPT)


def test_a_replica_holds_the_same_after_a_random_workload(primary, replica):
    commands = random_commands(random.Random(8), 1_500)
    batch(primary, commands[:300])
    follow(replica, primary)
    assert digest(replica) == digest(primary)
    batch(primary, commands[300:])
    in_step(replica, primary)
    assert digest(replica) == digest(primary)
    assert statistics(replica)["keys"] == statistics(primary)["keys"] > 10
    assert expiries(replica) == expiries(primary)


def test_by_the_clock_and_in_transactions(primary, replica):
    follow(replica, primary)
    for _ in range(3):
        ask(primary, "SWLIMIT.ALLOW", "k", 2, 60, 5)
    feed(primary, "MULTI", "SWLIMIT.ALLOW a 5 60 5", "SWLIMIT.MALLOW 2 a b 5 60 5 1 5 60 5 1", "SWLIMIT.REFUND k 1",
         "EXEC")
    script = """
        redis.call('SWLIMIT.ALLOW', KEYS[1], 5, 60, '20ms')
        return redis.call('SWLIMIT.RECORD', KEYS[1], 0, 60, '30ms')
    """
    ask(primary, "EVAL", script, 1, "c")
    in_step(replica, primary)
    assert digest(replica) == digest(primary)
    assert [stored(replica, key)["total"] for key in ("k", "a", "b", "c")] == [1, 2, 1, 2]


def test_denials_send_nothing(start, replica):
    """Not a byte: the offset in the stream stays where it is."""
    primary = start(options=PROMPT | {"repl-ping-replica-period": 3_600})
    follow(replica, primary)

    def offset():
        return info(primary, "replication")["master_repl_offset"]

    before = offset()
    ask(primary, "SWLIMIT.ALLOW", "k", 1, 60, 5, "AT", T)
    assert offset() > before
    before = offset()
    for command in (["ALLOW", "k", 1, 60, 5, "AT", T], ["PEEK", "k", 1, 60, 5], ["RECORD", "k", 1, 60, 5, "AT", 0],
                    ["REFUND", "missing", 1], ["ALLOW", "k", 1, 60, 7],
                    ["MALLOW", 2, "o", "k", 1, 1, 1, 1, 1, 60, 5, 2]):
        primary.cli("SWLIMIT." + command[0], *command[1:])
    feed(primary, "MULTI", f"SWLIMIT.ALLOW k 1 60 5 AT {T}", "EXEC")
    assert offset() == before


def test_a_replica_answers_peek_and_refuses_to_count(primary, replica):
    follow(replica, primary)
    ask(primary, "SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 4, "AT", T)
    in_step(replica, primary)
    before = digest(replica)
    assert ask(replica, "SWLIMIT.PEEK", "k", 10, 60, 5, "COST", 7, "AT", T) == [0, 10, 6, 61_250, 65_000]
    assert stored(replica, "k") == stored(primary, "k")
    for command in (["ALLOW", "k", 10, 60, 5], ["RECORD", "k", 10, 60, 5], ["REFUND", "k", 1], ["ALLOW", "k", 0, 60, 5],
                    ["MALLOW", 1, "k", 10, 60, 5, 1]):
        assert replica.cli("SWLIMIT." + command[0], *command[1:]).startswith("READONLY ")
    assert digest(replica) == before


def test_a_replica_obeys_beyond_its_own_configuration(primary, start):
    replica = start(options=PROMPT, module_args=["max-subintervals", 5])
    ask(primary, "SWLIMIT.ALLOW", "before", 10, "4s", "1ms", "AT", T)
    follow(replica, primary)
    feed(primary, "SWLIMIT.ALLOW k 10 4s 1ms", "MULTI", "SWLIMIT.RECORD k 10 4s 2ms", "EXEC",
         "SWLIMIT.MALLOW 2 k l 10 1h 1s 1 10 1h 1s 1")
    in_step(replica, primary)
    assert digest(replica) == digest(primary)
    assert stored(replica, "k")["total"] == 3
    error = "ERR window / resolution is 3600 subintervals, above swlimit.max-subintervals (5)"
    assert replica.cli("SWLIMIT.PEEK", "k", 10, "1h", "1s") == error
    replica.cli("REPLICAOF", "NO", "ONE")
    assert replica.cli("SWLIMIT.ALLOW", "k", 10, "1h", "1s") == error
    assert ask(replica, "SWLIMIT.ALLOW", "k", 10, "1h", "1h")[:3] == [1, 10, 6]


@pytest.mark.parametrize("skews", [(0, 0), (30, -300)], ids=["same clocks", "other clocks"])
def test_keys_expire_when_the_primary_says(start, skewed, skews):
    """On a replica and on a replica of that, exactly then, whatever their clocks say; and after a promotion."""
    primary = start(options=PROMPT, env=skewed(0))
    first, second = (start(options=PROMPT, env=skewed(skew)) for skew in skews)
    follow(first, primary)
    follow(second, first)
    now = int(clock_of(primary) * 1000)
    batch(primary, expiring(now))
    in_step(first, primary)
    in_step(second, first)
    there = expiries(primary)
    assert len(there) == 15 and there[b"ahead"] - now > 60_000
    assert expiries(first) == expiries(second) == there
    assert digest(first) == digest(second) == digest(primary)
    second.cli("REPLICAOF", "NO", "ONE")
    assert expiries(second) == there
    # The chain as it was found: what was counted ahead of the clock is there after a promotion, too.
    first.cli("REPLICAOF", "NO", "ONE")
    assert ask(first, "SWLIMIT.PEEK", "ahead", 10, "2s", "500ms", "AT", now + 60_000)[2] == 4


def test_an_age_at_another_geometry_than_that_of_counts_that_have_ended(primary, replica):
    """They had not when the units were counted, which nobody else may bring back."""
    follow(replica, primary)
    ask(primary, "SWLIMIT.RECORD", "k", 9, "1h", "1h", "COST", 3, "AT", T)
    ask(primary, "SWLIMIT.RECORD", "k", 9, "1h", "1m", "AGE", "30m", "AT", T + 7_800_000)
    in_step(replica, primary)
    assert stored(replica, "k") == stored(primary, "k")
    assert stored(primary, "k")["counts"] == {T + 6_000_000: 1}


@pytest.mark.parametrize("aof", [False, True], ids=["replica", "AOF"])
def test_a_refund_since_an_instant_longer_ago_than_any_age(start, replica, aof):
    """A window of 3650 days holds its units for twice as long, and an age is at most 3650 days."""
    primary = start(options=PROMPT | {"appendonly": "yes", "aof-use-rdb-preamble": "no"})
    follow(replica, primary)
    longest, begin = "3650d", 5 * MAX_WINDOW
    for at, units in [(begin, 3), (begin + MAX_WINDOW, 4)]:
        ask(primary, "SWLIMIT.RECORD", "k", 9, longest, longest, "COST", units, "AT", at)
    assert ask(primary, "SWLIMIT.REFUND", "k", 2, "SINCE", begin, "AT", begin + 2 * MAX_WINDOW - 1) == [2]
    if aof:
        assert primary.cli("DEBUG", "LOADAOF") == "OK"
        assert stored(primary, "k")["counts"] == {begin: 1, begin + MAX_WINDOW: 4}
    else:
        in_step(replica, primary)
        assert stored(replica, "k") == stored(primary, "k")
        assert stored(replica, "k")["counts"] == {begin: 1, begin + MAX_WINDOW: 4}


def test_an_age_in_a_window_that_has_ended(primary, replica):
    """The same as on the primary, which counted the units before the instant at which the window ended."""
    follow(replica, primary)
    ask(primary, "SWLIMIT.RECORD", "k", 9, "1h", "1m", "COST", 3, "AT", T)
    ask(primary, "SWLIMIT.RECORD", "k", 9, "1h", "1m", "AGE", "30m", "AT", T + 3_660_000)
    in_step(replica, primary)
    assert stored(replica, "k") == stored(primary, "k")
    assert stored(primary, "k")["counts"] == {T + 1_860_000: 1}


def test_an_expiry_that_has_passed_reaches_the_replica_as_a_deletion(primary, replica):
    follow(replica, primary)
    ask(primary, "SWLIMIT.APPLY", "k", f"c60000*60@{T}~1")
    eventually(lambda: primary.cli("DBSIZE"), "0")
    in_step(replica, primary)
    assert replica.cli("DBSIZE") == "0"


@pytest.mark.parametrize("diskless_load", ["disabled", "on-empty-db"])
def test_a_full_synchronisation_without_disks(primary, start, diskless_load):
    """Also replaces what the replica held; its statistics know nothing else then."""
    replica = start(options=PROMPT | {"repl-diskless-load": diskless_load})
    primary.cli("CONFIG", "SET", "repl-diskless-sync", "yes")
    batch(primary, random_commands(random.Random(9), 300))
    if diskless_load != "on-empty-db":
        batch(replica, random_commands(random.Random(10), 300, keys=50))
    follow(replica, primary)
    assert digest(replica) == digest(primary)
    assert held(replica)[0] > 10
    eventually(lambda: counted(replica), held(replica))
