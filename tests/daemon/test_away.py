"""The counting server is killed, stopped, or was never there."""

import json
import re
import signal
import time

import grpc
import pytest

from support.daemon import descriptor
from support.server import free_port
from support.waiting import eventually

LIMITS = """
domain: d
descriptors:
  - {key: error, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: allow, rate_limit: {unit: day, requests_per_unit: 10, on_failure: allow}}
  - {key: deny, rate_limit: {unit: day, requests_per_unit: 10, on_failure: deny}}
  - {key: local, rate_limit: {unit: day, requests_per_unit: 10, on_failure: local, local_share: 0.2}}
  - {key: recorded, rate_limit: {unit: day, requests_per_unit: 10, on_failure: allow, record: true}}
  - {key: mine, rate_limit: {unit: day, requests_per_unit: 1, mode: local}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 10, on_failure: deny}}
"""
TIMEOUT = 0.2


def asked(daemon, *descriptors):
    """The codes of a reply, or the error's."""
    try:
        return daemon.codes(*descriptors)
    except grpc.RpcError as error:
        return error.code()


def takes_no_longer(daemon):
    """Whether a request that the server would decide takes no longer than it may wait for that. The fastest of several
    shows it, as any of them may wait for a busy machine, too."""
    began = time.monotonic()
    assert asked(daemon, "deny=soon")[0] == "OVER_LIMIT"
    return time.monotonic() - began < 2 * TIMEOUT


def assert_policies(daemon):
    eventually(lambda: takes_no_longer(daemon))
    assert asked(daemon, "error=x") == grpc.StatusCode.UNAVAILABLE
    assert asked(daemon, "allow=x") == ("OK", "OK")
    assert asked(daemon, "deny=x") == ("OVER_LIMIT", "OVER_LIMIT")
    assert [asked(daemon, "local=x")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    assert asked(daemon, "recorded=x") == asked(daemon, descriptor("allow=x", hits=0)) == ("OK", "OK")
    # Nothing is used up by what ends in an error.
    assert [asked(daemon, "mine=x", "error=x") for _ in range(2)] == [grpc.StatusCode.UNAVAILABLE] * 2
    assert [asked(daemon, "mine=x")[0] for _ in range(2)] == ["OK", "OVER_LIMIT"]
    # Several at once, and several times one after another.
    assert asked(daemon, "allow=y", "deny=y")[0] == "OVER_LIMIT"
    assert asked(daemon, "allow=y", "error=y") == grpc.StatusCode.UNAVAILABLE
    assert asked(daemon, descriptor("allow=x", hits=0), "recorded=x", "allow=y", "shadow=y")[0] == "OK"
    assert daemon.json({"domain": "d", "descriptors": [{"entries": [{"key": "error", "value": "x"}]}]}) == (
        503, "the counting server is unavailable\n")
    # What nobody knows is left out.
    asked_for = {"key": "k", "limit": 5, "window": "1d", "on_failure": "allow"}
    allowed = daemon.http("/v1/allow", asked_for, headers={"Content-Type": "application/json"})
    assert json.loads(allowed.body) == {"granted": 1, "limit": 5, "retry_after": 0, "source": "failure"}
    assert (allowed.headers["RateLimit-Policy"], allowed.headers["RateLimit"]) == ('"default";q=5;w=86400', None)
    assert not daemon.ask("deny=x").statuses[0].HasField("current_limit")
    ways = daemon.metrics("swlimitd_decisions_total")
    assert ways["d", "local", "granted", "failure"] == 2 and ways["d", "deny", "denied", "failure"] >= 1
    assert daemon.metrics("swlimitd_server_errors_total")["unavailable",] >= 3
    status, text = daemon.get("/healthcheck")
    said = r"OK, but \S+ is unavailable \((refused|no_answer)\): on_failure decides\n"
    assert status == 200 and re.fullmatch(said, text)


@pytest.fixture
def daemon(start_daemon, own_server):
    daemon = start_daemon(LIMITS, own_server, timeout=f"{int(TIMEOUT * 1000)}ms")
    eventually(lambda: asked(daemon, "error=first") == ("OK", "OK"))
    return daemon


def test_a_server_that_was_killed(daemon, own_server):
    own_server.kill()
    assert_policies(daemon)
    own_server.start()
    eventually(lambda: asked(daemon, "error=x") == ("OK", "OK"))
    assert daemon.ask("deny=z").statuses[0].limit_remaining == 9


def test_a_server_that_stands_still(daemon, own_server):
    own_server.process.send_signal(signal.SIGSTOP)
    try:
        assert_policies(daemon)
    finally:
        own_server.process.send_signal(signal.SIGCONT)
    eventually(lambda: asked(daemon, "error=x") == ("OK", "OK"))


def test_a_server_that_was_never_there(start_daemon, start):
    port = free_port()
    daemon = start_daemon(LIMITS, timeout="200ms", server=None)
    daemon.stop()
    daemon.write_settings(server=f"redis://127.0.0.1:{port}")
    daemon.start()
    assert asked(daemon, "error=x") == grpc.StatusCode.UNAVAILABLE
    start(port=port)
    eventually(lambda: asked(daemon, "error=x") == ("OK", "OK"))


def test_a_server_without_the_module(start_daemon, start):
    daemon = start_daemon(LIMITS, start(module=None), module="always")
    with pytest.raises(grpc.RpcError) as error:
        daemon.ask("allow=x")
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "has not loaded swlimit" in error.value.details()
    assert daemon.metrics("swlimitd_server_errors_total")["refused",] == 1
