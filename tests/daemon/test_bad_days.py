"""Callers that give up and try again, and servers that are away when holds end or the daemon does."""

import json
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from daemon.test_deadline import UNAVAILABLE
from daemon.test_deadline import ask as ask_within
from support.daemon import OK, descriptor, request, rls_pb2_grpc
from support.waiting import eventually

LIMITS = """
domain: d
descriptors:
  - key: user
    descriptors:
      - {key: request, rate_limit: {concurrency: 1, id: request, ttl: 1h}}
  - {key: eventual, rate_limit: {unit: day, requests_per_unit: 100000, mode: eventual, local_share: 1}}
  - {key: leased, rate_limit: {unit: day, requests_per_unit: 100000, mode: leased, lease_share: 1}}
"""
SEATS = "{d}|user=ann|concurrency"
HOLD = {"key": "jobs", "limit": 1, "ttl": "1h", "id": "mine"}
RATE = {"key": "first", "limit": 10, "window": "1d"}


@pytest.fixture
def daemon(start_daemon, own_server):
    daemon = start_daemon(LIMITS, own_server)  # with a timeout beyond all deadlines
    assert post(daemon, "/v1/allow", RATE)[1]["source"] == "server"
    return daemon


def post(daemon, path, body):
    status, _, text = daemon.http(path, body, headers={"Content-Type": "application/json"})
    return status, json.loads(text)


def ask(daemon, made, timeout):
    with daemon.channel() as channel:
        return rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(request(made), timeout=timeout)


def seat(id, ends=False):
    return descriptor(f"user=ann request={id}", 1, is_negative=ends)


def held(server, key):
    return [line for line in server.cli("SWLIMIT.HOLDERS", key).split("\n")[::5] if line]


@contextmanager
def trying(daemon, path, body):
    """A request over HTTP whose caller goes away."""
    body = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", daemon.http_port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        yield


@contextmanager
def trying_over_grpc(daemon, made):
    with daemon.channel() as channel:
        call = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit.future(request(made), timeout=60)
        yield
        call.cancel()


def stopped(server):
    server.process.send_signal(signal.SIGSTOP)


def goes_on(server):
    server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("way", ["hold", "admit", "concurrency"])
def test_a_retry_owns_what_its_id_was_granted(daemon, own_server, way):
    """The first try is given up while the server stands still, and the second is sent: both are granted."""
    made = {"hold": HOLD, "admit": [HOLD, RATE | {"key": "rate"}], "concurrency": seat("mine")}[way]

    def sent():
        return daemon.metrics("swlimit_client_commands_total")[()]

    stopped(own_server)
    try:
        before = sent()
        first = trying_over_grpc(daemon, made) if way == "concurrency" else trying(daemon, f"/v1/{way}", made)
        with first:
            eventually(sent, before + 1)
        time.sleep(0.2)  # the daemon notices it; later, the first one would merely be granted what it asked for
        with ThreadPoolExecutor() as pool:
            second = pool.submit(ask, daemon, made, 60) if way == "concurrency" else pool.submit(
                post, daemon, f"/v1/{way}", made)
            eventually(sent, before + 2)
            goes_on(own_server)
            granted = second.result()
    finally:
        goes_on(own_server)
    assert granted.overall_code == OK if way == "concurrency" else granted[0] == 200
    # What the first one's late reply would have sent is behind this on the connection.
    for number in range(5):
        assert post(daemon, "/v1/allow", RATE | {"key": f"other {number}"})[0] == 200
    assert held(own_server, SEATS if way == "concurrency" else "jobs") == ["mine"]
    if way == "admit":
        assert own_server.cli("SWLIMIT.INFO", "rate").split("\n")[9] == "1"


def test_the_end_of_a_request_obeys_its_callers_deadline(daemon, own_server):
    assert ask(daemon, seat("mine"), 60).overall_code == OK
    stopped(own_server)
    try:
        assert ask_within(daemon, "100m", seat("mine", ends=True)) == UNAVAILABLE
    finally:
        goes_on(own_server)
    eventually(lambda: held(own_server, SEATS), [])


