"""Denials that are decided without the server: only what it would deny, and for no longer."""

import asyncio
import gc
import os
import random
import signal
import threading
import time
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import redis
import redis.asyncio

import swlimit
from support.cli import ask
from support.resp import Connection
from support.waiting import eventually
from swlimit.decision import Decision
from swlimit.denials import Demand, Denials
from swlimit.quota import Quota

QUOTA = Quota.of(10, "1m", "1s")
NOW = 1000.0


def denial(retry_after=30_000):
    return Decision.of([0, 10, 0, retry_after, 61_000], QUOTA)


class TestMemory:
    """The memory itself, which has neither clock nor connection."""

    def remembering(self, cost=1, blocks=False, retry_after=30_000, **options):
        denials = Denials()
        denials.learn(denials.ticket(Demand(b"k", QUOTA, cost, blocks), NOW), denial(retry_after), NOW, **options)
        return denials

    @pytest.mark.parametrize("after, known", [(0, True), (29.968, True), (29.97, False), (60, False)])
    def test_until_just_before_it_ends(self, after, known):
        """A ms for the server's clock, a thousandth for clocks that slew."""
        denials = self.remembering()
        assert (denials.known(Demand(b"k", QUOTA, 1), NOW + after) is not None) is known

    def test_what_is_told(self):
        known = self.remembering().known(Demand(b"k", QUOTA, 3), NOW + 10)
        assert (known.granted, known.local, known.remaining) == (0, True, 0)
        assert (known.retry_after, known.reset_after) == (pytest.approx(20), pytest.approx(51))

    @pytest.mark.parametrize("remembered, asked, known", [
        ((5, False), (5, False), True), ((5, False), (6, False), True), ((5, False), (4, False), False),
        ((1, False), (1, True), False), ((1, True), (1, True), True), ((1, True), (1, False), True),
    ])
    def test_only_what_is_as_large_and_blocks_no_more(self, remembered, asked, known):
        denials = self.remembering(*remembered)
        assert (denials.known(Demand(b"k", QUOTA, *asked), NOW + 1) is not None) is known

    def test_only_the_same_quota(self):
        denials = self.remembering()
        for other in [Quota.of(11, "1m", "1s"), Quota.of(10, "2m", "1s"), Quota.of(10, "1m", "2s"),
                      Quota.of(10, "1m", "1s", strict=True)]:
            assert denials.known(Demand(b"k", other, 1), NOW) is None
        assert denials.known(Demand(b"other", QUOTA, 1), NOW) is None

    def test_at_most_for_so_long(self):
        denials = self.remembering(at_most=0.1)
        assert denials.known(Demand(b"k", QUOTA, 1), NOW + 0.099) is not None
        assert denials.known(Demand(b"k", QUOTA, 1), NOW + 0.1) is None

    def test_the_smaller_denial_stays(self):
        denials = self.remembering(cost=2)
        for cost, known in [(5, 2), (1, 1)]:
            denials.learn(denials.ticket(Demand(b"k", QUOTA, cost), NOW), denial(), NOW)
            assert denials.known(Demand(b"k", QUOTA, known), NOW) is not None
            assert denials.known(Demand(b"k", QUOTA, known - 1), NOW) is None

    @pytest.mark.parametrize("forget", [lambda denials: denials.forget([b"k"]), Denials.forget_all])
    def test_what_was_asked_before_is_not_remembered_after(self, forget):
        """An invalidation may be heard of before the reply that it makes stale."""
        denials = self.remembering()
        ticket = denials.ticket(Demand(b"k", QUOTA, 1), NOW)
        forget(denials)
        assert denials.known(Demand(b"k", QUOTA, 1), NOW) is None
        denials.learn(ticket, denial(), NOW)
        assert denials.known(Demand(b"k", QUOTA, 1), NOW) is None

    def test_grants_and_what_never_can_be_are_not_remembered(self):
        for reply in ([1, 10, 9, 0, 61_000], [0, 10, 9, -1, 61_000], [0, 10, 0, 1, 61_000]):
            denials = Denials()
            denials.learn(denials.ticket(Demand(b"k", QUOTA, 1), NOW), Decision.of(reply, QUOTA), NOW)
            assert len(denials) == 0

    def test_it_is_bounded_and_lets_go_of_what_has_ended(self):
        denials = Denials(max_keys=160)
        for number in range(1000):
            demand = Demand(b"%d" % number, QUOTA, 1)
            denials.learn(denials.ticket(demand, NOW + number), denial(500_000), NOW + number)
        assert 100 < len(denials) <= 160
        for number in range(1000):
            demand = Demand(b"later:%d" % number, QUOTA, 1)
            denials.learn(denials.ticket(demand, NOW + 5000 + number / 1000), denial(), NOW + 5000 + number / 1000)
        assert denials.known(Demand(b"later:999", QUOTA, 1), NOW + 5001) is not None


