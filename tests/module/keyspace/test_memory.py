"""Memory: everything that keys took comes back, and memcheck sees no invalid access and no leak of the module.

Printed figures show with `pytest -s`.
"""

import random
import re
import shutil

import pytest

from support.bounds import MAX
from support.cli import batch, stored
from support.commands import random_commands
from support.contents import agrees, info, same_data
from support.lacking import lacking, needed
from support.memcheck import memcheck, records
from support.payloads import Frame, blocked, damaged, value_of
from support.replication import PROMPT, replica_of, synchronised
from support.resp import Connection, Failed, storm
from support.waiters import waiters
from support.waiting import eventually

NOW = 1_700_000_000_000
SLACK = 192 << 10  # what a server's own needs vary by
FROM_MODULE = re.compile(r"libswlimit\.so|\.rs:\d+\)")  # nothing else is written in Rust


def used_memory(pipe):
    return info(pipe, "memory")["used_memory"]


def empty(pipe, seconds=60):
    """Wait until there is no key, and nothing left to free in the background; then empty the database's own tables too;
    the bytes then in use."""
    eventually(lambda: pipe.call("DBSIZE"), 0, seconds=seconds)
    eventually(lambda: info(pipe)["swlimit_keys"], 0, seconds=seconds)
    eventually(lambda: info(pipe, "memory")["lazyfree_pending_objects"], 0, seconds=seconds)
    assert info(pipe)["swlimit_memory"] == 0
    pipe.call("FLUSHALL", "SYNC")
    pipe.call("SLOWLOG", "RESET")
    return used_memory(pipe)


def create(server, keys, window="1h", resolution="1s"):
    """A window in each key, with one count."""
    storm(server.port, (("SWLIMIT.ALLOW", b"key:%d" % key, 10, window, resolution) for key in range(keys)))


def change(server, keys):
    """Give windows a second count, many units, late counts, a block, another geometry, and take counts back."""
    changes = (("SWLIMIT.RECORD", 10, "1h", "1s", "AT", NOW), ("SWLIMIT.RECORD", 10, "1h", "1s", "COST", 2**40),
               ("SWLIMIT.BLOCK", "1h"), ("SWLIMIT.ALLOW", MAX, "2h", "1m"), ("SWLIMIT.REFUND", 2**40),
               ("SWLIMIT.REFUND", 1))
    storm(server.port, ((command, b"key:%d" % key, *rest) for key in range(keys)
                   for command, *rest in changes[:1 + key % len(changes)]))


def delete(server, keys):
    """Remove windows in every way but expiry and eviction."""
    ways = (lambda key: ("DEL", key), lambda key: ("UNLINK", key), lambda key: ("SET", key, "x", "PX", 1),
            lambda key: ("SWLIMIT.REFUND", key, MAX), lambda key: ("PEXPIRE", key, 0),
            lambda key: ("RENAME", key, "one"), lambda key: ("COPY", key, "other", "REPLACE"))
    storm(server.port, (ways[key % len(ways)](b"key:%d" % key) for key in range(keys)))


