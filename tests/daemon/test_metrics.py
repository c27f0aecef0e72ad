"""What `/metrics` says: all of it from the start, the same as happened, and nothing of rules that are gone."""

import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.daemon import request, rls_pb2_grpc
from support.waiting import eventually

LIMITS = """
domain: d
descriptors:
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: many, rate_limit: {unit: day, requests_per_unit: 1000, mode: direct}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1, mode: direct}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: named, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
"""
OUTCOMES = ("denied", "granted", "shadowed", "denied_elsewhere", "error", "cancelled")


@pytest.fixture
def daemon(start_daemon, own_server):
    return start_daemon(LIMITS, own_server)


def outcomes(daemon, rule):
    """How often a rule had each outcome, without those that never came."""
    counts = daemon.metrics("swlimitd_rule_requests_total")
    return {outcome: counts["d", rule, outcome] for outcome in OUTCOMES if counts["d", rule, outcome]}


def test_series_exist_from_the_start(daemon):
    by_rule = {(domain, rule) for domain, rule, _ in daemon.metrics("swlimitd_rule_requests_total")}
    assert by_rule >= {("d", rule) for rule in ("one", "many", "shadow", "free")} | {("(api)", "v1/allow")}
    assert {rule for domain, rule, *_ in daemon.metrics("swlimitd_decisions_total") if domain == "d"} == {
        "one", "many", "shadow"}
    assert {source for _, rule, _, source in daemon.metrics("swlimitd_decisions_total") if rule == "one"} == {
        "server", "cache", "failure"}
    for name, labels in {
        "swlimitd_wait_duration_seconds_count": ("v1/hold",), "swlimitd_waiting": (),
        "swlimitd_requests_total": ("grpc", "cancelled"), "swlimitd_request_duration_seconds_count": ("auth",),
        "swlimitd_hits_total": ("d", "one"), "swlimitd_near_limit_total": ("d", "one"),
        "swlimitd_shadowed_total": ("d", "shadow"), "swlimitd_unmatched_total": ("policy",),
        "swlimitd_server_errors_total": ("refused",), "swlimitd_rejected_total": ("tls",),
        "swlimitd_configurations_total": ("invalid",), "swlimit_client_failures_total": (),
    }.items():
        assert daemon.metrics(name)[labels] == 0, name
    assert list(daemon.metrics("swlimitd_build_info").values()) == [1]
    assert daemon.metrics("process_resident_memory_bytes")[()] > 1_000_000


def test_rules_have_the_outcomes_of_their_requests(daemon, own_server):
    daemon.codes("one=x", "many=x", "shadow=x", "free=x")
    for _ in range(2):  # decided by the server, and perhaps by the cache
        assert daemon.codes("one=x", "many=x", "shadow=x", "free=x", "unknown=x")[0] == "OVER_LIMIT"
    assert outcomes(daemon, "one") == {"granted": 1, "denied": 2}
    assert outcomes(daemon, "many") == outcomes(daemon, "free") == {"granted": 1, "denied_elsewhere": 2}
    assert outcomes(daemon, "shadow") == {"granted": 1, "shadowed": 2}
    assert daemon.metrics("swlimitd_unmatched_total")["rule",] == 2
    # The page counts the same.
    page = json.loads(daemon.get("/page/state")[1])["decisions"]
    shown = {rule["rule"]: [sum(kind) for kind in zip(*rule["steps"])] for rule in page["rules"]}
    assert shown == {"one": [2, 1, 0], "shadow": [0, 1, 2], "many": [0, 1, 0], "free": [0, 1, 0]}
    assert daemon.metrics("swlimitd_requests_total")["grpc", "over_limit"] == 2

    sent = daemon.metrics("swlimit_client_commands_total")[()]
    own_server.process.send_signal(signal.SIGSTOP)
    try:
        with daemon.channel() as channel:
            running = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit.future(request("many=x"))
            eventually(lambda: daemon.metrics("swlimit_client_commands_total")[()] > sent)
            running.cancel()
            eventually(lambda: outcomes(daemon, "many").get("cancelled"), 1)
    finally:
        own_server.process.send_signal(signal.SIGCONT)
    own_server.kill()
    assert daemon.json({"domain": "d", "descriptors": [{"entries": [{"key": "many", "value": "x"}]}]})[0] == 503
    assert outcomes(daemon, "many") == {"granted": 1, "denied_elsewhere": 2, "cancelled": 1, "error": 1}
    requests = daemon.metrics("swlimitd_requests_total")
    assert (requests["grpc", "cancelled"], requests["json", "error"]) == (1, 1)


def test_in_shadow_mode_no_rule_denies(start_daemon, own_server):
    daemon = start_daemon(LIMITS, own_server, shadow_mode=True)
    for _ in range(3):
        assert daemon.codes("one=x", "many=x")[0] == "OK"
    assert outcomes(daemon, "one") == {"granted": 1, "shadowed": 2}
    assert daemon.metrics("swlimitd_shadowed_total")["d", "one"] == 2


