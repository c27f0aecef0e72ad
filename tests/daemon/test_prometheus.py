"""A real Prometheus reads the metrics, has data for every panel, and knows when to call somebody."""

import json
import re

import pytest

from docs.pages import page_named
from support.prometheus import ALERTS, prometheus, promtool
from support.server import ROOT
from support.waiting import eventually

DASHBOARD = json.loads((ROOT / "src/daemon/grafana-dashboard.json").read_text())
LIMITS = """
domain: d
descriptors:
  - {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: leased, rate_limit: {unit: day, requests_per_unit: 1000, mode: leased}}
"""
VARIABLES = {"$job": ".*", "$instance": ".*", "$domain": ".*", "$__rate_interval": "10s"}


def test_promtool_finds_nothing_to_say_about_the_metrics(start_daemon, start):
    server = start()
    daemon = start_daemon(LIMITS, server)
    daemon.codes("k=x", "nothing=x")
    server.kill()
    asked = {"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "y"}]}]}
    eventually(lambda: daemon.json(asked) and daemon.metrics("swlimitd_server_unavailable_seconds"))
    text = daemon.get("/metrics")[1]
    assert promtool("check", "metrics", text=text) == (0, "")
    named = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    assert set(named) == set(re.findall(r"^# HELP (\w+) ", text, re.MULTILINE)) and len(named) > 30


def test_alerts():
    assert promtool("check", "rules", ALERTS)[0] == 0
    status, printed = promtool("test", "rules", ROOT / "tests/daemon/prometheus-alerts-test.yaml")
    assert status == 0, printed
    tested = (ROOT / "tests/daemon/prometheus-alerts-test.yaml").read_text()
    alerts = re.findall(r"alert: (\w+)", ALERTS.read_text())
    fire = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:", tested))
    assert len(alerts) == 18 and set(alerts) == fire
    # The runbook has a section for each, in their order.
    assert re.findall(r"^## (Swlimitd\w+)", page_named("runbook.md").read_text(), re.MULTILINE) == alerts


@pytest.fixture
def queries():
    """What the panels ask, as Grafana spells it."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for name, value in VARIABLES.items():
        asked = [query.replace(name, value) for query in asked]
    assert not any("$" in query for query in asked)
    return asked


def test_every_panel_has_data(start_daemon, start, queries, tmp_path):
    server = start()
    daemon = start_daemon(LIMITS, server)
    with prometheus(daemon, tmp_path) as ask:
        def without_data():
            daemon.codes("k=x", "leased=x", "nothing=x")
            return [query for query in queries if not ask(query)]

        only_unavailable = [query for query in queries if "unavailable_seconds" in query]
        only_sometimes = [query for query in queries if "restart_needed" in query or "control_plane" in query]
        eventually(lambda: sorted(without_data()), sorted(only_unavailable + only_sometimes), seconds=60)
        assert [one["value"][1] for one in ask("swlimit_client_server_unavailable")] == ["0"]
        # The first invalid configuration counts, as its series was there before.
        daemon.write_limits("invalid")
        eventually(lambda: ask('increase(swlimitd_configurations_total{result="invalid"}[1m]) > 0'), seconds=60)
        server.kill()
        asked = {"domain": "d", "descriptors": [{"entries": [{"key": "leased", "value": "y"}]}]}
        eventually(lambda: daemon.json(asked) and ask(only_unavailable[0]), seconds=60)
        eventually(lambda: ask('ALERTS{alertname="SwlimitdServerUnavailable", alertstate="pending"}'), seconds=120)
