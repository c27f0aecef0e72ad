"""A real Prometheus that reads the metrics of a swlimitd, and its promtool."""

import json
import subprocess
import urllib.parse
from contextlib import contextmanager

from .http import fetch
from .lacking import lacking
from .proxies import obtain
from .releases import Unavailable
from .server import ROOT, free_port
from .waiting import eventually

ALERTS = ROOT / "src/daemon/prometheus-alerts.yaml"
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs: [{{job_name: swlimitd, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


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
def prometheus(daemon, folder, alerts=ALERTS):
    """A function that asks a Prometheus which reads the daemon's metrics."""
    port = free_port()
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(port=daemon.http_port, alerts=alerts))
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