def test_waits_have_a_series_of_their_own(daemon, own_server):
    asked = {"key": "queue", "limit": 1, "window": "30s", "timeout": "1m"}

    def acquire():
        return daemon.http("/v1/acquire", asked, headers={"Content-Type": "application/json"}).status

    assert acquire() == 200
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(acquire)
        eventually(lambda: daemon.metrics("swlimitd_waiting")[()], 1)
        own_server.cli("DEL", "queue")
        assert waiting.result() == 200
    assert daemon.metrics("swlimitd_waiting")[()] == 0
    assert daemon.metrics("swlimitd_wait_duration_seconds_count")["v1/acquire",] == 2
    assert ("v1/acquire",) not in daemon.metrics("swlimitd_request_duration_seconds_count")


def test_the_last_reload_and_the_configuration_in_force(daemon):
    def hashes():
        return [value for value, in daemon.metrics("swlimitd_configuration_info")]

    def is_good():
        return daemon.metrics("swlimitd_configuration_last_reload_successful")[()]

    first, read = hashes(), daemon.metrics("swlimitd_configuration_last_reload_timestamp_seconds")[()]
    assert is_good() == 1 and len(first) == 1 and re.fullmatch("[0-9a-f]{16}", first[0])
    daemon.write_limits("invalid")
    eventually(is_good, 0)
    assert hashes() == first
    assert daemon.metrics("swlimitd_configuration_last_reload_timestamp_seconds")[()] > read
    daemon.write_limits(LIMITS)
    eventually(is_good, 1)
    assert hashes() == first
    daemon.write_limits(LIMITS.replace("1000", "1001"))
    eventually(lambda: hashes() != first)


def test_equal_configurations_have_equal_hashes(start_daemon, own_server):
    def hashed(**settings):
        return list(start_daemon(LIMITS, own_server, **settings).metrics("swlimitd_configuration_info"))

    secret = {"sentinel": {"password": "one"}}
    assert hashed(**secret) == hashed(sentinel={"password": "two"}) != hashed(**secret, max_keys=7)


def test_what_needs_a_restart_is_named(daemon):
    settings = daemon.folder / "swlimitd.yaml"
    before = settings.read_text()

    def write(text):
        (daemon.folder / "next").write_text(text)
        (daemon.folder / "next").rename(settings)  # at once: half of it has other settings

    def waiting():
        return {key for key, in daemon.metrics("swlimitd_restart_needed")}

    assert waiting() == set()
    changed = json.loads(before) | {"max_keys": 7}
    for change, keys in [({}, {"max_keys"}), ({"log": {"level": "warn"}}, {"max_keys", "log"})]:
        write(json.dumps(changed | change))
        eventually(waiting, keys)
    named = re.findall(r"take effect after a restart only.* keys=\"(.*)\"", daemon.log)
    assert [set(names.split(", ")) for names in named] == [{"max_keys"}, {"max_keys", "log"}]
    write(before)
    eventually(waiting, set())
    assert daemon.log.count("take effect after a restart only") == 2  # and no word of what is as it was


def rules(daemon):
    return set(re.findall(r'domain="d",rule="(.*?)"', daemon.get("/metrics")[1]))


def test_rules_that_are_gone_free_their_series(daemon):
    for value in ("x", "y"):
        daemon.codes(f"named={value}", "many=x")
    assert rules(daemon) == {"one", "many", "shadow", "free", "named_x", "named_y"}
    daemon.write_limits(LIMITS.replace("key: one", "key: other"))
    eventually(lambda: rules(daemon), {"other", "many", "shadow", "free"})
    daemon.codes("named=y", "many=x")
    # What goes on counts on, however often it is read.
    for _ in range(3):
        assert outcomes(daemon, "many") == {"granted": 3}
        assert daemon.metrics("swlimitd_requests_total")["grpc", "ok"] == 3
    assert rules(daemon) == {"other", "many", "shadow", "free", "named_y"}


def test_of_a_server_that_is_away_it_tells_why_and_how_long(daemon, own_server):
    assert daemon.metrics("swlimitd_server_unavailable_seconds") == {}
    own_server.kill()
    address = f"127.0.0.1:{own_server.port}"

    def away():
        daemon.json({"domain": "d", "descriptors": [{"entries": [{"key": "many", "value": "x"}]}]})
        return daemon.metrics("swlimitd_server_unavailable_seconds")

    assert eventually(away).keys() == {(address, "refused")}
    assert daemon.metrics("swlimit_client_server_unavailable") == {(address,): 1}
    own_server.start()
    eventually(lambda: daemon.metrics("swlimitd_server_unavailable_seconds"), {})
    eventually(lambda: daemon.metrics("swlimit_client_server_unavailable"), {(address,): 0})
