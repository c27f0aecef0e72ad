"""Bounds on what a client may hold: time, headers, connections, labels."""

import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.daemon import OK, request, rls_pb2_grpc
from support.waiting import eventually

NO_LIMITS = "domain: d"
REQUEST = b"GET /healthcheck HTTP/1.1\r\nHost: a\r\n\r\n"


def connect(daemon):
    return socket.create_connection(("127.0.0.1", daemon.http_port), timeout=20)


def rejected(daemon, why):
    return daemon.metrics("swlimitd_rejected_total").get((why,), 0)


@pytest.mark.parametrize("begun", [
    b"", b"P", b"PRI * HTTP/2.0\r\n", b"GET /hea", b"GET /healthcheck HTTP/1.1\r\nHost: a\r\nX-A: ", REQUEST,
], ids=["nothing", "a letter", "preface", "path", "headers", "idle"])
def test_nobody_holds_a_connection_without_asking(start_daemon, begun):
    daemon = with_http(start_daemon(NO_LIMITS), header_timeout="500ms")
    with connect(daemon) as connection:
        connection.sendall(begun)
        began = time.monotonic()
        while connection.recv(1000):
            pass  # until the daemon closes it
        assert time.monotonic() - began < 10
    assert daemon.get("/healthcheck")[0] == 200


@pytest.mark.long
@pytest.mark.parametrize("begun", [b"", b"PRI * HTTP/2.0\r\n"], ids=["nothing", "preface"])
def test_nobody_holds_a_connection_of_grpc_without_asking(start_daemon, begun):
    """Its first bytes may take ten seconds."""
    daemon = start_daemon(NO_LIMITS)
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=60) as connection:
        connection.sendall(begun)
        while connection.recv(1000):
            pass  # until the daemon closes it
    eventually(lambda: rejected(daemon, "slow"), 1)


