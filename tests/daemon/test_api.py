"""Every decision as JSON: what /v1 answers, and that its OpenAPI file says so."""

import itertools
import json
import random
import re
import shlex
import socket
import ssl
import subprocess
import time

import pytest
import trustme
from jsonschema import Draft202012Validator

from docs.pages import blocks, page_named
from support.contents import info_of
from support.daemon import DAEMON
from support.http import fetch
from support.lacking import lacking
from support.waiting import eventually

NO_LIMITS = "domain: d"
QUOTA = {"limit": 3, "window": "1d", "resolution": "2h"}
JSON = {"Content-Type": "application/json"}
IS_DECISION = {"granted", "limit", "remaining", "retry_after", "reset_after", "source"}


class Api:
    """Asks a daemon, and holds each reply against what its OpenAPI file says."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.openapi = json.loads(daemon.get("/v1/openapi.json")[1])

    def resolved(self, node):
        while "$ref" in node:
            found = self.openapi
            for step in node["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            node = found
        return node

    def assert_valid(self, value, schema):
        Draft202012Validator({"components": self.openapi["components"]} | schema).validate(value)

    def ask(self, path, body=None, method=None, described=None, headers=JSON):
        """The status of a reply, and the reply."""
        status, told, text = self.daemon.http(path, body, method, headers)
        operation = self.openapi["paths"][described or path.split("?")[0]]["get" if body is None else "post"]
        response = self.resolved(operation["responses"][str(status)])
        content = response["content"]["application/json"]
        assert told["Content-Type"] == "application/json"
        self.assert_valid(json.loads(text), content["schema"])
        for name, header in response.get("headers", {}).items():
            if name in told:
                value = int(told[name]) if name == "Retry-After" else told[name]
                self.assert_valid(value, self.resolved(header)["schema"])
        assert {"RateLimit", "RateLimit-Policy"} & set(told) <= set(response.get("headers", {}))
        assert ("Retry-After" in told) <= ("Retry-After" in response.get("headers", {}))
        if body is not None and status < 300:
            self.assert_valid(body, operation["requestBody"]["content"]["application/json"]["schema"])
        return status, json.loads(text)

    def granted(self, *words, **options):
        status, reply = self.ask(*words, **options)
        return status, reply["granted"]


@pytest.fixture
def api(daemon):
    return Api(daemon)


def test_allow(api):
    found = [api.ask("/v1/allow", {"key": "k"} | QUOTA) for _ in range(4)]
    assert [(status, reply["granted"], reply["remaining"]) for status, reply in found] == [
        (200, 1, 2), (200, 1, 1), (200, 1, 0), (429, 0, 0)]
    first, last = found[0][1], found[3][1]
    assert set(first) == IS_DECISION and (first["limit"], first["retry_after"], first["source"]) == (3, 0, "server")
    assert 86_400_000 <= first["reset_after"] <= 93_600_000
    assert 79_200_000 <= last["retry_after"] <= 93_600_000
    assert api.granted("/v1/allow", {"key": "other", "cost": 3} | QUOTA) == (200, 3)
    assert api.granted("/v1/allow", {"key": "k", "limit": 3, "window": 86_400}) == (429, 0)


def test_headers_tell_of_the_limit(api):
    headers = api.daemon.http("/v1/allow", {"key": "k"} | QUOTA, headers=JSON)[1]
    assert headers["RateLimit-Policy"] == '"default";q=3;w=86400'
    assert headers["RateLimit"].startswith('"default";r=2;t=')
    denied = api.daemon.http("/v1/allow", {"key": "k", "cost": 3} | QUOTA, headers=JSON)[1]
    assert 79_200 <= int(denied["Retry-After"]) <= 93_600
    never = api.daemon.http("/v1/allow", {"key": "k", "cost": 4} | QUOTA, headers=JSON)
    assert (never[0], never[1]["Retry-After"], json.loads(never[2])["retry_after"]) == (429, None, -1)


def test_partial_strict_and_blocking(api, server):
    assert api.granted("/v1/allow", {"key": "k", "cost": 5, "partial": True} | QUOTA) == (200, 3)
    assert api.granted("/v1/allow", {"key": "s", "strict": True} | QUOTA) == (200, 1)
    assert api.ask("/v1/allow", {"key": "b", "limit": 0, "window": "1s", "block": "1h"})[1]["retry_after"] == -1
    assert info_of(server, "b", "blocked") > 0


def test_peek_and_record(api):
    asked = {"key": "k"} | QUOTA
    assert api.granted("/v1/peek", asked) == api.granted("/v1/peek", asked) == (200, 1)
    status, reply = api.ask("/v1/record", asked | {"cost": 700, "age": "1h"})
    assert (status, reply["remaining"]) == (200, 0)
    assert api.granted("/v1/peek", asked) == (200, 0)
    assert api.granted("/v1/allow", asked) == (429, 0)


def test_limits_that_rise(api):
    rate = {"limit": 60, "window": "1h", "warm_up": "10h", "cold": 6}
    for call, more in {"allow": {}, "peek": {"cost": 11}, "record": {}, "acquire": {"timeout": "1ms"}}.items():
        status, found = api.ask(f"/v1/{call}", {"key": call, **rate, **more})
        assert (status, found["limit"]) == (200, more.get("cost", 10)), call
    together = [{"key": "dear", "cost": 30, **rate}, {"key": "hold", "limit": 1, "ttl": "1m"}]
    status, found = api.ask("/v1/admit", together)
    assert (status, found["granted"], found["each"][0]["limit"]) == (200, True, 30)


def test_refund(api):
    api.ask("/v1/allow", {"key": "k", "cost": 3} | QUOTA)
    assert api.ask("/v1/refund", {"key": "k", "cost": 2}) == (200, {"refunded": 2})
    assert api.ask("/v1/refund", {"key": "k", "cost": 9, "age": 0.5})[0] == 400
    assert api.granted("/v1/allow", {"key": "k", "cost": 2} | QUOTA) == (200, 2)


def test_blocks(api):
    status, reply = api.ask("/v1/block", {"key": "k", "duration": "1h"})
    assert status == 200 and 3_500 < reply["blocked_until"] / 1000 - time.time() < 3_700
    assert api.ask("/v1/block", {"key": "k", "duration": "2h", "unless_blocked": True})[1] == reply
    assert api.granted("/v1/allow", {"key": "k"} | QUOTA) == (429, 0)
    assert api.ask("/v1/unblock", {"key": "k"}) == (200, {"unblocked": True})
    assert api.ask("/v1/unblock", {"key": "k"}) == (200, {"unblocked": False})
    assert api.granted("/v1/allow", {"key": "k"} | QUOTA) == (200, 1)


def test_acquire_waits(api):
    asked = {"key": "k", "limit": 1, "window": "1s", "resolution": "100ms", "timeout": "20s"}
    began = time.monotonic()
    assert [api.granted("/v1/acquire", asked) for _ in range(2)] == [(200, 1)] * 2
    assert time.monotonic() - began > 0.5
    assert api.granted("/v1/acquire", {"key": "d", "limit": 0, "window": "1d", "timeout": "10m"}) == (429, 0)


def test_several_limits(api, server):
    two = [{"key": "a"} | QUOTA, {"key": "b", "limit": 1, "window": "1h"}]
    status, reply = api.ask("/v1/allow_all", two)
    assert (status, reply["granted"], [one["granted"] for one in reply["each"]]) == (200, True, [1, 1])
    status, reply = api.ask("/v1/allow_all", two)
    assert (status, reply["granted"], [one["granted"] for one in reply["each"]]) == (429, False, [1, 0])
    assert reply["retry_after"] == reply["each"][1]["retry_after"] > 0
    assert api.ask("/v1/peek", {"key": "a"} | QUOTA)[1]["remaining"] == 2  # nothing was counted


def test_what_the_server_holds(api, server):
    assert api.ask("/v1/info?key=k") == (404, {"error": "no such key"})
    for _ in range(5):
        api.ask("/v1/allow", {"key": "k", "mode": "direct"} | QUOTA)
    status, told = api.ask("/v1/info?key=k")
    assert (status, told["window"], told["resolution"], told["total"]) == (200, 86_400_000, 7_200_000, 3)
    assert told["blocked_until"] is None
    assert sum(units for _, units in told["counts"]) == 3
    status, denied = api.ask("/v1/top?count=100")
    assert status == 200 and "k" in [key["key"] for key in denied]
    assert all(key["this_minute"] + key["last_minute"] > 0 for key in denied)


def test_the_prefix_is_of_every_key(start_daemon, server):
    api = Api(start_daemon(NO_LIMITS, server, prefix="p:"))
    api.ask("/v1/allow", {"key": "k"} | QUOTA)
    api.ask("/v1/allow_all", [{"key": "l"} | QUOTA])
    api.ask("/v1/block", {"key": "m", "duration": "1m"})
    assert sorted(server.cli("KEYS", "*").split("\n")) == ["p:k", "p:l", "p:m"]


def test_demo(api):
    found = [api.ask("/demo/some/path?x=y", described="/demo/{path}")[0] for _ in range(6)]
    assert found == [200] * 5 + [429]
    assert api.ask("/demo/other", method="PUT", described="/demo/{path}")[0] == 200
    assert api.ask("/demo/" + "a" * 300, described="/demo/{path}")[0] == 414


K = {"key": "k"} | QUOTA
WRONG = [
    ("/v1/allow", {}, "missing field `key`"),
    ("/v1/allow", {"key": "k"}, "missing field `limit`"),
    ("/v1/allow", K | {"key": ""}, "a key has 1 to 1024 bytes"),
    ("/v1/allow", K | {"key": "k" * 1025}, "a key has 1 to 1024 bytes"),
    ("/v1/allow", K | {"key": 1}, "invalid type"),
    ("/v1/allow", K | {"limit": -1}, "limit"),
    ("/v1/allow", K | {"limit": 2**53}, "limit is at most 9007199254740991"),
    ("/v1/allow", K | {"window": "soon"}, "a duration is written such as 60"),
    ("/v1/allow", K | {"window": None}, "a duration is written such as 60"),
    ("/v1/allow", K | {"resolution": "7h"}, "the resolution divides the window evenly"),
    ("/v1/allow", K | {"cost": 0}, "cost must be an integer between 1 and 9007199254740991"),
    ("/v1/allow", K | {"unknown": 1}, "unknown field `unknown`"),
    ("/v1/allow", K | {"mode": "me"}, "unknown variant `me`"),
    ("/v1/allow", K | {"age": 1}, "age is for record"),
    ("/v1/peek", K | {"block": 1}, "block is for allow"),
    ("/v1/record", K | {"partial": True}, "partial is for allow"),
    ("/v1/allow", K | {"timeout": 1}, "timeout is for acquire"),
    ("/v1/acquire", K, "acquire needs a timeout"),
    ("/v1/acquire", K | {"timeout": "11m"}, "at most 10m"),
    ("/v1/allow_all", [], "1 to 1000"),
    ("/v1/allow_all", [K] * 1001, "1 to 1000"),
    ("/v1/allow_all", [K, K], "duplicate key"),
    ("/v1/allow_all", [K | {"partial": True}], "the whole cost or nothing"),
    ("/v1/allow_all", [K | {"cost": 0}], "cost is 1 to"),
    ("/v1/block", {"key": "k", "duration": 0}, "a duration is written"),
    ("/v1/unblock", {"keys": "k"}, "unknown field `keys`"),
    ("/v1/refund", {"key": "k", "cost": 0}, "cost must be"),
    ("/v1/allow", "{", "EOF"),
    ("/v1/allow", "[" * 100_000, "invalid type: sequence"),
    # Fields by their place mean nothing to a reader.
    ("/v1/allow", ["k", 3, "1d"], "expected an object"),
    ("/v1/allow_all", [["k", 3, "1d"]], "expected an object"),
    ("/v1/unblock", ["k"], "expected an object"),
    ("/v1/hold", ["k", 3, "1m"], "expected an object"),
    ("/v1/settle", {"key": "k", "id": "i", "used": [["k", 1]]}, "expected an object"),
    ("/v1/hold", {"key": "k", "limit": 1, "ttl": "1m", "id": "hex:+1"}, "an id has 1 to 128 bytes"),
    ("/v1/allow", b"\xff", "expected value"),
]


@pytest.mark.parametrize("path, body, why", WRONG, ids=itertools.count())
def test_what_is_wrong_is_told(api, path, body, why):
    status, reply = api.ask(path, body)
    assert (status, why in reply["error"]) == (400, True), reply


def test_other_things_that_are_wrong(api, server):
    assert api.ask("/v1/allow", K, headers={"Content-Type": "text/plain"})[0] == 415
    assert api.ask("/v1/allow", json.dumps(K | {"key": "k" * 2_000_000}))[0] == 413
    assert api.ask("/v1/info?keys=k")[0] == api.ask("/v1/top?count=-1")[0] == 400
    for count in (0, 10_001, 99_999_999_999):
        assert api.ask(f"/v1/top?count={count}") == (400, {"error": "count is 1 to 10000"})
    assert api.daemon.http("/v1/allow")[0] == 405
    assert api.daemon.http("/explain", ["GET", "shop", "/"], headers=JSON)[0] == 400
    assert api.daemon.http("/v1/other", K)[0] == 404
    server.cli("SET", "text", "x")
    assert api.ask("/v1/allow", K | {"key": "text"})[0] == 502
    assert "WRONGTYPE" in api.ask("/v1/allow_all", [K, K | {"key": "text"}])[1]["error"]


def test_whatever_is_sent_is_answered(api):
    """Bodies that are nearly right, a few bytes changed."""
    rng = random.Random(20261121)
    paths = [path for path, operations in api.openapi["paths"].items() if "post" in operations]
    for _ in range(300):
        body = bytearray(json.dumps(rng.choice([K, [K], K | {"timeout": 1}, {"key": "k", "duration": 60}])).encode())
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(body))
            body[at:at + rng.randint(0, 2)] = bytes(rng.choice([rng.randrange(256), *b'{}[]",:0-9e']) for _ in range(2))
        api.ask(rng.choice(paths), bytes(body))
    status, text = api.daemon.get("/healthcheck")
    assert (status, text[:2]) == (200, "OK")


@pytest.mark.parametrize("sent", [
    b"GET /auth HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: " + b"1.2.3.4, " * 5_000 + b"\r\nConnection: close\r\n\r\n",
    b"GET /auth HTTP/1.1\r\nHost: a\r\nX-Forwarded-Uri: \xff\xfe%\r\nConnection: close\r\n\r\n",
    b"GET /auth/%ff%00/..%2f..?%zz HTTP/1.1\r\nHost: \xff\r\nCookie: \xff;=;;=\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"MADE-UP /auth/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
], ids=["addresses", "uri", "path", "star", "method"])
def test_hostile_questions_of_proxies(start_daemon, sent):
    daemon = start_daemon("""{domain: d, policies: [{name: p, match: {host: "*", path: "/*", method: "*"},
        key: "{client}/{header:x-a}/{cookie:b}", rate_limit: {unit: day, requests_per_unit: 9}}]}""")
    with socket.create_connection(("127.0.0.1", daemon.http_port), timeout=10) as connection:
        connection.sendall(sent)
        assert connection.recv(100).split(b" ")[1] in (b"200", b"400", b"404", b"431")
    assert daemon.get("/healthcheck") == (200, "OK\n")


def test_the_file_names_every_field(api):
    """What the daemon says it expects is what the file says of all questions together; of others, of each."""
    def expected(path):
        error = api.ask(path, {"unknown": 1})[1]["error"]
        return set(error.split("expected", 1)[1].split(" at line")[0].replace("one of", "").replace("`", "")
                   .replace(" or ", ",").replace(" ", "").split(","))

    def told(path):
        body = api.openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        api.assert_valid(body["example"], body["schema"])
        return set(api.resolved(body["schema"])["properties"])

    questions = [f"/v1/{name}" for name in ("allow", "peek", "record", "acquire")]
    assert expected("/v1/allow") == set.union(*map(told, questions))
    others = ("refund", "block", "unblock", "hold", "release", "renew", "budget", "settle")
    for path in (f"/v1/{name}" for name in others):
        assert expected(path) == told(path)


def test_without_a_server(start_daemon):
    api = Api(start_daemon(NO_LIMITS))
    assert [api.ask("/v1/allow", K | {"limit": 1})[0] for _ in range(2)] == [200, 429]
    assert api.ask("/v1/allow", K | {"limit": 1})[1]["source"] == "local"
    for path, body in (("refund", {"key": "k"}), ("unblock", {"key": "k"}), ("block", {"key": "k", "duration": 1})):
        assert api.ask(f"/v1/{path}", body)[0] == 501
    assert api.ask("/v1/info?key=k")[0] == api.ask("/v1/top")[0] == 501


def test_a_server_that_is_away(start_daemon, start):
    server = start()
    api = Api(start_daemon(NO_LIMITS, server, timeout="200ms"))
    eventually(lambda: api.ask("/v1/allow", K)[0], 200)
    server.kill()
    assert api.ask("/v1/allow", K) == (503, {"error": "the counting server is unavailable"})
    assert api.granted("/v1/allow", K | {"on_failure": "allow"}) == (200, 1)
    assert api.granted("/v1/allow", K | {"on_failure": "deny"}) == (429, 0)
    assert api.ask("/v1/allow_all", [K, K | {"key": "l", "on_failure": "deny"}])[0] == 503
    assert api.ask("/v1/block", {"key": "k", "duration": 60})[0] == 503


def token(word):
    return JSON | {"Authorization": f"Bearer {word}"}


def test_tokens(start_daemon, server):
    daemon = start_daemon(NO_LIMITS, server)
    (daemon.folder / "tokens").write_text("first\nsecond\n")
    daemon.write_settings(api={"tokens": "tokens"})
    api = Api(daemon)
    eventually(lambda: api.ask("/v1/peek", K)[0], 401)
    assert daemon.http("/v1/peek", K, headers=JSON)[1]["WWW-Authenticate"] == "Bearer"
    assert [api.ask("/v1/peek", K, headers=token(word))[0] for word in ("first", "second", "third")] == [200, 200, 401]
    assert api.ask("/demo/x", described="/demo/{path}")[0] == 401
    # Over HTTP/2 a body that nobody reads would end the request before its answer is seen.
    asking = ["curl", "--silent", "--http2-prior-knowledge", "--max-time", "30", "--write-out", "%{http_code}",
              "--output", "/dev/null", "--data-binary", "@-", "--header", "Content-Type: application/json",
              f"http://127.0.0.1:{daemon.http_port}/v1/peek"]
    for size in (10, 60_000):
        done = subprocess.run(asking, input="x" * size, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "401"), size
    # Changed like any other file.
    (daemon.folder / "tokens").write_text("third\n")
    eventually(lambda: api.ask("/v1/peek", K, headers=token("third"))[0], 200)
    assert api.ask("/v1/peek", K, headers=token("first"))[0] == 401
    (daemon.folder / "tokens").write_text("\n")
    eventually(lambda: "tokens: the file has no token" in daemon.log)
    assert api.ask("/v1/peek", K, headers=token("third"))[0] == 200


def own_address():
    """An address of this machine that others could ask it by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            lacking("a network")
        return probe.getsockname()[0]


