"""Limits that rise after idleness."""

import itertools
import json
import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest

import swlimit
from support.cluster import Cluster
from support.comparing import NOW
from support.server import ROOT, free_port
from support.waiting import eventually
from support.warming import check_shared_curve, limit_at
from swlimit import Decision, UnavailableError
from swlimit._base import BaseLimiter
from swlimit._core.denial_cache import Demand, DenialCache
from swlimit._core.quota import Quota
from swlimit._core.warm_up import STEPS, WarmingKeys, WarmUp
from swlimit._protocol.commands import Allow, AllowAll

VECTORS = json.loads((ROOT / "tests/conformance/vectors/warm_up.json").read_text())


class TestVectors:
    def test_limits(self):
        for case in VECTORS["limits"]:
            warm_up = WarmUp(1000, case["cold"])
            assert [warm_up.limit(case["limit"], step) for step in range(STEPS + 1)] == case["limits"], case

    def test_steps(self):
        for case in VECTORS["steps"]:
            warm_up, t = WarmUp(case["warm_up"], 3.0), case["t"]
            step = warm_up.step(t)
            assert (step, warm_up.begins(step + 1) - t if step < STEPS else None) == (case["step"], case["next"]), case

    def test_what_units_show(self):
        for case in VECTORS["shown"]:
            warm_up = WarmUp(case["warm_up"], case["cold"])
            assert warm_up.shown(case["limit"], case["used"]) == case["t"], case

    def test_waits(self):
        for case in VECTORS["waits"]:
            warm_up = WarmUp(case["warm_up"], case["cold"])
            assert warm_up.wait(case["t"], case["limit"], case["cost"]) == case["retry_after"], case

    def test_what_is_refused(self):
        for case in VECTORS["refused"]:
            words = f"{case['warm_up']}ms", case["cold"], case["window"]
            if case["error"] is None:
                assert WarmUp.of(*words) == (case["warm_up"], case["cold"])
            else:
                with pytest.raises(ValueError, match=case["error"]):
                    WarmUp.of(*words)

    @pytest.mark.parametrize("trace", VECTORS["traces"], ids=lambda trace: trace["name"])
    def test_traces(self, trace):
        """Processes that share a key know how warm it is."""
        processes = [WarmingKeys(WarmUp(trace["warm_up"], trace["cold"]), trace["quiet"], 10) for _ in range(3)]
        for event in trace["events"]:
            keys, now, limit = processes[event["process"]], event.get("now"), trace["limit"]
            if "ask" in event:
                assert keys.limit(b"k", limit, now) == event["ask"], event
            elif "look" in event:
                assert keys.looks(b"k") == event["look"], event
            else:
                asked, granted, remaining = event["fed"]
                keys.heard(b"k", limit, asked, granted, remaining, now)
            if "state" in event:
                assert list(keys._keys[b"k"]) == event["state"], event


class Clock:
    """The clock of limiters in this process, in ms."""

    now = NOW

    def instant(self):
        return Clock.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(swlimit._core.clock.Clock, "instant", Clock.instant)
    monkeypatch.setattr(Clock, "now", NOW)
    return Clock


def saturate(limiter, key="k"):
    """Ask until it is denied: how many units were granted, and the limit of the denial."""
    for granted in range(1000):
        decision = limiter.allow(key)
        if not decision:
            return granted, decision.limit
    raise AssertionError("never denied")


