"""The pages on swlimitd say what it does, and leave out nothing that it knows."""

import json
import re
import shlex

import pytest
import yaml

from docs.pages import blocks, page_named
from support.waiting import eventually

PAGE = page_named("swlimitd.md")
BLOCKS = [block for block in blocks(PAGE) if block.comment == f"run by tests/daemon/{__file__.rpartition('/')[2]}"]
LIMITS, SETTINGS, OVERLAY = [block.text for block in BLOCKS if block.language == "yaml"]

FIRST_USE, EXPLAINED = [block.text for block in BLOCKS if block.language == "console"]


@pytest.fixture
def documented(start_daemon, server):
    """A daemon as the page configures it, at other addresses."""
    daemon = start_daemon(LIMITS, server)
    (daemon.folder / "page.yaml").write_text(SETTINGS)
    (daemon.folder / "over.yaml").write_text(OVERLAY)
    return daemon


def test_first_use(documented):
    command, shown = FIRST_USE.splitlines()
    program, option, body, url = shlex.split(command.removeprefix("$ "))
    assert (program, option, url) == ("curl", "--data", "localhost:8080/json")
    status, reply = documented.json(json.loads(body))
    expected = json.loads(shown)
    for one in (reply, expected):
        assert re.fullmatch(r"6\d(\.\d+)?s", one["statuses"][0].pop("durationUntilReset"))
    assert (status, reply) == (200, expected)


def test_why(documented):
    command, *shown = EXPLAINED.splitlines()
    program, word, _, _, *words = shlex.split(command.removeprefix("$ "))
    assert (program, word) == ("swlimitd", "explain")
    assert documented.codes("user=ann", domain="shop", hits=100) == ("OK", "OK")
    status, printed = documented.run(word, *words)
    alike = [re.sub(r"after \d+s", "after", text) for text in (printed, "\n".join(shown) + "\n")]
    assert status == 0 and alike[0] == alike[1]


def test_the_settings_of_the_page_are_valid(documented):
    (documented.folder / "swlimitd.yaml").write_text(SETTINGS)
    status, printed = documented.run("--check")
    assert (status, printed.endswith("is valid: 3 limits\n")) == (0, True), printed
    documented.write_settings(overlays=["over.yaml"])
    assert documented.run("--check")[0] == 0


@pytest.mark.parametrize("name, text", [
    ("limits.yaml", "unknown: 1"),
    ("limits.yaml", "{domain: d, descriptors: [{unknown: 1}]}"),
    ("limits.yaml", "{domain: d, descriptors: [{key: k, rate_limit: {unknown: 1}}]}"),
    ("swlimitd.yaml", "unknown: 1"),
    ("swlimitd.yaml", "grpc: {unknown: 1}"),
    ("swlimitd.yaml", "grpc: {tls: {unknown: 1}}"),
    ("swlimitd.yaml", "log: {unknown: 1}"),
    ("swlimitd.yaml", "traces: {unknown: 1}"),
    ("swlimitd.yaml", "http: {unknown: 1}"),
    ("swlimitd.yaml", "auth: {unknown: 1}"),
    ("swlimitd.yaml", "api: {unknown: 1}"),
    ("limits.yaml", "{domain: d, policies: [{unknown: 1}]}"),
    ("limits.yaml", "{domain: d, policies: [{match: {unknown: 1}}]}"),
])
def test_every_key_is_documented(documented, name, text):
    (documented.folder / name).write_text(text)
    known = re.search(r"unknown field `unknown`, expected (?:one of )?(.*)", documented.run("--check")[1])[1]
    page = PAGE.read_text() + page_named("proxies.md").read_text()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]*)`", page))))
    assert known and set(re.findall(r"\w+", known)) - {"or"} <= named | {"domain"}


def test_every_metric_is_documented(daemon):
    daemon.codes("shadow=x", "nothing=x")
    told = set(re.findall(r"^# TYPE (swlimitd_\w+)", daemon.get("/metrics")[1], re.MULTILINE))
    assert len(told) >= 9
    assert told <= set(re.findall(r"^\| `(swlimitd_\w+)`", PAGE.read_text(), re.MULTILINE))


def test_on_elasticache(start_daemon, start):
    """With the page's user, on a server without the module."""
    page = page_named("elasticache.md")
    user, = [block.text for block in blocks(page) if "--access-string" in block.text]
    rights = re.search(r'--access-string "(.*?)"', user, re.DOTALL)[1].replace("\\\n", " ").split()
    here = [block for block in blocks(page) if block.comment == "run by tests/daemon/test_docs.py"]
    limits, settings, denial = [block.text for block in here]
    server = start(module=None, options={"maxmemory": "100mb", "maxmemory-policy": "noeviction"})
    server.cli("ACL", "SETUSER", "limits", "reset", ">secret", *rights)
    daemon = start_daemon("domain: shop")
    daemon.stop()
    daemon.write_limits(limits)
    of_page = yaml.safe_load(settings) | {"server": f"redis://limits:secret@127.0.0.1:{server.port}"}
    assert of_page.pop("limits") == ["limits.yaml"]
    daemon.write_settings(**of_page)
    status, printed = daemon.run("--check", "--server")
    assert (status, " can decide, by the script: it has not loaded the module\n" in printed) == (0, True), printed
    daemon.start()
    eventually(lambda: daemon.get("/ready")[0], 200)
    command, *shown = denial.splitlines()
    body = json.loads(re.search(r"--data '(.*?)'", command)[1])
    assert [f'"overallCode":"{daemon.json(body)[1]["overallCode"]}"' for _ in shown] == shown
    assert "lacks" not in daemon.log and "refuses" not in daemon.log, daemon.log