def test_others_than_this_machine(start_daemon, server):
    address = own_address()
    daemon = start_daemon(NO_LIMITS, server)
    daemon.stop()
    daemon.write_settings(http={"address": f"0.0.0.0:{daemon.http_port}"})
    daemon.start()

    def status(path, body=None):
        connection = socket.create_connection((address, daemon.http_port), 10, source_address=(address, 0))
        with connection:
            text = json.dumps(body) if body else ""
            connection.sendall(f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                               f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            return int(connection.recv(20).split()[1])

    assert [status("/v1/allow", K), status("/v1/block", {"key": "k", "duration": 1}), status("/demo/x")] == [403] * 3
    assert status("/healthcheck") == 200
    daemon.write_settings(api={"anybody": True})
    eventually(lambda: status("/v1/allow", K), 200)


def test_over_tls(start_daemon, server, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    daemon = start_daemon(NO_LIMITS, server)
    daemon.stop()
    files = {name: str(tmp_path / f"{name}.pem") for name in ("certificate", "key")}
    http = {"address": f"127.0.0.1:{daemon.http_port}", "tls": files}

    def asked(context):
        response = fetch(f"https://localhost:{daemon.http_port}/v1/allow", K, headers=JSON, context=context)
        return json.loads(response.body)["granted"]

    context = ssl.create_default_context(cafile=tmp_path / "authority.pem")
    daemon.write_settings(http=http)
    daemon.spawn()
    eventually(lambda: asked(context), 1)
    # Somebody who says nothing keeps nobody else waiting.
    with socket.create_connection(("127.0.0.1", daemon.http_port)):
        assert asked(context) == 1
    daemon.stop()
    daemon.write_settings(http=http | {"tls": files | {"client_authority": str(tmp_path / "authority.pem")}})
    daemon.spawn()
    known = ssl.create_default_context(cafile=tmp_path / "authority.pem")
    with authority.issue_cert("client").private_key_and_cert_chain_pem.tempfile() as path:
        known.load_cert_chain(path)
    eventually(lambda: asked(known), 1)
    with pytest.raises(OSError, match="certificate required|EOF|closed|reset"):
        asked(context)


def test_requests_are_counted(api):
    """Each command by itself: how its requests end, how long they take, and who decides them."""
    def requests():
        return {labels: value for labels, value in api.daemon.metrics("swlimitd_requests_total").items()
                if "/" in labels[0]}

    def grown(before):
        return {labels: value - before[labels] for labels, value in requests().items() if value != before[labels]}

    before, decided = requests(), api.daemon.metrics("swlimitd_decisions_total")
    one = K | {"limit": 1, "mode": "direct"}
    for path, body in (("allow", one), ("allow", one), ("allow", {}), ("peek", one), ("record", one),
                       ("acquire", one | {"timeout": "1ms"}), ("allow_all", [one, K | {"key": "l"}]),
                       ("refund", {"key": "k"}), ("block", {"key": "k", "duration": 1}), ("unblock", {"key": "k"})):
        api.ask(f"/v1/{path}", body)
    assert grown(before) == {
        ("v1/allow", "ok"): 1, ("v1/allow", "over_limit"): 1, ("v1/allow", "error"): 1, ("v1/peek", "ok"): 1,
        ("v1/record", "ok"): 1, ("v1/acquire", "over_limit"): 1, ("v1/allow_all", "over_limit"): 1,
        ("v1/refund", "ok"): 1, ("v1/block", "ok"): 1, ("v1/unblock", "ok"): 1}
    took = api.daemon.metrics("swlimitd_request_duration_seconds_count")
    for path in ("allow", "unblock"):
        assert took[f"v1/{path}",] == sum(value for (named, _), value in requests().items() if named == f"v1/{path}")
    now = api.daemon.metrics("swlimitd_decisions_total")
    assert {labels[1:]: value - decided.get(labels, 0) for labels, value in now.items()
            if labels[0] == "(api)" and value != decided.get(labels)} == {
        ("v1/allow", "granted", "server"): 1, ("v1/allow", "denied", "server"): 1, ("v1/peek", "denied", "server"): 1,
        ("v1/record", "denied", "server"): 1, ("v1/acquire", "denied", "server"): 1,
        ("v1/allow_all", "granted", "server"): 1, ("v1/allow_all", "denied", "server"): 1}
    assert api.daemon.metrics("swlimitd_hits_total")["(api)", "v1/peek"] == 0


def test_the_page(api, tmp_path):
    """What it shows is what is answered, and its configuration is valid."""
    (command, shown), (settings,) = [block.text.splitlines() if block.language == "console" else [block.text]
                                     for block in blocks(page_named("http-api.md")) if "test_api" in block.comment]
    program, option, body, url = shlex.split(command.removeprefix("$ "))
    assert (program, option, url) == ("curl", "--json", "localhost:8080/v1/allow")
    status, reply = api.ask("/v1/allow", json.loads(body))
    expected = json.loads(shown)
    assert 60_000 <= reply.pop("reset_after") <= expected.pop("reset_after") == 65_000
    assert (status, reply) == (200, expected)

    certificate = trustme.CA().issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "tokens.txt").write_text("token\n")
    (tmp_path / "swlimitd.yaml").write_text(settings)
    done = subprocess.run([DAEMON, "--check", "--config", tmp_path / "swlimitd.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_names_every_field(api):
    schemas = api.openapi["components"]["schemas"]
    asked = ("Allow", "Record", "Acquire", "Refund", "Block", "Hold", "Renew", "Budget", "Admit", "Settle")
    fields = {field for name in asked for field in schemas[name]["properties"]}
    page = page_named("http-api.md").read_text()
    assert fields <= set(re.findall(r"`(\w+)`", page))