class TestLocal:
    @pytest.fixture
    def local(self, kind, clock):
        return lambda **options: kind.limiter(None, 120, "1s", **{"warm_up": "10s"} | options)

    def test_it_rises_in_steps_and_begins_anew_after_idleness(self, local, clock):
        limiter = local()
        for t in range(0, 11_000, 250):
            clock.now = NOW + t
            assert saturate(limiter)[1] == limit_at(t)
        assert limit_at(0) == 40 and limit_at(10_000) == 120
        clock.now += 1050
        assert saturate(limiter) == (40, 40)

    def test_how_cold(self, local):
        assert saturate(local(cold=1.5)) == (80, 80)

    def test_a_limit_of_the_request(self, local, clock):
        """It warms up as the limiter's own."""
        limiter = local()
        assert limiter.allow("k", limit=30).limit == 10
        clock.now += 500
        assert limiter.peek("k", limit=1200).limit == limit_at(500, 1200)
        assert limiter.allow("k", limit=0).limit == 0

    def test_a_cost_above_the_moment_s_limit(self, local, clock):
        """It is granted once the limit is as large, while the key stays in use."""
        limiter = local()
        needs = next(t for t in range(10_000) if limit_at(t) >= 60)
        assert limiter.allow("k", 60).retry_after == needs / 1000
        for clock.now in range(NOW, NOW + needs, 1000):
            assert not limiter.allow("k", 60)
        clock.now = NOW + needs - 1
        assert limiter.allow("k", 60).retry_after == 0.001
        clock.now += 1
        assert limiter.allow("k", 60)
        assert limiter.allow("k", 121).never

    def test_a_denial_waits_even_if_the_limit_has_risen_since_it_was_asked(self, local, clock):
        limiter, demand = local(), local()._demand("k", 60, False, None, None)
        asked = limiter._with_its_limit(demand)
        limiter.peek("k")
        clock.now += 9_900
        never = Decision.unasked(asked.quota, 0, None, "server", never=True)
        assert limiter._heard(asked, never, False).retry_after == 0.001

    def test_many_keys(self, local):
        limiter = local(max_keys=10)
        for number in range(100):
            limiter.allow(f"{number}")
        assert len(limiter._warming) == 10

    def test_reset(self, local, clock):
        limiter = local()
        for clock.now in range(NOW, NOW + 10_000, 500):
            limiter.allow("k")
        assert limiter.peek("k").limit > 100
        limiter.reset("k")
        assert limiter.peek("k").limit == 40

    def test_several_limits(self, local, kind, clock):
        warming, other = local(), kind.limiter(None, 50, "1s")
        decisions = [kind.allow_all(warming.request("a"), other.request("b")) for _ in range(41)]
        assert [bool(one) for one in decisions] == [True] * 40 + [False]
        assert [one.limit for one in decisions[-1].members] == [40, 50]


@pytest.mark.parametrize("options, error", [
    ({"warm_up": "9s"}, "warm_up must be at least ten times the window"),
    ({"warm_up": "10s", "cold": 1}, "cold must be above 1 and at most 1000"),
    ({"warm_up": "10s", "cold": True}, "cold must be above 1 and at most 1000"),
    ({"cold": 2}, "cold needs warm_up"),
    ({"warm_up": "soon"}, "warm_up must be a duration"),
])
def test_wrong_options(kind, options, error):
    with pytest.raises(ValueError, match=error):
        kind.limiter(None, 120, "1s", **options)


def test_what_does_not_go_with_it(kind):
    limiter = kind.limiter(None, 120, "1s", warm_up="10s")
    for what, call in [("acquire", lambda: limiter.acquire("k", timeout=1)),
                       ("acquire", lambda: limiter.limit("k", timeout=1)),
                       ("block", lambda: limiter.allow("k", block="1m")),
                       ("block", lambda: limiter.record("k", block="1m")),
                       ("admit", lambda: kind.admit([limiter.request("k")]))]:
        with pytest.raises(ValueError, match=f"warm_up does not go with {what}"):
            call()


def test_a_known_denial_covers_lower_limits():
    quota = Quota.of(100, "1m")
    denials = DenialCache()
    ticket = denials.ticket(Demand(b"k", quota, 3, full_limit=120), 0.0)
    denials.learn(ticket, Decision.of([0, 100, 2, 9000, 9000], quota), 0.0)
    lower = denials.known(Demand(b"k", quota.at(99), 3, full_limit=120), 1.0)
    assert (lower.limit, lower.remaining, lower.source) == (99, 1, "cache")
    for other in [Demand(b"k", quota.at(101), 3, full_limit=120), Demand(b"k", quota.at(99), 2, full_limit=120),
                  Demand(b"k", quota.at(99), 3), Demand(b"k", Quota.of(99, "2m"), 3, full_limit=120)]:
        assert denials.known(other, 1.0) is None


