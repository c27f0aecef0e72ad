"""Servers without the module: the limiters decide by the script, and everything above the wire works the same."""

import os
import threading
from unittest.mock import patch

import pytest
import redis
import redis.asyncio

import swlimit
from support.cluster import Cluster
from support.lacking import needed
from support.relay import Relay
from support.releases import ONLY_SINCE_7, TOO_OLD
from support.server import MODULE
from support.waiting import eventually

from . import test_undoing
from .scripted import Scripted, speaking
from .test_admitting import (  # noqa: F401
    plans,
    test_a_reservation_that_has_ended_settles_what_was_used_beyond,
    test_admitted_and_settled,
    test_an_id_is_for_one_admission,
    test_denied_together,
    test_places_are_released_before_the_usage_is_known,
    test_several_holds_each_with_its_own_loss,
    test_spending,
    test_without_a_hold,
    test_without_holds_an_age_reserves,
)
from .test_budgets import (  # noqa: F401
    budgets,
    test_a_clock_that_is_behind_asks_with_the_next_period,
    test_granted_until_the_period_ends,
    test_the_same_on_both_sides,
)
from .test_denials import (  # noqa: F401  (they are run here once more, on servers without the module)
    denied,
    test_a_block_that_is_shorter_than_the_window,
    test_blocks,
    test_what_pushes_is_heard,
    test_what_pushes_nothing,
)
from .test_holds import (  # noqa: F401
    SHORTEST,
    end_of,
    holds,
    live,
    test_a_child_owns_none,
    test_a_guard_that_is_dropped_is_released,
    test_a_lost_hold_tells_its_holder,
    test_closing_releases,
    test_contexts_and_decorators,
    test_taken_denied_and_released,
    test_the_server_is_away_and_comes_back,
)
from .test_limiter import (  # noqa: F401
    test_a_decision,
    test_a_key_of_another_type,
    test_allow_peek_and_deny,
    test_headers,
    test_several_limits_at_once,
    test_threads_share_a_limiter,
)


@pytest.fixture(scope="module")
def plain_server(starting):
    with starting() as start:
        yield start(module=None)


@pytest.fixture
def server(plain_server):
    """A server without keys, scripts and the module."""
    plain_server.cli("FLUSHALL")
    plain_server.cli("SCRIPT", "FLUSH")
    return Scripted(plain_server)


@pytest.fixture
def waiting(limiter):
    return limiter


@pytest.fixture
def holding(request, kind):
    return request.getfixturevalue("holds")


def calls(server):
    """How often each command was called since CONFIG RESETSTAT."""
    with server.client() as client:
        return {name.removeprefix("cmdstat_"): of["calls"] for name, of in client.info("commandstats").items()}


