"""What no honest client sends over gRPC is an error, and the daemon goes on."""

import socket

import grpc
import pytest

from support.daemon import OK, OVER_LIMIT, rls_pb2

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


@pytest.fixture(autouse=True)
def goes_on(daemon):
    yield
    assert daemon.codes("three=x") == ("OK", "OK")


def send(daemon, message, method=METHOD):
    """The code of the error, or none."""
    with daemon.channel() as channel:
        try:
            channel.unary_unary(method)(message, timeout=10)
            return None
        except grpc.RpcError as error:
            return error.code()


@pytest.mark.parametrize("message, code", [
    (b"", grpc.StatusCode.INVALID_ARGUMENT),  # neither domain nor descriptors
    (b"\xff" * 100, grpc.StatusCode.INTERNAL),
    (b"\x0a\xff\xff\xff\xff\x0f", grpc.StatusCode.INTERNAL),  # a length beyond the end
    (b"\x0a\x02\xff\xfe", grpc.StatusCode.INTERNAL),  # a domain that is not text
    (b"\x0a\x01d" + b"\x12\x00" * 1000, None),
    (b"\x0a\x01d" + b"\x12\x00" * 100_000, grpc.StatusCode.INVALID_ARGUMENT),
    (b"\x0a" * 5_000_000, grpc.StatusCode.OUT_OF_RANGE),  # too large
], ids=["empty", "ones", "length", "text", "1000 descriptors", "100000 descriptors", "large"])
def test_hostile_messages(daemon, message, code):
    assert send(daemon, message) == code


@pytest.mark.parametrize("value", [b"a\xff", b"\xc3", b"\x00\xfe"])
def test_a_value_that_is_not_utf8_counts_like_any_other(daemon, value):
    """Clients choose values. An error would make a proxy that fails open let them pass all limits."""
    entry = b"\x0a\x05three\x12" + bytes([len(value)]) + value
    descriptor = b"\x0a" + bytes([len(entry)]) + entry
    message = b"\x0a\x01d\x12" + bytes([len(descriptor)]) + descriptor
    with daemon.channel() as channel:
        ask = channel.unary_unary(METHOD, response_deserializer=rls_pb2.RateLimitResponse.FromString)
        codes = [ask(message, timeout=10).overall_code for _ in range(4)]
    assert codes == [OK] * 3 + [OVER_LIMIT]


def test_another_method(daemon):
    assert send(daemon, b"", METHOD + "s") == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("sent", [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
    b"\x16\x03\x01" + b"\x00" * 500,
    bytes(10_000),
], ids=["http1", "frames", "tls", "zeros"])
def test_hostile_connections(daemon, sent):
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=10) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1000):
                pass
        except OSError:
            pass


def test_many_that_say_nothing(daemon):
    connections = [socket.create_connection(("127.0.0.1", daemon.port), timeout=10) for _ in range(200)]
    assert daemon.codes("five=x") == ("OK", "OK")
    for connection in connections:
        connection.close()
