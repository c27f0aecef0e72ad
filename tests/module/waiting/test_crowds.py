"""Ten thousand clients that wait cost the server nothing while nobody's turn has come."""

import resource
import time

import pytest

from support.contents import idle, info
from support.resp import Connection, encode
from support.waiters import waiting
from support.waiting import eventually

CROWD = 10_000
LONG_NAME = 4_000_000
DAY = ("1d", "1h")


@pytest.fixture
def crowd(start):
    """A server, and ten thousand connections to it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 2 * CROWD:
        pytest.skip(f"this machine gives a process {most} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * CROWD, most))
    server = start(options={"maxclients": CROWD + 100}, module_args=("max-waiting", CROWD))
    connections = [Connection(server.port) for _ in range(CROWD)]
    yield server, connections
    for connection in connections:
        connection.close()
    eventually(lambda: waiting(server), 0)


def all_wait(server, connections, timeout):
    for number, connection in enumerate(connections):
        connection.send(encode("SWLIMIT.ACQUIRE", f"k:{number}", 1, *DAY, timeout))
    eventually(lambda: waiting(server), CROWD, 60)


@pytest.mark.long
def test_ten_thousand_on_as_many_keys(crowd, report):
    server, connections = crowd
    with Connection(server.port) as admin:
        list(admin.stream(("SWLIMIT.BLOCK", f"k:{number}", "1h") for number in range(CROWD)))
        alone = idle(server, 2)
        all_wait(server, connections, "2h")
        waited_for = idle(server, 2)
        report(f"{CROWD} clients, 2 s of CPU: connected {alone:.3f} s, waiting {waited_for:.3f} s")
        assert waited_for < 2 * alone + 0.05
        assert admin.call("SWLIMIT.ACQUIRE", "k:1", 1, *DAY, "2h") == "ERR too many clients are waiting"
        admin.call("FLUSHALL")
        assert all(connection.reply()[0] == 1 for connection in connections)
        assert admin.call("DBSIZE") == CROWD


@pytest.mark.long
def test_ten_thousand_that_time_out_at_once(crowd, report):
    """Nobody else waits for the server until all of them are answered."""
    server, connections = crowd
    with Connection(server.port) as admin:
        list(admin.stream(("SWLIMIT.BLOCK", f"k:{number}", "8s") for number in range(CROWD)))
        all_wait(server, connections, "9s")
        list(admin.stream(("SWLIMIT.BLOCK", f"k:{number}", "1h") for number in range(CROWD)))
        worst, before = 0, time.monotonic()
        while waiting(server):
            begun = time.monotonic()
            admin.call("PING")
            worst = max(worst, time.monotonic() - begun)
            assert begun < before + 30
        report(f"{CROWD} timeouts: others were answered within {1000 * worst:.0f} ms")
        assert all(connection.reply()[0] == 0 for connection in connections)


def test_a_long_name_is_kept_once(server, report):
    """Who waits on it takes what a client of BLPOP takes: the words, and at times what they came in."""
    names = [str(number) * LONG_NAME for number in range(9)]
    with Connection(server.port) as admin:
        def taken(*words, waits_before=()):
            """The bytes that each client takes which sends this, with its name first."""
            admin.calls(("SWLIMIT.BLOCK", name, "1h") for name in waits_before)
            before = used(server)
            connections = [Connection(server.port) for _ in names]
            for connection, name in zip(connections, names):
                connection.send(encode(words[0], name, *words[1:]))
            eventually(lambda: info(server, "clients")["blocked_clients"], len(names))
            each = (used(server) - before) // len(names)
            for connection in connections:
                connection.close()
            eventually(lambda: info(server, "clients")["blocked_clients"], 0)
            return each

        own = taken("BLPOP", 0)
        rates = taken("SWLIMIT.ACQUIRE", 1, *DAY, "2h", waits_before=names)
        admin.call("FLUSHALL", "SYNC")
        admin.calls(("SWLIMIT.HOLD", name, 1, "1h", "id") for name in names)
        holds = taken("SWLIMIT.HOLD", 1, "1h", "other", "WAIT", "1h")
    report(f"{LONG_NAME} bytes of a name: {own} a client of BLPOP, {rates} of ACQUIRE, {holds} of HOLD")
    assert max(rates, holds) < 2.5 * LONG_NAME


def used(server):
    return info(server, "memory")["used_memory"]