def test_this_machine_s_clock(kind, limiter, server, caplog):
    """Where a user's scripts may not ask for the time."""
    server.cli("ACL", "SETUSER", "timeless", "reset", "on", ">x", "~*", "&*", "+@all", "-time")
    client = kind.client(kind.redis, port=server.port, username="timeless", password="x")
    limiter = limiter(3, "1h", "5m", client=client, mode="direct")
    with patch("swlimit._protocol.script_fallback.time.time_ns", lambda: 4_000_000_000_000_999_999):
        assert limiter.allow("{k}1").remaining == 2
        assert not limiter.allow("{k}1", 4, block="1s")
        assert limiter.block("{k}2", "1m") == 4_000_000_060
        assert not limiter.peek("{k}1") and not kind.allow_all(limiter.request("{k}2", 1))
        shown = server.cli("SWLIMIT.INFO", "{k}1").split()
        assert shown[shown.index("newest") + 1] == str(4_000_000_000_000 // 300_000 * 300_000)
        assert limiter.refund("{k}1") == 1
    assert caplog.text.count("this machine's clock decides") == 1
    server.cli("ACL", "DELUSER", "timeless")


def test_always_and_never(kind, limiter, server, shared_server):
    with pytest.raises(swlimit.ModuleMissing, match=r"no command SWLIMIT\.ALLOW"):
        limiter(module="always").allow("k")
    with pytest.raises(ValueError, match="module must be 'auto', 'always', 'never'"):
        limiter(module="perhaps")
    loaded = kind.client(kind.redis, port=shared_server.port)
    shared_server.cli("FLUSHALL")
    never, auto = limiter(client=loaded, module="never"), limiter(client=loaded)
    assert never.allow("script").remaining == auto.allow("module").remaining == 2
    assert (shared_server.cli("TYPE", "script"), shared_server.cli("TYPE", "module")) == ("string", "sw-window")
    assert never.servers()[0].backend == "script" and auto.servers()[0].backend == "module"


def test_rates_and_budgets_at_once(kind, limiter, server):
    client = kind.client(kind.redis, port=server.port)
    rate, plan = limiter(client=client), kind.budget_limiter(client, 9, timeout=10.0)
    parts = [rate.request("k"), plan.request("HOLD", 7)]
    admission = kind.admit(parts)
    assert admission.granted and [one.remaining for one in admission.each] == [2, 2]
    assert not kind.admit(parts)
    assert kind.call(admission.settle, 1, 4) == [0, -3]
    assert kind.admit([plan.request("HOLD", 5)]).each[0].remaining == 0
    plan.close()


def test_the_server_changes(kind, limiter, start):
    """At the same address there is one with the module, and then one without it again."""
    server = start(module=None)
    limiter = limiter(9, client=kind.client(kind.redis, port=server.port), on_failure="deny", mode="direct")
    port = server.port
    for number, loaded in enumerate([None, MODULE, None]):
        if number:
            server.close()
            server = start(module=loaded, port=port)
        eventually(lambda: limiter.allow("k").source == "server")
        assert limiter.servers()[0].backend == ("module" if loaded else "script")


def test_a_primary_that_is_one_no_more(kind, limiter, start):
    """The script denies on replicas, too, so a probe writes before a server counts as back."""
    server, other = start(module=None), start(module=None)
    limiter = limiter(9, "1h", client=kind.client(kind.redis, port=server.port), on_failure="allow", mode="direct")
    assert limiter.allow("k").source == "server"
    server.cli("REPLICAOF", "127.0.0.1", other.port)
    eventually(lambda: [limiter.allow("k"), limiter.servers()[0].state][1] == "unavailable")
    eventually(lambda: "master_link_status:up" in server.cli("INFO", "replication"))
    assert limiter.servers()[0].state == "unavailable"
    server.cli("REPLICAOF", "NO", "ONE")
    eventually(lambda: limiter.allow("k").source == "server")


def test_a_cluster(kind, limiter, start):
    """Each node is given the script when it lacks it."""
    cluster = Cluster(start, module=None)
    client = kind.client(kind.cluster, host="127.0.0.1", port=cluster.servers[0].port)
    limiter = limiter(5, client=client, timeout=10.0)
    for number in range(12):
        assert limiter.allow(f"k:{number}", 5).source == "server"
        assert not limiter.allow(f"k:{number}")
    decision = kind.allow_all(limiter.request("{a}1", 2), limiter.request("{a}2", 3))
    assert [member.remaining for member in decision.members] == [3, 2]
    streams = kind.hold_limiter(client, 1, timeout=10.0)
    guards = [streams.hold(f"h:{number}", wait=1) for number in range(12)]
    admission = kind.admit([limiter.request("{b}r", 2), streams.request("{b}h")])
    assert all(guards) and admission.granted and not streams.hold("h:1", wait=0.05)
    assert kind.call(admission.settle, 1) == [-1]
    streams.close()


def test_redis_6_2(kind, limiter, start):
    """It has no EVALSHA_RO."""
    server = start(binaries=needed(TOO_OLD.name), module=None, options=ONLY_SINCE_7)
    limiter = limiter(client=kind.client(kind.redis, port=server.port), max_untracked_age=0.0)
    assert limiter.peek("k").remaining == limiter.allow("k").remaining + 1 == 3
    limiter.allow("k", 2)
    eventually(lambda: limiter.allow("k").source == "cache")
    assert limiter.refund("k") == 1
    assert limiter.allow("k").granted


def test_holds_are_renewed_and_released(kind, holding, server):
    """Over connections of their own, and where the server has forgotten the script."""
    limiter = holding(1, SHORTEST)
    guard = limiter.hold("k")
    before = end_of(server, guard)
    server.cli("SCRIPT", "FLUSH")
    eventually(lambda: end_of(server, guard) > before + 500)
    server.cli("SCRIPT", "FLUSH")
    kind.call(guard.release)
    assert not live(server) and limiter.hold("k").token > guard.token


class Waiter:
    """Waits for a hold in a thread, and joins the queue before the next one does."""

    def __init__(self, limiter, order, name):
        self.guard = None

        def wait():
            self.guard = limiter.hold("k", wait="10m")
            order.append(name)

        def waiting():
            queue = limiter._queues._queues.get(b"k")
            return 0 if queue is None else len(queue) + queue.is_taken

        before = waiting()
        self.thread = threading.Thread(target=wait)
        self.thread.start()
        eventually(lambda: waiting() > before)

    def granted(self):
        self.thread.join(20)
        return self.guard


def test_first_come_first_served(kind, holding, server):
    """In the process, whichever limiter asks; who released goes to the end."""
    client = kind.client(kind.redis, port=server.port)
    one, other = holding(1, client=client), holding(1, client=client)
    order, first = [], one.hold("k")
    waiters = [Waiter(limiter, order, number) for number, limiter in enumerate([one, other, one])]
    assert not one.hold("k", wait=0.05) and not other.hold("k")
    kind.call(first.release)
    again = one.hold("k", wait=0.1)
    assert not again and again.source == "server"
    waiters.append(Waiter(other, order, 3))
    for waiter in waiters:
        assert waiter.granted().is_live
        kind.call(waiter.guard.release)
    assert order == [0, 1, 2, 3]


def test_room_that_another_process_makes(holding, server):
    limiter = holding(1)
    with speaking(server) as other:
        other.call("SWLIMIT.HOLD", "k", 1, "1h", "theirs")
        waiter = Waiter(limiter, [], 0)
        other.call("SWLIMIT.RELEASE", "k", "theirs")
    assert waiter.granted().is_live


def test_the_server_goes_away_while_one_waits(kind, holding, server):
    with Relay(server.port) as relay:
        limiter = holding(1, client=kind.client(kind.redis, port=relay.port), timeout=0.3, on_failure="allow")
        first = eventually(lambda: (guard := limiter.hold("k")).source == "server" and guard)
        waiter = Waiter(limiter, [], 0)
        relay.swallows = True
        assert waiter.granted().source == "failure" and first
        relay.swallows = False


@pytest.mark.parametrize("policy", ["local", "deny", "allow"])
def test_closing_answers_who_waits(holding, server, policy):
    """A denial: nobody waits on, and what another process holds is not granted here."""
    limiter = holding(1, on_failure=policy)
    with speaking(server) as other:
        other.call("SWLIMIT.HOLD", "k", 1, "1h", "theirs")
        waiters = [Waiter(limiter, [], number) for number in range(2)]
        limiter.close()
        for waiter in waiters:
            assert waiter.granted() is not None and not waiter.guard


def test_closing_answers_who_waits_for_units(limiter):
    """The callers of the script sleep until units come free."""
    one, answers = limiter(1, window="1h"), []
    one.allow("k")
    waiters = [threading.Thread(target=lambda: answers.append(one.acquire("k", timeout="2h"))) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    eventually(lambda: one._pauses)
    one.close()
    for waiter in waiters:
        waiter.join(20)
    assert [answer.granted for answer in answers] == [0, 0]


def test_a_child_waits_in_its_own_queue(server):
    with swlimit.HoldLimiter(redis.Redis(port=server.port), 1, timeout=5.0) as limiter:
        first = limiter.hold("k")
        waiter = Waiter(limiter, [], 0)
        child = os.fork()
        if child == 0:
            place = limiter.hold("k", wait="10m")
            was_live = place.is_live
            place.release()  # for the waiter, where the child was first
            os._exit(not was_live)
        first.release()
        waiter.granted().release()
        assert os.waitpid(child, 0)[1] == 0


HOLDS = [name for name in test_undoing.COMMANDS if "hold" in name or "admit" in name]


@pytest.mark.parametrize("moment", ["at once", "under way", "with the reply"])
@pytest.mark.parametrize("name", HOLDS)
def test_tasks_that_give_up_their_holds(server, name, moment):
    test_undoing.test_tasks(server, name, moment)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", HOLDS)
def test_threads_that_give_up_their_holds(server, monkeypatch, name, moment):
    test_undoing.test_threads(server, monkeypatch, name, moment)