def test_who_waits_is_answered_at_the_end(daemon, own_server):
    own_server.cli("SWLIMIT.HOLD", "jobs", 1, "1h", "another")
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(post, daemon, "/v1/hold", HOLD | {"id": id, "wait": "10m"}) for id in "ab"]
        eventually(lambda: own_server.client().info("swlimit")["swlimit_waiting"], 2)
        daemon.send_signal(signal.SIGTERM)
        assert [(status, reply["granted"]) for status, reply in (each.result() for each in waiting)] == [(429, 0)] * 2
        assert daemon.stop() < 30
    assert "cut off" not in daemon.log
    eventually(lambda: own_server.client().info("swlimit")["swlimit_waiting"], 0)


def test_what_is_lost_at_the_end_is_said(start_daemon, own_server):
    daemon = start_daemon(LIMITS, own_server, timeout="500ms")
    for name in ("eventual", "leased") * 30:
        assert daemon.json({"domain": "d", "descriptors": [{"entries": [{"key": name, "value": "x"}]}]})[0] == 200
    assert daemon.metrics("swlimit_client_leased_total")[()] > 0
    stopped(own_server)
    try:
        daemon.ask("eventual=x")
        assert daemon.stop() < 30
    finally:
        goes_on(own_server)
    assert re.search(r"may not have counted.* units=\d+ keys=1", daemon.log), daemon.log
    assert re.search(r"cannot be given back.* units=\d+ keys=1", daemon.log), daemon.log


@pytest.mark.parametrize("way, kept", [("grpc", 1), ("auth", 1), ("v1", 0)])
def test_what_the_server_grants_after_an_error(start_daemon, own_server, way, kept):
    """A proxy may let its request pass after an error, so its unit stays counted. Who asks over HTTP got nothing."""
    limit = "{unit: day, requests_per_unit: 10, mode: direct, on_failure: error}"
    daemon = start_daemon(f"""
        domain: d
        descriptors: [{{key: k, rate_limit: {limit}}}]
        policies: [{{name: p, key: ip, rate_limit: {limit}}}]
        """, own_server, timeout="300ms")
    asks = {"grpc": lambda: ask_within(daemon, "10S", descriptor("k=x")),
            "auth": lambda: daemon.http("/auth/a")[0],
            "v1": lambda: post(daemon, "/v1/allow", RATE | {"key": "late", "mode": "direct"})[0]}
    assert post(daemon, "/v1/allow", RATE)[1]["source"] == "server"
    stopped(own_server)
    try:
        assert asks[way]() in (UNAVAILABLE, 503)
    finally:
        goes_on(own_server)
    eventually(lambda: daemon.metrics("swlimit_client_unclaimed_total"), {(): 1})
    # What gives it back would be behind the reply.
    for number in range(5):
        assert post(daemon, "/v1/allow", RATE | {"key": f"other {number}", "mode": "direct"})[0] == 200
    key, = [key for key in own_server.cli("KEYS", "*").split("\n") if key.startswith(("{d}", "late"))] or ["late"]
    eventually(lambda: own_server.cli("SWLIMIT.PEEK", key, 10, "1d", "2h").split("\n")[2], str(10 - kept))


def test_units_that_are_being_leased_at_the_end_are_said(start_daemon, own_server):
    """The server stands still and later counts what was on its way: that is no more than was granted and is said."""
    daemon = start_daemon(LIMITS, own_server, timeout="500ms")
    asked = {"domain": "d", "descriptors": [{"entries": [{"key": "leased", "value": "x"}]}]}
    statuses = [daemon.json(asked)[0] for _ in range(60)]
    assert set(statuses) == {200} and daemon.metrics("swlimit_client_leased_total")[()] > 0
    stopped(own_server)
    try:
        while statuses[-1] == 200 and len(statuses) < 100_000:
            statuses.append(daemon.json(asked)[0])
        assert daemon.stop() < 30
    finally:
        goes_on(own_server)
    said = {text: sum(map(int, re.findall(rf"{text}.* units=(\d+)", daemon.log)))
            for text in ("being leased", "cannot be given back")}
    assert said["being leased"] > 0, daemon.log
    eventually(lambda: len(own_server.client().client_list()), 1)  # it has read what swlimitd sent
    counted = int(own_server.cli("SWLIMIT.INFO", "{d}|leased=x|1d").split("\n")[9])
    assert len(statuses) < counted <= len(statuses) + sum(said.values()), daemon.log