@pytest.mark.parametrize("keys", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_memory_comes_back(start, keys):
    """After keys were created, changed, deleted, expired and evicted, no byte is left: not by the server's count, to a
    fraction of a byte a key, nor by the module's own, exactly."""
    server = start(options={"hz": 100, "slowlog-log-slower-than": -1, "active-expire-effort": 10})
    with Connection(server.port) as pipe:
        def work():
            pipe.call("CONFIG", "SET", "maxmemory", 0)
            create(server, keys)
            change(server, keys)
            assert info(pipe)["swlimit_keys"] == pipe.call("DBSIZE") > keys / 2
            taken = used_memory(pipe)
            delete(server, keys)
            pipe.call("FLUSHALL", "ASYNC")
            levels = [empty(pipe)]

            create(server, keys, "500ms", "1ms")
            levels.append(empty(pipe))
            expired = info(pipe, "stats")["expired_keys"]

            evicted_before = info(pipe, "stats")["evicted_keys"]

            def evicted():
                return info(pipe, "stats")["evicted_keys"] - evicted_before

            pipe.call("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
            pipe.call("CONFIG", "SET", "maxmemory", used_memory(pipe) + keys * 40)
            create(server, keys)
            # Servers go on evicting between commands.
            eventually(lambda: info(pipe)["swlimit_keys"] == pipe.call("DBSIZE") == keys - evicted(), True)
            total = evicted()
            pipe.call("CONFIG", "SET", "maxmemory", 0)
            pipe.call("FLUSHALL", "SYNC")
            levels.append(empty(pipe))
            return taken, levels, expired, total

        work()  # buffers, tables and statistics that stay
        before = empty(pipe)
        taken, levels, expired, evicted = work()
        counted = info(pipe)
        print(f"\n{keys} keys: {before} bytes before, {taken} with them; after delete, expiry, eviction: {levels}; "
              f"{expired} expired and {evicted} evicted; {counted}")
        assert taken - before > 50 * keys
        assert expired > keys and evicted > keys / 10
        assert counted["swlimit_granted"] >= 6 * keys and counted["swlimit_recorded"] > 0
        assert max(levels) < before + SLACK, f"{before} bytes before, {levels} after"


def test_memory_adds_up(server):
    """`swlimit_memory` is the sum of what each key says, whatever has been done to them."""
    with Connection(server.port) as pipe:
        create(server, 700)
        change(server, 700)
        for number in range(100):
            pipe.calls([("SWLIMIT.RECORD", f"large:{number}", 1, 60, "100ms", "COST", 2**31, "AT", NOW + step)
                        for step in range(0, 100 * number, 100)])
        delete(server, 350)
        keys = [key for key in pipe.call("KEYS", "*") if pipe.call("TYPE", key) == b"sw-window"]
        each = [reply[reply.index(b"memory") + 1] for reply in pipe.calls([("SWLIMIT.INFO", key) for key in keys])]
        assert len(keys) > 300 and max(each) > 10 * min(each)
        assert info(pipe)["swlimit_keys"] == len(keys)
        assert info(pipe)["swlimit_memory"] == sum(each)


@pytest.mark.parametrize("tries", [40_000, pytest.param(400_000, marks=pytest.mark.long)])
def test_refused_payloads_leave_nothing(start, tries):
    """Payloads refused at their last byte, and refused commands, leave no byte behind."""
    server = start(options={"slowlog-log-slower-than": -1})
    with Connection(server.port) as pipe:
        pipe.call("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
        pipe.call("SWLIMIT.RECORD", "k", 1, 60, 1, "AT", NOW)
        frame = Frame(pipe.call("DUMP", "k"))
        counts = [(number, 1) for number in range(1, 31)]
        surplus, zero = value_of(1000, 60, counts) + b"\0", value_of(1000, 60, [*counts, (31, 0)])
        wrong_end = frame.around(value_of(1000, 60, counts))[:-11] + b"\5" + frame.foot
        refused = (("RESTORE", "r", 0, frame.around(surplus)), ("RESTORE", "r", 0, frame.around(zero)),
                   ("RESTORE", "r", 0, wrong_end), ("SWLIMIT.ALLOW", "k", 1, 60, 1, b"\0" * 500),
                   ("SWLIMIT.MALLOW", 2, "k", "k", 1, 60, 1, 1, 1, 60, 1, 1))
        for reply in pipe.calls(refused):
            assert isinstance(reply, Failed), reply

        def work():
            storm(server.port, (refused[number % len(refused)] for number in range(tries)))
            pipe.call("FLUSHALL", "SYNC")
            return used_memory(pipe)

        work()
        before, after = work(), work()
        print(f"\n{tries} refused payloads and commands: {before} bytes before, {after} after")
        assert after < before + SLACK
        assert info(pipe)["swlimit_keys"] == info(pipe)["swlimit_memory"] == 0


ROUNDS = 20_000


@pytest.mark.long
def test_memcheck(start, tmp_path):
    """Memcheck sees no invalid access in any process of a primary and its replica, and no leak of the module, while
    every command, type method and refusal is used. The server is one that uses the C library's allocator."""
    if not shutil.which("valgrind"):
        lacking("valgrind: memory safety is not tested")
    binaries = needed("valkey-9.1")
    folders = [tmp_path / "primary", tmp_path / "replica"]
    for folder in folders:
        folder.mkdir()
    # The server's compression reads a table that it never initialises; without it, all bytes written are checked.
    options = {"rdbcompression": "no"}
    primary = start(binaries=binaries, before=memcheck(folders[0]), ready_seconds=120, options=options | PROMPT | {
        "appendonly": "yes", "aof-use-rdb-preamble": "no"})
    replica = start(binaries=binaries, before=memcheck(folders[1]), ready_seconds=120, options=options
                    | replica_of(primary, **{"repl-diskless-load": "swapdb"}))
    rng = random.Random(ROUNDS)
    with Connection(primary.port) as pipe, Connection(replica.port) as follower:
        assert info(pipe, "memory")["mem_allocator"] == "libc"
        synchronised(replica, 120)
        for number in range(ROUNDS):
            every_command(pipe, rng, b"k%d" % (number % 20))
        accepted = hostile_payloads(pipe, rng, ROUNDS)
        large = [("SWLIMIT.RECORD", "large", 1, 60, "1ms", "AT", NOW + step, "COST", 1 + (2**32 if step == 700 else 0))
                 for step in range(0, 1000, 2)]
        pipe.call("CONFIG", "SET", "swlimit.max-subintervals", 1_000_000)
        replies = pipe.calls(large)
        assert not any(isinstance(reply, Failed) for reply in replies)
        every_method(pipe)
        every_wait(primary, pipe)
        offset = info(pipe, "replication")["master_repl_offset"]
        eventually(lambda: info(follower, "replication")["slave_repl_offset"] >= offset, seconds=120)
        digests = [client.call("DEBUG", "DIGEST-VALUE", "large", "k1", "copy") for client in (pipe, follower)]
        assert digests[0] == digests[1]
        for client in (follower, pipe):
            client.call("DEBUG", "RELOAD")
            client.call("SWLIMIT.PEEK", "large", 1, 60, 1)
        pipe.call("SWAPDB", 0, 1)
        pipe.call("FLUSHALL", "ASYNC")
        eventually(lambda: info(pipe)["swlimit_keys"], 0, seconds=60)
        pipe.call("SWLIMIT.ALLOW", "kept", 1, "1d", "1h")
        assert pipe.call("WAIT", 1, 60_000) == 1
    for server in (replica, primary):
        server.stop(timeout=120)
    found = [record for folder in folders for record in records(folder)]
    logs = [log for folder in folders for log in folder.glob("memcheck.*.log")]
    leaks = [record for record in found if "in loss record" in record]
    invalid = [record for record in found if "in loss record" not in record]
    owned = [record for record in leaks if FROM_MODULE.search(record)]
    lost = [record for record in owned if re.search(r"(definitely|indirectly) lost", record)]
    kept = [record for record in owned if record not in lost]
    print(f"\nmemcheck (seed {ROUNDS}): {ROUNDS} rounds of every command, "
          f"{accepted} of {ROUNDS} damaged payloads accepted, "
          f"{len(logs)} processes, {len(invalid)} invalid accesses, {len(lost)} leaks of the module; "
          f"{len(kept)} places of the module with memory still held")
    assert len(logs) >= 4, "the primary, the replica, and children of the primary"
    assert kept, "nothing is attributed to the module, not even the key it still holds: the logs cannot show leaks"
    assert not invalid, "\n\n".join(invalid)
    assert not lost, "\n\n".join(lost)


def every_wait(server, pipe):
    """Clients that wait: granted, denied, gone, let go, and refused."""
    quota = ("queue", 2, "1d", "1h")
    with waiters(server) as wait:
        pipe.call("SWLIMIT.BLOCK", "queue", "1h")
        queue = [wait(*quota, "2h") for _ in range(7)]
        pipe.calls([("CLIENT", "UNBLOCK", queue[0].id), ("CLIENT", "UNBLOCK", queue[1].id, "ERROR"),
                    ("CLIENT", "KILL", "ID", queue[2].id)])
        queue[3].close()
        assert queue[0].answer()[0] == 0 and queue[1].answer().startswith("UNBLOCKED ")
        pipe.call("SWLIMIT.UNBLOCK", "queue")
        assert [waiter.answer()[0] for waiter in queue[4:6]] == [1, 1]
        pipe.call("SET", "queue", "x")
        assert queue[6].answer().startswith("WRONGTYPE ")
        pipe.calls([("DEL", "queue"), ("SWLIMIT.BLOCK", "queue", "3s")])
        late = wait(*quota, "4s")
        pipe.call("SWLIMIT.BLOCK", "queue", "1h")
        assert late.answer()[0] == 0


def every_command(pipe, rng, key):
    """Each command in a few ways that are granted, denied, refused; other types; missing keys."""
    window, resolution = rng.choice((("60", "1"), ("60", "60"), ("1000ms", "1ms"), ("1d", "1h"), ("3650d", "3650d")))
    at, cost = NOW + rng.getrandbits(18), rng.choice((1, 3, 2**33, MAX))
    limit = rng.choice((0, 5, 1000, MAX))
    pipe.calls([
        ("SET", "string", "x"),
        ("SWLIMIT.ALLOW", key, limit, window, resolution, "COST", cost, "PARTIAL", "AT", at),
        ("SWLIMIT.ALLOW", key, limit, window, resolution, "STRICT"),
        ("SWLIMIT.PEEK", key, limit, "7", "1", "COST", cost), ("SWLIMIT.PEEK", key, limit, window, resolution),
        ("SWLIMIT.RECORD", key, limit, window, resolution, "AT", at), ("SWLIMIT.INFO", key), ("SWLIMIT.INFO", "none"),
        ("SWLIMIT.RECORD", key, limit, window, resolution, "AT", at - 2000),
        ("SWLIMIT.MALLOW", 2, key, "m", MAX, "60", "1", 1, limit, window, resolution, 1),
        ("SWLIMIT.MALLOW", 2, key, key, 1, "60", "1", 1, 1, "60", "1", 1), ("SWLIMIT.ALLOW", "string", 1, 60, 1),
        ("SWLIMIT.REFUND", key, rng.choice((1, cost))), ("SWLIMIT.REFUND", "none", 1),
        ("SWLIMIT.REFUND", "string", 1), ("SWLIMIT.ALLOW", key, 1, 60, 1, rng.randbytes(9)),
        ("SWLIMIT.BLOCK", key, "1h", "AT", at), ("SWLIMIT.ALLOW", key, limit, window, resolution, "AT", at),
        ("SWLIMIT.RECORD", key, 0, window, resolution, "BLOCK", "1h", "AT", at), ("SWLIMIT.BLOCK", "b", "1h", "NX"),
        ("SWLIMIT.UNBLOCK", rng.choice((key, "b", "none", "string")), "AT", at), ("SWLIMIT.BLOCK", "string", "1h"),
        ("SWLIMIT.ALLOW", key), ("SWLIMIT.ALLOW", rng.randbytes(9), *map(rng.randbytes, (3, 3, 3))),
        ("EVAL", "return redis.call('SWLIMIT.ALLOW', KEYS[1], 5, 60, 1)", 1, key), ("COMMAND", "GETKEYS",
         "SWLIMIT.MALLOW", 1, key, 1, 60, 1, 1), ("MULTI",), ("SWLIMIT.ALLOW", key, 5, 60, 1), ("EXEC",)])


def hostile_payloads(pipe, rng, size):
    """Damaged payloads, and a few commands on those that are accepted; how many were."""
    pipe.call("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
    pipe.call("SWLIMIT.RECORD", "frame", 1, 60, 1, "AT", NOW)
    frame = Frame(pipe.call("DUMP", "frame"))
    values = [value_of(1000, 60, [(NOW // 1000 + step, units) for step in range(0, 60, 4)]) for units in (1, 2**40)]
    values += [blocked(NOW, value) for value in (b"", values[0])]
    accepted = 0
    for number in range(size):
        payload = frame.body(damaged(rng, rng.choice(values), rng.choice(values)))
        if number % 4 == 0:
            payload = frame.head + damaged(rng, payload[len(frame.head):], payload)
        if pipe.call("RESTORE", "r", 0, payload + frame.foot, "REPLACE") == b"OK":
            accepted += 1
            pipe.calls([("SWLIMIT.RECORD", "r", 5, 60, 1, "AT", NOW), ("SWLIMIT.ALLOW", "r", 5, "1000ms", "1ms"),
                        ("SWLIMIT.REFUND", "r", 3), ("DUMP", "r"), ("SWLIMIT.INFO", "r")])
    pipe.call("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 0)
    assert 0 < accepted < size
    return accepted


def every_method(pipe):
    """Each method of the type: RDB, AOF, copy, free in the background, digest, memory, expiry, eviction."""
    dump = pipe.call("DUMP", "large")
    pipe.calls([("RESTORE", "copy", 0, dump, "REPLACE"), ("COPY", "large", "copy2"), ("MEMORY", "USAGE", "large"),
                ("DEBUG", "DIGEST"), ("UNLINK", "copy2"), ("RENAME", "k2", "k3"), ("PEXPIRE", "k4", 1),
                ("SET", "k5", "x"), ("CONFIG", "SET", "lazyfree-lazy-user-del", "yes"), ("DEL", "k6"),
                ("INFO", "everything"), ("RESTORE", "copy", 0, dump[:-1] + bytes([dump[-1] ^ 1]), "REPLACE")])
    for preamble in ("no", "yes"):
        pipe.call("CONFIG", "SET", "aof-use-rdb-preamble", preamble)
        assert not isinstance(pipe.call("BGREWRITEAOF"), Failed)
        eventually(lambda: not info(pipe, "persistence")["aof_rewrite_in_progress"], seconds=120)
        assert info(pipe, "persistence")["aof_last_bgrewrite_status"] == "ok"
        assert pipe.call("DEBUG", "LOADAOF") == b"OK"
    assert pipe.call("DEBUG", "RELOAD") == b"OK"
    pipe.call("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    evicted = info(pipe, "stats")["evicted_keys"]
    pipe.call("CONFIG", "SET", "maxmemory", used_memory(pipe) + 20_000)
    for number in range(20_000):  # what the server gives back meanwhile makes room, too
        pipe.call("SWLIMIT.ALLOW", f"fill:{number}", 1, 60, 1)
        if number % 100 == 99 and info(pipe, "stats")["evicted_keys"] > evicted:
            break
    else:
        pytest.fail("nothing is evicted")
    pipe.call("CONFIG", "SET", "maxmemory", 0)
    assert not isinstance(pipe.call("RESTORE", "large", 0, dump, "REPLACE"), Failed)
    assert not isinstance(pipe.call("RESTORE", "copy", 0, dump, "REPLACE"), Failed)


def test_the_allocator_of_the_c_library(start):
    """A server without jemalloc, whose allocator fills what it frees with rubbish: the same data as without rubbish,
    through every kind of change and reload; it cannot defragment, and says so."""
    server = start(env={"MALLOC_PERTURB_": "165", "MALLOC_CHECK_": "3"})
    if info(server, "memory")["mem_allocator"] != "libc":
        pytest.skip("this release brings an allocator of its own")
    plain = start()
    commands = random_commands(random.Random(21), 1_500)
    for one in (server, plain):
        batch(one, commands)
        for command in ("DEBUG RELOAD", "COPY key:1 copy REPLACE", "RENAME key:2 key:3", "UNLINK key:4",
                        "MEMORY PURGE", "MEMORY DOCTOR", "MEMORY STATS"):
            one.cli(*command.split())
        assert one.cli("CONFIG", "SET", "activedefrag", "yes").startswith("ERR ")
        batch(one, commands[:300])
        assert agrees(one) > 10
    assert same_data(server, plain)
    usage = [int(server.cli("MEMORY", "USAGE", key)) for key in ("key:1", "copy")]
    assert all(stored(server, "key:1")["memory"] <= used for used in usage)
