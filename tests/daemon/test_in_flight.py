"""What clients may hold of swlimitd's memory: requests that do not end, and replies that nobody reads."""

import socket
from contextlib import ExitStack, contextmanager

import pytest

from daemon.test_connections import with_http
from support.http2 import RATE_LIMIT, Http2
from support.waiting import eventually

MIB = 1 << 20
BOUND = 8 * MIB
RULES = "".join(f"  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 5}}}}\n" for number in range(2000))
MANY = f"domain: d\ndescriptors:\n{RULES}"


def rejected(daemon, why):
    return daemon.metrics("swlimitd_rejected_total")[why,]


def memory(daemon):
    return daemon.metrics("process_resident_memory_bytes")[()]


@contextmanager
def bounded(daemon, why):
    """What happens inside is bounded: memory hardly grows, requests are rejected, and others are decided."""
    before = memory(daemon)
    yield
    eventually(lambda: rejected(daemon, why) > 0)
    assert memory(daemon) - before < 10 * BOUND
    assert daemon.json({"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]})[0] == 200
    assert daemon.codes("k=x")[0] == "OK"


@pytest.mark.parametrize("port, path", [("http_port", b"/json"), ("port", RATE_LIMIT)], ids=["http", "grpc"])
def test_bodies_on_one_connection(start_daemon, port, path):
    daemon = start_daemon("domain: d", max_bytes_in_flight=BOUND)
    with bounded(daemon, "memory"):
        connection = Http2(getattr(daemon, port))
        connection.settle()
        with connection.socket:
            for stream in range(1, 201, 2):
                connection.request(stream, b"POST", path, ends=False)
                # A message of gRPC begins with its length.
                connection.send(stream, b"\x00" + MIB.to_bytes(4, "big") + b" " * (MIB - 64_000))


def test_bodies_on_many_connections(start_daemon):
    daemon = start_daemon("domain: d", max_bytes_in_flight=BOUND)
    with bounded(daemon, "memory"), ExitStack() as stack:
        for _ in range(100):
            connection = socket.create_connection(("127.0.0.1", daemon.http_port), timeout=20)
            stack.enter_context(connection)
            connection.sendall(b"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % MIB)
            connection.sendall(b" " * (MIB - 1))


def test_a_body_that_does_not_end(start_daemon):
    daemon = with_http(start_daemon("domain: d"), body_timeout="200ms")
    with socket.create_connection(("127.0.0.1", daemon.http_port), timeout=20) as connection:
        connection.sendall(b"POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert rejected(daemon, "slow") == 1


def test_a_message_that_does_not_end(start_daemon):
    daemon = start_daemon("domain: d")
    daemon.stop()
    daemon.write_settings(grpc=daemon.settings["grpc"] | {"body_timeout": "200ms"})
    daemon.start()
    connection = Http2(daemon.port)
    with connection.socket:
        connection.request(1, b"POST", RATE_LIMIT, ends=False)
        eventually(lambda: rejected(daemon, "slow"), 1, seconds=8)  # the default is longer


def test_replies_that_nobody_reads(start_daemon):
    daemon = with_http(start_daemon(MANY), reply_timeout="400ms")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", daemon.http_port))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        eventually(lambda: rejected(daemon, "slow"), 1)
    # Over HTTP/2 the connection is read, and the streams have no window.
    connection = Http2(daemon.http_port, settings=b"\x00\x04" + bytes(4))
    with connection.socket:
        connection.request(1, b"GET", b"/rlconfig")
        while connection.hear():
            pass
    assert rejected(daemon, "slow") == 2


def test_large_replies_are_bounded(start_daemon):
    daemon = start_daemon(MANY, max_bytes_in_flight=MIB)
    with ExitStack() as stack:
        for _ in range(40):
            connection = Http2(daemon.http_port, settings=b"\x00\x04" + bytes(4))
            stack.enter_context(connection.socket)
            connection.request(1, b"GET", b"/rlconfig")
        eventually(lambda: rejected(daemon, "memory") > 5)
