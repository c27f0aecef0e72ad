"""What servers do to keys and modules: eviction, lazy free, defragmentation, swapping, expiry on replicas, unloading.

Each test does the same to windows and to the server's own strings, and expects the same of both.
"""

import shutil
from contextlib import contextmanager

import pytest

from support.bounds import MAX
from support.contents import agrees, info
from support.lacking import needed
from support.replication import PROMPT, replica_of, synchronised
from support.resp import Connection, Failed, storm
from support.server import MODULE
from support.waiting import eventually

NOW = 1_700_000_000_000
ALLOW = ("SWLIMIT.ALLOW", "w", 1000, "1h", "1m")
WRITES = (("SWLIMIT.ALLOW", "w", 1000, "1h", "1m"), ("SWLIMIT.RECORD", "w", 1000, "1h", "1m"),
          ("SWLIMIT.MALLOW", 1, "w", 1000, "1h", "1m", 1), ("SWLIMIT.BLOCK", "w", "1h"),
          ("SWLIMIT.ALLOW", "w", 0, "1h", "1m", "BLOCK", "1h"))
READS = (("SWLIMIT.PEEK", "w", 1000, "1h", "1m"), ("SWLIMIT.INFO", "w"))


def code(reply):
    """The code of an error, "" for any other reply."""
    return reply.split(" ")[0] if isinstance(reply, Failed) else ""


def codes(pipe, commands):
    return {code(reply) for reply in pipe.calls(commands)}


def window(pipe, key="w"):
    """What a key holds, without what differs from copy to copy."""
    reply = pipe.call("SWLIMIT.INFO", key)
    assert not isinstance(reply, Failed), reply
    shown = dict(zip(reply[::2], reply[1::2]))
    return {name: value for name, value in shown.items() if name != b"memory"}


def gone(pipe):
    """Wait until INFO counts neither windows nor memory."""
    eventually(lambda: info(pipe)["swlimit_keys"], 0)
    assert info(pipe)["swlimit_memory"] == 0


@pytest.fixture
def own(start):
    """A server for one test."""
    return start(options={"hz": 100})


@pytest.fixture
def pipe(own):
    with Connection(own.port) as pipe:
        yield pipe


@contextmanager
def following(start, primary):
    """A connection to a replica of `primary` that is in step."""
    replica = start(options=replica_of(primary, **{"hz": 100, "repl-timeout": 3600}))
    synchronised(replica)
    with Connection(replica.port) as pipe:
        yield pipe


def test_full_memory_without_eviction(pipe):
    """With maxmemory reached and noeviction, what would count is refused as INCR is and changes nothing, also within
    transactions and scripts; PEEK, INFO and REFUND go on as GET and DEL do; with memory, everything goes on."""
    assert pipe.call(*ALLOW)[0] == 1
    pipe.call("SET", "s", 1)
    before, counted = window(pipe), info(pipe)
    pipe.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    pipe.call("CONFIG", "SET", "maxmemory", 1)
    assert codes(pipe, [("INCR", "s")]) == codes(pipe, [*WRITES, (*ALLOW, "COST", 9999)]) == {"OOM"}
    assert codes(pipe, [("EVAL", "return redis.call(unpack(ARGV))", 1, "w", *words) for words in WRITES]) == {"OOM"}
    pipe.call("MULTI")
    assert codes(pipe, WRITES[:1]) == {"OOM"}
    assert code(pipe.call("EXEC")) == "EXECABORT"
    assert window(pipe) == before
    after = info(pipe)
    assert after == counted
    assert codes(pipe, [("GET", "s")]) == codes(pipe, READS) == {""}
    assert pipe.call("SWLIMIT.REFUND", "w", 1) == pipe.call("DEL", "s") == 1
    gone(pipe)
    pipe.call("CONFIG", "SET", "maxmemory", 0)
    assert codes(pipe, WRITES) == {""}
    assert agrees(pipe) == 1


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu",
                                    "volatile-random", "volatile-ttl"])
