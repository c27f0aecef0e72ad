"""Holds, budgets and one decision of everything over HTTP."""

import json
import shlex
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from daemon.test_api import JSON, Api
from docs.pages import blocks, page_named
from support.waiting import eventually

HOLD = {"key": "jobs", "limit": 2, "ttl": "1m"}
RATE = {"key": "{a}:requests", "limit": 10, "window": "1h"}
STREAM = {"key": "{a}:streams", "limit": 5, "ttl": "1m", "id": "r1"}
TOKENS = {"key": "{a}:tokens", "limit": 1000, "period": "month", "time_zone": "Europe/Berlin", "cost": 400}


@pytest.fixture(params=["module", "script"])
def api(request, start_daemon, start):
    """On a server with the module, and on one whose script decides."""
    if request.param == "module":
        return Api(request.getfixturevalue("daemon"))
    return Api(start_daemon("domain: d", start(module=None)))


def test_holds(api):
    status, first = api.ask("/v1/hold", HOLD)
    assert (status, first["granted"], first["remaining"], first["source"]) == (200, 1, 1, "server")
    assert first["id"].startswith("hex:") and len(first["id"]) == 36 and first["expires_after"] == 60_000
    status, named = api.ask("/v1/hold", HOLD | {"id": "mine"})
    assert (status, named["id"]) == (200, "mine") and named["token"] > first["token"]
    assert api.ask("/v1/hold", HOLD | {"id": "mine"})[1]["token"] == named["token"]
    status, denied = api.ask("/v1/hold", HOLD | {"wait": "10ms"})
    assert status == 429 and 0 < denied["retry_after"] <= 60_000 and "token" not in denied
    # A place may come at once.
    for path, body in (("/v1/hold", HOLD), ("/v1/admit", [HOLD])):
        assert api.daemon.http(path, body, headers=JSON)[1]["Retry-After"] == "1"
    assert [holder["id"] for holder in api.ask("/v1/holders?key=jobs")[1]] == [first["id"], "mine"]
    status, told = api.ask("/v1/info?key=jobs")
    assert (status, told["holds"], told["total"], told["window"], told["counts"]) == (200, 2, 2, 0, [])
    assert 0 < told["until"] / 1000 - time.time() <= 60
    assert api.ask("/v1/renew", {"key": "jobs", "ttl": "2m", "id": ["mine", "other"]}) == (
        200, {"renewed": [True, False]})
    assert api.ask("/v1/release", {"key": "jobs", "id": first["id"]}) == (200, {"released": 1})
    assert api.ask("/v1/release", {"key": "jobs", "id": [first["id"], "mine"]}) == (200, {"released": 1})
    assert api.ask("/v1/holders?key=jobs&count=1") == (200, [])
    # Who waits is first in line when a place comes.
    assert api.granted("/v1/hold", HOLD | {"id": "whole", "cost": 2}) == (200, 2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.ask, "/v1/hold", HOLD | {"wait": "1m"})
        eventually(lambda: api.daemon.metrics("swlimitd_waiting")[()], 1)
        assert api.ask("/v1/release", {"key": "jobs", "id": "whole"}) == (200, {"released": 2})
        assert waiting.result()[1]["granted"] == 1


def test_budgets(api):
    assert api.granted("/v1/budget", TOKENS) == (200, 400)
    assert api.granted("/v1/budget", TOKENS | {"cost": 700}) == (429, 0)
    assert api.granted("/v1/budget", TOKENS | {"cost": 700, "partial": True}) == (200, 600)
    status, reply = api.ask("/v1/budget", TOKENS | {"record": True})
    assert (status, reply["remaining"]) == (200, 0) and reply["reset_after"] <= 31 * 24 * 3600 * 1000
    assert api.ask("/v1/refund", {"key": TOKENS["key"], "cost": 5000}) == (200, {"refunded": 1400})
    for wrong in ({"period": "decade"}, {"time_zone": "Mars/Base"}, {"anchor": 32}, {"anchor": "monday"}, {"cost": 0},
                  {"record": True, "partial": True}):
        assert api.ask("/v1/budget", TOKENS | wrong)[0] == 400, wrong
    assert api.granted("/v1/budget", TOKENS | {"anchor": 15}) == (200, 400)


