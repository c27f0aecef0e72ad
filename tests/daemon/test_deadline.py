"""Callers say in `grpc-timeout` how long they wait, and hear a decision before."""

import re
import signal
import subprocess

import pytest

from support.daemon import OK, OVER_LIMIT, request, rls_pb2

LIMITS = """
domain: d
descriptors:
  - {key: deny, rate_limit: {unit: day, requests_per_unit: 10, on_failure: deny}}
  - {key: also, rate_limit: {unit: day, requests_per_unit: 10, on_failure: deny, strict: true}}
  - {key: error, rate_limit: {unit: day, requests_per_unit: 10}}
"""
METHOD = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CANCELLED = "1"  # the caller's time was over before all of the request was read
CURL_STREAM_RESET = 92
UNAVAILABLE = "14"


@pytest.fixture
def daemon(start_daemon, own_server):
    daemon = start_daemon(LIMITS, own_server)  # with a timeout beyond all deadlines
    assert daemon.codes("deny=first")[0] == "OK"
    return daemon


def ask(daemon, timeout, *descriptors):
    """The code of a decision, or the status that was an error. A client of gRPC's own would give up by itself."""
    message = request(*descriptors).SerializeToString()
    headers = ["content-type: application/grpc", "te: trailers", f"grpc-timeout: {timeout}"]
    words = ["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--data-binary", "@-", "--max-time", "30",
             "--dump-header", "/dev/stderr", *(word for header in headers for word in ("--header", header)),
             f"http://127.0.0.1:{daemon.port}/{METHOD}"]
    done = subprocess.run(words, input=b"\0" + len(message).to_bytes(4, "big") + message, capture_output=True)
    if done.returncode == CURL_STREAM_RESET:
        return CANCELLED
    assert done.returncode == 0, done.stderr
    status = re.search(r"grpc-status: (\d+)", done.stderr.decode())[1]
    return rls_pb2.RateLimitResponse.FromString(done.stdout[5:]).overall_code if status == "0" else status


def test_with_time_the_server_decides(daemon):
    assert [ask(daemon, timeout, "deny=x") for timeout in ("20S", "1M", "1H", "99999999u")] == [OK] * 4


@pytest.mark.parametrize("descriptors", [["deny=x"], ["deny=x", "also=x"]], ids=["one limit", "two groups"])
def test_a_caller_that_waits_less_than_the_timeout_hears_of_the_failure_policy(daemon, own_server, descriptors):
    own_server.process.send_signal(signal.SIGSTOP)
    try:
        assert ask(daemon, "20m", *descriptors) == OVER_LIMIT
        assert ask(daemon, "20m", "error=x") == UNAVAILABLE
    finally:
        own_server.process.send_signal(signal.SIGCONT)


def test_with_no_time_left_it_is_decided_at_once(daemon, own_server):
    for timeout in ("1m", "1999u", "0m"):
        codes = (ask(daemon, timeout, "deny=now") for _ in range(50))  # a busy machine takes more than a ms
        assert next(code for code in codes if code != CANCELLED) == OVER_LIMIT
    assert own_server.cli("EXISTS", "{d}|deny=now|1d") == "0"
    assert daemon.metrics("swlimitd_decisions_total")["d", "deny", "denied", "failure"] >= 3
