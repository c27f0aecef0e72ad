"""Envoy's protocol as JSON, and what else there is over HTTP."""

import re
import socket

import pytest

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
    ("", "EOF"),
    ("[" * 100_000, "expected"),
    (b"\xff\xfe", "expected value"),
], ids=["no domain", "no descriptors", "unknown field", "no number", "empty", "deep", "no text"])
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
], ids=["zeros", "version", "length", "chunk", "headers", "body"])
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


def test_metrics_are_bounded(start_daemon):
    daemon = start_daemon("{domain: d, descriptors: [{key: k, detailed_metric: true, rate_limit: {unit: day}}]}")
    for first in range(0, 10_100, 100):
        daemon.ask(*[f"k={number}" for number in range(first, first + 100)])
    hits = daemon.metrics("swlimitd_hits_total")
    assert len(hits) == 10_001 and hits["(other)", "(other)"] == 100