def denied_locally(limiter, key="k"):
    """Wait until denials of this key need no server."""
    eventually(lambda: limiter.allow(key).local)


def asks(limiter, key="k"):
    """Whether the next request does ask."""
    return not limiter.peek(key) or not limiter.allow(key).local


@pytest.fixture
def denied(limiter, server):
    """A limiter that knows of `k`, that it is denied."""
    limiter = limiter(untracked=0.0)
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    return limiter


def test_no_command_is_sent(denied, server):
    before = server.client().info("stats")["total_commands_processed"]
    for _ in range(1000):
        assert denied.allow("k").local
    assert server.client().info("stats")["total_commands_processed"] - before < 20
    assert denied.peek("k").local
    assert not denied.peek("k", cost=4).granted
    assert denied.allow("other")


def test_a_larger_cost_than_the_limit_needs_no_memory(limiter):
    limiter = limiter()
    assert limiter.allow("k", cost=4) == limiter.allow("k", cost=4)
    assert limiter.allow("k", cost=4).local
    assert limiter.allow("k", cost=4, partial=True).granted == 3
    assert not limiter.allow("b", cost=4, block="1m").local
    assert limiter.allow("b").granted == 0


MALLOW = ("SWLIMIT.MALLOW", 2, "k", "other", 9, "1m", "1s", 1, 9, "1m", "1s", 1)


@pytest.mark.parametrize("words", [
    ("SWLIMIT.REFUND", "k", 1), ("DEL", "k"), ("UNLINK", "k"), ("PEXPIRE", "k", 100_000), ("PERSIST", "k"),
    ("RENAME", "k", "l"), ("RENAME", "other", "k"), ("SET", "k", "x"), ("SWLIMIT.ALLOW", "k", 9, "1m", "1s"),
    ("SWLIMIT.RECORD", "k", 3, "1m", "1s"), MALLOW, ("FLUSHDB",), ("FLUSHALL",), ("PEXPIRE", "k", 1),
    ("SWLIMIT.BLOCK", "k", "1m"),
], ids=lambda words: " ".join(map(str, words[:2])))
def test_what_pushes_is_heard(denied, server, words):
    """The key is asked for again, whatever has changed it."""
    server.cli("SWLIMIT.RECORD", "other", 9, "1m", "1s")
    asked = denied.statistics.asked
    server.cli(*words)

    def heard():
        try:
            denied.allow("k")
        except redis.ResponseError:  # it is no window any more
            return True
        return denied.statistics.asked > asked

    eventually(heard)


def test_restore_and_unblock_push(limiter, server):
    limiter = limiter(untracked=0.0)
    limiter.block("k", "1h")
    denied_locally(limiter)
    server.cli("SWLIMIT.UNBLOCK", "k")
    eventually(lambda: limiter.allow("k").granted)
    limiter.allow("k", cost=2)
    with Connection(server.port) as connection:
        connection.call("SWLIMIT.RECORD", "empty", 9, "1m", "1s")
        dumped = connection.call("DUMP", "empty")
        denied_locally(limiter)
        connection.call("RESTORE", "k", 0, dumped, "REPLACE")
    eventually(lambda: limiter.allow("k").granted)


def test_eviction_pushes(limiter, server):
    limiter = limiter(untracked=0.0)
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    server.cli("CONFIG", "SET", "maxmemory", 1)
    eventually(lambda: server.cli("EXISTS", "k") == "0" or server.cli("PING") and False)
    server.cli("CONFIG", "SET", "maxmemory", 0)
    eventually(lambda: limiter.allow("k").granted)