def test_admissions(api):
    status, first = api.ask("/v1/admit", [STREAM, RATE, TOKENS])
    assert (status, first["granted"], first["id"]) == (200, True, "r1")
    assert [each["granted"] for each in first["each"]] == [1, 1, 400]
    # Asked again after a lost reply, nothing is counted twice.
    assert api.ask("/v1/admit", [STREAM, RATE, TOKENS])[1]["each"][2]["remaining"] == 600
    denied = api.ask("/v1/admit", [STREAM | {"id": "r2"}, RATE, TOKENS | {"cost": 601}])
    assert denied[0] == 429 and "id" not in denied[1] and denied[1]["retry_after"] > 0
    used = [{"key": RATE["key"], "units": 1}, {"key": TOKENS["key"], "units": 150}]
    settle = {"key": STREAM["key"], "id": "r1", "used": used}
    assert api.ask("/v1/settle", settle) == (200, {"settled": True, "changes": [0, -250]})
    assert api.ask("/v1/settle", settle) == (200, {"settled": False, "changes": []})
    assert api.granted("/v1/budget", TOKENS | {"cost": 850}) == (200, 850)
    assert api.granted("/v1/peek", RATE | {"cost": 9}) == (200, 9)


def test_the_page(api):
    """What it shows is what is answered, except the token."""
    block, = [block for block in blocks(page_named("http-api.md")) if "test_holds" in block.comment]
    lines = iter(block.text.splitlines())
    for command, shown in zip(lines, lines):
        program, option, body, url = shlex.split(command.removeprefix("$ "))
        assert (program, option) == ("curl", "--json")
        status, reply = api.ask(url.removeprefix("localhost:8080"), json.loads(body))
        expected = json.loads(shown)
        assert ("token" in reply) == ("token" in expected)
        for told in (reply, expected):
            told.pop("token", None)
        assert (status, reply) == (200, expected)


@pytest.mark.parametrize(("path", "body"), [
    ("hold", HOLD | {"ttl": "2s"}), ("hold", HOLD | {"cost": 0}), ("hold", HOLD | {"id": ""}),
    ("hold", HOLD | {"id": "hex:0"}), ("hold", HOLD | {"wait": "2h"}), ("hold", HOLD | {"on_failure": "local"}),
    ("release", {"key": "jobs", "id": []}), ("renew", {"key": "jobs", "ttl": 60, "id": "x" * 129}),
    ("admit", []), ("admit", [RATE | {"ttl": 60}]), ("admit", [RATE, RATE]), ("admit", [STREAM | {"strict": True}]),
    ("admit", [STREAM, STREAM | {"key": "{a}:others"}]), ("admit", [{"key": "k", "limit": 1}]),
])
def test_what_is_refused(daemon, path, body):
    assert Api(daemon).ask(f"/v1/{path}", body)[0] == 400


def test_without_a_server(start_daemon):
    api = Api(start_daemon("domain: d"))
    for path, body in (("hold", HOLD), ("release", {"key": "jobs", "id": "x"}), ("admit", [RATE]),
                       ("renew", {"key": "jobs", "ttl": 60, "id": "x"}),
                       ("settle", {"key": "jobs", "id": "x", "used": []})):
        assert api.ask(f"/v1/{path}", body)[0] == 501, path
    assert [api.granted("/v1/budget", TOKENS | {"cost": 600}) for _ in range(2)] == [(200, 600), (429, 0)]


def test_a_server_that_is_away(start_daemon, start):
    server = start()
    api = Api(start_daemon("domain: d", server, timeout="200ms"))
    server.kill()
    assert api.ask("/v1/hold", HOLD)[0] == 503
    status, reply = api.ask("/v1/hold", HOLD | {"on_failure": "allow"})
    assert (status, reply["granted"], reply["source"]) == (200, 1, "failure") and "token" not in reply
    assert api.granted("/v1/hold", HOLD | {"on_failure": "deny"}) == (429, 0)
    assert api.ask("/v1/admit", [STREAM, RATE])[0] == api.ask("/v1/budget", TOKENS)[0] == 503