class TestServer:
    @pytest.fixture
    def process(self, kind, server):
        """A limiter with a client of its own knows as little of others as one of another process."""
        made = []

        def process(client=None, **options):
            client = client or kind.client(kind.redis, port=server.port)
            made.append(kind.limiter(client, 120, "1h", **{"warm_up": "10h", "timeout": 5} | options))
            return made[-1]

        yield process
        for one in made:
            one.close()

    @pytest.mark.parametrize("mode", ["direct", "cached"])
    def test_who_joins_late_is_as_warm(self, process, clock, mode):
        first, late = process(mode=mode), process(mode=mode)
        first.record("k", 120)
        assert saturate(late) == (0, 120)
        assert late.statistics.server == 2

    def test_a_cost_above_the_moment_s_limit_is_asked_for(self, process, clock):
        """Its reply says how much is counted."""
        limiter = process()
        sources = [limiter.allow("k", cost).source for cost in (60, 60, 121)]
        assert sources == ["server", "server", "cache"]

    def test_a_request_whose_time_is_over_does_not_look(self, process, kind, clock):
        late = process(mode="direct")
        process().record("k", 120)
        times = itertools.count(0, 10)
        with patch("swlimit._rate_base.time", SimpleNamespace(monotonic=times.__next__)), \
                patch("swlimit._all_of.time", SimpleNamespace(monotonic=times.__next__)):
            assert late.allow("k").limit == 40
            assert kind.allow_all(late.request("k")).members[0].limit == 40
        assert late.allow("k").limit == 120

    def test_a_denial_is_looked_into_once_in_a_step(self, process, server, clock):
        """It is remembered until the limit rises, at most."""
        limiter = process()
        with server.client() as client:
            def calls(of):
                return client.info("commandstats").get(f"cmdstat_swlimit.{of}", {"calls": 0})["calls"]

            before = calls("peek")
            assert saturate(limiter) == (40, 40)
            eventually(lambda: limiter.allow("k").source == "cache")
            looked, asked = calls("peek"), calls("allow")
            assert looked > before
            assert limiter.allow("k").source == "cache" and calls("peek") == looked
            clock.now += 3_600_000
            assert saturate(limiter) == (1, 41)
            assert calls("allow") == asked + 2

    def test_who_joins_late_with_several_limits(self, process, kind, server, clock):
        process().record("k", 120)
        client = kind.client(kind.redis, port=server.port)
        late, other = process(client), process(client, warm_up=None, prefix="other")
        assert kind.allow_all(late.request("k"), other.request("k")).members[0].limit == 120

    @pytest.mark.parametrize("policy", ["error", "allow", "local"])
    def test_what_the_server_has_denied_stays_denied(self, process, kind, server, clock, policy):
        """Also when it is asked again, with the limit of another step, and does not answer."""
        process().record("k", 120)
        client = kind.client(kind.redis, port=server.port)
        other = kind.limiter(client, 1000, "1h", prefix="other", timeout=5, on_failure=policy)
        send = BaseLimiter._send

        def unanswered(self, command, *words):
            if command.name in (Allow.name, AllowAll.name) and 120 in command.words():
                raise UnavailableError("no reply")
            return send(self, command, *words)

        with patch.object(BaseLimiter, "_send", unanswered):
            for ask in (lambda one: one.allow("k"), lambda one: kind.allow_all(one.request("k")).members[0],
                        lambda one: kind.allow_all(one.request("k"), other.request("k")).members[0]):
                late = process(client, on_failure=policy)
                decision = ask(late)
                assert (bool(decision), decision.limit, decision.source) == (False, 40, "server")
                assert late.statistics.failure == 0
        other.close()

    def test_while_the_server_is_away(self, kind, clock):
        """It goes on by the clock."""
        client = kind.lazy(port=free_port())
        limiter = kind.limiter(client, 120, "1s", warm_up="10s", local_share=1)
        for t in range(0, 10_500, 500):
            clock.now = NOW + t
            decision = limiter.allow("k")
            assert (decision.source, decision.limit) == ("failure", limit_at(t))
        limiter.close()


@pytest.fixture(scope="module")
def cluster(starting):
    with starting() as start:
        yield Cluster(start)


@pytest.mark.parametrize("in_a_cluster, module, backend", [
    (False, "never", "script"), (True, "always", "module"), (True, "never", "script")])
def test_who_joins_late_in_a_cluster_and_by_the_script(kind, server, cluster, clock, in_a_cluster, module, backend):
    make, port = (kind.cluster, cluster.masters()[0].port) if in_a_cluster else (kind.redis, server.port)

    first, late = [kind.limiter(kind.client(make, host="127.0.0.1", port=port), 120, "1h", warm_up="10h", timeout=5.0,
                                module=module, prefix=f"{kind.name}:{module}:") for _ in range(2)]
    for number in range(12):  # of all nodes
        first.record(f"warm:{number}", 120)
        assert saturate(late, f"warm:{number}") == (0, 120)
        assert saturate(late, f"cold:{number}") == (40, 40)
    clock.now += 3_600_000
    assert saturate(late, "cold:1") == (1, 41)
    first.record("{t}1", 120)
    both = kind.allow_all(late.request("{t}1"), late.request("{t}2"))
    assert [(one.limit, one.source) for one in both.members] == [(120, "server"), (40, "server")]
    assert {state.backend for state in late.servers()} == {backend}
    first.close()
    late.close()


PROGRAM = """
import sys
import redis, swlimit
from swlimit._core.clock import Clock

limiter = swlimit.Limiter(redis.Redis(port=int(sys.argv[1])), 120, "1s", warm_up="10s", mode="direct",
                          on_failure="error", timeout=30)
for line in sys.stdin:
    Clock.instant = lambda _: int(line)
    granted = 0
    while decision := limiter.allow("k"):
        granted += 1
    print(granted, decision.limit, flush=True)
"""


def test_processes_share_a_curve(tmp_path, start):
    check_shared_curve(tmp_path, start, [sys.executable, "-c", PROGRAM])
