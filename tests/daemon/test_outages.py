"""A real Envoy with its own time-out of 20 ms, and a counting server that has a bad day.

Envoy gives up long before a request's time at the server is over. What swlimitd knows of the server must not die with
such requests: else it would never notice that the server is away, and Envoy would let everything pass, or nothing.
"""

import json
import signal
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from support.envoy import address, answering, by_header, cluster, http2_cluster, listener, ratelimit, running
from support.http import fetch
from support.relay import Relay
from support.server import free_port
from support.waiting import eventually

LIMITS = """
domain: edge
descriptors:
  - {key: deny, rate_limit: {unit: day, requests_per_unit: 1000000, on_failure: deny}}
  - {key: allow, rate_limit: {unit: day, requests_per_unit: 1000000, on_failure: allow}}
  - {key: local, rate_limit: {unit: day, requests_per_unit: 100, on_failure: local, local_share: 0.07}}
  - {key: error, rate_limit: {unit: day, requests_per_unit: 1000000}}
"""
POLICIES = ("deny", "allow", "local", "error")
# Each of them takes 18 ms until the breaker opens, which is after 3 × 50 ms at the latest: 9, if nothing delays it.
MOST_UNTIL_OPEN = 30


class Rig:
    """An Envoy that fails open and one that fails closed, in one process, in front of a swlimitd and its server."""

    def __init__(self, server, relay, daemon, ports):
        self.server, self.relay, self.daemon = server, relay, daemon
        self.open, self.closed, self.admin = ports

    def ask(self, policy, key, port=None):
        """The status of a request that comes under a policy."""
        return fetch(f"http://127.0.0.1:{port or self.open}/", headers={f"x-{policy}": key})[0]

    def envoys(self):
        """How many calls ended in which way, by Envoy's account."""
        text = fetch(f"http://127.0.0.1:{self.admin}/stats?format=json&filter=cluster.app.ratelimit")[2]
        found = {stat["name"].rpartition(".")[2]: stat["value"] for stat in json.loads(text)["stats"]}
        return Counter({name: found.get(name, 0) for name in ("ok", "over_limit", "error")})

    def client(self, name):
        """One of the counters of the client."""
        return sum(self.daemon.metrics(f"swlimit_client_{name}_total").values())

    def decided(self, policy, decision, source="failure"):
        return self.daemon.metrics("swlimitd_decisions_total").get(("edge", policy, decision, source), 0)

    def is_served(self):
        """Whether the server decides a request."""
        before = self.decided("deny", "granted", "server")
        self.ask("deny", "served")
        return self.decided("deny", "granted", "server") > before


@pytest.fixture(scope="module")
def rig(starting, starting_daemons, tmp_path_factory):
    ports = [free_port() for _ in range(4)]
    routes = [{"match": {"prefix": "/"}, "route": {
        "cluster": "app", "rate_limits": [by_header(policy, f"x-{policy}") for policy in POLICIES]}}]
    with starting() as start, starting_daemons() as daemons, Relay(0) as relay:
        server = start()
        relay.target = server.port
        daemon = daemons.start(LIMITS, relay, timeout="50ms")
        configuration = {"admin": address(ports[2]), "static_resources": {
            "listeners": [listener(ports[0], routes, [ratelimit(failure_mode_deny=False)]),
                          listener(ports[1], routes, [ratelimit(failure_mode_deny=True)]),
                          listener(ports[3], [answering("app")])],
            "clusters": [cluster("app", ports[3]), http2_cluster("swlimitd", daemon.port)],
        }}
        with running(configuration, tmp_path_factory.mktemp("envoy"), ports[0]):
            yield Rig(server, relay, daemon, ports[:3])


@pytest.fixture
def healthy(rig):
    eventually(rig.is_served)
    return rig


@contextmanager
def stopped(rig):
    rig.server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        rig.server.process.send_signal(signal.SIGCONT)


@contextmanager
def killed(rig):
    rig.server.kill()
    try:
        yield
    finally:
        rig.server.start()


@contextmanager
def swallowed(rig):
    rig.relay.swallows = True
    try:
        yield
    finally:
        rig.relay.swallows = False


