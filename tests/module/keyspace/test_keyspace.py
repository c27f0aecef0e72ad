"""Windows under the server's own commands for keys."""

import pytest
import redis

from support.bounds import MAX, T
from support.cli import ask, batch, stored
from support.contents import digest, unchanged


@pytest.fixture(autouse=True)
def key(server):
    """One key: 3 units in one subinterval, 4 in another."""
    batch(server, [["SWLIMIT.RECORD", "k", 10, 60, 5, "COST", 3, "AT", T],
                   ["SWLIMIT.RECORD", "k", 10, 60, 5, "COST", 4, "AT", T + 7_000]])


COUNTS = {T: 3, T + 5_000: 4}


def value(server, key="k"):
    return server.cli("DEBUG", "DIGEST-VALUE", key)


def test_type_and_encoding(server):
    assert server.cli("TYPE", "k") == "sw-window"
    assert server.cli("OBJECT", "ENCODING", "k") == "raw"
    server.cli("SET", "string", "x")
    assert server.cli("SCAN", "0", "TYPE", "sw-window").split("\n") == ["0", "k"]


def test_memory_usage_counts_the_heap(server):
    usage = [int(server.cli("MEMORY", "USAGE", "k"))]
    for subintervals in (10, 100, 1_000):
        batch(server, [["SWLIMIT.RECORD", "k", 10, "1h", 1, "AT", T + second * 1_000]
                       for second in range(subintervals)])
        assert len(stored(server, "k")["counts"]) == subintervals
        usage.append(int(server.cli("MEMORY", "USAGE", "k")))
        assert usage[-1] >= stored(server, "k")["memory"] >= 8 * subintervals
    assert usage == sorted(usage) and usage[-1] < 32 * 1_000


def test_digest_tells_what_differs(server):
    """Every part of the state has a part in it, the name of the key has none."""
    first = value(server)
    seen = {first}
    for command in [["SWLIMIT.RECORD", "k", 10, 60, 5, "AT", T + 7_000], ["SWLIMIT.RECORD", "k", 10, 60, 5, "AT", T],
                    ["SWLIMIT.REFUND", "k", 1, "AT", T], ["SWLIMIT.RECORD", "k", 10, 60, 1, "AT", T + 7_000],
                    ["SWLIMIT.RECORD", "k", 10, 120, 1, "AT", T + 7_000]]:
        ask(server, *command)
        seen.add(value(server))
    assert len(seen) == 6
    batch(server, [["SWLIMIT.RECORD", "again", 99, 60, 5, "COST", units, "AT", at] for at, units in COUNTS.items()])
    assert value(server, "again") == first


@pytest.mark.parametrize("command, reply", [("COPY", "1"), ("RENAME", "OK"), ("RENAMENX", "1")])
def test_copy_and_rename(server, command, reply):
    before = value(server), server.cli("PEXPIRETIME", "k")
    assert server.cli(command, "k", "other") == reply
    assert (value(server, "other"), server.cli("PEXPIRETIME", "other")) == before
    assert stored(server, "other")["counts"] == COUNTS
    assert server.cli("EXISTS", "k") == ("1" if command == "COPY" else "0")


def test_copies_are_independent(server):
    server.cli("COPY", "k", "copy")
    ask(server, "SWLIMIT.ALLOW", "copy", 10, 60, 5, "AT", T + 7_000)
    assert stored(server, "copy")["counts"] == {T: 3, T + 5_000: 5}
    assert stored(server, "k")["counts"] == COUNTS
    server.cli("DEL", "k")
    assert stored(server, "copy")["total"] == 8


def test_dump_and_restore(server):
    client = server.client()  # redis-cli prints no payload that could be read again
    payload = client.dump("k")
    client.restore("restored", 50_000, payload)
    assert value(server, "restored") == value(server)
    assert 49_000 < ask(server, "PTTL", "restored")[0] <= 50_000
    ask(server, "SWLIMIT.ALLOW", "restored", 10, 60, 5, "AT", T + 7_000)
    client.restore("restored", 0, payload, replace=True)
    assert stored(server, "restored")["counts"] == COUNTS
    with unchanged(server), pytest.raises(redis.ResponseError, match="BUSYKEY|Target key name already exists"):
        client.restore("restored", 0, payload)


def test_migrate(server, start):
    other = start()
    before = value(server), server.cli("PEXPIRETIME", "k")
    assert server.cli("MIGRATE", "127.0.0.1", other.port, "k", 0, 5_000) == "OK"
    assert server.cli("EXISTS", "k") == "0"
    assert value(other) == before[0]
    assert abs(int(other.cli("PEXPIRETIME", "k")) - int(before[1])) < 1_000
    assert ask(other, "SWLIMIT.ALLOW", "k", 10, 60, 5, "COST", 4, "AT", T + 7_000)[0] == 0


def test_reload(server):
    ask(server, "SWLIMIT.RECORD", "large", MAX, "3650d", "1d", "COST", MAX - 7, "AT", T)
    ask(server, "SWLIMIT.RECORD", "large", MAX, "3650d", "1d", "COST", 7, "AT", T + 86_400_000 * 3_000)
    before = digest(server), server.cli("PEXPIRETIME", "k"), stored(server, "k"), stored(server, "large")
    assert server.cli("DEBUG", "RELOAD") == "OK"
    assert (digest(server), server.cli("PEXPIRETIME", "k"), stored(server, "k"), stored(server, "large")) == before


def test_keys_with_the_most_subintervals_survive_a_smaller_configuration(server):
    server.cli("CONFIG", "SET", "swlimit.max-subintervals", 1_000_000)
    batch(server, [["SWLIMIT.RECORD", "fine", 10, "1000000ms", "1ms", "AT", T + number * 97]
                   for number in range(5_000)])
    server.cli("CONFIG", "SET", "swlimit.max-subintervals", 1)
    before = digest(server)
    assert server.cli("DEBUG", "RELOAD") == "OK"
    assert digest(server) == before
    client = server.client()
    client.restore("restored", 60_000, client.dump("fine"))
    server.cli("COPY", "fine", "copy")
    assert value(server, "restored") == value(server, "copy") == value(server, "fine")
    assert len(stored(server, "fine")["counts"]) == 5_000
