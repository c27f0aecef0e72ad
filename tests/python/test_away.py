"""When the server is away, or cannot do its work, or has no module."""

import os
import signal
import time

import pytest
import redis

from support.server import free_port
from support.waiting import eventually
from swlimit import ModuleMissing, ServerAway
from swlimit.circuit import Circuit


def test_a_circuit():
    circuit = Circuit(failures=3, probe_every=1.0)
    assert [circuit.failed(now) for now in (10.0, 10.1)] == [False, False]
    assert circuit.lets_ask(10.2)
    assert not circuit.succeeded()
    assert [circuit.failed(now) for now in (11.0, 11.1, 11.2)] == [False, False, True]
    assert circuit.is_open
    assert [circuit.lets_ask(now) for now in (11.3, 12.1, 12.2, 12.3, 13.1, 13.2)] == [
        False, False, True, False, False, True]
    assert not circuit.failed(13.3)
    assert not circuit.lets_ask(14.2)
    assert circuit.lets_ask(14.3)
    assert circuit.succeeded()
    assert circuit.lets_ask(14.4) and circuit.lets_ask(14.4)


@pytest.fixture
def nobody(kind):
    """A client of a port where nobody listens."""
    return kind.client(kind.redis, port=free_port())


def shown(decision):
    return decision.granted, decision.limit, decision.remaining, decision.local


@pytest.mark.parametrize("on_failure, first, last", [
    ("allow", (2, 100, 100, True), (2, 100, 100, True)), ("deny", (0, 100, 0, True), (0, 100, 0, True)),
    ("local", (2, 10, 8, True), (0, 10, 0, True)),
])
@pytest.mark.parametrize("decide", ["direct", "denials"])
def test_policies(limiter, nobody, decide, on_failure, first, last):
    limiter = limiter(100, "1h", "1m", client=nobody, on_failure=on_failure, decide=decide)
    decisions = [limiter.allow("k", cost=2) for _ in range(6)]
    assert (shown(decisions[0]), shown(decisions[-1])) == (first, last)
    assert (decisions[-1].retry_after == 0) == (on_failure == "allow")
    assert limiter.statistics.without_server == 6
    assert limiter.statistics.failures == 3  # then the circuit is open
    assert limiter.statistics.asked == 0


def test_several_limits_without_a_server(kind, limiter, nobody):
    for on_failure, granted in [("allow", [True] * 3), ("deny", [False] * 3), ("local", [True, True, False])]:
        one = limiter(100, "1h", "1m", client=nobody, on_failure=on_failure, share=0.05)
        other = limiter(100, "1h", "1m", client=nobody)
        found = [kind.allow_all(one.request("k", 2), other.request("o")) for _ in range(3)]
        assert [bool(decision) for decision in found] == granted
        assert all(decision.local for decision in found)


def test_what_must_reach_the_server_says_that_it_has_not(limiter, nobody):
    limiter = limiter(client=nobody, on_failure="allow")
    for call in (limiter.refund, limiter.unblock, lambda key: limiter.block(key, 1), limiter.refund, limiter.unblock):
        with pytest.raises(ServerAway):
            call("k")


def test_a_server_that_is_killed_and_returns(kind, limiter, start):
    server = start()
    limiter = limiter(100, client=kind.client(kind.redis, port=server.port), on_failure="deny", probe_every=0.05)
    assert limiter.allow("k")
    server.kill()
    assert [limiter.allow("k").local for _ in range(5)] == [True] * 5
    server.start()
    eventually(lambda: limiter.allow("k").granted)
    failures = limiter.statistics.failures
    assert not limiter.allow("k").local
    assert limiter.statistics.failures == failures >= 3


def test_a_server_that_hangs(kind, limiter, start):
    """Nobody waits much longer than the timeout, connected or not; while the circuit is open, not at all."""
    server = start()
    connected = limiter(100, client=kind.client(kind.redis, port=server.port), timeout=0.05, on_failure="allow")
    connected.allow("k")
    new = limiter(100, client=kind.client(kind.redis, port=server.port), timeout=0.05, on_failure="allow")
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        for one in (connected, new):
            before = time.monotonic()
            assert [one.allow("k").local for _ in range(50)] == [True] * 50
            assert time.monotonic() - before < 2  # 50 timeouts would be 2.5 s
            assert 3 <= one.statistics.failures < 10
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


@pytest.fixture
def failing(request, start):
    """A server that answers ALLOW with some error."""
    if request.param == "CLUSTERDOWN":
        return start(options={"cluster-enabled": "yes"})
    server = start()
    if request.param == "OOM":
        server.cli("CONFIG", "SET", "maxmemory", 1)
    elif request.param == "READONLY":
        server.cli("REPLICAOF", "127.0.0.1", free_port())
    elif request.param == "NOREPLICAS":
        server.cli("CONFIG", "SET", "min-replicas-to-write", 1)
    return server


@pytest.mark.parametrize("failing", ["OOM", "READONLY", "NOREPLICAS", "CLUSTERDOWN"], indirect=True)
def test_errors_of_a_server_that_cannot_work(kind, limiter, failing):
    limiter = limiter(100, client=kind.client(kind.redis, port=failing.port), on_failure="local")
    assert shown(limiter.allow("k")) == (1, 10, 9, True)
    assert limiter.statistics.failures == 1


def test_a_server_without_the_module(kind, limiter, start):
    server = start(module=None)
    for on_failure in ("allow", "deny", "local"):
        one = limiter(client=kind.client(kind.redis, port=server.port), on_failure=on_failure)
        for call in (one.allow, one.peek, one.record, one.refund, one.acquire):
            with pytest.raises(ModuleMissing, match="load the module swlimit, with `loadmodule"):
                call("k")


def test_a_wrong_password_is_told(kind, limiter, server):
    client = kind.client(kind.redis, port=server.port, username="nobody", password="wrong")
    with pytest.raises(redis.AuthenticationError):
        limiter(client=client, on_failure="allow").allow("k")


def test_the_client_s_own_timeouts(limiter, server):
    """With no timeout of the limiter's, its connections and settings are used as they are."""
    limiter = limiter(timeout=None)
    server.cli("CLIENT", "PAUSE", 200, "WRITE")
    assert not limiter.allow("k").local