def test_the_system_looks_for_dead_peers(start_daemon):
    daemon = start_daemon(NO_LIMITS)
    keepalive = "02"  # of the timers that /proc/net/tcp names
    for port in (daemon.port, daemon.http_port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            own = connection.getsockname()[1]
            eventually(lambda port=port, own=own: timer(port, own), keepalive)


def timer(port, peer):
    """The kind of timer that runs for a server's connection with that peer; None before it is accepted."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, running, *_ = line.split()
        if [int(address.split(":")[1], 16) for address in (local, remote)] == [port, peer]:
            return running.split(":")[0]
    return None


def with_http(daemon, **http):
    daemon.stop()
    daemon.write_settings(http={"address": f"127.0.0.1:{daemon.http_port}"} | http)
    return daemon.start()


def test_a_slow_body_is_no_slow_header(start_daemon):
    daemon = with_http(start_daemon(NO_LIMITS), header_timeout="500ms")
    with connect(daemon) as connection:
        connection.sendall(b"POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{")
        connection.settimeout(1.5)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        connection.sendall(b"}")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")  # it has no domain


def test_connections_of_an_address_are_bounded(start_daemon):
    """Those of trusted proxies are not."""
    daemon = with_http(start_daemon(NO_LIMITS, auth={"trusted_proxies": ["10.0.0.0/8"]}),
                       max_connections_per_address=3)

    def asked_beside(others):
        with ExitStack() as stack:
            for _ in range(others):
                stack.enter_context(connect(daemon))
            return asked(daemon)

    # Until then, the connection that found the daemon ready may still be counted.
    eventually(lambda: asked_beside(3), b"")
    eventually(lambda: asked(daemon)[:12], b"HTTP/1.1 200")
    assert rejected(daemon, "connections") >= 1
    daemon.write_settings(auth={"trusted_proxies": ["127.0.0.1"]})
    eventually(lambda: "configuration reloaded" in daemon.log)
    assert asked_beside(10).startswith(b"HTTP/1.1 200")


def test_what_is_being_answered_when_a_connection_ends_is_answered(start_daemon, start):
    """A gRPC connection ends with its age, one of HTTP when it is idle for too long. These wait for the server."""
    server = start()
    daemon = start_daemon("{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9}}]}", server)
    daemon.stop()
    daemon.write_settings(timeout="100s", grpc=daemon.settings["grpc"] | {"max_connection_age": "1s"})
    with_http(daemon, header_timeout="1s")
    assert daemon.codes("k=x")[0] == "OK"
    asked_before = commands(daemon)
    server.process.send_signal(signal.SIGSTOP)
    try:
        with daemon.channel() as channel, connect(daemon) as over_http:
            over_grpc = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit.future(request("k=x"), timeout=60)
            body = b'{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "y"}]}]}'
            over_http.sendall(b"POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            eventually(lambda: commands(daemon), asked_before + 2)
            # Who comes later is sent away meanwhile.
            with connect(daemon) as idle, socket.create_connection(("127.0.0.1", daemon.port), 20) as old:
                until_it_is_sent_away(old)
                while idle.recv(1000):
                    pass
            assert not over_grpc.done()
            server.process.send_signal(signal.SIGCONT)
            assert over_grpc.result().overall_code == OK
            assert over_http.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        server.process.send_signal(signal.SIGCONT)


def until_it_is_sent_away(connection):
    """Keep up a connection of HTTP/2, until the other side ends it."""
    settings, ping, acknowledged = 4, 6, 1
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, settings, 0, 0, 0, 0, 0]))
    with connection.makefile("rb") as frames:
        while len(head := frames.read(9)) == 9:
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            data = frames.read(length)
            if kind == ping and not flags & acknowledged:
                connection.sendall(head[:4] + bytes([acknowledged]) + head[5:] + data)


def commands(daemon):
    """How many were sent to the server."""
    return sum(daemon.metrics("swlimit_client_commands_total").values())


def asked(daemon):
    with connect(daemon) as connection:
        try:
            connection.sendall(REQUEST)
            return connection.recv(100)
        except ConnectionError:
            return b""


def with_headers(daemon, headers):
    with connect(daemon) as connection:
        connection.sendall(REQUEST[:-2] + headers + b"\r\n")
        return connection.recv(100).split(b" ")[1]


def test_headers_are_bounded_by_configuration(start_daemon):
    daemon = start_daemon(NO_LIMITS)
    assert with_headers(daemon, b"X-A: b\r\n" * 100) == b"431"
    assert with_headers(daemon, b"X-A: b\x01\r\n") == b"400"
    assert (rejected(daemon, "too_large"), rejected(daemon, "malformed")) == (1, 1)
    assert daemon.log.count("were rejected") == 1  # once a minute
    with_http(daemon, max_headers=500, max_header_bytes=20_000)
    assert with_headers(daemon, b"X-A: b\r\n" * 100) == b"200"
    assert with_headers(daemon, b"X-A: " + b"b" * 300_000 + b"\r\n") == b"431"


def test_labels_are_bounded(start_daemon):
    daemon = start_daemon("{domain: d, descriptors: [{key: k, detailed_metric: true, rate_limit: {unit: day}}]}")
    for letter in "ab":
        daemon.ask(f"k={letter * 60_000}")
    rules = [rule for domain, rule in daemon.metrics("swlimitd_hits_total") if domain == "d"]
    assert sorted(rules) == [f"k_{letter * 198}…" for letter in "ab"]


def test_hosts_of_the_api(start_daemon):
    """A page can make its own name lead here, so only known names are served."""
    daemon = start_daemon(NO_LIMITS, api={"anybody": True, "hosts": ["limits.example"]})
    asked = {"key": "k", "limit": 1, "window": "1d"}
    for host, expected in [("limits.example:80", 200), ("LIMITS.example", 200), ("other.example", 403),
                           ("localhost", 200), ("127.0.0.1", 200), ("swlimitd", 200)]:
        headers = {"Content-Type": "application/json", "Host": host}
        assert daemon.http("/v1/peek", asked, headers=headers)[0] == expected, host
