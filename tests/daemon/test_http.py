"""Envoy's protocol as JSON, and what else there is over HTTP."""

import itertools
import re
import socket

import pytest

from support.http2 import HEADERS, PREFACE, RESET, SETTINGS, frame

REQUEST = {"domain": "d", "descriptors": [{"entries": [{"key": "three", "value": "x"}]}]}


def test_json_is_decided_alike(daemon):
    replies = [daemon.json(REQUEST | {"hitsAddend": 2}) for _ in range(2)]
    assert [(status, reply["overallCode"]) for status, reply in replies] == [(200, "OK"), (429, "OVER_LIMIT")]
    status = replies[0][1]["statuses"][0]
    assert status.pop("durationUntilReset").endswith("s")
    assert status == {"code": "OK", "limitRemaining": 1,
                      "currentLimit": {"name": "three", "requestsPerUnit": 3, "unit": "DAY"}}
    assert {header["key"] for header in replies[1][1]["responseHeadersToAdd"]} == {
        "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"}
    with_snakes = {"domain": "d", "hits_addend": "1", "descriptors": REQUEST["descriptors"]}
    assert daemon.json(with_snakes)[0] == 200


@pytest.mark.parametrize("body, why", [
    ({"domain": ""}, "the domain is empty"),
    ({"domain": "d"}, "there are no descriptors"),
    (REQUEST | {"hits": 1}, "unknown field `hits`"),
    (REQUEST | {"hitsAddend": "many"}, "invalid digit"),
    (["d", [], 1], "expected an object"),
    (REQUEST | {"descriptors": [[[["three", "x"]]]]}, "expected an object"),
    ("", "EOF"),
    ("[" * 100_000, "expected"),
    (b"\xff\xfe", "expected value"),
], ids=["no domain", "no descriptors", "unknown field", "no number", "array", "arrays", "empty", "deep", "no text"])
def test_what_is_no_request(daemon, body, why):
    status, text = daemon.json(body)
    assert status == 400 and why in text


@pytest.mark.parametrize("path, method, status", [
    ("/json", "GET", 405),
    ("/healthcheck", "POST", 405),
    ("/../etc/passwd", "GET", 404),
    ("/%00", "GET", 404),
    pytest.param("/" + "a" * 60_000, "GET", 404, id="long"),
])
def test_other_paths_and_methods(daemon, path, method, status):
    assert daemon.http(path, method=method)[0] == status


@pytest.mark.parametrize("sent", [
    b"\x00" * 1000,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /json HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    b"POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n" + b" " * 10_000_000,
    b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"b" * 1_000_000 + b"\r\n\r\n",
    # What servers have understood in different ways.
    *(b"POST /auth HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n\r\n0\r\n\r\n" for headers in (
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: +5",
        b"Content-Length : 5",
        b"Transfer-Encoding: chunked, identity",
        b"A: b\r\n Content-Length: 5",
        b"A: b\x00",
        b"A: b\rContent-Length: 5",
        b"Host: b\r\n: c",
    )),
], ids=itertools.count())
def test_hostile_connections(daemon, sent):
    with socket.create_connection(("127.0.0.1", daemon.http_port), timeout=10) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            reply = connection.recv(100)
        except OSError:
            reply = b""  # cut off without a word
    assert reply == b"" or re.match(rb"HTTP/1.1 (400|404|413|431) ", reply), reply
    assert daemon.get("/healthcheck") == (200, "OK\n")


def test_a_body_has_one_length(daemon):
    """Of two lengths the chunks' overrides the other, and nothing is left over to be a request."""
    sent = (b"POST /healthcheck HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n0\r\n\r\nGET /healthcheck HTTP/1.1\r\nHost: a\r\n\r\n")
    with socket.create_connection(("127.0.0.1", daemon.http_port), timeout=10) as connection:
        connection.sendall(sent)
        reply = b"".join(iter(lambda: connection.recv(1000), b""))
    assert reply.count(b"HTTP/1.1 ") == 1 and b"200 OK" not in reply


@pytest.mark.parametrize("begun", [
    b"GET /hea", b"POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{",
    b"POST /json HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"], ids=["request", "body", "chunk"])
def test_many_that_do_not_come_to_an_end(daemon, begun):
    connections = [socket.create_connection(("127.0.0.1", daemon.http_port), timeout=10) for _ in range(200)]
    for connection in connections:
        connection.sendall(begun)
    assert daemon.get("/healthcheck") == (200, "OK\n")
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("port", ["port", "http_port"])
def test_requests_that_are_taken_back_at_once(daemon, port):
    """HTTP/2's rapid reset."""
    begin = PREFACE + frame(SETTINGS, 0, 0)
    get = b"\x82\x86\x84\x41\x01a"  # GET http / a, in HPACK
    both = b"".join(frame(HEADERS, 5, stream, get) + frame(RESET, 0, stream, bytes(4))
                    for stream in range(1, 200_000, 2))
    with socket.create_connection(("127.0.0.1", getattr(daemon, port)), timeout=10) as connection:
        try:
            connection.sendall(begin + both)
            while connection.recv(10_000):
                pass
        except OSError:
            pass  # it has enough of them
    assert daemon.get("/healthcheck") == (200, "OK\n")
    assert daemon.codes("three=x") == ("OK", "OK")


def test_the_limits_in_force(daemon):
    status, text = daemon.get("/rlconfig")
    lines = text.splitlines()
    assert status == 200 and "d.both: 2 per 10d, resolution 20h" in lines
    assert "d.quota: 1 per 1d, resolution 2h, quota_mode" in lines
    assert "d.tenant.user_root: unlimited" in lines


def test_metrics(daemon):
    def requests():
        return daemon.metrics("swlimitd_requests_total")

    before = requests()
    for _ in range(4):
        daemon.json(REQUEST)
    daemon.json({"domain": ""})
    grown = {labels: value - before[labels] for labels, value in requests().items() if value != before[labels]}
    assert grown == {("json", "ok"): 3, ("json", "over_limit"): 1, ("json", "error"): 1}
    assert daemon.metrics("swlimitd_request_duration_seconds_count")["json",] == sum(
        value for (api, _), value in requests().items() if api == "json")
    assert daemon.metrics("swlimitd_decisions_total")["d", "three", "denied", "server"] >= 1
    assert daemon.metrics("swlimitd_near_limit_total")["d", "three"] >= 1
    assert daemon.metrics("swlimit_client_commands_total")[()] > 0


def test_limits_brought_along_are_forgotten_one_by_one(start_daemon):
    def descriptors(first, count):
        return [{"entries": [{"key": "k", "value": str(number)}], "limit": {"requestsPerUnit": number, "unit": "DAY"}}
                for number in range(first, first + count)]

    daemon = start_daemon("domain: d")
    exhausted = {"domain": "d", "descriptors": descriptors(1, 1)}
    assert [daemon.json(exhausted)[0] for _ in range(2)] == [200, 429]
    for first in range(2, 12_002, 1000):
        assert daemon.json({"domain": "d", "descriptors": descriptors(first, 1000)})[0] == 200
        assert daemon.json(exhausted)[0] == 429


def test_metrics_are_bounded(start_daemon):
    daemon = start_daemon("{domain: d, descriptors: [{key: k, detailed_metric: true, rate_limit: {unit: day}}]}")
    for first in range(0, 10_100, 100):
        daemon.ask(*[f"k={number}" for number in range(first, first + 100)])
    hits = daemon.metrics("swlimitd_hits_total")
    assert len(hits) == 10_001 and hits["(other)", "(other)"] == 109  # nine are the API's
