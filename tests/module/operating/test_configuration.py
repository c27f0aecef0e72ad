"""swlimit.max-subintervals: how it is set, what obeys it, and what a wrong value says."""

import pytest

from support.cli import ask
from support.server import MODULE, Binaries, Server

NAME = "swlimit.max-subintervals"


def setting(server):
    return server.cli("CONFIG", "GET", NAME).split("\n")


def test_default(server):
    assert setting(server) == [NAME, "4096"]
    words = server.cli("CONFIG", "GET", "swlimit.*").split("\n")
    assert dict(zip(words[::2], words[1::2])) == {
        NAME: "4096", "swlimit.max-waiting": "10000", "swlimit.max-holds": "100000", "swlimit.top-keys": "100"}


@pytest.mark.parametrize("most", [1, 12, 4_096, 100_000, 1_000_000])
def test_commands_obey_it(server, most):
    assert server.cli("CONFIG", "SET", NAME, most) == "OK"
    assert setting(server) == [NAME, str(most)]
    error = f"ERR window / resolution is {most + 1} subintervals, above swlimit.max-subintervals ({most})"
    for command, cost in [("ALLOW", ()), ("PEEK", ()), ("RECORD", ()), ("MALLOW 1", (1,))]:
        words = f"SWLIMIT.{command}".split()
        assert server.cli(*words, "k", 5, f"{most + 1}m", "1m", *cost) == error
        assert 1 in ask(server, *words, "k", 5, f"{most}s", "1s", *cost)
    assert ask(server, "EVAL", f"return redis.call('SWLIMIT.PEEK', KEYS[1], 5, '{most}s', '1s')", 1, "k")[1] == 5


@pytest.mark.parametrize("value", ["0", "-1", "1000001", "9223372036854775808", "many", "", "4k"])
def test_wrong_values(server, value):
    assert server.cli("CONFIG", "SET", NAME, value).startswith("ERR CONFIG SET failed")
    assert setting(server) == [NAME, "4096"]


def test_keys_of_a_finer_resolution_stay_and_are_peeked_at_by_coarser_ones(server):
    ask(server, "SWLIMIT.ALLOW", "k", 5, 60, 1)
    server.cli("CONFIG", "SET", NAME, 12)
    assert server.cli("SWLIMIT.ALLOW", "k", 5, 60, 1).startswith("ERR window / resolution is 60 subintervals")
    assert ask(server, "SWLIMIT.ALLOW", "k", 5, 60, 5)[:3] == [1, 5, 3]
    assert ask(server, "SWLIMIT.REFUND", "k", 5) == [2]


@pytest.mark.parametrize("words, value", [
    ([], "4096"), (["max-subintervals", "7"], "7"), (["MAX-SUBINTERVALS", "1000000"], "1000000"),
])
def test_arguments_of_loadmodule(start, words, value):
    assert setting(start(module_args=words)) == [NAME, value]


@pytest.mark.parametrize("words, complaint", [
    (["max-subintervals"], "max-subintervals must be an integer between 1 and 1000000"),
    (["max-subintervals", "0"], "max-subintervals must be an integer between 1 and 1000000"),
    (["max-subintervals", "1000001"], "max-subintervals must be an integer between 1 and 1000000"),
    (["max-subintervals", "many"], "max-subintervals must be an integer between 1 and 1000000"),
    (["verbose", "1"], "unknown or repeated argument 'verbose'"),
    (["max-subintervals", "5", "max-subintervals", "6"], "unknown or repeated argument 'max-subintervals'"),
])
def test_wrong_arguments_of_loadmodule_keep_a_server_from_starting(binaries, words, complaint):
    server = Server(binaries, module_args=words)
    try:
        server.spawn()
        assert server.process.wait(20) != 0
        assert f"swlimit: {complaint}" in server.log
    finally:
        server.close()


@pytest.fixture
def bare(start):
    """A server without the module."""
    return start(module=None)


@pytest.mark.parametrize("words, value", [
    (["LOAD", MODULE], "4096"), (["LOAD", MODULE, "max-subintervals", 7], "7"),
    (["LOADEX", MODULE], "4096"), (["LOADEX", MODULE, "ARGS", "max-subintervals", 8], "8"),
    (["LOADEX", MODULE, "CONFIG", NAME, 9], "9"),
    (["LOADEX", MODULE, "CONFIG", NAME, 9, "ARGS", "max-subintervals", 8], "9"),
], ids=lambda words: " ".join(map(str, words[:1] + words[2:])) if isinstance(words, list) else "")
def test_loading_into_a_running_server(bare, words, value):
    assert bare.cli("MODULE", *map(str, words)) == "OK"
    assert setting(bare) == [NAME, value]
    assert ask(bare, "SWLIMIT.ALLOW", "k", 5, f"{value}s", 1)[:3] == [1, 5, 4]


@pytest.mark.parametrize("words", [
    ["LOAD", MODULE, "max-subintervals", 0], ["LOAD", MODULE, "what"], ["LOADEX", MODULE, "CONFIG", NAME, 0],
    ["LOADEX", MODULE, "CONFIG", NAME, "many"],
    ["LOADEX", MODULE, "ARGS", "max-subintervals", -5],
], ids=lambda words: " ".join(map(str, words[:1] + words[2:])))
def test_wrong_values_are_not_loaded(bare, words):
    assert bare.cli("MODULE", *map(str, words)).startswith("ERR Error loading the extension")
    assert "swlimit" not in bare.cli("MODULE", "LIST")
    assert bare.cli("DEBUG", "SLEEP", "0.2") == "OK"  # the next cron calls all that listen to it
    assert bare.cli("SWLIMIT.ALLOW", "k", 5, 60, 5).startswith("ERR unknown command")
    assert bare.cli("MODULE", "LOAD", str(MODULE)) == "OK"
    assert setting(bare) == [NAME, "4096"]


def test_redis_conf_and_config_rewrite(binaries, start, tmp_path):
    conf = tmp_path / "redis.conf"
    conf.write_text(f"loadmodule {MODULE} max-subintervals 70\n{NAME} 77\n")
    with_conf = Binaries(binaries.name, [*binaries.command, str(conf)], binaries.cli, binaries.env)
    server = start(binaries=with_conf, module=None)
    assert setting(server) == [NAME, "77"]
    for value in ("99", "70"):  # 70 is what the arguments say
        assert server.cli("CONFIG", "SET", NAME, value) == "OK"
        assert server.cli("CONFIG", "REWRITE") == "OK"
        server.restart()
        assert setting(server) == [NAME, value]


def test_a_wrong_value_in_redis_conf_keeps_a_server_from_starting(binaries, tmp_path):
    conf = tmp_path / "redis.conf"
    conf.write_text(f"loadmodule {MODULE}\n{NAME} 1000001\n")
    server = Server(Binaries(binaries.name, [*binaries.command, str(conf)], binaries.cli, binaries.env), module=None)
    try:
        server.spawn()
        assert server.process.wait(20) != 0
        assert "max-subintervals" in server.log
    finally:
        server.close()
