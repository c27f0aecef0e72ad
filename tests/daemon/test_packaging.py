"""What is published beside swlimitd: its sample configuration, the recipe of its container, Kubernetes' manifests, of
which helm renders some."""

import re
import subprocess

import kubernetes_validate
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from docs.pages import blocks, page_named
from support.daemon import DAEMON, Daemon
from support.kubernetes import rendered, strictly_read
from support.recipe import PACKAGING, Recipe
from support.server import ROOT

MANIFESTS = [PACKAGING / "kubernetes" / name for name in ("deployment.yaml", "sidecar.yaml")]
SAMPLE = (PACKAGING / "swlimitd.yaml").read_text()
PAGE = page_named("swlimitd.md")
pytestmark = pytest.mark.usefixtures("start_daemon")  # which says if there is no swlimitd


def check(settings, limits, folder):
    """What `swlimitd --check` prints of this configuration, which must be valid."""
    (folder / "swlimitd.yaml").write_text(settings)
    (folder / "limits.yaml").write_text(limits)
    done = subprocess.run([DAEMON, "--check", "--config", folder / "swlimitd.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sample_configuration_is_valid_and_its_comments_are_the_defaults(tmp_path):
    limits = (PACKAGING / "limits.yaml").read_text()
    assert check(SAMPLE, limits, tmp_path).endswith("valid: 1 limits\n")
    check(re.sub(r"^#(?=\w)", "", SAMPLE, flags=re.MULTILINE), limits, tmp_path)

    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    shown = yaml.safe_load("\n".join(re.findall(r"^#(\w.*)", SAMPLE, re.MULTILINE)))
    shown |= {f"{key}: {name}": value for key, part in shown.items() if isinstance(part, dict)
              for name, value in part.items()}
    for key, value in shown.items():
        said = f"`{str(value).lower()}`"
        assert isinstance(value, dict) or any(f"`{key}`" in keys and said in defaults for keys, defaults in rows), key


def test_a_configuration_for_containers(tmp_path):
    page = blocks(page_named("install-swlimitd.md"))
    settings, = [block.text for block in page if block.comment == "run by tests/daemon/test_packaging.py"]
    check(settings, "domain: d", tmp_path)
    assert listening(yaml.safe_load(settings)) == {"http": ("0.0.0.0", 8080), "grpc": ("0.0.0.0", 8081)}


def listening(settings):
    """Where a configuration listens: by protocol, the address and the port."""
    def split(address):
        host, port = address.rsplit(":", 1)
        return host, int(port)

    return {name: split(settings[name]["address"]) for name in ("http", "grpc")}


def test_the_recipe_copies_what_is_there_and_takes_what_it_has_built():
    recipe = Recipe()
    assert recipe.base == "scratch"
    members = re.search(r"^members = .*", (ROOT / "Cargo.toml").read_text(), re.M)[0]
    # The client has the script's text.
    needed = {"Cargo.toml", "Cargo.lock", "src/server/script", *re.findall(r'"(src/[\w/]+)"', members)}
    assert needed == set(recipe.sources)
    assert all((ROOT / source).exists() for source in recipe.sources)
    assert "/source/target/release/swlimitd" in recipe.taken and recipe.entry_point == ["/usr/bin/swlimitd"]
    assert "RUN ln -s /usr/bin/swlimitd /image/bin/ratelimit" in (PACKAGING / "Containerfile").read_text().splitlines()
    assert recipe.taken["/image/"] == "/"  # so that it can stand for the image envoyproxy/ratelimit
    assert recipe.user > 0 and set(recipe.ports) == {8080, 8081}


class Manifests:
    """The manifests in a text, by what they are."""

    def __init__(self, text):
        self.text, self.all = text, list(yaml.safe_load_all(text))
        by_kind = {manifest["kind"]: manifest for manifest in self.all}
        self.configuration, self.deployment = by_kind["ConfigMap"], by_kind["Deployment"]
        self.service = by_kind.get("Service")
        self.pod = self.deployment["spec"]["template"]["spec"]
        containers = [*self.pod["containers"], *self.pod.get("initContainers", ())]
        self.container, = [container for container in containers if container["name"] == "swlimitd"]
        self.files = self.configuration["data"]
        self.listening = listening(yaml.safe_load(self.files["swlimitd.yaml"]))

    @property
    def probes(self):
        return {name: probe for name, probe in self.container.items() if name.endswith("Probe")}

    def port(self, port):
        """The number of a port that is perhaps a name."""
        named = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        return named.get(port, port)


@pytest.fixture(params=[*MANIFESTS, "chart"], ids=lambda param: getattr(param, "name", param))
def manifests(request):
    return Manifests(rendered() if request.param == "chart" else request.param.read_text())


def test_manifests_are_what_kubernetes_takes(manifests):
    assert_kubernetes_takes(manifests.text)


def test_the_recipe_for_the_module_is_what_kubernetes_takes():
    assert_kubernetes_takes((PACKAGING / "kubernetes/module.yaml").read_text())


def assert_kubernetes_takes(text):
    manifests = list(yaml.safe_load_all(text))
    names = [f"{manifest['kind']}/{manifest['metadata']['name']}" for manifest in manifests]
    assert strictly_read(text) == names
    for manifest in manifests:
        for release in ("1.31", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(manifest, release, strict=True)


def test_manifests_fit_together(manifests):
    labels = manifests.deployment["spec"]["template"]["metadata"]["labels"]
    assert manifests.deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    mount, = manifests.container["volumeMounts"]
    volume, = [volume for volume in manifests.pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["configMap"]["name"] == manifests.configuration["metadata"]["name"]
    assert mount["mountPath"] == "/etc/swlimitd" and "subPath" not in mount, "a subPath is never updated"
    if manifests.service:
        assert manifests.service["spec"]["selector"].items() <= labels.items()
        for port in manifests.service["spec"]["ports"]:
            assert port["port"] == manifests.port(port["targetPort"])


def test_pods_may_do_nothing_more_than_they_need(manifests):
    context = manifests.pod.get("securityContext", {}) | manifests.container["securityContext"]
    assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert (context["runAsUser"], context["capabilities"]) == (Recipe().user, {"drop": ["ALL"]})
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert manifests.container["resources"]["limits"]["memory"]


def test_pods_have_the_time_to_end(manifests):
    """That is 5 s, and what goes before it: time to be forgotten by callers, or the application's own."""
    before = manifests.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {"seconds": 30})["seconds"]
    assert manifests.pod["terminationGracePeriodSeconds"] >= before + 5


def test_swlimitd_serves_with_the_configuration_of_the_manifests(manifests, server, tmp_path):
    """It listens at the ports that are named, at all addresses where others than its pod ask, and passes its probes."""
    assert check(manifests.files["swlimitd.yaml"], manifests.files["limits.yaml"], tmp_path).endswith("1 limits\n")
    for port in manifests.container["ports"]:
        assert manifests.listening[port["name"]] == ("0.0.0.0", port["containerPort"])
    settings = yaml.safe_load(manifests.files["swlimitd.yaml"])
    del settings["server"], settings["limits"]
    daemon = Daemon(manifests.files["limits.yaml"], server)
    ports = {8080: daemon.http_port, 8081: daemon.port}
    for name, (_, number) in manifests.listening.items():
        settings[name]["address"] = f"127.0.0.1:{ports[number]}"
    daemon.write_settings(**settings)
    with daemon:
        assert daemon.codes("user=x", domain="example") == ("OK", "OK")
        assert len(manifests.probes) == 2
        for probe in manifests.probes.values():
            if asked := probe.get("httpGet"):
                assert (manifests.port(asked["port"]), daemon.get(asked["path"])[0]) == (8080, 200)
            else:
                assert (probe["grpc"]["port"], health(daemon, probe["grpc"]["service"])) == (8081, "SERVING")
        scraped = manifests.deployment["spec"]["template"]["metadata"]["annotations"]
        assert scraped["prometheus.io/port"] == "8080"
        assert "swlimitd_configurations_total" in daemon.get(scraped["prometheus.io/path"])[1]


def health(daemon, name):
    """What a service's health is by gRPC."""
    with daemon.channel() as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
