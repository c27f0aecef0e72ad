"""What clients may hold of swlimitd's memory: requests that do not end, and replies that nobody reads."""

import socket
from contextlib import ExitStack, contextmanager

import pytest

from daemon.test_connections import with_http
from daemon.test_http import frame
from support.waiting import eventually

MIB = 1 << 20
BOUND = 8 * MIB
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RATE_LIMIT = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
DATA, HEADERS, RESET, SETTINGS, WINDOW_UPDATE = 0, 1, 3, 4, 8
RULES = "".join(f"  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 5}}}}\n" for number in range(2000))
MANY = f"domain: d\ndescriptors:\n{RULES}"


def rejected(daemon, why):
    return daemon.metrics("swlimitd_rejected_total")[why,]


def memory(daemon):
    return daemon.metrics("process_resident_memory_bytes")[()]


def field(name, value):
    """A header without compression."""
    def text(value):
        return bytes([len(value)]) + value
    return b"\x00" + text(name) + text(value)


def headers(method, path):
    fields = {b":method": method, b":scheme": b"http", b":path": path, b":authority": b"localhost"}
    if method == b"POST":
        fields[b"content-type"] = b"application/grpc" if path == RATE_LIMIT else b"application/json"
        fields[b"te"] = b"trailers"
    return b"".join(field(*pair) for pair in fields.items())


class Http2:
    """One connection of HTTP/2, which sends what its windows allow."""

    def __init__(self, port, settings=b""):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.windows, self.initial, self.rest = {0: 65535}, 65535, b""
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def request(self, stream, method, path, ends=True):
        self.windows[stream] = self.initial
        self.socket.sendall(frame(HEADERS, 4 | ends, stream, headers(method, path)))

    def hear(self):
        """Read what comes; whether anything does."""
        heard = self.socket.recv(65536)
        self.rest += heard
        while len(self.rest) >= 9 and len(self.rest) >= 9 + (size := int.from_bytes(self.rest[:3], "big")):
            kind, flags, stream = self.rest[3], self.rest[4], int.from_bytes(self.rest[5:9], "big")
            payload, self.rest = self.rest[9:9 + size], self.rest[9 + size:]
            if kind == WINDOW_UPDATE and stream in self.windows:
                self.windows[stream] += int.from_bytes(payload, "big")
            elif kind == RESET:
                self.windows.pop(stream, None)
            elif kind == SETTINGS and not flags & 1:
                self.socket.sendall(frame(SETTINGS, 1, 0))  # from then on they hold
                for at in range(0, size, 6):
                    if payload[at:at + 2] == b"\x00\x04":
                        self.initial = int.from_bytes(payload[at + 2:at + 6], "big")
        return heard != b""

    def send(self, stream, body):
        """A body that does not end; less if the other side ends the stream."""
        while body and stream in self.windows:
            size = min(len(body), 16_384, self.windows[0], self.windows[stream])
            if size:
                self.socket.sendall(frame(DATA, 0, stream, body[:size]))
                body = body[size:]
                self.windows[0] -= size
                self.windows[stream] -= size
            else:
                assert self.hear()


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
        while connection.initial == 65535:
            connection.hear()
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
