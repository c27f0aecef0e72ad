"""Rules with a period of the calendar: budgets instead of windows, in one decision with them."""

import json

import pytest

from docs.pages import blocks, page_named
from support.clock import clock_of
from support.contents import info_of
from support.daemon import UNITS, descriptor
from support.waiting import eventually

# No window slides, and only a new year ends a period, while a test runs.
LIMITS = """
domain: d
descriptors:
  - {key: plan, rate_limit: {period: year, time_zone: Europe/Berlin, requests_per_unit: 3, name: plan}}
  - {key: both, rate_limits: [{period: year, requests_per_unit: 9}, {unit: day, requests_per_unit: 2}]}
  - {key: strict, rate_limit: {unit: day, requests_per_unit: 9, strict: true}}
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: tokens, rate_limit: {period: year, requests_per_unit: 100, record: true}}
policies:
  - {name: web, key: "{client}", rate_limits: [{period: year, requests_per_unit: 3}, {unit: day, requests_per_unit: 5}]}
"""
YEAR_SECONDS = 366 * 86_400


@pytest.fixture
def daemon(start_daemon, server):
    return start_daemon(LIMITS, server, rate_limit_headers=True)


def used(server, key):
    return info_of(server, key, "used")


def explained(daemon, words):
    entries = [dict(zip(("key", "value"), word.split("=", 1))) for word in words.split()]
    status, _, text = daemon.http("/explain", {"domain": "d", "descriptors": [{"entries": entries}]},
                                  headers={"Content-Type": "application/json"})
    assert status == 200, text
    return json.loads(text)["rules"][0]["limits"]


def test_a_period_holds(daemon, server):
    key = "{d}|plan=x|year"
    first = daemon.ask("plan=x").statuses[0]
    limit = first.current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (3, UNITS.index("YEAR"), "plan")
    assert 0 < first.duration_until_reset.seconds <= YEAR_SECONDS
    assert daemon.codes("plan=x", hits=3)[0] == "OVER_LIMIT"
    assert daemon.codes(descriptor("plan=x", hits=0))[0] == "OK"
    assert daemon.codes("plan=x", hits=2)[0] == "OK"
    assert daemon.codes(descriptor("plan=x", hits=0))[0] == "OVER_LIMIT"
    denied = {header.key: header.value for header in daemon.ask("plan=x").response_headers_to_add}
    assert 0 < int(denied["Retry-After"]) <= YEAR_SECONDS
    assert (denied["RateLimit-Limit"], denied["RateLimit-Remaining"]) == ("3", "0")
    back = {"entries": [{"key": "plan", "value": "x"}], "hitsAddend": 2, "isNegativeHits": True}
    assert daemon.json({"domain": "d", "descriptors": [back]})[1]["statuses"][0]["limitRemaining"] == 2
    assert used(server, key) == 1
    until = info_of(server, key, "until")
    status, text = daemon.get("/v1/info?key=" + "{d}%7Cplan=x%7Cyear")
    assert (status, json.loads(text)["total"], json.loads(text)["until"]) == (200, 1, until)
    limit, = explained(daemon, "plan=x")
    assert limit["limit"] == "3 per year, time zone Europe/Berlin"
    assert (limit["key"], limit["answer"]["remaining"]) == (key, 2)
    assert daemon.metrics("swlimitd_decisions_total")["d", "plan", "denied", "server"] == 3
    # Another limit holds at once, and keeps the count.
    daemon.write_limits(LIMITS.replace("requests_per_unit: 3, name", "requests_per_unit: 2, name"))
    eventually(lambda: explained(daemon, "plan=x")[0]["answer"]["remaining"], 1)
    # Usage that is reported counts whatever the limit.
    daemon.codes("tokens=x", hits=700)
    assert used(server, "{d}|tokens=x|year") == 700
    assert daemon.codes("tokens=x")[0] == "OVER_LIMIT"


