"""Holds, budgets and one decision of everything over HTTP."""

import json
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

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
    assert (status, first["granted"], first["each"][0]["id"]) == (200, True, "r1")
    assert [each["granted"] for each in first["each"]] == [1, 1, 400]
    # Asked again after a lost reply, nothing is counted twice.
    assert api.ask("/v1/admit", [STREAM, RATE, TOKENS])[1]["each"][2]["remaining"] == 600
    denied = api.ask("/v1/admit", [STREAM | {"id": "r2"}, RATE, TOKENS | {"cost": 601}])
    assert denied[0] == 429 and "id" not in denied[1]["each"][0] and denied[1]["retry_after"] > 0
    used = [{"key": RATE["key"], "units": 1}, {"key": TOKENS["key"], "units": 150}]
    settle = {"key": STREAM["key"], "id": "r1", "used": used}
    assert api.ask("/v1/settle", settle) == (200, {"settled": True, "changes": [0, -250]})
    assert api.ask("/v1/settle", settle) == (200, {"settled": False, "changes": []})
    assert api.granted("/v1/budget", TOKENS | {"cost": 850}) == (200, 850)
    assert api.granted("/v1/peek", RATE | {"cost": 9}) == (200, 9)


def test_several_holds(api):
    model, user = STREAM | {"key": "{a}:model", "limit": 2}, STREAM | {"limit": 1}
    del model["id"]
    parts = [user, RATE, model, TOKENS]
    status, first = api.ask("/v1/admit", parts)
    assert status == 200 and [each.get("id") for each in first["each"]] == ["r1", None, "r1", None]
    assert all(first["each"][at][name] > 0 for at in (0, 2) for name in ("token", "expires_after"))
    # Asked again after a lost reply, nothing is taken twice.
    status, again = api.ask("/v1/admit", parts)
    assert status == 200 and again["each"][3]["remaining"] == 600
    assert [again["each"][at]["token"] for at in (0, 2)] == [first["each"][at]["token"] for at in (0, 2)]
    # Another user has the model's last place, and this one has no further.
    other = [user | {"key": "{a}:other", "id": "r2"}, RATE, model]
    assert api.ask("/v1/admit", other)[0] == 200
    status, denied = api.ask("/v1/admit", [user | {"id": "r3"}, RATE, model])
    assert status == 429 and [each["granted"] for each in denied["each"]] == [0, 1, 0]
    assert api.daemon.http("/v1/admit", [user | {"id": "r3"}, RATE], headers=JSON)[1]["Retry-After"] == "1"
    # Each is renewed and released by itself.
    for key in (user["key"], model["key"]):
        assert api.ask("/v1/renew", {"key": key, "ttl": "2m", "id": "r1"}) == (200, {"renewed": [True]})
    assert api.ask("/v1/release", {"key": model["key"], "id": "r2"}) == (200, {"released": 1})
    used = [{"key": key, "units": units} for key, units in ((RATE["key"], 1), (model["key"], 0), (TOKENS["key"], 150))]
    settle = {"key": user["key"], "id": "r1", "used": used}
    others = {"error": "used must name the keys that were reserved, in their order"}
    assert api.ask("/v1/settle", settle | {"used": used[:1]}) == (400, others)
    assert api.ask("/v1/settle", settle | {"used": [{"key": "{a}:x", "units": 1}, *used[1:]]}) == (400, others)
    assert api.ask("/v1/settle", settle | {"used": used + used[:1]}) == (400, {"error": "duplicate key"})
    many = [{"key": f"{{a}}:{number}", "units": 1} for number in range(20_000)]
    assert api.ask("/v1/settle", settle | {"used": many}) == (400, {"error": "used names at most 63 keys"})
    held = [one | {"units": 7} if one["key"] == model["key"] else one for one in used]
    assert api.ask("/v1/settle", settle | {"used": held}) == (
        400, {"error": "the units of a hold must be 0: it ends as a whole"})
    assert api.ask("/v1/settle", settle) == (200, {"settled": True, "changes": [0, -1, -250]})
    for key in (user["key"], model["key"]):
        assert api.ask(f"/v1/holders?key={quote(key)}") == (200, [])
    # Without an id they have the same new one.
    status, drawn = api.ask("/v1/admit", [model, model | {"key": "{a}:others"}])
    ids = {each["id"] for each in drawn["each"]}
    assert status == 200 and len(ids) == 1 and ids.pop().startswith("hex:")


