"""envoyproxy/ratelimit's environment variables, read as they are."""

import re
import subprocess
from contextlib import contextmanager

import pytest
import yaml

from docs.pages import page_named
from support.control_plane import ControlPlane
from support.daemon import DAEMON, READY_SECONDS, FromEnvironment, environment
from support.waiting import eventually

LIMITS = "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]}"


def printed(**variables):
    """What `--from-env` prints."""
    done = subprocess.run([DAEMON, "--from-env"], env=environment(**variables), capture_output=True, text=True,
                          timeout=READY_SECONDS)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def start_from_environment(starting_daemons, server):
    @contextmanager
    def start(counting=server, **variables):
        starting_daemons().close()  # without a daemon, the test is skipped
        with FromEnvironment({"below/limits.yaml": LIMITS}, counting, **variables) as daemon:
            yield daemon

    return start


def test_it_starts_as_they_say(start_from_environment, server):
    names = {"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LIMIT_LIMIT_HEADER": "X-Limit"}
    with start_from_environment(CACHE_KEY_PREFIX="some-", USE_STATSD="false", SHADOW_MODE="1", **names) as daemon:
        for _ in range(4):
            reply = daemon.ask("k=x")
        assert (reply.overall_code, reply.statuses[0].code) == (1, 2)  # in shadow mode
        assert [header.key for header in reply.response_headers_to_add][0] == "X-Limit"
        assert server.cli("KEYS", "*") == "some-{d}|k=x|1d"
        daemon.http_port = daemon.debug_port
        assert daemon.get("/rlconfig") == (200, "d.k: 3 per 1d, resolution 2h\n")
        assert "USE_STATSD has no meaning here" in daemon.log
        # Files change as they do for a configuration file.
        (daemon.folder / "ratelimit/config/below/limits.yaml").write_text(LIMITS.replace("3", "4"))
        eventually(lambda: "4 per 1d" in daemon.get("/rlconfig")[1])


def test_the_script_decides_where_the_module_is_not_loaded(start_from_environment, start):
    """As the page for Envoy Gateway says, which starts it like this."""
    section = page_named("envoy-gateway.md").read_text().partition("## Without the module\n")[2].partition("\n## ")[0]
    told = [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", section)]
    bare = start(module=None)
    with start_from_environment(bare) as daemon:
        assert [daemon.codes("k=x")[0] for _ in range(4)] == ["OK"] * 3 + ["OVER_LIMIT"]
        log, metric = told
        assert log in daemon.log
        daemon.http_port = daemon.debug_port
        assert set(daemon.metrics(metric).values()) == {1}


def test_what_is_printed_is_a_configuration(start_daemon, server, tmp_path):
    daemon = start_daemon(LIMITS)
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "limits.yaml").write_text(LIMITS)
    status, text = printed(RUNTIME_ROOT=tmp_path, REDIS_SOCKET_TYPE="tcp", REDIS_URL=f"127.0.0.1:{server.port}",
                           REDIS_TIMEOUT="20ms", GRPC_UDS="/run/s.sock", GRPC_MAX_CONNECTION_AGE="1h30m",
                           GRPC_MAX_CONNECTION_AGE_GRACE="5s", QUOTA_MODE="true", RESPONSE_DYNAMIC_METADATA="true",
                           NEAR_LIMIT_RATIO="0.7", REDIS_PERSECOND="true", LOG_LEVEL="WARN", LOG_FORMAT="json",
                           RUNTIME_IGNOREDOTFILES="true", TRACING_ENABLED="true", TRACING_EXPORTER_PROTOCOL="grpc",
                           TRACING_SAMPLING_RATE="0.5")
    assert status == 0, text
    assert re.findall("^# (\\w+) has no meaning here", text, re.MULTILINE) == ["NEAR_LIMIT_RATIO", "REDIS_PERSECOND"]
    assert yaml.safe_load(text) == {
        "server": f"redis://127.0.0.1:{server.port}", "timeout": "20ms", "limits": [str(folder)],
        "ignore_dot_files": True, "quota_mode": True, "dynamic_metadata": True,
        "grpc": {"address": "unix:/run/s.sock", "max_connection_age": "5400000ms",
                 "max_connection_age_grace": "5000ms"},
        "http": {"address": ["0.0.0.0:8080", "0.0.0.0:6070"]}, "log": {"level": "warn", "format": "json"},
        "traces": {"endpoint": "http://localhost:4317", "share": 0.5},
    }
    (daemon.folder / "swlimitd.yaml").write_text(text)
    assert daemon.run("--check") == (0, f"{daemon.folder}/swlimitd.yaml is valid: 1 limits\n")


