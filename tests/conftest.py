"""Fixtures: real servers with the module loaded, talked to through redis-cli as users do."""

import os
import re
from typing import NamedTuple

import pytest

from support.releases import RELEASES, Unavailable, obtain
from support.server import MODULE, Binaries, Server


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests marked long too")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="long; run with --long"))


def releases_under_test():
    """The installed server; with SWLIMIT_SERVERS, the releases it names, separated by commas, or `all` of them."""
    named = os.environ.get("SWLIMIT_SERVERS", "installed")
    return list(RELEASES) if named == "all" else named.split(",")


@pytest.fixture(scope="session", params=releases_under_test())
def binaries(request):
    """The server release under test."""
    if request.param == "installed":
        return Binaries.installed()
    try:
        return obtain(request.param)
    except Unavailable as reason:
        pytest.skip(f"{request.param} cannot be had: {reason}")


@pytest.fixture
def start(binaries):
    """Start further servers of the release under test; all end with the test."""
    started = []

    def start(**options):
        server = Server(options.pop("binaries", binaries), **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def shared_server(binaries):
    """One server that most tests share; use `server`, which empties it."""
    assert MODULE.exists(), f"{MODULE} is missing: run make build"
    with Server(binaries) as server:
        yield server


class Release(NamedTuple):
    """Which server this is, by its own account."""

    family: str
    version: tuple

    def at_least(self, **versions):
        """Whether it is at least as new as this version of its family; Valkey is, where only `redis` is given."""
        return self.version >= versions[self.family] if self.family in versions else self.family == "valkey"


@pytest.fixture(scope="session")
def release(shared_server):
    """The release of the server under test."""
    found = dict(re.findall(r"^(redis|valkey)_version:(\S+)", shared_server.cli("INFO", "server"), re.MULTILINE))
    family = "valkey" if "valkey" in found else "redis"
    return Release(family, tuple(int(part) for part in found[family].split(".")))


@pytest.fixture
def server(shared_server):
    """A server without any keys, with its configuration as it started."""
    shared_server.cli("FLUSHALL", "SYNC")
    shared_server.cli("CONFIG", "SET", "swlimit.max-subintervals", 4096)
    yield shared_server
    assert shared_server.alive, shared_server.log
