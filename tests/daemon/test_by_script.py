"""Servers that have not loaded the module, and the script's keys once they have."""

import json

import pytest

from support.server import MODULE
from support.waiting import eventually

LIMITS = """
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: plan, rate_limit: {period: year, requests_per_unit: 3}}
  - {key: job, rate_limit: {concurrency: 2, id: job, ttl: 1h}}
"""
LIMIT = {"limit": 3, "window": "1d", "mode": "direct"}
JSON = {"Content-Type": "application/json"}


def state(daemon):
    return json.loads(daemon.get("/page/state")[1])


@pytest.mark.parametrize("module, lacks", [("auto", 1), ("never", 0)])
def test_who_decides_is_told(start_daemon, start, module, lacks):
    server = start(module=None)
    daemon = start_daemon(LIMITS, server, module=module)
    assert daemon.codes("k=x")[0] == "OK"
    assert [shown["backend"] for shown in state(daemon)["servers"]] == ["script"]
    address = f"127.0.0.1:{server.port}"
    assert daemon.metrics("swlimit_client_server_script") == {(address,): 1}
    assert daemon.metrics("swlimitd_server_lacks_module") == {(address,): lacks}


def test_a_module_that_is_loaded_later_takes_the_keys_over(start_daemon, start):
    server = start(module=None, options={"enable-module-command": "yes"})
    before = start_daemon(LIMITS, server)
    eventually(lambda: "the script decides" in before.log)
    for _ in range(2):
        assert [before.codes(words)[0] for words in ("k=x", "plan=x", "job=x")] == ["OK"] * 3
    assert before.http("/v1/allow", LIMIT | {"key": "own"}, headers=JSON)[0] == 200
    assert server.cli("MODULE", "LOAD", str(MODULE)) == "OK"
    daemon = start_daemon(LIMITS, server)
    for one in (daemon, before):
        assert one.codes("job=x")[0] == "OK"  # the same request
    assert [daemon.codes(words)[0] for words in ("k=x", "plan=x", "job=y")] == ["OK"] * 3
    assert [before.codes(words)[0] for words in ("k=x", "plan=x", "job=z")] == ["OVER_LIMIT"] * 3
    assert daemon.http("/v1/allow", LIMIT | {"key": "own"}, headers=JSON)[0] == 200
    assert {server.cli("TYPE", key) for key in server.cli("KEYS", "*").split("\n")} == {
        "sw-window", "sw-budget", "sw-holder"}
    shown = state(daemon)
    assert (shown["taken_over"], shown["servers"][0]["backend"], shown["refusals"]) == (4, "module", None)
    assert daemon.metrics("swlimit_client_taken_over_total") == {(): 4}
    assert 'took over key "{d}|k=x|1d", which the script wrote' in daemon.log
    # What another program wrote stays, and is refused.
    server.cli("SET", "text", "x")
    assert "WRONGTYPE" in daemon.http("/v1/allow", LIMIT | {"key": "text"}, headers=JSON)[2]
    assert state(daemon)["refusals"]["rate"] > 0


def test_servers_that_refuse_what_managed_ones_refuse(start_daemon, start):
    server = start(module=None)
    server.cli("ACL", "SETUSER", "default", "-config", "-module", "-info", "-command", "-debug", "-cluster", "-acl")
    daemon = start_daemon(LIMITS, server)
    status, printed = daemon.run("--check", "--server")
    assert (status, "can decide, by the script" in printed) == (0, True), printed
    for words in ("k=x", "plan=x", "job=x"):
        assert daemon.codes(words)[0] == "OK"
    assert daemon.get("/healthcheck") == (200, "OK\n")
    assert state(daemon)["server"] == "there"
