"""When the server is away, or cannot do its work, or has no module."""

import json
import logging
import socket
import ssl
from datetime import UTC, datetime

import pytest
import redis
from redis._parsers.base import BaseParser

from support.server import ROOT, free_port
from support.waiting import eventually
from swlimit import ModuleMissing, UnavailableError
from swlimit._protocol.replies import Failure, reason_of
from swlimit._transport.breaker import Breaker

REASONS = json.loads((ROOT / "tests/conformance/vectors/reasons.json").read_text())


def test_a_breaker():
    """Three failures in a row open it, an answer closes it; probes begin after 100 ms, doubled up to 500, ± 20 %."""
    opened, draws = [], iter([0.5, 0.5, 0.5, 0.0, 1.0, 0.5])
    breaker = Breaker("there", lambda: next(draws))
    breaker.on_open = lambda: opened.append(breaker.failure.message)
    breaker.failed(Failure("other", "once"), b"k")
    breaker.answered()
    breaker.failed(Failure("other", "once"))
    breaker.failed(Failure("other", "twice"), b"l")
    assert not breaker.is_open and not opened
    breaker.failed(Failure("other", "thrice"))
    assert (breaker.is_open, opened, breaker.key) == (True, ["thrice"], b"l")
    pauses = [breaker.pause() for _ in range(5)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.6])
    breaker.open(Failure("other", "again"))
    assert len(opened) == 1
    breaker.answered()
    assert not breaker.is_open
    breaker.open(Failure("other", "silent"), b"m")
    assert (breaker.is_open, breaker.key, len(opened)) == (True, b"m", 2)
    assert breaker.pause() == pytest.approx(0.1)


@pytest.fixture
def nobody(kind):
    """A client of a port where nobody listens."""
    return kind.client(kind.redis, port=free_port())


@pytest.mark.parametrize("together", ["admit", "allow_all"])
def test_several_limits_each_by_its_own_policy(kind, limiter, nobody, together):
    """The same in every language."""
    for case in json.loads((ROOT / "tests/conformance/vectors/defaults.json").read_text())["failures"]:
        limiters = [limiter(part["limit"], "1h", "1m", client=nobody, on_failure=part["on_failure"])
                    for part in case["parts"]]
        requests = [one.request(str(at), part["cost"]) for at, (one, part) in enumerate(zip(limiters, case["parts"]))]
        try:
            decided = kind.admit(requests) if together == "admit" else kind.allow_all(*requests)
            outcome = "granted" if decided else "denied"
        except UnavailableError:
            outcome = "error"
        left = [limiters[at].peek(str(at)).remaining if part["on_failure"] == "local" else None
                for at, part in enumerate(case["parts"])]
        assert (outcome, left) == (case["outcome"], case["left"]), case


@pytest.mark.parametrize("kinds", [("budget", "hold"), ("hold", "budget"), ("hold", "rate"), ("rate", "hold")])
def test_what_a_part_counts_here_goes_back_where_another_denies(kind, limiter, nobody, kinds):
    make = {"budget": lambda **options: kind.budget_limiter(nobody, 100, "month", **options),
            "hold": lambda **options: kind.hold_limiter(nobody, 10, **options),
            "rate": lambda **options: limiter(10, client=nobody, **options)}
    counting, other = (make[name] for name in kinds)
    here, deny, allow = counting(on_failure="local"), other(on_failure="deny"), other(on_failure="allow")
    for _ in range(20):
        assert not kind.admit([here.request("a"), deny.request("b")])
        assert not kind.admit([deny.request("b"), here.request("a")])
    admission = kind.admit([here.request("a"), allow.request("b")])
    assert admission and {one.source for one in admission.each} == {"failure"}
    assert kind.call(admission.settle, 0) == [-1 if kinds[0] != "hold" else 0]
    assert kind.admit([allow.request("b"), here.request("a")])
    raising = make[kinds[1]](on_failure="error")
    for requests in ([here.request("a"), raising.request("b")], [raising.request("b"), here.request("a")]):
        with pytest.raises(UnavailableError):
            kind.admit(requests)


