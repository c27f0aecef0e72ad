"""Rules with concurrency: how many requests are under way at once, by a real Envoy that says when each has ended."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest
import yaml

from docs.pages import blocks, page_named
from support.daemon import descriptor
from support.envoy import cluster, http2_cluster, listener, ratelimit, running, typed
from support.http import fetch
from support.server import free_port
from support.waiting import eventually

LIMITS = """
domain: d
descriptors:
  - key: user
    descriptors:
      - {key: request, rate_limit: {concurrency: 2, id: request, ttl: 1h}}
  - key: model
    descriptors:
      - {key: request, rate_limit: {concurrency: 3, id: request, ttl: 1h}}
  - {key: daily, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: strict, rate_limit: {unit: day, requests_per_unit: 9, strict: true}}
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
"""
KEY = "{d}|user=ann|concurrency"


def of(id, hits=None, is_negative=False):
    return descriptor(f"user=ann request={id}", hits, is_negative=is_negative)


def told(daemon, what, key=KEY):
    return json.loads(daemon.http(f"/v1/{what}?key={quote(key)}")[2])


def held(daemon, key=KEY):
    return [holder["id"] for holder in told(daemon, "holders", key)]


@pytest.mark.parametrize("words", [{}, {"module": None}], ids=["module", "script"])
def test_so_many_at_once(start_daemon, start, words):
    server = start(**words)
    daemon = start_daemon(LIMITS, server)
    assert [daemon.codes(of(id))[0] for id in "abc"] == ["OK", "OK", "OVER_LIMIT"]
    assert daemon.codes(of("a"))[0] == "OK"  # sent once more
    assert daemon.codes(of("c", hits=0))[0] == "OVER_LIMIT"
    for _ in range(2):  # the second frees nobody else
        assert daemon.codes(of("a", hits=1, is_negative=True))[0] == "OK"
    assert held(daemon) == ["b"]
    # One decision with other limits: what is denied holds nothing.
    assert daemon.codes(of("c"), "none=x")[0] == "OVER_LIMIT"
    assert daemon.codes(of("c"), "strict=x", "none=x")[0] == "OVER_LIMIT"
    assert held(daemon) == ["b"]
    assert daemon.codes(of("c"), "daily=x")[0] == "OK"
    assert daemon.codes(of("d"), "daily=x")[0] == "OVER_LIMIT"
    assert (held(daemon), told(daemon, "info", "{d}|daily=x|1d")["total"]) == (["b", "c"], 1)
    assert daemon.metrics("swlimitd_decisions_total")["d", "user.request", "denied", "server"] == 3
    # A place may come at once, and at last when the oldest has had its time.
    denied = daemon.ask(of("d"))
    assert {header.key: header.value for header in denied.response_headers_to_add} == {"Retry-After": "1"}
    status = denied.statuses[0]
    assert (status.current_limit.requests_per_unit, status.limit_remaining) == (2, 0)
    assert 3000 < status.duration_until_reset.seconds <= 3600
    status, reply = daemon.json({"domain": "d", "descriptors": [{"entries": [
        {"key": "user", "value": "ben"}, {"key": "request", "value": "a"}]}]})
    assert (status, reply["statuses"]) == (200, [
        {"code": "OK", "currentLimit": {"requestsPerUnit": 2}, "limitRemaining": 1}])
    status, reply = daemon.json({"domain": "d", "descriptors": [{"entries": [
        {"key": "user", "value": "ann"}, {"key": "request", "value": ""}]}]})
    assert (status, "the id of a request is 1 to 128 bytes" in reply) == (400, True)


def test_several_in_one_decision(start_daemon, start):
    server, model = start(), "{d}|model=small|concurrency"
    daemon = start_daemon(LIMITS, server)

    def ask(user, id):
        return daemon.codes(f"user={user} request={id}", f"model=small request={id}", "daily=x")

    assert [ask("ann", id)[0] for id in "aab"] == ["OK"] * 3
    assert ask("ann", "c") == ("OVER_LIMIT", "OVER_LIMIT", "OK", "OK")
    assert ask("joe", "d")[0] == "OK"
    assert ask("joe", "e") == ("OVER_LIMIT", "OK", "OVER_LIMIT", "OVER_LIMIT")
    # What was asked twice is held and counted once, and of what is denied nothing is.
    assert (held(daemon), held(daemon, model)) == (["a", "b"], ["a", "b", "d"])
    assert told(daemon, "info", "{d}|daily=x|1d")["total"] == 3
    stats = server.cli("INFO", "commandstats")
    calls, failed = re.search(r"swlimit\.hold:calls=(\d+),.*failed_calls=(\d+)", stats).groups()
    assert calls == failed, "nothing is held by itself"


def test_two_holds_of_one_key_in_one_request(start_daemon, start):
    """A command takes each key once: they are two decisions, and not an error, which Envoy lets pass."""
    daemon = start_daemon(LIMITS, start())
    assert daemon.codes(of("a"), of("b")) == ("OK", "OK", "OK")
    assert held(daemon) == ["a", "b"]
    assert daemon.codes(of("a", hits=1, is_negative=True))[0] == "OK"
    assert daemon.codes(of("c"), of("d"))[0] == "OVER_LIMIT"
    assert held(daemon) == ["b"], "what the first granted is given back"


class Slow(BaseHTTPRequestHandler):
    """Answers when the test says so."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path != "/":
            self.server.arrived.release()
            self.server.ending.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def app():
    app = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    app.daemon_threads, app.arrived, app.ending = True, threading.Semaphore(0), threading.Event()
    thread = threading.Thread(target=app.serve_forever)
    thread.start()
    yield app
    app.ending.set()
    app.shutdown()
    thread.join()
    app.server_close()


@pytest.fixture
def proxy(start_daemon, server, app, tmp_path):
    """An Envoy as the documentation has it."""
    limits, rules = [block.text for block in blocks(page_named("swlimitd.md")) if "test_concurrency" in block.comment]
    daemon = start_daemon(limits, server)
    asking = ratelimit(timeout="5s", failure_mode_deny=True)
    streams = {asking["name"]: typed("filters.http.ratelimit.v3.RateLimitPerRoute") | yaml.safe_load(rules)}
    routes = [{"match": {"path": "/"}, "route": {"cluster": "app"}},
              {"match": {"prefix": "/"}, "route": {"cluster": "app"}, "typed_per_filter_config": streams}]
    port = free_port()
    front = listener(port, routes, [asking])
    front["filter_chains"][0]["filters"][0]["typed_config"] |= {"use_remote_address": True}
    configuration = {"static_resources": {"listeners": [front], "clusters": [
        cluster("app", app.server_address[1]), http2_cluster("swlimitd", daemon.port)]}}
    with running(configuration, tmp_path, port):
        yield daemon, f"http://127.0.0.1:{port}/slow"


def test_envoy_says_when_a_request_has_ended(proxy, app):
    (daemon, slow), key = proxy, "{edge}|user=ann|concurrency"
    # A client from outside chooses no id.
    headers = {"x-user": "ann", "x-request-id": "00000000-0000-4000-8000-000000000000"}
    with ThreadPoolExecutor() as pool:
        under_way = [pool.submit(fetch, slow, headers=headers) for _ in range(5)]
        for _ in under_way:
            assert app.arrived.acquire(timeout=60)
        assert len(set(held(daemon, key))) == 5
        assert fetch(slow, headers=headers)[0] == 429
        app.ending.set()
        assert [request.result()[0] for request in under_way] == [200] * 5
    eventually(lambda: held(daemon, key), [])
    assert fetch(slow, headers=headers)[0] == 200
    eventually(lambda: held(daemon, key), [])
