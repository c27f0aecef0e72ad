"""A server that lacks what the module needs says so, refuses the module and goes on."""

import pytest

from support.lacking import needed
from support.releases import ONLY_SINCE_7, TOO_OLD
from support.server import MODULE, Server

REASON = "swlimit: needs Redis 7.0 or Valkey 8.0, or later: this server has no RedisModule_"


@pytest.fixture(scope="module")
def too_old():
    """The binaries of a server that is too old."""
    return needed(TOO_OLD.name)


def test_a_running_server_refuses_the_module_and_goes_on(too_old):
    """However often it is tried, MODULE LOAD is an error, the log names the least version, and all keys are there."""
    with Server(too_old, options=ONLY_SINCE_7, module=None) as server:
        assert server.cli("SET", "k", "v") == "OK"
        for attempt in (1, 2, 3):
            assert server.cli("MODULE", "LOAD", MODULE).startswith("ERR Error loading the extension")
            assert server.log.count(REASON) == attempt
            assert server.cli("PING") == "PONG"
        assert server.cli("MODULE", "LIST") == ""
        assert server.cli("SWLIMIT.PEEK", "k", 1, 1, 1).startswith("ERR unknown command")
        assert server.cli("GET", "k") == "v"
        assert server.cli("INFO", "everything").count("redis_version:6.2.") == 1


def test_a_server_told_to_load_the_module_ends_and_says_why(too_old):
    """With `loadmodule` in its configuration it ends by itself, as servers do when a module fails to load."""
    server = Server(too_old, options=ONLY_SINCE_7)
    try:
        assert server.spawn().process.wait(20) == 1
        assert server.log.count(REASON) == 1
        assert "server aborting" in server.log
    finally:
        server.close()
