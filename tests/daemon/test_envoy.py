"""A real Envoy with its ratelimit filter asks swlimitd."""

import socket

import pytest
import yaml

from docs.pages import blocks, page_named
from support.envoy import answering, by_header, cluster, http2_cluster, listener, ratelimit, running, typed
from support.http import fetch
from support.server import free_port
from support.waiting import eventually

LIMITS = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3, name: per-user}}
  - {key: slow, value: yes, rate_limit: {window: 5h, requests_per_unit: 1}}
  - {key: bytes, rate_limit: {unit: hour, requests_per_unit: 1000, record: true}}
"""


def configuration(port, app_port, grpc_port):
    asking = ratelimit(timeout="5s",  # not a proxy's, but a busy machine's
                       failure_mode_deny=False, enable_x_ratelimit_headers="DRAFT_VERSION_03")
    # The bytes of the response are known when it has ended.
    by_user = by_header("bytes", "x-user")
    counted = {asking["name"]: typed("filters.http.ratelimit.v3.RateLimitPerRoute") | {"rate_limits": [
        by_user | {"hits_addend": {"number": 0}},
        by_user | {"hits_addend": {"format": "%BYTES_SENT%"}, "apply_on_stream_done": True},
    ]}}
    routes = [
        {"match": {"prefix": "/counted"}, "route": {"cluster": "app"}, "typed_per_filter_config": counted},
        {"match": {"prefix": "/"}, "route": {"cluster": "app", "rate_limits": [
            by_header("user", "x-user"), by_header("slow", "x-slow")]}},
    ]
    return {"static_resources": {
        "listeners": [listener(port, routes, [asking]), listener(app_port, [answering("a" * 600)])],
        "clusters": [cluster("app", app_port), http2_cluster("swlimitd", grpc_port)],
    }}


class Proxy:
    def __init__(self, port):
        self.port = port

    def get(self, path="/", **headers):
        headers = {f"x-{name}": value for name, value in headers.items()}
        return fetch(f"http://127.0.0.1:{self.port}{path}", headers=headers)


@pytest.fixture
def daemon(start_daemon, server):
    return start_daemon(LIMITS, server)


@pytest.fixture
def proxy(daemon, tmp_path):
    """An Envoy in front of an application, which asks the daemon."""
    port, app_port = free_port(), free_port()
    with running(configuration(port, app_port, daemon.port), tmp_path, port):
        yield Proxy(port)


def test_envoy_limits(proxy):
    replies = [proxy.get(user="ann") for _ in range(4)]
    assert [status for status, *_ in replies] == [200, 200, 200, 429]
    first, last = replies[0][1], replies[-1][1]
    assert first["x-ratelimit-limit"] == '3, 3;w=3600;name="per-user"'
    assert (first["x-ratelimit-remaining"], last["x-ratelimit-remaining"]) == ("2", "0")
    assert 3599 <= int(first["x-ratelimit-reset"]) <= 3900
    assert first["retry-after"] is None and 3000 <= int(last["retry-after"]) <= 3900
    assert proxy.get(user="bob")[0] == 200


def test_a_value_that_is_not_utf8_is_limited_like_any_other(proxy):
    request = b"GET / HTTP/1.1\r\nHost: a\r\nX-User: a\xff\r\nConnection: close\r\n\r\n"
    statuses = []
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            connection.sendall(request)
            statuses.append(int(connection.recv(1000).split(b" ")[1]))
    assert statuses == [200] * 3 + [429] * 2


def test_two_limits_of_which_one_denies(proxy, server):
    assert [proxy.get(user="ann", slow="yes")[0] for _ in range(3)] == [200, 429, 429]
    assert proxy.get(user="ann")[1]["x-ratelimit-remaining"] == "1"  # the denied ones took nothing


def test_usage_that_envoy_reports_when_the_response_has_ended(proxy, server):
    key = "{edge}|bytes=ann|1h"
    assert proxy.get("/counted", user="ann")[0] == 200
    eventually(lambda: server.cli("SWLIMIT.PEEK", key, 1000, "1h", "5m").split("\n")[2] == "400")
    assert proxy.get("/counted", user="ann")[0] == 200  # beyond the limit, which is known afterwards only
    eventually(lambda: server.cli("SWLIMIT.PEEK", key, 1000, "1h", "5m").split("\n")[2] == "0")
    assert proxy.get("/counted", user="ann")[0] == 429
    fields = server.cli("SWLIMIT.INFO", key).split("\n")
    assert fields[fields.index("total") + 1] == "1200"


def test_without_the_daemon_envoy_goes_on(proxy, daemon):
    daemon.process.kill()
    daemon.process.wait()
    assert proxy.get(user="ann")[0] == 200
    daemon.start()
    eventually(lambda: proxy.get(user="ann")[1]["x-ratelimit-limit"])


def test_the_cluster_for_kubernetes(daemon, tmp_path):
    """That of the page, at other addresses."""
    block, = [block for block in blocks(page_named("install-swlimitd.md")) if "test_envoy" in block.comment]
    port, app_port = free_port(), free_port()
    of_page = yaml.safe_load(block.text)
    endpoint = of_page["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    assert endpoint == {"address": "swlimitd.default.svc.cluster.local", "port_value": 8081}
    endpoint |= {"address": "localhost", "port_value": daemon.port}
    of_page["dns_lookup_family"] = "V4_ONLY"
    here = configuration(port, app_port, daemon.port)
    here["static_resources"]["clusters"][1] = of_page
    with running(here, tmp_path, port):
        proxy = Proxy(port)
        eventually(lambda: proxy.get(user="ann")[0], 429)
        assert daemon.metrics("swlimitd_requests_total")["grpc", "over_limit"] >= 1
    assert "deprecated" not in (tmp_path / "log").read_text()
