"""swlimitd with a configuration that most tests share, and others by themselves."""

from contextlib import ExitStack

import pytest
import yaml

from support.daemon import DAEMON, Daemon, descriptor
from support.gateways import DESCRIPTORS, NAMES, NGINX_SETTINGS, POLICIES, App, Proxy
from support.lacking import lacking

# No window slides while a test runs, but those of a second.
LIMITS = """
domain: d
descriptors:
  - {key: three, rate_limit: {unit: day, requests_per_unit: 3, name: three}}
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
  - key: tenant
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: user, value: root, rate_limit: {unlimited: true}}
  - {key: path, value: /api/*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: exempt, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: three}]}}
  - {key: both, rate_limits: [{unit: day, requests_per_unit: 5}, {window: 10d, requests_per_unit: 2}]}
  - {key: half, rate_limit: {window: 12h, requests_per_unit: 3}}
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: strict, rate_limit: {unit: day, requests_per_unit: 2, strict: true}}
  - {key: local, rate_limit: {unit: day, requests_per_unit: 2, mode: local}}
  - {key: leased, rate_limit: {unit: day, requests_per_unit: 1000, mode: leased}}
  - {key: background, rate_limit: {unit: day, requests_per_unit: 100, mode: eventual}}
  - {key: small, rate_limit: {unit: day, requests_per_unit: 3, mode: eventual}}
  - {key: penalty, rate_limit: {window: 1s, requests_per_unit: 1, block: 1h}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100, record: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
"""


@pytest.fixture(scope="session")
def starting_daemons():
    """Start daemons; all end with the context."""
    def starting():
        if not DAEMON.exists():
            lacking("swlimitd: run make build-all")
        stack = ExitStack()
        stack.start = lambda *words, **options: stack.enter_context(Daemon(*words, **options))
        return stack

    return starting


@pytest.fixture
def start_daemon(starting_daemons):
    """Start daemons that end with the test."""
    with starting_daemons() as stack:
        yield stack.start


@pytest.fixture(scope="session")
def shared_daemon(starting_daemons, shared_server):
    with starting_daemons() as stack:
        yield stack.start(LIMITS, shared_server, rate_limit_headers=True)


@pytest.fixture
def own_server(start):
    """A server of the test's own."""
    return start()


@pytest.fixture
def daemon(shared_daemon, server):
    """A daemon on an empty server, which knows that it is empty: a reply comes after what it invalidates."""
    shared_daemon.ask(descriptor("five=empty", hits=0))
    yield shared_daemon
    assert shared_daemon.process.poll() is None, shared_daemon.log


@pytest.fixture
def app():
    """An application that remembers what reached it."""
    app = App()
    yield app
    app.close()


@pytest.fixture
def policed(request, start_daemon, server):
    """A daemon with the policies and descriptors of proxies.md, in one file, and the settings for a test's proxy."""
    chosen = getattr(request.node, "callspec", None)
    settings = yaml.safe_load(NGINX_SETTINGS) if chosen and "nginx" in chosen.params.values() else {}
    return start_daemon(POLICIES + DESCRIPTORS.removeprefix("domain: shop\n"), server, **settings)


@pytest.fixture(params=NAMES)
def proxy(request, policed, app, tmp_path):
    """Each proxy in front of the application."""
    with Proxy(request.param, tmp_path, {8080: policed.http_port, 8081: policed.port, 3000: app.port}) as proxy:
        yield proxy
