"""What is written to the append-only file, and that files of every kind bring back what was held."""

import random
import re
from unittest.mock import ANY

import pytest

from support import aof
from support.bounds import T
from support.cli import ask, batch, feed, stored
from support.clock import clock_of
from support.commands import expiring, random_commands
from support.contents import agrees, digest, expiries
from support.resp import encode

pytestmark = pytest.mark.as_run

AOF = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture
def server(start):
    """A server with an append-only file."""
    return start(options=AOF)


def test_only_effects_are_written(server):
    """Grants with what was granted and when; nothing for denials, PEEK, errors and records that are dropped."""
    batch(server, [
        ["swlimit.allow", "k", 10, "1m", "5S", "at", T, "cost", 4, "strict"],
        ["SWLIMIT.PEEK", "k", 10, 60, 5, "AT", T],
        ["SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 7, "AT", T],  # denied
        ["SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 7, "PARTIAL", "AT", T + 61_000],
        ["SWLIMIT.ALLOW", "k", 20, 60, 5, "AT", T],  # the clock stepped back
        ["SWLIMIT.RECORD", "k", 10, 60, 5, "COST", 9, "STRICT", "AT", T + 7_000],
        ["SWLIMIT.RECORD", "k", 10, 60, 5, "COST", 9, "AT", T - 1],  # dropped
        ["SWLIMIT.RECORD", "k", 10, 60, 7],  # refused
        ["SWLIMIT.ALLOW", "k", 10, 60, 5, "STRICT", "STRICT"],  # refused
        ["SWLIMIT.RECORD", "k", 10, 60, 5, "AGE", 3, "AT", T + 61_002],
        ["SWLIMIT.RECORD", "k", 10, 60, 5, "AGE", "1h", "AT", T + 61_002],  # dropped
        ["SWLIMIT.REFUND", "k", 2, "at", T + 61_001],
        ["SWLIMIT.REFUND", "k", 9, "age", "3s", "at", T + 61_001],  # what is not older: 1 and 5
        ["SWLIMIT.REFUND", "k", 9, "AGE", "1m", "AT", T + 130_001],  # nothing that matters
        ["SWLIMIT.REFUND", "missing", 2],
        ["SWLIMIT.INFO", "k"],
        ["SWLIMIT.MALLOW", 2, "k", "other", 10, 60, 5, 1, 10, 60, 5, 1, "AT", T],  # denied
    ])
    written = aof.commands(server)
    assert {(name, key) for name, key, _ in written} == {("SWLIMIT.APPLY", "k")}
    assert [re.sub(r"~\d+", "~", word) for _, _, word in written] == [
        f"c5000*12@{T}+4~", f"c5000*12@{T + 61_000}+6~", f"c5000*12@{T + 60_000}", f"c5000*12@{T + 7_000}+9",
        f"c5000*12@{T + 58_002}", f"r2@{T + 61_001}", f"r6@{T + 61_001}:{T + 58_001}~",
    ]


def test_the_clock_is_written_with_what_it_decided(server):
    ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 5)
    ask(server, "SWLIMIT.RECORD", "k", 10, 60, 5)
    ask(server, "SWLIMIT.REFUND", "k", 1)
    seconds, microseconds = ask(server, "TIME")
    now = seconds * 1000 + microseconds // 1000
    words = [word for _, _, word in aof.commands(server)]
    assert [word[0] for word in words] == ["c", "c", "r"] and words[0].endswith("!")
    for word in words:
        assert now - 10_000 < int(re.search(r"@(\d+)", word)[1]) <= now


def test_an_effect_has_the_expiry_that_it_set(server):
    """And none where it has set none."""
    expected = []
    for at, until in ((T, True), (T + 1, False), (T + 5_000, True), (T + 3_000, False)):
        ask(server, "SWLIMIT.ALLOW", "k", 10, 60, 5, "AT", at)
        expected += ["~" + server.cli("PEXPIRETIME", "k")] if until else [""]
    for command in (["SWLIMIT.BLOCK", "k", "1h", "AT", T], ["SWLIMIT.UNBLOCK", "k", "AT", T],
                    ["SWLIMIT.REFUND", "k", 3, "AT", T + 5_000],
                    ["SWLIMIT.APPLY", "k", f"c5000*12@{T + 5_000}~4000000000123"]):
        server.cli(*command)
        expected += ["~" + server.cli("PEXPIRETIME", "k")]
    assert [re.search("(~.*)?$", word)[0] for _, _, word in aof.commands(server)] == expected


def test_mallow_is_one_command_a_slot(server):
    """In a transaction where there are several."""
    quotas = 10, 60, 5, 1, 20, "1h", "1m", 2, 30, "2m", "1m", 3
    ask(server, "SWLIMIT.MALLOW", 3, "{t}a", "{t}b", "{t}c", *quotas)
    ask(server, "SWLIMIT.MALLOW", 2, "{t}a", "{t}b", 10, 60, 5, 1, 20, "1h", "1m", 19)  # denied
    (name, *pairs), = aof.commands(server)
    assert name == "SWLIMIT.APPLY" and pairs[::2] == ["{t}a", "{t}b", "{t}c"]
    words = [re.sub(r"@\d+", "@", word) for word in pairs[1::2]]
    assert words == ["c5000*12@!", "c60000*60@+2!", "c60000*2@+3!"]
    ask(server, "SWLIMIT.MALLOW", 3, "{t}d", "{t}e", "f", *quotas)
    assert [[words[0], *words[1::2]] for words in aof.commands(server)[1:]] == [
        ["MULTI"], ["SWLIMIT.APPLY", "{t}d", "{t}e"], ["SWLIMIT.APPLY", "f"], ["EXEC"]]


def test_transactions_and_scripts_write_their_effects(server):
    allow = f"SWLIMIT.ALLOW k 2 60 5 AT {T}"
    again, count = ["SWLIMIT.APPLY", "k", f"c5000*12@{T}"], ["SWLIMIT.APPLY", "k", ANY]
    feed(server, "MULTI", allow, "SET s 1", allow, allow, "EXEC")
    feed(server, "MULTI", allow, allow, "EXEC")  # all denied
    script = "redis.call('SET', 's', 2); return redis.call('SWLIMIT.ALLOW', KEYS[1], 2, 60, 5, 'AT', ARGV[1])"
    ask(server, "EVAL", script, 1, "other", T)
    assert aof.commands(server) == [
        ["MULTI"], count, ["SET", "s", "1"], again, ["EXEC"],
        ["MULTI"], ["SET", "s", "2"], ["SWLIMIT.APPLY", "other", ANY], ["EXEC"],
    ]


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_files_bring_everything_back(start, preamble):
    """Replayed as it was written, rewritten, and rewritten with more after it."""
    server = start(options=AOF | {"aof-use-rdb-preamble": preamble})

    def restart():
        before = digest(server), expiries(server)
        server.restart()
        assert (digest(server), expiries(server)) == before
        assert agrees(server) == int(server.cli("DBSIZE"))

    commands = random_commands(random.Random(5), 1_500)
    batch(server, commands[:800])
    assert int(server.cli("DBSIZE")) > 10
    restart()
    aof.rewrite(server)
    base, = (server.folder / "appendonlydir").glob("*.base.*")
    assert (b"SWLIMIT.APPLY" in base.read_bytes()) == (preamble == "no")
    restart()
    batch(server, commands[800:] + expiring(int(clock_of(server) * 1_000)))
    restart()
    aof.rewrite(server)
    restart()


def test_a_rewritten_file_holds_any_geometry_and_the_largest_counts(start):
    server = start(options=AOF | {"aof-use-rdb-preamble": "no"}, module_args=["max-subintervals", 1_000_000])
    batch(server, [["SWLIMIT.RECORD", "large", 0, "3650d", "1d", "COST", 2**53 - 2, "AT", T],
                   ["SWLIMIT.RECORD", "large", 0, "3650d", "1d", "AT", T + 3650 * 86_400_000],
                   ["SWLIMIT.RECORD", "fine", 0, "1000000ms", "1ms", "AT", 2**53 - 1],
                   ["SWLIMIT.RECORD", "first", 0, "1h", "1m", "AT", 0],
                   ["SWLIMIT.RECORD", b"any\0\r\n\xff bytes", 0, "7", "7", "AT", T]])
    before = digest(server), server.cli("DBSIZE")
    aof.rewrite(server)
    server.module_args = []
    server.restart()
    assert (digest(server), server.cli("DBSIZE")) == before
    assert server.cli("CONFIG", "GET", "swlimit.max-subintervals").split()[1] == "4096"
    assert stored(server, "large")["total"] == 2**53 - 1


def test_a_rewritten_file_gives_no_ttl_to_a_key_without_one(start):
    server = start(options=AOF | {"aof-use-rdb-preamble": "no"})
    ask(server, "SWLIMIT.RECORD", "k", 9, "1h", "1m", "AT", T)
    server.cli("PERSIST", "k")
    server.restart()
    assert server.cli("PTTL", "k") == "-1"
    aof.rewrite(server)
    server.restart()
    assert stored(server, "k")["total"] == 1
    assert server.cli("PTTL", "k") == "-1"


def test_a_file_is_rewritten_where_no_other_command_can_be_used(start):
    server = start(options=AOF | {"aof-use-rdb-preamble": "no",
                                  "rename-command": [(name, "") for name in ("PERSIST", "PEXPIREAT", "EXPIRE")]})
    batch(server, expiring(int(clock_of(server) * 1_000)))
    before = digest(server), expiries(server)
    aof.rewrite(server)
    assert b"PERSIST" not in next((server.folder / "appendonlydir").glob("*.base.aof")).read_bytes()
    assert (digest(server), expiries(server)) == before


def test_a_file_without_expiries_gives_keys_as_long_to_live_as_when_they_were_counted(server):
    """As older versions have written it."""
    server.kill()
    with open(aof.written(server), "ab") as end:
        for at in (T, T + 7_000):
            end.write(encode("SWLIMIT.RECORD", "k", 5, "1h", "1m", "COST", 2, "AT", at))
        end.write(encode("SWLIMIT.REFUND", "k", 1, "AT", T + 7_000))
    server.start()
    assert stored(server, "k")["counts"] == {T: 3}
    assert 3_660_000 - 20_000 < ask(server, "PTTL", "k")[0] <= 3_660_000


def test_replayed_input_is_obeyed_beyond_todays_configuration(start):
    server = start(options=AOF, module_args=["max-subintervals", 100_000])
    ask(server, "SWLIMIT.ALLOW", "k", 5, "100s", "1ms")
    ask(server, "SWLIMIT.MALLOW", 1, "k", 5, "100s", "1ms", 1)
    server.module_args = ["max-subintervals", "7"]
    server.restart()
    assert stored(server, "k")["total"] == 2
    assert server.cli("SWLIMIT.ALLOW", "k", 5, "100s", "1ms") == (
        "ERR window / resolution is 100000 subintervals, above swlimit.max-subintervals (7)")
    assert ask(server, "SWLIMIT.ALLOW", "k", 5, "70s", "10s")[0] == 1


@pytest.mark.parametrize("subintervals, obeyed", [(1_000_000, True), (1_000_001, False)])
def test_a_file_is_obeyed_up_to_a_million_subintervals(server, subintervals, obeyed):
    ask(server, "SWLIMIT.RECORD", "before", 5, "1h", "1m", "AT", T)
    server.kill()
    with open(aof.written(server), "ab") as end:
        end.write(encode("SWLIMIT.RECORD", "k", 5, f"{subintervals}ms", "1ms", "AT", T))
    server.start()
    assert stored(server, "before")["total"] == 1
    assert (stored(server, "k") is not None) == obeyed


@pytest.mark.parametrize("how", ["SAVE", "SHUTDOWN"])
def test_snapshots(start, how):
    server = start()
    batch(server, random_commands(random.Random(6), 500))
    expiry = sorted((key, server.cli("PEXPIRETIME", key)) for key in server.cli("KEYS", "*").split())
    before = digest(server)
    if how == "SAVE":
        assert server.cli("SAVE") == "OK"
        server.kill()
    else:
        server.cli("SHUTDOWN", "SAVE")
        server.process.wait(20)
    server.start()
    assert digest(server) == before and len(expiry) > 10
    assert sorted((key, server.cli("PEXPIRETIME", key)) for key in server.cli("KEYS", "*").split()) == expiry
