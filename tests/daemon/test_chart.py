"""The Helm chart of swlimitd, as helm renders it, in the types that Kubernetes and the Prometheus operator have."""

import re
import shlex

import pytest
import yaml

from docs.pages import blocks, page_named
from support.kubernetes import CHART, VALUES, helm, rendered, strictly_read
from support.server import ROOT

HERE = "tests/daemon/test_chart.py"
EVERYTHING = {
    "replicas": 3,
    "waitForServer": True,
    "monitoringPort": 9090,
    "server": {"existingSecret": "redis"},
    "config": {"http": {"tls": {"certificate": "/tls/tls.crt", "key": "/tls/tls.key"}}, "on_failure": "local"},
    "limits": {"a.yaml": "domain: a\n", "b.yaml": "domain: b\ndescriptors: []\n"},
    "env": [{"name": "LOG_LEVEL", "value": "debug"}],
    "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
    "volumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
    "podLabels": {"team": "edge"},
    "podAnnotations": {"example.com/owner": "edge"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "edge", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "networkPolicy": {"enabled": True, "egress": [{"ports": [{"port": 6379}]}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "10s"},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
}


def by_kind(**values):
    """The manifests with these values, by their kinds; each is what its type allows."""
    text = rendered(**values)
    manifests = {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}
    assert strictly_read(text) == [f"{kind}/{manifest['metadata']['name']}" for kind, manifest in manifests.items()]
    return manifests


@pytest.fixture(scope="module")
def everything():
    return by_kind(**EVERYTHING)


def test_helm_finds_nothing_to_complain_of():
    done = helm("lint", "--strict", CHART, "--set", "image.repository=registry.example.com/swlimitd")
    assert done.returncode == 0, done.stdout + done.stderr


def test_by_default_it_is_what_the_manifests_say():
    """Apart from labels, what tells pods that their configuration changed, and a probe that knows TLS."""
    left_out = {"annotations", "imagePullPolicy", "labels", "matchLabels", "readinessProbe", "selector", "scheme"}

    def plain(manifest):
        if isinstance(manifest, dict):
            return {key: plain(value) for key, value in manifest.items() if key not in left_out}
        return [plain(value) for value in manifest] if isinstance(manifest, list) else manifest

    files = yaml.safe_load_all((CHART.parent / "kubernetes/deployment.yaml").read_text())
    expected = {manifest["kind"]: manifest for manifest in files}
    found = by_kind(server={"url": "redis://redis:6379"})
    assert found.keys() - expected.keys() == {"PodDisruptionBudget"}
    container, = expected["Deployment"]["spec"]["template"]["spec"]["containers"]
    del container["env"]  # the chart names the secret of its values, and no other
    for kind in ("Deployment", "Service"):
        assert plain(found[kind]) == plain(expected[kind])
    texts, own = expected["ConfigMap"]["data"], found["ConfigMap"]["data"]
    assert texts.keys() == own.keys()
    assert all(yaml.safe_load(texts[name]) == yaml.safe_load(own[name]) for name in texts)


def test_everything_it_can_say(everything):
    assert everything.keys() == {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy",
                                 "ServiceMonitor", "PrometheusRule"}
    deployment, pod = everything["Deployment"]["spec"], everything["Deployment"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    assert deployment["replicas"] == 3
    assert {variable["name"] for variable in container["env"]} == {"SWLIMITD_SERVER", "LOG_LEVEL"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert {probe["httpGet"]["scheme"] for name, probe in container.items() if name.endswith("Probe")} == {"HTTPS"}
    assert "prometheus.io/scrape" not in deployment["template"]["metadata"]["annotations"]
    settings = yaml.safe_load(everything["ConfigMap"]["data"]["swlimitd.yaml"])
    assert settings == {"limits": ["a.yaml", "b.yaml"], "log": {"format": "json"}, "on_failure": "local",
                        "wait_for_server": True, "grpc": {"address": "0.0.0.0:8081"},
                        "http": {"address": "0.0.0.0:8080", "monitoring_address": "0.0.0.0:9090"}
                        | EVERYTHING["config"]["http"]}
    assert everything["ConfigMap"]["data"]["b.yaml"] == EVERYTHING["limits"]["b.yaml"]


def test_what_selects_pods_selects_these(everything):
    labels = everything["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "edge"
    for kind in ("Deployment", "PodDisruptionBudget", "NetworkPolicy"):
        spec = everything[kind]["spec"]
        chosen = spec.get("podSelector", spec.get("selector"))["matchLabels"]
        assert len(chosen) == 2 and chosen.items() <= labels.items(), kind
    assert everything["Service"]["spec"]["selector"].items() <= labels.items()


def test_only_those_that_are_named_reach_the_pods(everything):
    ports = {port["name"] for port in everything["Deployment"]["spec"]["template"]["spec"]["containers"][0]["ports"]}
    spec = everything["NetworkPolicy"]["spec"]
    callers, monitoring = spec["ingress"]
    assert spec["policyTypes"] == ["Ingress", "Egress"] and spec["egress"] == EVERYTHING["networkPolicy"]["egress"]
    assert {port["port"] for port in callers["ports"]} == {"http", "grpc"} == ports - {"monitoring"}
    assert [port["port"] for port in monitoring["ports"]] == ["monitoring"]
    assert callers["from"] == [{"podSelector": {}}]

    nobody = by_kind(networkPolicy={"enabled": True, "callers": [], "monitoring": []})["NetworkPolicy"]["spec"]
    assert not nobody["ingress"] and nobody["policyTypes"] == ["Ingress"]


def test_prometheus_finds_metrics_and_rules(everything):
    monitor, service = everything["ServiceMonitor"], everything["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    endpoint, = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]} - {"http", "grpc"}
    assert (endpoint["path"], endpoint["scheme"], endpoint["interval"]) == ("/metrics", "https", "10s")
    rules = yaml.safe_load((ROOT / "src/daemon/prometheus-alerts.yaml").read_text())
    assert everything["PrometheusRule"]["spec"] == rules
    assert all(everything[kind]["metadata"]["labels"]["release"] == "prometheus"
               for kind in ("ServiceMonitor", "PrometheusRule"))


def test_a_change_that_is_not_reloaded_restarts_the_pods():
    def restarts(**values):
        return by_kind(**values)["Deployment"]["spec"]["template"] != by_kind()["Deployment"]["spec"]["template"]

    assert restarts(config={"timeout": "10ms"})
    assert not restarts(limits={"limits.yaml": "domain: other\n"})


@pytest.mark.parametrize("values, complaint", [
    ({"image": {}}, "image.repository is missing"),
    ({"replica": 3}, "replica"),
    ({"networkPolicy": {"enable": True}}, "enable"),
    ({"config": {"server": "redis://redis"}}, "config"),
    ({"limits": {"swlimitd.yaml": ""}}, "swlimitd.yaml"),
])
def test_wrong_values_are_refused(values, complaint):
    done = helm("template", CHART, "--values", "-", input=yaml.safe_dump(VALUES | values))
    assert done.returncode != 0 and complaint in done.stderr


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor",
                                  "PrometheusRule"])
def test_a_field_that_there_is_not_is_found(kind):
    """The proof that the types are read strictly."""
    document, = [text for text in rendered(**EVERYTHING).split("\n---\n") if re.search(f"^kind: {kind}$", text, re.M)]
    assert strictly_read(document) == [f"{kind}/swlimitd"]
    with pytest.raises(AssertionError, match='unknown field "spec.specially"'):
        strictly_read(document.replace("\nspec:\n", "\nspec:\n  specially: true\n"))


def test_the_page_installs_it():
    block, = [block for block in blocks(page_named("install-swlimitd.md")) if block.comment == f"run by {HERE}"]
    words = shlex.split(block.text.replace("\\\n", " "))
    assert words[:4] == ["helm", "install", "swlimitd", str(CHART.relative_to(ROOT))]
    done = helm("template", *words[2:], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert {"Deployment/swlimitd", "ServiceMonitor/swlimitd"} <= {*strictly_read(done.stdout)}
