"""A real Prometheus reads the metrics, has data for every panel, and knows when to call somebody."""

import json
import re
import subprocess
import urllib.parse
from contextlib import contextmanager

import pytest

from support.http import fetch
from support.lacking import lacking
from support.proxies import obtain
from support.releases import Unavailable
from support.server import ROOT, free_port
from support.waiting import eventually

ALERTS = ROOT / "src/daemon/prometheus-alerts.yaml"
DASHBOARD = json.loads((ROOT / "src/daemon/grafana-dashboard.json").read_text())
LIMITS = """
domain: d
descriptors:
  - {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: leased, rate_limit: {unit: day, requests_per_unit: 1000, mode: leased}}
"""
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs: [{{job_name: swlimitd, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""
VARIABLES = {"$job": ".*", "$instance": ".*", "$domain": ".*", "$__rate_interval": "10s"}


def program(name):
    try:
        return obtain("prometheus", name)
    except Unavailable as reason:
        lacking(f"{name}: {reason}")


def promtool(*words, text=None):
    """What promtool finds."""
    done = subprocess.run([program("promtool"), *words], input=text, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@contextmanager
def prometheus(daemon, folder):
    """A function that asks a Prometheus which reads the daemon's metrics."""
    port = free_port()
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(port=daemon.http_port, alerts=ALERTS))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([program("prometheus"), f"--config.file={folder}/prometheus.yml",
                                    f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
                                   stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: fetch(f"{url}/-/ready").status == 200, log=(folder / "log").read_text)

        def ask(query):
            found = fetch(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
            assert found.status == 200, (query, found.body)
            return json.loads(found.body)["data"]["result"]

        yield ask
    finally:
        process.kill()
        process.wait()


def test_promtool_finds_nothing_to_say_about_the_metrics(start_daemon, start):
    server = start()
    daemon = start_daemon(LIMITS, server)
    daemon.codes("k=x", "nothing=x")
    server.kill()
    asked = {"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "y"}]}]}
    eventually(lambda: daemon.json(asked) and daemon.metrics("swlimitd_server_away_seconds"))
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
    assert len(alerts) == 12 and set(alerts) == fire


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

        only_away = [query for query in queries if "away_seconds" in query]
        only_sometimes = [query for query in queries if "restart_needed" in query or "control_plane" in query]
        eventually(lambda: sorted(without_data()), sorted(only_away + only_sometimes), seconds=60)
        assert [one["value"][1] for one in ask("swlimit_client_server_away")] == ["0"]
        # The first invalid configuration counts, as its series was there before.
        daemon.write_limits("invalid")
        eventually(lambda: ask('increase(swlimitd_configurations_total{result="invalid"}[1m]) > 0'), seconds=60)
        server.kill()
        asked = {"domain": "d", "descriptors": [{"entries": [{"key": "leased", "value": "y"}]}]}
        eventually(lambda: daemon.json(asked) and ask(only_away[0]), seconds=60)
        eventually(lambda: ask('ALERTS{alertname="SwlimitdServerAway", alertstate="pending"}'), seconds=120)