def test_eviction(start, policy):
    """Under every policy, windows are evicted beside strings of about their size when memory is full, on the replica
    too; what remains is whole."""
    primary = start(options=PROMPT | {"hz": 100, "repl-backlog-size": "16kb"})
    keys = 4000
    with Connection(primary.port) as pipe, following(start, primary) as follower:
        pipe.call("CONFIG", "SET", "maxmemory-policy", policy)
        pipe.call("CONFIG", "SET", "maxmemory-eviction-tenacity", 100)
        room = info(pipe, "memory")
        pipe.call("CONFIG", "SET", "maxmemory", room["used_memory"] - room["mem_not_counted_for_evict"] + 600_000)
        commands = (("SWLIMIT.RECORD", b"w%d" % key, 10, "1h", "1m", "COST", 7) if turn == 0 else
                    ("SET", b"s%d" % key, "x" * 32, "EX", 3600) for key in range(keys) for turn in (0, 1))
        storm(primary.port, commands, size=100)
        pipe.call("CONFIG", "SET", "maxmemory", 0)
        kept = pipe.call("DBSIZE")
        evicted = info(pipe, "stats")["evicted_keys"]
        assert kept + evicted == 2 * keys and evicted > keys / 10
        windows = agrees(pipe)
        print(f"\n{policy}: {evicted} of {2 * keys} keys evicted; {windows} windows and {kept - windows} strings left")
        for fate in (windows, kept - windows):  # neither kind is spared, neither is singled out
            assert keys * 0.02 < fate < keys * 0.98 if policy != "volatile-ttl" else fate < keys
        names = pipe.call("KEYS", "w*")
        for key in names[:50]:
            assert window(pipe, key)[b"total"] == 7
        offset = info(pipe, "replication")["master_repl_offset"]
        eventually(lambda: info(follower, "replication")["slave_repl_offset"] >= offset)
        assert follower.call("DBSIZE") == pipe.call("DBSIZE")
        assert info(follower)["swlimit_keys"] == agrees(follower) == len(names)


def test_lazy_free(own, pipe):
    """UNLINK, lazy DEL, lazy expiry and replacement free windows, FLUSHALL ASYNC and FLUSHDB ASYNC on a thread of the
    server; INFO is exact afterwards, and new keys can be made meanwhile."""
    def fill(keys=3000):
        storm(own.port, (("SWLIMIT.RECORD", b"w%d" % key, 10, "1h", "1m", "AT", NOW + minute * 60_000)
                    for key in range(keys) for minute in (0, 1)))
        assert info(pipe)["swlimit_keys"] == keys
        return [b"w%d" % key for key in range(keys)]

    assert pipe.call("UNLINK", *fill()) == 3000
    gone(pipe)
    for option in ("user-del", "user-flush", "expire", "eviction", "server-del"):
        pipe.call("CONFIG", "SET", f"lazyfree-lazy-{option}", "yes")
    assert pipe.call("DEL", *fill()) == 3000
    gone(pipe)
    pipe.calls([("PEXPIRE", key, 1) for key in fill(500)])
    gone(pipe)
    pipe.calls([("SET", key, "x") for key in fill(500)])
    gone(pipe)
    pipe.call("FLUSHALL")
    for command in (("FLUSHALL", "ASYNC"), ("FLUSHDB", "ASYNC"), ("FLUSHALL",)):
        fill()
        lazily = info(pipe, "memory")["lazyfreed_objects"]
        assert pipe.calls([command, ALLOW])[1][:3] == [1, 1000, 999]
        eventually(lambda: info(pipe)["swlimit_keys"], 1)
        eventually(lambda: info(pipe, "memory")["lazyfreed_objects"] >= lazily + 3000)
        assert agrees(pipe) == 1
        pipe.call("DEL", "w")
        gone(pipe)


def test_swapdb_move_and_flush(start):
    """SWAPDB, MOVE and FLUSHDB take windows with their counts and expiry, on the replica too; no window is counted
    twice or forgotten."""
    primary = start(options=PROMPT)
    with Connection(primary.port) as pipe, following(start, primary) as follower:
        pipe.call("SWLIMIT.RECORD", "w", 9, "1h", "1m", "COST", 3)
        pipe.call("SET", "s", 1, "EX", 3600)
        there = window(pipe)
        expiry = pipe.call("PEXPIRETIME", "w")
        assert pipe.call("SWAPDB", 0, 1) == b"OK"
        assert pipe.call("EXISTS", "w") == pipe.call("EXISTS", "s") == 0
        assert pipe.call("SWLIMIT.PEEK", "w", 9, "1h", "1m")[2] == 9
        assert pipe.call("SWLIMIT.ALLOW", "w", 5, "1h", "1m")[2] == 4
        assert agrees(pipe) == 2
        pipe.call("SELECT", 1)
        assert window(pipe) == there and pipe.call("PEXPIRETIME", "w") == expiry
        assert pipe.call("SWLIMIT.ALLOW", "w", 9, "1h", "1m")[2] == 5
        assert pipe.calls([("MOVE", "w", 2), ("MOVE", "s", 2), ("MOVE", "w", 2)]) == [1, 1, 0]
        pipe.call("SELECT", 2)
        assert window(pipe)[b"total"] == 4
        assert agrees(pipe) == 2
        offset = info(pipe, "replication")["master_repl_offset"]
        eventually(lambda: info(follower, "replication")["slave_repl_offset"] >= offset)
        for database in (0, 2):
            pipe.call("SELECT", database)
            follower.call("SELECT", database)
            assert window(pipe) == window(follower)
        assert agrees(follower) == 2
        pipe.call("SELECT", 2)
        assert pipe.call("FLUSHDB", "SYNC") == b"OK"
        assert agrees(pipe) == 1
        assert pipe.call("FLUSHALL") == b"OK"
        gone(pipe)
        gone(follower)


