"""The dashboard for Grafana shows what `/metrics` has, and leaves out nothing of swlimitd's."""

import json
import re

from docs.pages import page_named
from support.server import ROOT, free_port
from support.waiting import eventually

DASHBOARD = json.loads((ROOT / "src/daemon/grafana-dashboard.json").read_text())
LIMITS = "{domain: d, descriptors: [{key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]}"
PROMETHEUS_OWN = {"job", "instance"}  # the labels that it adds


def queries():
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return shown + [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"]
                    if variable["type"] == "query"]


def series(daemon):
    """The labels of every metric with their values, by the metric's name."""
    found = {}
    for name, labels in re.findall(r"^(\w+)(?:{(.*)})? \S+$", daemon.get("/metrics")[1], re.MULTILINE):
        for label, value in re.findall(r'(\w+)="(.*?)"', labels):
            found.setdefault(name, {}).setdefault(label, set()).add(value)
        found.setdefault(name, {})
    return found


def test_queries_ask_for_what_there_is(start_daemon, start):
    server = start()
    daemon = start_daemon(LIMITS, server)
    daemon.codes("k=x", "nothing=x")
    for _ in range(2):
        daemon.codes("k=x")
    (daemon.folder / "limits.yaml").write_text("invalid")
    eventually(lambda: "configuration is invalid" in daemon.log)
    daemon.write_limits(LIMITS)
    settings = daemon.folder / "swlimitd.yaml"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_keys": 7}))
    eventually(lambda: daemon.metrics("swlimitd_restart_needed"))
    server.stop()
    asked = {"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "y"}]}]}
    eventually(lambda: daemon.json(asked)[0] == 503 and daemon.metrics("swlimitd_server_unavailable_seconds"))
    discovering = start_daemon("domain: d", xds={"server": f"http://127.0.0.1:{free_port()}", "start_without": True})
    there = series(discovering) | series(daemon)
    for query in queries():
        names = re.findall(r"\b(?:swlimitd?|process)_\w+", query)
        assert len(names) == 1 and names[0] in there, query
        labels = there[names[0]]
        inside = re.findall(r'(\w+)=(~?)"([^"]*)"', query)
        grouped = [label for group in re.findall(r"by \((.*?)\)", query) for label in group.split(", ")]
        assert {label for label, _, _ in inside} | set(grouped) <= labels.keys() | PROMETHEUS_OWN, query
        for label, is_pattern, value in inside:
            assert is_pattern or value in labels[label], query


def test_every_metric_is_shown(daemon):
    """Of those that the page promises, also what only some have, such as a control plane."""
    page = page_named("swlimitd.md").read_text()
    assert "a dashboard of all that begin with `swlimitd_`" in " ".join(page.split())
    daemon.codes("shadow=x", "nothing=x")
    told = set(re.findall(r"^# TYPE (swlimitd_\w+)", daemon.get("/metrics")[1], re.MULTILINE))
    described = set(re.findall(r"^\| `(swlimitd_\w+)`", page, re.MULTILINE))
    shown = {re.sub("_bucket$", "", name) for query in queries() for name in re.findall(r"swlimitd_\w+", query)}
    assert len(told) >= 9 and told <= described == shown


def test_legends_and_places():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        for target in panel["targets"]:
            grouped = re.findall(r"by \((.*?)\)", target["expr"])
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert named <= {label for group in grouped for label in group.split(", ")}, panel["title"]