def test_periods_and_windows_are_one_decision(daemon, server):
    assert [daemon.codes("both=x", "plan=x")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    assert [used(server, key) for key in ("{d}|both=x|year", "{d}|plan=x|year")] == [2, 2]
    assert info_of(server, "{d}|both=x|1d", "total") == 2
    # What a command before has granted goes back.
    assert daemon.codes("plan=x", "both=y", "strict=x", "none=x")[0] == "OVER_LIMIT"
    assert daemon.codes("strict=x", "plan=x", "none=x")[0] == "OVER_LIMIT"
    assert used(server, "{d}|plan=x|year") == 2
    assert server.cli("EXISTS", "{d}|both=y|year") == "0"


def test_policies(daemon):
    replies = [daemon.http("/auth", headers={"X-Forwarded-For": "192.0.2.1"}) for _ in range(4)]
    assert [status for status, *_ in replies] == [200, 200, 200, 429]
    headers = replies[0][1]
    assert headers["RateLimit-Policy"] == '"web-year";q=3, "web-1d";q=5;w=86400'
    assert headers["RateLimit"].startswith('"web-year";r=2;t=')
    assert 0 < int(replies[-1][1]["Retry-After"]) <= YEAR_SECONDS


def test_without_the_server(start_daemon, start):
    own_server = start()
    daemon = start_daemon(LIMITS.replace("name: plan", "name: plan, on_failure: local, local_share: 0.5"), own_server,
                          timeout="50ms")
    own_server.kill()
    assert [daemon.codes("plan=x")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    alone = start_daemon(LIMITS)
    assert [alone.codes("both=x", "plan=x")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    assert alone.codes(descriptor("plan=x", hits=0))[0] == "OK"


def test_by_the_script(start_daemon, start):
    daemon = start_daemon(LIMITS, start(module=None))
    status, printed = daemon.run("--check", "--server")
    assert status == 0 and "by the script" in printed
    assert [daemon.codes("both=x", "plan=x")[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    assert daemon.codes(descriptor("plan=x", hits=0))[0] == "OK"
    assert daemon.codes("plan=x", "strict=x", "none=x")[0] == "OVER_LIMIT"
    assert [daemon.codes("plan=x")[0] for _ in range(2)] == ["OK", "OVER_LIMIT"]
    assert daemon.codes(descriptor("plan=x", hits=0))[0] == "OVER_LIMIT"
    daemon.codes("tokens=x", hits=700)
    assert daemon.codes("tokens=x")[0] == "OVER_LIMIT"


def test_the_page_of_the_documentation(start_daemon, server):
    block, = [block for block in blocks(page_named("swlimitd.md")) if "test_periods" in block.comment]
    daemon = start_daemon(block.text.replace("domain: shop", "domain: d"), server)
    month, second = explained(daemon, "user=ann")
    assert month["limit"] == "10000 per month, time zone Europe/Berlin, from 15"
    assert (month["key"], second["limit"]) == ("{d}|user=ann|month", "20 per 1s, resolution 50ms")
    assert daemon.codes("user=ann", hits=20)[0] == "OK"
    # What a check takes, starts; and what it refuses says why.
    daemon.write_limits("domain: d\ndescriptors: [{key: k, rate_limit: {period: month, mode: leased}}]\n")
    status, printed = daemon.run("--check")
    assert status != 0 and "the mode of a period is direct" in printed


@pytest.mark.parametrize("hours", [2, 30])
def test_a_clock_that_is_periods_behind(start_daemon, start, skewed, hours):
    """The server's clock ends periods, wherever this machine's is."""
    server = start(env=skewed(hours * 3600))
    daemon = start_daemon("""
domain: d
descriptors:
  - {key: only, rate_limit: {period: hour, requests_per_unit: 2}}
  - {key: both, rate_limits: [{period: hour, requests_per_unit: 2}, {unit: day, requests_per_unit: 9}]}
""", server)
    for words in ("only=x", "both=x"):
        assert [daemon.codes(words)[0] for _ in range(3)] == ["OK", "OK", "OVER_LIMIT"]
    until = info_of(server, "{d}|only=x|hour", "until")
    assert 0 < until / 1000 - clock_of(server) <= 3600 and until % 3_600_000 == 0
    assert daemon.log.count("this machine's clock is behind") == 1