@pytest.mark.parametrize("fault", [stopped, killed, swallowed])
def test_a_server_that_is_gone(healthy, fault, report):
    rig, key = healthy, fault.__name__
    opened, calls, lines = rig.client("opened"), rig.envoys(), len(rig.daemon.log)
    with fault(rig):
        # Until the breaker opens, what the requests meet decides them one by one.
        until_open = 0
        while rig.client("opened") == opened:
            rig.ask("deny", key)
            until_open += 1
            assert until_open <= MOST_UNTIL_OPEN, rig.daemon.log[lines:]
        # From then on nobody asks the server, and each policy decides at once.
        commands = rig.client("commands")
        before = {(policy, decision): rig.decided(policy, decision)
                  for policy in POLICIES for decision in ("granted", "denied")}
        statuses = {(policy, port): Counter(rig.ask(policy, key, port) for _ in range(20))
                    for policy in POLICIES for port in (rig.open, rig.closed)}
        assert rig.client("commands") == commands
        grown = {each: rig.decided(*each) - count for each, count in before.items()}
        assert rig.client("opened") == opened + 1
    # Envoy had no answer to those of `error`, and to others only where this machine took 20 ms for nothing.
    ended = rig.envoys()
    ended.subtract(calls)
    asked = until_open + 20 * 2 * len(POLICIES)
    assert ended.total() == asked
    assert ended["error"] < until_open + 20 * 2 + 60, f"{ended} of {asked}, {until_open} before it opened"
    assert statuses["error", rig.open] == {200: 20} and statuses["error", rig.closed] == {500: 20}
    for (policy, _), seen in statuses.items():
        assert policy == "error" or seen[500 if policy == "allow" else 200] < 20, (policy, seen)
    assert statuses["allow", rig.open] == {200: 20}  # decided or not
    assert statuses["deny", rig.closed].keys() <= {429, 500}
    # By swlimitd's account: what it decided, it decided by the policy.
    assert grown["deny", "granted"] == grown["allow", "denied"] == grown["error", "granted"] == 0
    assert grown["local", "granted"] == 7
    for policy in ("deny", "allow", "local"):
        assert 20 < grown[policy, "granted"] + grown[policy, "denied"] <= 40, grown
    begun = time.monotonic()
    eventually(rig.is_served, log=lambda: rig.daemon.log[lines:])
    report(f"{fault.__name__}: back after {time.monotonic() - begun:.2f} s; the simulator proves 1 s, or 2")
    log = rig.daemon.log[lines:]
    # The first failure of all is said, too.
    assert 1 <= log.count("is unavailable") <= 2 and log.count("is back") == 1, log


def test_a_server_that_is_slow(healthy):
    """Replies take 0–60 ms, beyond Envoy's time and now and then beyond swlimitd's."""
    rig = healthy
    commands, slow, calls = rig.client("commands"), rig.client("slow"), rig.envoys()
    rig.relay.delay = 0.06
    try:
        statuses = Counter(rig.ask("deny", "slow") for _ in range(100))
        eventually(lambda: rig.client("slow") > slow or rig.ask("deny", "slow") and None)
    finally:
        rig.relay.delay = 0.0
    asked = 100 + max(0, rig.envoys().total() - calls.total() - 100)
    sent = rig.client("commands") - commands
    assert statuses.keys() <= {200, 429} and 0 < sent <= 2 * asked  # what is granted late goes back
    # Although clients had given up by then, each command was executed once, and what the policy denied goes back.
    eventually(lambda: 0 < total(rig.server, "{edge}|deny=slow|1d") <= sent)
    eventually(rig.is_served)


def test_a_server_that_a_replica_replaces(healthy, start):
    rig, old = healthy, healthy.server
    new = start()
    new.cli("REPLICAOF", "127.0.0.1", old.port)
    for _ in range(5):
        rig.ask("deny", "moved")
    eventually(lambda: "master_link_status:up" in new.cli("INFO", "replication") and total(new, KEY) == total(old, KEY))
    new.cli("REPLICAOF", "NO", "ONE")
    old.cli("REPLICAOF", "127.0.0.1", new.port)
    rig.relay.target = new.port
    try:
        before, granted = total(new, KEY), rig.decided("deny", "granted", "server")
        asked = 0
        while rig.decided("deny", "granted", "server") < granted + 20:
            rig.ask("deny", "moved")
            asked += 1
            assert asked < 1000, rig.daemon.log
        # All that the server granted is on the new one; so may be what came too late for its request.
        assert 20 <= total(new, KEY) - before <= asked
    finally:
        old.cli("REPLICAOF", "NO", "ONE")
        rig.relay.target = old.port
        new.stop()
        eventually(rig.is_served)


KEY = "{edge}|deny=moved|1d"


def total(server, key):
    """The units that a key holds."""
    fields = server.cli("SWLIMIT.INFO", key).split("\n")
    return int(fields[fields.index("total") + 1]) if "total" in fields else 0