@pytest.mark.parametrize("variables, expected", [
    ({"CONFIG_TYPE": "ETCD"}, "the environment: CONFIG_TYPE: 'ETCD' is not"),
    ({"BACKEND_TYPE": "memcache", "RUNTIME_ROOT": "/"}, "the environment: BACKEND_TYPE: 'memcache' is not supported"),
    ({"RUNTIME_ROOT": "/nowhere"}, "/nowhere/config: No such file"),
])
def test_what_cannot_start_says_why(starting_daemons, variables, expected):
    starting_daemons().close()
    done = subprocess.run([DAEMON], env=environment(**variables), capture_output=True, text=True, timeout=READY_SECONDS)
    assert (done.returncode, expected in done.stderr) == (1, True), done.stderr


def test_a_configuration_file_goes_before_them(start_daemon, monkeypatch):
    monkeypatch.setenv("RUNTIME_ROOT", "/nowhere")
    assert start_daemon(LIMITS).codes("k=x") == ("OK", "OK")


def test_as_envoy_gateway_starts_it(start_from_environment):
    """Its variables, and limits of the shapes that it makes of its policies."""
    def nested(*entries, shadow=False, **policy):
        (key, value), *below = entries
        made = {"key": key, "value": value, "shadow_mode": shadow}
        return [made | ({"descriptors": nested(*below, shadow=shadow, **policy)} if below else {"rate_limit": policy})]

    def resource_of(domain, *descriptors):
        return {"name": domain, "domain": domain, "descriptors": sum(descriptors, [])}

    rule, client = ("rule-0-match-0", "rule-0-match-0"), ("masked_remote_address", "192.0.2.0/24")
    configs = [
        resource_of("ns/gateway/http",
                    nested(("first", "first"), rule, client, requests_per_unit=2, unit="DAY"),
                    nested(("second", "second"), ("rule-0-match-0", ""), requests_per_unit=1, unit="MONTH"),
                    nested(("third", "third"), ("masked_remote_address", "invert:192.0.2.0/24"), requests_per_unit=1,
                           unit="YEAR"),
                    nested(("fourth", "fourth"), rule, shadow=True, requests_per_unit=1, unit="HOUR")),
        resource_of("ns/policy", nested(("ns/policy/rule/0", "ns/policy/rule/0"), rule, requests_per_unit=1,
                                        unit="WEEK")),
    ]
    with ControlPlane() as control_plane, start_from_environment(
            CONFIG_TYPE="GRPC_XDS_SOTW", CONFIG_GRPC_XDS_SERVER_URL=f"127.0.0.1:{control_plane.port}",
            CONFIG_GRPC_XDS_NODE_ID="envoy-ratelimit", CONFIG_GRPC_XDS_NODE_METADATA="zone=a",
            FORCE_START_WITHOUT_INITIAL_CONFIG="true", USE_STATSD="false", RUNTIME_WATCH_ROOT="false",
            RUNTIME_IGNOREDOTFILES="true", SWLIMITD_XDS_CACHE="/nowhere/limits.pb") as daemon:
        assert not control_plane.publish(*configs).error_detail.message
        assert control_plane.requests[0].node.id == "envoy-ratelimit"
        assert "cannot cache the limits" in daemon.log
        for domain, descriptor, codes in [
            ("ns/gateway/http", "first=first rule-0-match-0=rule-0-match-0 masked_remote_address=192.0.2.0/24",
             ["OK", "OK", "OVER_LIMIT"]),
            ("ns/gateway/http", "second=second rule-0-match-0=x", ["OK", "OVER_LIMIT"]),
            ("ns/gateway/http", "third=third masked_remote_address=invert:192.0.2.0/24", ["OK", "OVER_LIMIT"]),
            ("ns/gateway/http", "fourth=fourth rule-0-match-0=rule-0-match-0", ["OK", "OK"]),
            ("ns/policy", "ns/policy/rule/0=ns/policy/rule/0 rule-0-match-0=rule-0-match-0", ["OK", "OVER_LIMIT"]),
        ]:
            assert [daemon.codes(descriptor, domain=domain)[0] for _ in codes] == codes, descriptor
