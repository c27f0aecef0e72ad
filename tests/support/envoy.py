"""A real Envoy, by parts of its configuration."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from .http import fetch
from .lacking import lacking
from .waiting import eventually

ENVOY = Path(sys.executable).with_name("envoy")


def typed(name):
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}"}


def by_header(key, header):
    """A descriptor of a header's value, for requests that have it."""
    return {"actions": [{"request_headers": {"header_name": header, "descriptor_key": key, "skip_if_absent": False}}]}


def address(port):
    return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}


def cluster(name, port, **options):
    endpoints = [{"lb_endpoints": [{"endpoint": address(port)}]}]
    return {"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": endpoints}} | options


def http2_cluster(name, port):
    options = "upstreams.http.v3.HttpProtocolOptions"
    return cluster(name, port, typed_extension_protocol_options={f"envoy.extensions.{options}": typed(options) | {
        "explicit_http_config": {"http2_protocol_options": {}}}})


def listener(port, routes, filters=()):
    router = {"name": "router", "typed_config": typed("filters.http.router.v3.Router")}
    manager = typed("filters.network.http_connection_manager.v3.HttpConnectionManager") | {
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [*filters, router],
    }
    return address(port) | {"filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}


def answering(text):
    """The route of an application that answers everything with this text."""
    return {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": text}}}


def ratelimit(**options):
    """The filter that asks the cluster `swlimitd`."""
    name = "filters.http.ratelimit"
    return {"name": f"envoy.{name}", "typed_config": typed(f"{name}.v3.RateLimit") | {
        "domain": "edge",
        "rate_limit_service": {"transport_api_version": "V3",
                               "grpc_service": {"envoy_grpc": {"cluster_name": "swlimitd"}}},
    } | options}


@contextmanager
def running(configuration, folder, port):
    """An Envoy with this configuration that answers at a port."""
    if not ENVOY.exists():
        lacking("Envoy")
    (folder / "envoy.json").write_text(json.dumps(configuration))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([ENVOY, "-c", folder / "envoy.json", "--use-dynamic-base-id", "--concurrency", "1",
                                    "--log-level", "warning"], stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: fetch(f"http://127.0.0.1:{port}/")[0] == 200 or process.poll(),
                   log=(folder / "log").read_text)
        assert process.poll() is None, (folder / "log").read_text()
        yield
    finally:
        process.kill()
        process.wait()
