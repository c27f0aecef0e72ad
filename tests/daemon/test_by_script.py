"""Servers that have not loaded the module, and the script's keys once they have."""

import json

import pytest

LIMITS = """
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: plan, rate_limit: {period: year, requests_per_unit: 3}}
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


def test_keys_of_the_script_have_an_error_of_their_own(start_daemon, start):
    server = start()
    before = start_daemon(LIMITS, server, module="never")
    assert before.codes("k=x")[0] == before.codes("plan=x")[0] == "OK"
    assert before.http("/v1/allow", LIMIT | {"key": "own"}, headers=JSON)[0] == 200
    daemon = start_daemon(LIMITS, server)
    for key, kept in ("k", "{d}|k=x|1d"), ("plan", "{d}|plan=x|year"):
        status, text = daemon.json({"domain": "d", "descriptors": [{"entries": [{"key": key, "value": "x"}]}]})
        assert status == 500 and "the script wrote this key" in text and "set another prefix" in text
        shown = state(daemon)
        assert shown["script_key"]["key"] == kept
        assert shown["refusals"]["rate"] > 0 and "the script wrote this key" in shown["refusals"]["error"]
    status, _, text = daemon.http("/v1/allow", LIMIT | {"key": "own"}, headers=JSON)
    assert status == 502 and "the script wrote this key" in text
    assert daemon.metrics("swlimitd_server_errors_total")["written_by_script",] == 3
    assert "the module cannot read keys of the script" in daemon.log and '"{d}|k=x|1d"' in daemon.log
    # Other types of keys are another matter.
    server.cli("SET", "text", "x")
    assert "WRONGTYPE" in daemon.http("/v1/allow", LIMIT | {"key": "text"}, headers=JSON)[2]
    assert daemon.codes("k=y")[0] == "OK"
