"""Traces for OpenTelemetry."""

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from support.daemon import DAEMON
from support.server import free_port

LIMITS = """
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 9}}
policies: [{name: p, key: k, match: {path: /login}, rate_limit: {unit: day}}]
"""
TRACE = bytes(range(16))


@pytest.fixture
def collector():
    """A collector: its endpoint, and the messages it was sent."""
    messages = []

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            assert call.method == "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
            return grpc.unary_unary_rpc_method_handler(lambda message, _: messages.append(message) or b"")

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([Handler()])
    port = free_port()
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield f"http://127.0.0.1:{port}", messages
    server.stop(None)


def text(word):
    """As the messages hold it."""
    return bytes([len(word)]) + word.encode()


def parent(is_sampled):
    return [("traceparent", f"00-{TRACE.hex()}-00f067aa0ba902b7-{'01' if is_sampled else '00'}")]


def test_a_request_is_part_of_its_callers_trace(start_daemon, collector):
    endpoint, messages = collector
    daemon = start_daemon(LIMITS, traces={"endpoint": endpoint, "share": 0.000001})
    daemon.ask("k=x", metadata=parent(is_sampled=True))
    daemon.ask("k=x", metadata=parent(is_sampled=True))
    daemon.ask("k=y", metadata=parent(is_sampled=False), domain="unsampled")
    daemon.ask("k=z", domain="nobodys")
    assert daemon.stop() < 5
    told = b"".join(messages)
    assert told.count(TRACE) == told.count(text("grpc")) == 2
    assert b"swlimitd" in told and text("over_limit") in told
    assert b"unsampled" not in told and b"nobodys" not in told


def test_spans_say_which_rules_decided(start_daemon, collector):
    endpoint, messages = collector
    daemon = start_daemon(LIMITS, traces={"endpoint": endpoint})
    instance = f"{socket.gethostname()}:{daemon.process.pid}"
    version = subprocess.check_output([DAEMON, "--version"], text=True).split()[1]
    for _ in range(2):
        daemon.ask("k=x other=y", "other=z", "k=x")
    forwarded = {"X-Forwarded-Method": "POST", "X-Forwarded-Host": "shop.example", "X-Forwarded-Uri": "/login"}
    assert daemon.http("/auth", headers=forwarded)[0] == 429
    assert daemon.stop() < 5
    told = b"".join(messages)
    for name, word, times in (("descriptors", "k=x,other=y other=z k=x", 2), ("rules", "d.other d.k", 2),
                              ("denied_by", "d.k", 1), ("rules", "d.p", 1), ("denied_by", "d.p", 1),
                              ("descriptors", "POST shop.example/login from 127.0.0.1", 1)):
        value = text(word)
        assert told.count(text(name) + b"\x12" + bytes([len(value) + 1]) + b"\x0a" + value) == times, (name, word)
    for word in ("service.version", version, "service.instance.id", instance):
        assert text(word) in told


def test_a_collector_that_is_not_there(start_daemon):
    daemon = start_daemon(LIMITS, traces={"endpoint": f"http://127.0.0.1:{free_port()}"})
    assert daemon.codes("k=x") == ("OK", "OK")
    assert daemon.stop() < 5


@pytest.mark.parametrize("name, path, body, result", [
    ("json", "/json", {"domain": "shop", "descriptors": [{"entries": [{"key": "k"}]}]}, "ok"),
    ("json", "/json", {"domain": ""}, "error"),
    ("auth", "/auth", None, "over_limit"),
    ("v1/allow", "/v1/allow", {"key": "k", "limit": 0, "window": "1d"}, "over_limit"),
    ("v1/block", "/v1/block", {"key": "k"}, "error"),
    ("demo", "/demo/x", None, "ok"),
])
def test_requests_over_http_have_spans(start_daemon, collector, name, path, body, result):
    endpoint, messages = collector
    daemon = start_daemon("{domain: d, policies: [{name: p, key: k, rate_limit: {unit: day}}]}",
                          traces={"endpoint": endpoint, "share": 0.000001})
    headers = dict(parent(is_sampled=True)) | {"Content-Type": "application/json"}
    daemon.http(path, body, headers=headers)
    assert daemon.stop() < 5
    told = b"".join(messages)
    assert told.count(TRACE) == 1 and text(name) in told and text(result) in told
    assert (b"shop" in told) == ("shop" in str(body))
