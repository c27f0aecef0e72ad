"""A block is kept: through everything a server does to keys, in replicas, files, other nodes, and under load."""

import random

import pytest

from support import aof
from support.bounds import MAX
from support.cli import ask, batch, feed, numbers, stored
from support.clock import clock_of
from support.contents import agrees, counted, digest, same_data
from support.replication import PROMPT, replica_of, synchronised
from support.resp import Connection, storm
from support.waiting import eventually

NOW = 1_111_112 * 3_600_000
HOUR = 3_600_000
QUOTA = 2, 10, 1
AOF = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture(params=[0, 2], ids=["no counts", "counts"])
def total(request):
    """How many units the blocked keys hold."""
    return request.param


def make(server, key, total, *when):
    """A key that is blocked for an hour; the instant until which it is."""
    if total:
        ask(server, "SWLIMIT.RECORD", key, 9, "3h", "1h", "COST", total, *when)
    until, = ask(server, "SWLIMIT.BLOCK", key, "1h", *when)
    return until


def there(server, key="k"):
    """What a key holds and when it expires."""
    return stored(server, key), server.cli("DEBUG", "DIGEST-VALUE", key), server.cli("PEXPIRETIME", key)


@pytest.mark.parametrize("commands, key", [
    ("RENAME k other", "other"), ("COPY k other", "other"), ("SET other 1|COPY k other REPLACE", "other"),
    ("RENAME k other|RENAMENX other k", "k"), ("DEBUG RELOAD", "k"), ("SAVE|DEBUG RELOAD NOSAVE", "k"),
])
def test_whatever_is_done_to_keys(server, total, commands, key):
    make(server, "k", total)
    before = there(server)
    for command in commands.split("|"):
        assert not server.cli(*command.split()).startswith("ERR")
    assert there(server, key) == before
    assert agrees(server) == int(server.cli("DBSIZE"))


@pytest.mark.parametrize("command", ["MOVE k 5", "SWAPDB 0 5", "COPY k k DB 5"])
def test_other_databases(server, total, command):
    """With it goes the block; what is left behind, or takes its place, has none."""
    make(server, "k", total)
    before = there(server)
    server.cli(*command.split())
    with Connection(server.port) as pipe:
        pipe.call("SELECT", 5)
        assert pipe.call("DEBUG", "DIGEST-VALUE", "k")[0].decode() == before[1]
        assert str(pipe.call("PEXPIRETIME", "k")) == before[2]
        assert pipe.call("SWLIMIT.PEEK", "k", *QUOTA)[0] == 0
    assert ask(server, "SWLIMIT.PEEK", "k", *QUOTA)[0] == (0 if command.startswith("COPY") else 1)


def test_copies_are_independent(server, total):
    make(server, "k", total, "AT", NOW)
    server.cli("COPY", "k", "copy")
    assert ask(server, "SWLIMIT.UNBLOCK", "copy", "AT", NOW) == [1]
    ask(server, "SWLIMIT.BLOCK", "k", "2h", "AT", NOW)
    assert (stored(server, "copy") or {"blocked": 0})["blocked"] == 0
    assert stored(server, "k")["blocked"] == NOW + 2 * HOUR


def test_dump_restore_and_migrate(server, start, total):
    other = start()
    make(server, "k", total)
    before = there(server)
    client = server.client()
    client.restore("restored", 60_000, client.dump("k"))
    assert there(server, "restored")[:2] == before[:2]
    assert server.cli("MIGRATE", "127.0.0.1", other.port, "k", 0, 5_000) == "OK"
    assert there(other)[:2] == before[:2]
    assert abs(int(other.cli("PEXPIRETIME", "k")) - int(before[2])) < 1_000
    assert ask(other, "SWLIMIT.PEEK", "k", *QUOTA)[0] == 0


def test_memory(server):
    """A block costs its own few bytes and no more, gives them back, and MEMORY USAGE knows."""
    ask(server, "SWLIMIT.RECORD", "k", *QUOTA, "AT", NOW)
    open_, usage = stored(server, "k")["memory"], numbers(server.cli("MEMORY", "USAGE", "k"))[0]
    ask(server, "SWLIMIT.BLOCK", "k", "1h", "AT", NOW)
    ask(server, "SWLIMIT.BLOCK", "alone", "1h", "AT", NOW)
    blocked = stored(server, "k")["memory"]
    assert open_ < blocked <= open_ + 48 and stored(server, "alone")["memory"] == blocked
    assert blocked - open_ <= numbers(server.cli("MEMORY", "USAGE", "k"))[0] - usage < 100
    assert agrees(server) == 2
    ask(server, "SWLIMIT.UNBLOCK", "k", "AT", NOW)
    assert stored(server, "k")["memory"] == open_ and numbers(server.cli("MEMORY", "USAGE", "k"))[0] == usage