def test_expired_keys_on_a_replica(start):
    """A window that has expired is gone to readers of a replica before the primary says so, as a string is; it is
    freed there when the primary says so."""
    primary = start(options=PROMPT | {"hz": 100})
    with Connection(primary.port) as pipe, following(start, primary) as follower:
        pipe.call("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        pipe.calls([("SWLIMIT.RECORD", "w", 5, "200ms", "100ms", "COST", 3), ("SET", "s", 1, "PX", 400)])
        assert pipe.call("WAIT", 1, 5000) == 1
        assert follower.call("SWLIMIT.PEEK", "w", 5, "200ms", "100ms")[2] <= 5
        eventually(lambda: follower.call("EXISTS", "s", "w"), 0)
        assert follower.call("DBSIZE") == 2 and info(follower)["swlimit_keys"] == 1
        assert follower.call("GET", "s") is None
        assert follower.call("SWLIMIT.INFO", "w") == "ERR no such key"
        assert follower.call("SWLIMIT.PEEK", "w", 5, "200ms", "100ms") == [1, 5, 5, 0, 0]
        assert follower.call("DBSIZE") == 2 and info(follower)["swlimit_keys"] == 1
        assert codes(follower, [("SET", "s", 1), *WRITES]) == {"READONLY"}
        pipe.call("DEBUG", "SET-ACTIVE-EXPIRE", 1)
        eventually(lambda: follower.call("DBSIZE"), 0)
        gone(follower)
        gone(pipe)


def test_replica_without_its_primary(start):
    """A replica whose link is down answers PEEK and SWLIMIT.INFO exactly if it answers GET: with stale data by default,
    not at all under `replica-serve-stale-data no`. It never counts."""
    primary = start(options=PROMPT)
    with Connection(primary.port) as pipe, following(start, primary) as follower:
        pipe.calls([ALLOW, ("SET", "s", 1)])
        assert pipe.call("WAIT", 1, 5000) == 1
        before = window(follower)
        follower.call("REPLICAOF", "127.0.0.1", 1)  # nobody listens there
        eventually(lambda: info(follower, "replication")["master_link_status"], "down")
        assert codes(follower, [("GET", "s"), *READS]) == {""}
        assert codes(follower, [("SET", "s", 2)]) == codes(follower, WRITES) == {"READONLY"}
        assert window(follower) == before
        follower.call("CONFIG", "SET", "replica-serve-stale-data", "no")
        assert codes(follower, [("GET", "s")]) == codes(follower, READS) == {"MASTERDOWN"}
        assert codes(follower, [("SET", "s", 2)]) == codes(follower, WRITES) <= {"READONLY", "MASTERDOWN"}
        follower.call("REPLICAOF", "127.0.0.1", primary.port)
        eventually(lambda: info(follower, "replication")["master_link_status"], "up")
        assert window(follower) == before
        assert agrees(follower) == agrees(pipe) == 1
        follower.call("REPLICAOF", "NO", "ONE")
        assert follower.call(*ALLOW)[2] == 998, "promoted, it goes on where the primary was"


def test_writes_wait_for_replicas_as_others_do(start):
    """Without the replicas that `min-replicas-to-write` wants, counting is refused as SET is."""
    server = start(options={"min-replicas-to-write": 1})
    with Connection(server.port) as pipe:
        assert codes(pipe, [("SET", "s", 1)]) == codes(pipe, WRITES) == {"NOREPLICAS"}
        assert pipe.call(*READS[0])[2] == 1000
        gone(pipe)


def test_unloading_and_loading_again_are_refused(own, pipe, tmp_path):
    """The module can't be unloaded, for its keys' sake, nor loaded twice, from the same file or a copy of it; neither
    attempt disturbs it."""
    pipe.call(*ALLOW)
    before = window(pipe)
    copy = shutil.copy(MODULE, tmp_path / "copy.so")
    for attempt in (("MODULE", "UNLOAD", "swlimit"), ("MODULE", "LOAD", str(MODULE)), ("MODULE", "LOAD", str(copy)),
                    ("MODULE", "LOAD", str(MODULE), "max-subintervals", "5"), ("MODULE", "UNLOAD", "swlimit")):
        reply = pipe.call(*attempt)
        assert code(reply) == "ERR", (attempt, reply)
        assert "UNLOAD" not in attempt or "data type" in reply, reply
        assert pipe.call("CONFIG", "GET", "swlimit.max-subintervals")[1] == b"4096"
        assert window(pipe) == before
        assert codes(pipe, [*READS, ("SWLIMIT.ALLOW", "x", 2, 60, 1), ("SWLIMIT.REFUND", "x", 1), ("DUMP", "w"),
                            ("DEBUG", "RELOAD")]) == {""}
        assert agrees(pipe) == 1
        assert sum(b"swlimit" in module for module in pipe.call("MODULE", "LIST")) == 1


def test_active_defragmentation(start):
    """With the server's own jemalloc, active defragmentation moves windows of every size: no count changes, none is
    lost, and the server can go on with every one of them."""
    server = start(binaries=needed("redis-7.4"), options={
        "hz": 100, "active-defrag-ignore-bytes": 1, "active-defrag-threshold-lower": 0, "active-defrag-cycle-min": 60,
        "active-defrag-cycle-max": 90})
    keys = 12_000
    with Connection(server.port) as pipe:
        pipe.call("CONFIG", "SET", "swlimit.max-subintervals", 1_000_000)
        storm(server.port, (("SWLIMIT.RECORD", b"w%d" % key, 10, "1h", "1s", "AT", NOW + second * 1000, "COST", 1 + key)
                       for key in range(keys) for second in range(1 + (key % 7) ** 2)))
        storm(server.port, (("SWLIMIT.RECORD", b"large", 10, "1h", "1s", "AT", NOW + second * 1000, "COST", 2**33)
                       for second in range(3000)))
        storm(server.port, (("SWLIMIT.BLOCK", b"w%d" % key, "1d", "AT", NOW) for key in range(0, keys, 3)))
        # Holes everywhere, but not evenly: the server moves what is in pages emptier than most.
        kept = [b"w%d" % key for key in range(keys) if key % (20 if key % 1000 < 500 else 2) == 0]
        storm(server.port, (("DEL", key) for key in {b"w%d" % key for key in range(keys)} - set(kept)))
        kept.append(b"large")
        assert pipe.call("DBSIZE") == len(kept)
        before = list(pipe.stream([("SWLIMIT.INFO", key) for key in kept]))
        digest, counted = pipe.call("DEBUG", "DIGEST"), info(pipe)
        reply = pipe.call("CONFIG", "SET", "activedefrag", "yes")
        assert reply == b"OK", reply
        hits_and_misses = ("active_defrag_key_hits", "active_defrag_key_misses")

        def visits():
            stats = info(pipe, "stats")
            return sum(stats[name] for name in hits_and_misses)

        eventually(lambda: visits() > len(kept) / 2)
        for key in kept[:500]:  # windows change meanwhile
            assert pipe.call("SWLIMIT.RECORD", key, 10, "1h", "1s", "AT", NOW + 49_000)[1] == 10
        enough = visits() + 3 * len(kept)
        eventually(lambda: visits() > enough)
        for key in kept[:500]:
            assert pipe.call("SWLIMIT.REFUND", key, 1, "AT", NOW + 49_000) == 1
        pipe.call("CONFIG", "SET", "activedefrag", "no")
        moved = info(pipe, "stats")
        print(f"\nactive defragmentation: {moved['active_defrag_hits']} allocations moved, "
              f"{moved['active_defrag_key_hits']} of {len(kept)} keys had some")
        assert moved["active_defrag_key_hits"] > len(kept) / 10
        assert moved["active_defrag_hits"] > len(kept) / 2
        after = list(pipe.stream([("SWLIMIT.INFO", key) for key in kept]))
        assert [shown(reply) for reply in after] == [shown(reply) for reply in before]
        assert pipe.call("DEBUG", "DIGEST") == digest
        assert info(pipe)["swlimit_keys"] == counted["swlimit_keys"] == agrees(pipe)
        lifted = pipe.stream([("SWLIMIT.UNBLOCK", key, "AT", NOW + 49_000) for key in kept])
        assert sum(lifted) > len(kept) / 4
        for key in kept:
            assert pipe.call("SWLIMIT.REFUND", key, MAX, "AT", NOW + 49_000) > 0
        gone(pipe)
    assert server.alive and "REDIS BUG REPORT" not in server.log


def shown(reply):
    """SWLIMIT.INFO without the memory, which may be less after a change and its refund."""
    return [*reply[:10], reply[-1]]
