"""Fixtures: real servers with the module loaded, talked to through redis-cli as users do."""

import os
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from support.contents import info
from support.lacking import needed
from support.releases import RELEASES
from support.server import MODULE, Binaries, Server
from support.threaded import ThreadedServer

# pytest-xdist tells its processes the terminal's width, and programs under test would go by that.
os.environ.pop("COLUMNS", None)

pytest_plugins = ["support.clock", "support.figures"]


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests marked long too")
    parser.addoption("--fresh", action="store_true", help="run the tests marked fresh too")


def pytest_collection_modifyitems(config, items):
    for option, marks in {"long": {"long", "threaded"}, "fresh": {"fresh"}}.items():
        if not config.getoption(f"--{option}"):
            for item in items:
                if marks & set(item.keywords):
                    item.add_marker(pytest.mark.skip(reason=f"{option}; run with --{option}"))


def pytest_generate_tests(metafunc):
    if metafunc.definition.get_closest_marker("as_run"):
        manners = [pytest.param(Server, id=pytest.HIDDEN_PARAM),
                   pytest.param(ThreadedServer, id="threaded", marks=pytest.mark.threaded)]
        metafunc.parametrize("manner", manners, indirect=True, scope="session")


def releases_under_test():
    """The installed server; with SWLIMIT_SERVERS, the releases it names, separated by commas, or `all` of them."""
    named = os.environ.get("SWLIMIT_SERVERS", "installed")
    return list(RELEASES) if named == "all" else named.split(",")


@pytest.fixture(scope="session", params=releases_under_test())
def binaries(request):
    """The server release under test."""
    if request.param == "installed":
        return Binaries.installed()
    return needed(request.param)


@pytest.fixture(scope="session")
def manner(request):
    """How servers are run; the tests marked `as_run` take more than one."""
    return getattr(request, "param", Server)


@pytest.fixture(scope="session")
def starting(binaries, manner):
    """A context in which servers of the release under test can be started; all end with it."""
    @contextmanager
    def starting():
        started = []

        def start(**options):
            started.append(manner(options.pop("binaries", binaries), **options))
            return started[-1].start()

        try:
            yield start
        finally:
            for server in started:
                server.close()

    return starting


@pytest.fixture
def start(starting):
    """Start further servers of the release under test; all end with the test."""
    with starting() as start:
        yield start


@pytest.fixture(scope="session", params=["under test", "valkey-9.1"])
def server_of_each(request, starting):
    """A server of the release under test, and one of another family: for what each release sees with its own eyes."""
    with starting() as start:
        yield start() if request.param == "under test" else start(binaries=needed(request.param))


@pytest.fixture(scope="session")
def shared_server(starting):
    """One server that most tests share; use `server`, which empties it."""
    assert MODULE.exists(), f"{MODULE} is missing: run make build"
    with starting() as start:
        yield start()


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
    found = info(shared_server, "server")
    family = "valkey" if "valkey_version" in found else "redis"
    return Release(family, tuple(int(part) for part in found[f"{family}_version"].split(".")))


@pytest.fixture(scope="session")
def configuration(shared_server):
    """The shared server's configuration as it started."""
    with shared_server.client() as client:
        return client.config_get()


@pytest.fixture
def server(shared_server, configuration):
    """A server without any keys, with its configuration as it started."""
    with shared_server.client() as client:
        for name in {name for name, _ in client.config_get().items() ^ configuration.items()}:
            client.config_set(name, configuration[name])
        client.execute_command("FLUSHALL", "SYNC")  # in Valkey 8, FLUSHALL frees keys in the background
    yield shared_server
    assert shared_server.alive, shared_server.log