@pytest.mark.parametrize("commands", [
    ["UNLINK", "DEL"], ["FLUSHALL ASYNC"], ["FLUSHALL SYNC"],
])
def test_freeing(server, commands):
    """In the background, too: INFO counts neither keys nor bytes afterwards."""
    storm(server.port, [words for number in range(2_000) for words in (
        ("SWLIMIT.BLOCK", f"k{number}", "1h"), *([("SWLIMIT.RECORD", f"k{number}", 9, "1h", "1m", "AT", NOW + minute)
                                                  for minute in range(0, HOUR, HOUR // 6)] if number % 2 else []))])
    assert counted(server)[0] == 2_000
    with Connection(server.port) as pipe:
        pipe.call("CONFIG", "SET", "lazyfree-lazy-user-del", "yes")
        for number, command in enumerate(commands):
            half = range(number * 2_000 // len(commands), (number + 1) * 2_000 // len(commands))
            words = command.split()
            pipe.call(*words, *([] if words[0] == "FLUSHALL" else [f"k{key}" for key in half]))
        pipe.call("CONFIG", "SET", "lazyfree-lazy-user-del", "no")
    eventually(lambda: counted(server), (0, 0))


def test_expiry_frees(server):
    """A key that held a block alone is gone with it."""
    storm(server.port, [("SWLIMIT.BLOCK", f"k{number}", "50ms") for number in range(200)])
    eventually(lambda: (server.cli("DBSIZE"), counted(server)), ("0", (0, 0)))


def written(server, *commands):
    """What the append-only file says of these commands."""
    before = len(aof.commands(server))
    batch(server, commands)
    return aof.commands(server)[before:]


def expiry(server):
    return server.cli("PEXPIRETIME", "k")


def test_effects(start):
    """A block that begins is written with its instant and the key's expiry, after what was counted; else nothing."""
    server = start(options=AOF)
    def applied(*words):
        return [["SWLIMIT.APPLY", *sum((["k", word] for word in words), [])]]

    at = ["AT", f"{NOW}"]
    allow = ["SWLIMIT.ALLOW", "k", "1", "60", "60", "block", "1H", *at]
    record = ["SWLIMIT.RECORD", "k", "1", "60", "60", "COST", "3", *at]
    assert written(server, allow) == applied(f"c60000*1@{NOW}~{expiry(server)}")
    assert written(server, allow, allow) == applied(f"b{NOW + HOUR}~{expiry(server)}")
    during = [["SWLIMIT.BLOCK", "k", "2h", "NX", *at], ["SWLIMIT.PEEK", *allow[1:5], *at],
              ["SWLIMIT.MALLOW", "2", "other", "k", "1", "60", "60", "1", "1", "60", "60", "1", *at],
              [*allow[:5], "BLOCK", "0"], ["SWLIMIT.BLOCK", "k", "0"], ["SWLIMIT.RECORD", *allow[1:-1], "7"],
              ["SWLIMIT.UNBLOCK", "k", "AT", f"{NOW + HOUR}"], ["SWLIMIT.UNBLOCK", "missing"]]
    assert written(server, *during) == []
    counted = written(server, [*record, "BLOCK", "3h"])
    assert counted == applied(f"c60000*1@{NOW}+3"), "no block begins, and the key's end stays"
    assert written(server, ["SWLIMIT.UNBLOCK", "k", *at]) == applied(f"u@{NOW}~{expiry(server)}")
    later = ["AT", f"{NOW + 60_000}"]
    record = [*record[:-2], *later]
    found = written(server, [*record, "BLOCK", "90s"])
    until = NOW + 150_000
    assert found == applied(f"c60000*1@{NOW + 60_000}+3", f"b{until}~{expiry(server)}")
    again = written(server, ["SWLIMIT.BLOCK", "k", "90000ms", *later])
    assert again == applied(f"b{until}~{expiry(server)}"), "the key's end stays, as it has for its counts"
    assert written(server, ["DEL", "k"], ["SWLIMIT.BLOCK", "k", "1", *at], ["SWLIMIT.UNBLOCK", "k", *at])[2:] == (
        applied(f"u@{NOW}")), "the key goes, here as there"


def test_effects_of_transactions_and_scripts(start):
    server = start(options=AOF)
    before = len(aof.commands(server))
    feed(server, "MULTI", f"SWLIMIT.BLOCK k 1h AT {NOW}", f"SWLIMIT.ALLOW k 1 60 60 BLOCK 2h AT {NOW}",
         f"SWLIMIT.UNBLOCK k AT {NOW}", "EXEC")
    script = "return redis.call('SWLIMIT.RECORD', KEYS[1], 0, 60, 60, 'BLOCK', '1h')"
    ask(server, "EVAL", script, 1, "other")
    effects = [[words[0], *(word[0] for word in words[1:])] for words in aof.commands(server)[before:]]
    assert effects == [["MULTI"], ["SWLIMIT.APPLY", "k", "b"], ["SWLIMIT.APPLY", "k", "u"], ["EXEC"],
                       ["SWLIMIT.APPLY", "o", "c", "o", "b"]]


def blocks(server):
    """Keys with blocks of every kind, passed ones too; their names."""
    batch(server, [
        ["SWLIMIT.BLOCK", "alone", "1h"], ["SWLIMIT.BLOCK", "long", "3650d", "AT", MAX],
        ["SWLIMIT.BLOCK", "first", "1h", "AT", 0], ["SWLIMIT.ALLOW", "begun", 0, 10, 1, "BLOCK", "1h"],
        *(["SWLIMIT.RECORD", "counted", 2, "1h", "1m", "AT", NOW + minute * 60_000, "BLOCK", "5m"]
          for minute in range(5)),
        ["SWLIMIT.RECORD", "passed", 2, "1h", "1m", "AT", NOW], ["SWLIMIT.BLOCK", "passed", "1m", "AT", NOW],
        ["SWLIMIT.RECORD", "passed", 2, "1h", "1m", "AT", NOW + HOUR],
        ["SWLIMIT.BLOCK", "kept", "1h"], ["PERSIST", "kept"],
        ["SWLIMIT.BLOCK", "lifted", "1h"], ["SWLIMIT.UNBLOCK", "lifted"],
        ["SWLIMIT.RECORD", "open", 2, "1h", "1m"], ["SWLIMIT.BLOCK", "open", "1d"], ["SWLIMIT.UNBLOCK", "open"],
        ["SWLIMIT.BLOCK", b"any \r\n\xff bytes", "1h"],
        *(command for name in ("by clock", "late") for command in (
            ["SWLIMIT.RECORD", name, 2, "1h", "1m", "COST", 2, "AT", NOW],
            ["SWLIMIT.RECORD", name, 2, "1h", "1m", "BLOCK", "2h", *["AT", NOW - HOUR] * (name == "late")])),
    ])
    return ("alone", "long", "first", "begun", "counted", "passed", "kept", "open", "by clock", "late",
            b"any \r\n\xff bytes")


def state(server, keys):
    assert int(server.cli("DBSIZE")) == len(keys)
    return digest(server), batch(server, [["PEXPIRETIME", key] for key in keys])


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_files(start, preamble):
    """Appended, rewritten, and after kill -9, an AOF brings back every block and every expiry; an RDB file too."""
    server = start(options=AOF | {"aof-use-rdb-preamble": preamble})
    keys = blocks(server)
    before = state(server, keys)
    server.kill().start()
    assert state(server, keys) == before
    aof.rewrite(server)
    base, = (server.folder / "appendonlydir").glob("*.base.*")
    assert (b"SWLIMIT.APPLY" in base.read_bytes()) == (preamble == "no")
    server.kill().start()
    assert state(server, keys) == before
    assert agrees(server) == len(keys)
    ask(server, "SWLIMIT.UNBLOCK", "alone")
    server.kill().start()
    assert server.cli("EXISTS", "alone") == "0"


@pytest.mark.parametrize("skew", [300, -300], ids=["ahead", "behind"])
def test_a_promoted_replica_keeps_blocks(start, skewed, skew):
    """With its primary's digest and expiry, whatever its own clock says; also a replica of that one, copied in full."""
    primary = start(options=PROMPT, env=skewed(0))
    late = blocks(primary)
    replica = start(options=replica_of(primary), env=skewed(skew))
    synchronised(replica)
    assert abs(clock_of(replica) - clock_of(primary) - skew) < 2
    with Connection(primary.port) as pipe:
        pipe.calls([("SWLIMIT.BLOCK", "streamed", "1h"), ("SWLIMIT.RECORD", "two", 0, 10, 1, "BLOCK", "1h"),
                    ("SWLIMIT.ALLOW", "one", 0, 10, 1, "BLOCK", "1h"), ("SWLIMIT.UNBLOCK", "open")])
        assert pipe.call("WAIT", 1, 10_000) == 1
    keys = (*late, "streamed", "two", "one")
    before = state(primary, keys)
    same_data(primary, replica)
    primary.kill()
    replica.cli("REPLICAOF", "NO", "ONE")
    assert state(replica, keys) == before
    for key in ("alone", "streamed", "two", "one"):
        assert ask(replica, "SWLIMIT.ALLOW", key, 9, 10, 1)[0] == 0
    second = start(options=replica_of(replica), env=skewed(-skew))
    synchronised(second)
    assert state(second, keys) == before


def test_denials_during_a_block_send_nothing(start):
    """Not a byte to a replica; the denial that begins the block does."""
    primary = start(options=PROMPT | {"repl-ping-replica-period": 3_600})
    replica = start(options=replica_of(primary))
    synchronised(replica)
    with Connection(primary.port) as pipe:
        def sent():
            return pipe.call("INFO", "replication").decode().split("master_repl_offset:")[1].split()[0]

        before = sent()
        assert pipe.call("SWLIMIT.ALLOW", "k", 0, 10, 1, "BLOCK", "1h")[0] == 0
        begun = sent()
        assert begun != before
        for words in (("ALLOW", "k", 1, 10, 1, "BLOCK", "2h"), ("PEEK", "k", 1, 10, 1), ("BLOCK", "k", 5, "NX"),
                      ("UNBLOCK", "other"), ("UNBLOCK", "k", "AT", NOW),
                      ("MALLOW", 2, "other", "k", 1, 10, 1, 1, 1, 10, 1, 1)):
            pipe.call(f"SWLIMIT.{words[0]}", *words[1:])
            assert sent() == begun, words
    same_data(primary, replica)


def test_a_replica_begins_no_block(start):
    """It answers PEEK as blocked, and refuses whatever would change something."""
    primary = start(options=PROMPT)
    replica = start(options=replica_of(primary))
    make(primary, "k", 2)
    synchronised(replica)
    same_data(primary, replica)
    assert ask(replica, "SWLIMIT.PEEK", "k", 9, 10, 1)[0] == 0
    assert stored(replica, "k") == stored(primary, "k")
    for words in (["BLOCK", "k", 5], ["UNBLOCK", "k"], ["ALLOW", "k", 0, 10, 1, "BLOCK", 5]):
        assert replica.cli(f"SWLIMIT.{words[0]}", *words[1:]).startswith("READONLY")


def test_random_changes_reach_a_replica(start, skewed):
    """Blocks begun, lifted, passed and outlived, with clocks that jump: the same data and expiry in the end."""
    primary = start(options=PROMPT)
    replica = start(options=replica_of(primary), env=skewed(-300))
    synchronised(replica)
    draw, commands, now = random.Random(11), [], NOW
    for _ in range(4_000):
        now += draw.choice([0, 1, 700, 5_000, -3_000])
        key = f"k{draw.randrange(12)}"
        quota = draw.randint(0, 5), *draw.choice([("10m", "1m"), ("10m", "1m"), ("1h", "1m")])
        commands.append((*draw.choice([
            ("SWLIMIT.ALLOW", key, *quota, "BLOCK", f"{draw.randint(600, 700)}s"),
            ("SWLIMIT.RECORD", key, *quota, "BLOCK", "11m"), ("SWLIMIT.BLOCK", key, f"{draw.randint(600, 900)}s"),
            ("SWLIMIT.UNBLOCK", key), ("SWLIMIT.REFUND", key, 2)]), "AT", now))
    with Connection(primary.port) as pipe:
        list(pipe.stream(commands))
        assert pipe.call("WAIT", 1, 10_000) == 1
    same_data(primary, replica)
    keys = sorted(primary.cli("KEYS", "*").split())
    assert len(keys) > 5 and state(primary, keys) == state(replica, keys)