@pytest.mark.parametrize("words", [("SWLIMIT.ALLOW", "k", 3, "1m", "1s"), ("SWLIMIT.PEEK", "k", 3, "1m", "1s"),
                                   ("SWLIMIT.REFUND", "k2", 1)], ids=lambda words: " ".join(map(str, words[:2])))
def test_what_pushes_nothing(denied, server, words):
    server.cli(*words)
    time.sleep(0.1)
    assert denied.allow("k").local


def test_expiry_that_the_question_itself_brings_about(kind, limiter, server):
    """Two are known to be denied. One is denied just before the key expires: what deletes it is the question after."""
    client = kind.client(kind.redis, port=server.port)
    limiter = limiter(client=client, timeout=None, untracked=0.0)
    server.cli("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        limiter.record("k", cost=3)
        server.cli("PEXPIRE", "k", 1000)
        eventually(lambda: limiter.allow("k", cost=2).local)
        with slow_replies(kind, client, 1.1):
            denial = limiter.allow("k", cost=1)
        assert (denial.granted, denial.local) == (0, False)
        eventually(lambda: limiter.allow("k", cost=2).granted, seconds=2)
    finally:
        server.cli("DEBUG", "SET-ACTIVE-EXPIRE", 1)


@contextmanager
def slow_replies(kind, client, seconds):
    """Replies take so long to come."""
    execute = client.execute_command

    def slow(*words):
        reply = execute(*words)
        time.sleep(seconds)
        return reply

    async def slow_of_asyncio(*words):
        reply = await execute(*words)
        await asyncio.sleep(seconds)
        return reply

    with patch.object(client, "execute_command", slow_of_asyncio if kind.name == "asyncio" else slow):
        yield


def test_own_refunds_are_known_at_once(denied):
    assert denied.refund("k") == 1
    assert denied.allow("k").granted
    denied_locally(denied)
    denied.block("k", "1ms")
    assert not denied.allow("k").local


def test_it_is_granted_when_it_is_due(limiter):
    """As exactly as the server says, and never before."""
    limiter = limiter(window="1s", resolution="10ms")
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    decision = limiter.allow("k")
    time.sleep(decision.retry_after + 0.002)
    assert limiter.allow("k").granted


def test_blocks(limiter):
    """A request that would begin a block is asked for, unless one such was denied."""
    limiter = limiter(untracked=0.0)
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    assert not limiter.allow("k", block="1h").local
    eventually(lambda: limiter.allow("k", block="1h").local)
    assert limiter.allow("k").retry_after > 3000


def test_several_limits(kind, limiter, server):
    client = kind.client(kind.redis, port=server.port)
    one, other = limiter(client=client, untracked=0.0), limiter(10, "1h", "1m", client=client, untracked=0.0)
    one.allow("k", cost=3)
    eventually(lambda: kind.allow_all(one.request("k"), other.request("o")).local)
    decision = kind.allow_all(one.request("k"), other.request("o"))
    assert [member is None for member in decision.members] == [False, True]
    assert not decision and decision.retry_after == decision.tightest.retry_after > 50
    never = kind.allow_all(one.request("k"), other.request("o", cost=11))
    assert never.local and never.retry_after == float("inf")
    assert server.cli("EXISTS", "o") == "0"


def test_without_tracking(limiter, server):
    """Where the server does not tell, a denial is remembered for `untracked` seconds."""
    server.cli("ACL", "SETUSER", "plain", "on", "nopass", "~*", "+@all", "-client|tracking")
    limiter = limiter(client_options={"username": "plain", "password": "x"}, untracked=0.5)
    limiter.allow("k", cost=3)
    assert not limiter.allow("k").local
    assert limiter.allow("k").local
    server.cli("SWLIMIT.REFUND", "k", 1)
    assert limiter.allow("k").local
    eventually(lambda: limiter.allow("k").granted, seconds=2)
    assert limiter.statistics.asked < 10
    server.cli("ACL", "DELUSER", "plain")


def test_tracking_is_lost_and_regained(denied, server):
    """What is killed tells nothing more: everything is forgotten, and remembered again with new connections."""
    for _ in range(3):
        server.cli("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(lambda: asks(denied))
        denied_locally(denied)
        for line in server.cli("CLIENT", "LIST").splitlines():
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if words["redir"] not in ("-1", "0"):
                server.cli("CLIENT", "KILL", "ID", words["id"])
        eventually(lambda: asks(denied))
        denied_locally(denied)
    server.cli("SWLIMIT.REFUND", "k", 1)
    eventually(lambda: denied.allow("k").granted)


def test_a_server_that_restarts(kind, limiter, start):
    server = start(options={"appendonly": "yes"})
    limiter = limiter(client=kind.client(kind.redis, port=server.port), untracked=0.0, on_failure="deny",
                      probe_every=0.05)
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    server.restart()
    denied_locally(limiter)
    server.cli("SWLIMIT.REFUND", "k", 1)
    eventually(lambda: limiter.allow("k").granted)


def test_a_server_that_says_nothing_more(kind, limiter, start):
    """Nobody asks while everything is denied here: a connection that is silent is asked."""
    server = start()
    limiter = limiter(client=kind.client(kind.redis, port=server.port), untracked=0.0, on_failure="allow",
                      timeout=0.05)
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: limiter.allow("k").granted, seconds=5)  # by the failure policy: somebody has asked
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    eventually(lambda: not limiter.allow("k"))


def test_nothing_stale(kind, limiter, server):
    """Units are given back by another client all the time; whoever is denied for longer than a moment is wrong."""
    client = kind.client(kind.redis, port=server.port)
    limiter = limiter(1, "1h", "1m", client=client, untracked=0.0)
    draw, local = random.Random(1), 0
    with Connection(server.port) as other:
        for _ in range(300):
            key = f"key:{draw.randrange(4)}"
            limiter.allow(key)
            until = time.monotonic() + draw.random() / 100
            while time.monotonic() < until:
                local += limiter.allow(key).local
            assert other.call("SWLIMIT.REFUND", key, 1) == 1
            eventually(lambda: limiter.peek(key).granted and limiter.allow(key).granted, seconds=2)
    assert local > 300


def test_limiters_let_go(server):
    """Trackers end with the limiters that use them."""
    others = set(threading.enumerate())

    def trackers():
        gc.collect()  # on Python 3.13, a limiter is in a cycle
        return len(set(threading.enumerate()) - others)

    client = redis.Redis(port=server.port)
    limiters = [swlimit.Limiter(client, 1, "1m", "1s", timeout=2.0, untracked=0.0) for _ in range(3)]
    for limiter in limiters:
        limiter.allow("k")
        denied_locally(limiter)
    assert trackers() == 1
    limiters.pop().close()
    assert limiters[0].allow("k").local
    limiters.clear()
    del limiter
    eventually(trackers, 0)


def test_a_forked_process(server):
    """It connects anew: threads and connections are its parent's."""
    limiter = swlimit.Limiter(redis.Redis(port=server.port), 1, "1m", "1s", timeout=2.0, untracked=0.0)
    limiter.allow("k")
    denied_locally(limiter)
    child = os.fork()
    if child == 0:
        os._exit(0 if _hears(limiter, server) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    denied_locally(limiter)
    assert limiter.allow("k").local
    limiter.close()


def _hears(limiter, server):
    try:
        limiter.allow("child")
        denied_locally(limiter, "child")
        ask(server, "SWLIMIT.REFUND", "child", 1)
        eventually(lambda: limiter.allow("child").granted, seconds=5)
        return True
    except BaseException as error:
        print(error)
        return False


@pytest.mark.parametrize("turns", range(4))
def test_a_loop_that_ends(server, turns):
    """Its trackers end with it, whatever they are about to do then: asking the next question, for example."""
    async def main():
        client = redis.asyncio.Redis(port=server.port)
        limiter = swlimit.AsyncLimiter(client, 1, "1m", "1s", timeout=2.0, untracked=0.0)
        await limiter.allow("k")
        while not (await limiter.allow("k")).local:
            await asyncio.sleep(0.001)
        limiter.forget("k")
        assert not (await limiter.allow("k")).local
        for _ in range(turns):
            await asyncio.sleep(0)
        tracking = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tracking:
            task.cancel()
        _, going_on = await asyncio.wait(tracking, timeout=2)
        assert tracking and not going_on

    asyncio.run(main())