def test_a_retry_is_granted_what_others_are_denied(api):
    """A denial that is known of a rate says nothing about a hold that may be live."""
    rate = {"key": "{a}:r", "limit": 1, "window": "1h"}
    assert api.ask("/v1/admit", [STREAM, rate])[0] == 200
    assert api.ask("/v1/admit", [STREAM | {"id": "r2"}, rate])[0] == 429
    assert api.ask("/v1/admit", [STREAM, rate])[0] == 200


def test_places_that_end_before_the_usage_is_known(api):
    reservation = {"key": "{a}:reserved", "limit": 2**53 - 1, "ttl": "1m", "id": "r1"}
    assert api.ask("/v1/admit", [reservation, STREAM, TOKENS])[0] == 200
    assert api.ask("/v1/release", {"key": STREAM["key"], "id": "r1"}) == (200, {"released": 1})
    used = [{"key": STREAM["key"], "units": 0}, {"key": TOKENS["key"], "units": 150}]
    assert api.ask("/v1/settle", {"key": "{a}:reserved", "id": "r1", "used": used}) == (
        200, {"settled": True, "changes": [0, -250]})


def shown(reply):
    """A reply without what differs from day to day."""
    for part in (reply, *reply.get("each", [])):
        for name in ("token", "reset_after"):
            if name in part:
                part[name] = ...
    return reply


def test_the_page(api):
    """What it shows is what is answered, except tokens, and when months end."""
    page = [block for block in blocks(page_named("http-api.md")) if "test_holds" in block.comment]
    assert len(page) == 2
    lines = iter("".join(block.text for block in page).splitlines())
    for command, expected in zip(lines, lines):
        program, option, body, url = shlex.split(command.removeprefix("$ "))
        assert (program, option) == ("curl", "--json")
        status, reply = api.ask(url.removeprefix("localhost:8080"), json.loads(body))
        assert (status, shown(reply)) == (200, shown(json.loads(expected)))


@pytest.mark.parametrize(("path", "body"), [
    ("hold", HOLD | {"ttl": "2s"}), ("hold", HOLD | {"cost": 0}), ("hold", HOLD | {"id": ""}),
    ("hold", HOLD | {"id": "hex:0"}), ("hold", HOLD | {"wait": "2h"}), ("hold", HOLD | {"on_failure": "local"}),
    ("release", {"key": "jobs", "id": []}), ("renew", {"key": "jobs", "ttl": 60, "id": "x" * 129}),
    ("admit", []), ("admit", [RATE | {"ttl": 60}]), ("admit", [RATE, RATE]), ("admit", [STREAM | {"strict": True}]),
    ("admit", [STREAM, STREAM]), ("admit", [{"key": "k", "limit": 1}]), ("admit", [STREAM | {"wait": "1s"}]),
    ("admit", [STREAM | {"key": f"{{a}}:{number}"} for number in range(65)]),
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
    # Each part of a decision has a policy of its own.
    model = STREAM | {"key": "{a}:model", "on_failure": "allow"}
    lenient = [STREAM | {"on_failure": "allow"}, model, RATE | {"on_failure": "local"}]
    status, reply = api.ask("/v1/admit", lenient)
    assert status == 200 and {each["source"] for each in reply["each"]} == {"failure"}
    assert not any("id" in each for each in reply["each"])
    assert api.ask("/v1/admit", [model | {"on_failure": "deny"}, *lenient[::2]])[0] == 429
    assert api.ask("/v1/admit", [*lenient[:2], RATE])[0] == 503
