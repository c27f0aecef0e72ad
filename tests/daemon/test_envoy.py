"""A real Envoy with its ratelimit filter asks swlimitd."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.http import fetch
from support.lacking import lacking
from support.server import free_port
from support.waiting import eventually

ENVOY = Path(sys.executable).with_name("envoy")

LIMITS = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3, name: per-user}}
  - {key: slow, value: yes, rate_limit: {window: 5h, requests_per_unit: 1}}
  - {key: bytes, rate_limit: {unit: hour, requests_per_unit: 1000, record: true}}
"""


def typed(name):
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}"}


def by_header(key, header):
    return {"actions": [{"request_headers": {"header_name": header, "descriptor_key": key, "skip_if_absent": False}}]}


def address(port):
    return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}


def cluster(name, port, **options):
    endpoints = [{"lb_endpoints": [{"endpoint": address(port)}]}]
    return {"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": endpoints}} | options


def listener(port, routes, filters):
    router = {"name": "router", "typed_config": typed("filters.http.router.v3.Router")}
    manager = typed("filters.network.http_connection_manager.v3.HttpConnectionManager") | {
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [*filters, router],
    }
    return address(port) | {"filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}


def configuration(port, app_port, grpc_port):
    name = "filters.http.ratelimit"
    ratelimit = {"name": f"envoy.{name}", "typed_config": typed(f"{name}.v3.RateLimit") | {
        "domain": "edge",
        "timeout": "5s",  # not a proxy's, but a busy machine's
        "failure_mode_deny": False,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": {"transport_api_version": "V3",
                               "grpc_service": {"envoy_grpc": {"cluster_name": "swlimitd"}}},
    }}
    # The bytes of the response are known when it has ended.
    by_user = by_header("bytes", "x-user")
    counted = {f"envoy.{name}": typed(f"{name}.v3.RateLimitPerRoute") | {"rate_limits": [
        by_user | {"hits_addend": {"number": 0}},
        by_user | {"hits_addend": {"format": "%BYTES_SENT%"}, "apply_on_stream_done": True},
    ]}}
    routes = [
        {"match": {"prefix": "/counted"}, "route": {"cluster": "app"}, "typed_per_filter_config": counted},
        {"match": {"prefix": "/"}, "route": {"cluster": "app", "rate_limits": [
            by_header("user", "x-user"), by_header("slow", "x-slow")]}},
    ]
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "a" * 600}}}
    options = "upstreams.http.v3.HttpProtocolOptions"
    http2 = {"typed_extension_protocol_options": {f"envoy.extensions.{options}": typed(options) | {
        "explicit_http_config": {"http2_protocol_options": {}}}}}
    return {"static_resources": {
        "listeners": [listener(port, routes, [ratelimit]), listener(app_port, [answer], [])],
        "clusters": [cluster("app", app_port), cluster("swlimitd", grpc_port, **http2)],
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
    if not ENVOY.exists():
        lacking("Envoy")
    port, app_port = free_port(), free_port()
    (tmp_path / "envoy.json").write_text(json.dumps(configuration(port, app_port, daemon.port)))
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([ENVOY, "-c", tmp_path / "envoy.json", "--use-dynamic-base-id", "--concurrency", "1",
                                    "--log-level", "warning"], stdout=log, stderr=log, start_new_session=True)
    proxy = Proxy(port)
    try:
        eventually(lambda: proxy.get()[0] == 200 or process.poll(), log=(tmp_path / "log").read_text)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield proxy
    finally:
        process.kill()
        process.wait()


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
