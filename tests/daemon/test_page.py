"""The page of swlimitd in a real browser."""

import json
import re

import pytest

from support import browser
from support.browser import Browser
from support.contents import info_of
from support.lacking import lacking
from support.waiting import eventually

LIMITS = """
domain: shop
descriptors:
  - {key: never-asked, rate_limit: {unit: hour, requests_per_unit: 7}}
policies:
  - {name: per-client, key: "{client}", rate_limit: {window: 1d, requests_per_unit: 3}}
  - {name: "free", match: {path: /free}, key: all, shadow_mode: true, rate_limit: {window: 1d, requests_per_unit: 1}}
"""
KEY = "p:{shop}|per-client=192.0.2.7|1d"


@pytest.fixture
def server(start):
    """A server that has denied nothing yet."""
    return start()


@pytest.fixture
def daemon(start_daemon, server):
    daemon = start_daemon(LIMITS, server, key_prefix="p:")
    for _ in range(10):
        daemon.http("/auth/free", headers={"X-Forwarded-For": "192.0.2.7"})
    return daemon


@pytest.fixture
def opened(daemon, tmp_path):
    """Opens the page in a browser, and ends that with the test."""
    if not browser.installed():
        lacking("Chromium")
    started = []

    def opened(**options):
        page = Browser(tmp_path / f"browser-{len(started)}", **options).__enter__()
        started.append(page)
        page.open(f"http://127.0.0.1:{daemon.http_port}/")
        return page

    yield opened
    for page in started:
        page.__exit__()


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")


def rows(page):
    return page.run("Array.from(document.querySelectorAll('#rules tr'), "
                    "row => Array.from(row.cells, cell => cell.innerText))")


def row(page, rule):
    return next(row for row in rows(page) if row[0] == rule)


def click(page, selector):
    page.run(f"document.querySelector({json.dumps(selector)}).click()")


def test_what_the_page_is_fed(daemon):
    told = json.loads(daemon.get("/v1/overview")[1])
    assert (told["server"], told["key_prefix"]) == (True, "p:") and told["median"] <= 1
    rules = {rule["rule"]: rule for rule in told["rules"]}
    client = rules["per-client"]
    assert (client["granted"], client["denied"], client["limits"]) == (3, 7, ["3 per 1d, resolution 2h"])
    assert 0 < client["local"] <= 7 and sum(denied for _, denied in client["history"]) <= 7
    assert (rules["never-asked"]["granted"], rules["free"]["shadow"]) == (0, True)
    denied = [rule["denied"] for rule in told["rules"]]
    assert denied == sorted(denied, reverse=True)
    eventually(lambda: len(json.loads(daemon.get("/v1/overview")[1])["rules"][0]["history"]) >= 2)


def test_nothing_comes_from_elsewhere(daemon):
    _, headers, page = daemon.http("/")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert not re.search(r"(src|href)=(?!\"data:)|url\(|@import", page)


def test_rules_are_shown_live(opened, daemon):
    page = opened()
    eventually(lambda: "the server is there" in text(page, "#state"))
    assert row(page, "shop: per-client")[1:4] == ["3 per 1d, resolution 2h", "3", "7"]
    assert re.fullmatch(r"Half of the last minutes' requests took .*ms.*", text(page, "#latency"))
    assert page.run("document.querySelectorAll('#rules rect.denied').length") > 0
    daemon.http("/auth/", headers={"X-Forwarded-For": "192.0.2.7"})
    eventually(lambda: row(page, "shop: per-client")[3], "8")


def test_a_key_is_looked_up_and_blocked(opened, server):
    page = opened()
    eventually(lambda: KEY in text(page, "#top"))
    page.run("Array.from(document.querySelectorAll('#top button'))"
             f".find(button => button.innerText == {json.dumps(KEY)}).click()")
    eventually(lambda: "3" in text(page, "#held") and "not blocked" in text(page, "#held"))
    click(page, "#block")
    eventually(lambda: re.search(r"Blocked\s+\d", text(page, "#held")))
    assert info_of(server, KEY, "blocked") > 0
    click(page, "#unblock")
    eventually(lambda: "not blocked" in text(page, "#held"))
    page.run("document.getElementById('key').value = 'other'")
    click(page, "#block")
    eventually(lambda: text(page, "#done"), "only keys that begin with p: can be changed here")
    click(page, "#form button")
    eventually(lambda: text(page, "#done"), "no such key")


def test_a_token_is_asked_for(opened, daemon):
    (daemon.folder / "tokens").write_text("secret\n")
    daemon.write_settings(api={"tokens": "tokens"})
    eventually(lambda: daemon.http("/v1/overview")[0], 401)
    page = opened()
    eventually(lambda: "a token is needed" in text(page, "#state"))
    page.run("const field = document.getElementById('token'); field.value = 'secret'; "
             "field.dispatchEvent(new Event('change'))")
    eventually(lambda: "the server is there" in text(page, "#state"))


def test_a_hostile_name_is_only_a_name(opened, server):
    server.cli("SWLIMIT.ALLOW", "<img src=x onerror=alert(1)>", 0, "1d", "1d")
    page = opened()
    eventually(lambda: "<img src=x" in text(page, "#top"))
    assert page.run("document.images.length") == 0


@pytest.mark.parametrize("width", [360, 1100])
def test_it_can_be_read_on_a_phone_and_in_the_dark(opened, width):
    page = opened(width=width, height=740)
    page.dark()
    eventually(lambda: rows(page))
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"


@pytest.mark.parametrize("width", [360, 1100])
def test_a_screen_reader_is_told(opened, width):
    page = opened(width=width, height=740)
    eventually(lambda: KEY in text(page, "#top"))
    told = page.names()
    assert {("rowheader", "shop: per-client"), ("columnheader", "Denied"), ("heading", "Rules"), ("button", "Block"),
            ("textbox", "Key, as the server has it"), ("button", KEY)} <= told
    assert any(role == "cell" and re.search(r"granted, \d+ denied", name) for role, name in told)