def test_a_server_without_the_module(kind, limiter, start):
    server = start(module=None)
    for on_failure in ("allow", "deny", "local"):
        one = limiter(client=kind.client(kind.redis, port=server.port), on_failure=on_failure, module="always")
        for call in (one.allow, one.peek, one.record, one.refund, one.acquire):
            with pytest.raises(ModuleMissing, match="load the module swlimit, with `loadmodule"):
                call("k")


@pytest.fixture
def told(caplog):
    """What the log says about a server, in order: the lines that have one of these words."""
    caplog.set_level(logging.INFO, "swlimit")
    return lambda *words: [line for record in caplog.records if any(word in (line := record.getMessage())
                                                                    for word in words)]


def assert_in_turn(told, first, second):
    """Each change is logged once: one, then the other, and so on, and the other at last."""
    eventually(lambda: second in told(first, second)[-1])
    lines = told(first, second)
    assert [first in line for line in lines] == [number % 2 == 0 for number in range(len(lines))]


def test_away_and_back_are_told_once(kind, limiter, start, told):
    server = start()
    began = datetime.now(UTC)
    limiter = limiter(100, client=kind.client(kind.redis, port=server.port), on_failure="deny")
    assert limiter.allow("k")
    state, = limiter.servers()
    assert state[:4] == (f"localhost:{server.port}", "up", None, "")
    assert state.lacks == () and state.round_trip > 0 and state.backend == "module"
    assert began <= state.since <= datetime.now(UTC)
    server.kill()
    away = eventually(
        lambda: [limiter.allow("k"), limiter.servers()[0]][1].state == "unavailable" and limiter.servers()[0])
    assert away.reason in ("refused", "disconnected") and away.message and away.since > state.since
    for _ in range(20):
        limiter.allow("k")
    server.start()
    eventually(lambda: limiter.allow("k").granted)
    back, = limiter.servers()
    assert (back.state, back.reason, back.message) == ("up", None, "") and back.since > away.since
    assert_in_turn(told, f"{state.address} is unavailable", f"{state.address} answers again")


@pytest.mark.parametrize("case", REASONS["replies"], ids=lambda case: case["name"])
def test_reasons_of_replies(case):
    assert reason_of(BaseParser.parse_error(case["reply"])) == case["reason"]


ENDS = {
    "connection refused": ConnectionRefusedError(111, "x"), "socket file missing": FileNotFoundError(2, "x"),
    "host unreachable": OSError(113, "x"), "name not resolved": socket.gaierror(-2, "x"),
    "certificate refused": ssl.SSLCertVerificationError(1, "x"), "TLS handshake failed": ssl.SSLError(1, "x"),
    "no connection in time": redis.TimeoutError("x"), "no reply in time": TimeoutError("x"),
    "connection closed": redis.ConnectionError("Connection closed by server."),
    "connection reset": ConnectionResetError(104, "redis-tls-1"), "broken pipe": BrokenPipeError(32, "x"),
    "reply not understood": redis.InvalidResponse("x"),
}


@pytest.mark.parametrize("case", [one for one in REASONS["ends"] if one["name"] in ENDS], ids=lambda case: case["name"])
def test_reasons_of_ends(case):
    """redis-py raises its own error while it handles the system's."""
    error = ENDS[case["name"]]
    assert reason_of(error) == case["reason"]
    raised = redis.ConnectionError("Error connecting to redis-tls-1: certificate timed out")
    raised.__context__ = error
    assert isinstance(error, redis.RedisError) or reason_of(raised) == case["reason"]


def test_missing_rights_are_told_once(kind, limiter, server, told):
    server.cli("ACL", "SETUSER", "plain", "on", ">x", "~*", "&*", "+@all", "-pttl")
    client = kind.client(kind.redis, port=server.port, username="plain", password="x")
    try:
        one, other = limiter(client=client), limiter(client=client)
        one.allow("k", cost=3)

        def lacks(limiter, *commands):
            limiter.allow("k")
            limiter.allow("l")
            return limiter.servers()[0].lacks == commands

        eventually(lambda: lacks(one, "pttl") and lacks(other, "pttl"))
        server.cli("ACL", "SETUSER", "plain", "-client|tracking")
        server.cli("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(lambda: lacks(one, "client|tracking", "pttl"))
        eventually(lambda: [len(told(f"refuses {right}")) for right in ("pttl", "client|tracking")], [1, 1])
    finally:
        server.cli("ACL", "DELUSER", "plain")
