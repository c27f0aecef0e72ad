"""DenialCache that are decided without the server: only what it would deny, and for no longer."""

import asyncio
import gc
import os
import random
import re
import threading
import time
import weakref
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import redis
import redis.asyncio

import swlimit
from support.cli import ask
from support.resp import Connection
from support.waiting import eventually
from swlimit import Decision
from swlimit._core.denial_cache import Demand, DenialCache
from swlimit._core.quota import Quota
from swlimit._rate_base import RateLimiterBase

QUOTA = Quota.of(10, "1m", "1s")
NOW = 1000.0


def denial(retry_after=30_000):
    return Decision.of([0, 10, 0, retry_after, 61_000], QUOTA)


class TestMemory:
    """The memory itself, which has neither clock nor connection."""

    def remembering(self, cost=1, block=0, retry_after=30_000, **options):
        denials = DenialCache()
        denials.learn(denials.ticket(Demand(b"k", QUOTA, cost, block), NOW), denial(retry_after), NOW, **options)
        return denials

    @pytest.mark.parametrize("after, known", [(0, True), (29.968, True), (29.97, False), (60, False)])
    def test_until_just_before_it_ends(self, after, known):
        """A ms for the server's clock, a thousandth for clocks that slew."""
        denials = self.remembering()
        assert (denials.known(Demand(b"k", QUOTA, 1), NOW + after) is not None) is known

    def test_what_is_told(self):
        known = self.remembering().known(Demand(b"k", QUOTA, 3), NOW + 10)
        assert (known.granted, known.source, known.remaining) == (0, "cache", 0)
        assert (known.retry_after, known.reset_after) == (pytest.approx(20), pytest.approx(51))

    def test_a_reply_that_took_long_tells_nobody_to_come_too_early(self):
        denials = DenialCache()
        demand = Demand(b"k", QUOTA, 1)
        denials.learn(denials.ticket(demand, NOW), denial(), NOW + 2)  # the server decided in between
        known = denials.known(demand, NOW + 10)
        assert (known.retry_after, known.reset_after) == (pytest.approx(22), pytest.approx(53))
        assert denials.known(demand, NOW + 29.97) is None

    @pytest.mark.parametrize("remembered, asked, known", [
        ((5, 0), (5, 0), True), ((5, 0), (6, 0), True), ((5, 0), (4, 0), False),
        ((1, 0), (1, 20_000), False), ((1, 20_000), (1, 20_000), True), ((1, 20_000), (1, 0), True),
        ((1, 500), (1, 500), False),
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

    @pytest.mark.parametrize("forget", [lambda denials: denials.forget([b"k"]), DenialCache.forget_all])
    def test_what_was_asked_before_is_not_remembered_after(self, forget):
        """An invalidation may arrive before the reply that it makes stale."""
        denials = self.remembering()
        ticket = denials.ticket(Demand(b"k", QUOTA, 1), NOW)
        forget(denials)
        assert denials.known(Demand(b"k", QUOTA, 1), NOW) is None
        denials.learn(ticket, denial(), NOW)
        assert denials.known(Demand(b"k", QUOTA, 1), NOW) is None

    def test_grants_and_what_never_can_be_are_not_remembered(self):
        for reply in ([1, 10, 9, 0, 61_000], [0, 10, 9, -1, 61_000], [0, 10, 0, 1, 61_000]):
            denials = DenialCache()
            denials.learn(denials.ticket(Demand(b"k", QUOTA, 1), NOW), Decision.of(reply, QUOTA), NOW)
            assert len(denials) == 0

    def test_it_is_bounded_and_lets_go_of_what_has_ended(self):
        denials = DenialCache(max_keys=160)
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
    eventually(lambda: limiter.allow(key).source == "cache")


@pytest.fixture
def denied(limiter, server):
    """A limiter that knows of `k`, that it is denied."""
    limiter = limiter(max_untracked_age=0.0)
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    return limiter


def test_a_few_denials_are_not_looked_up(limiter, server):
    """A look is two commands: behind the fourth denial, and not behind three."""
    limiter = limiter(max_untracked_age=0.0)
    server.cli("CONFIG", "RESETSTAT")

    def looks():
        return sum(of["calls"] for name, of in client.info("commandstats").items() if re.search("peek|pttl|trac", name))

    with server.client() as client:
        limiter.allow("k", cost=3)
        for _ in range(3):
            assert limiter.allow("k").source == "server"
            time.sleep(0.05)
        assert looks() == 0
        denied_locally(limiter)
        assert looks() > 2


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
    asked = denied.statistics.server
    server.cli(*words)

    def heard():
        try:
            denied.allow("k")
        except swlimit.RefusedError:  # it is no window any more
            return True
        return denied.statistics.server > asked

    eventually(heard)


def test_restore_and_unblock_push(limiter, server):
    limiter = limiter(max_untracked_age=0.0)
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
    limiter = limiter(max_untracked_age=0.0)
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
    assert denied.allow("k").source == "cache"


def test_expiry_that_the_question_itself_brings_about(kind, limiter, server):
    """Two are known to be denied. One is denied just before the key expires: what deletes it is the question after."""
    client = kind.client(kind.redis, port=server.port)
    limiter = limiter(client=client, max_untracked_age=0.0)
    server.cli("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        limiter.record("k", cost=3)
        server.cli("PEXPIRE", "k", 1000)
        eventually(lambda: limiter.allow("k", cost=2).source == "cache")
        with slow_replies(1.1):
            denial = limiter.allow("k", cost=1)
        assert (denial.granted, denial.source) == (0, "server")
        eventually(lambda: limiter.allow("k", cost=2).granted, seconds=2)
    finally:
        server.cli("DEBUG", "SET-ACTIVE-EXPIRE", 1)


@contextmanager
def slow_replies(seconds):
    """Replies take so long to be heard."""
    learn = RateLimiterBase._learn

    def slow(*args):
        time.sleep(seconds)
        learn(*args)

    with patch.object(RateLimiterBase, "_learn", slow):
        yield


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
    limiter = limiter(max_untracked_age=0.0)
    limiter.allow("k", cost=3)
    denied_locally(limiter)
    assert limiter.allow("k", block="1h").source == "server"
    eventually(lambda: limiter.allow("k", block="1h").source == "cache")
    assert limiter.allow("k").retry_after > 3000


def test_asking_for_tracking_again_forgets_nothing(limiter, server):
    """Tracking that is refused again and again takes no denial away that was remembered without it."""
    server.cli("ACL", "SETUSER", "plain", "on", "nopass", "~*", "&*", "+@all", "-client|tracking")
    limiter = limiter(client_options={"username": "plain", "password": "x"}, max_untracked_age=20.0)

    def refused():
        found = re.search(r"client\|tracking:.*rejected_calls=(\d+)", server.cli("INFO", "commandstats"))
        return int(found[1]) if found else 0

    limiter.allow("k", cost=3)
    denied_locally(limiter)
    eventually(refused)
    before = refused()
    eventually(lambda: refused() > before + 1)
    assert limiter.allow("k").source == "cache"
    server.cli("ACL", "DELUSER", "plain")


def test_nothing_stale(kind, limiter, server):
    """Units are given back by another client all the time; who is denied for longer than a moment is wrong."""
    client = kind.client(kind.redis, port=server.port)
    limiter = limiter(1, "1h", "1m", client=client, max_untracked_age=0.0)
    draw, local = random.Random(1), 0
    with Connection(server.port) as other:
        for _ in range(300):
            key = f"key:{draw.randrange(4)}"
            limiter.allow(key)
            until = time.monotonic() + draw.random() / 100
            while time.monotonic() < until:
                local += limiter.allow(key).source == "cache"
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
    limiters = [swlimit.Limiter(client, 1, "1m", "1s", timeout=2.0, max_untracked_age=0.0) for _ in range(3)]
    for limiter in limiters:
        limiter.allow("k")
        denied_locally(limiter)
    assert trackers() == 1
    limiters.pop().close()
    assert limiters[0].allow("k").source == "cache"
    limiters.clear()
    del limiter
    eventually(trackers, 0)


def test_a_forked_process(server):
    """It connects again: threads and connections are its parent's."""
    limiter = swlimit.Limiter(redis.Redis(port=server.port), 1, "1m", "1s", timeout=2.0, max_untracked_age=0.0)
    limiter.allow("k")
    denied_locally(limiter)
    child = os.fork()
    if child == 0:
        os._exit(0 if _hears(limiter, server) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    denied_locally(limiter)
    assert limiter.allow("k").source == "cache"
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
        limiter = swlimit.AsyncLimiter(client, 1, "1m", "1s", timeout=2.0, max_untracked_age=0.0)
        await limiter.allow("k")
        while (await limiter.allow("k")).source == "server":
            await asyncio.sleep(0.001)
        limiter.forget("k")
        assert (await limiter.allow("k")).source == "server"
        for _ in range(turns):
            await asyncio.sleep(0)
        tracking = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tracking:
            task.cancel()
        _, going_on = await asyncio.wait(tracking, timeout=2)
        assert tracking and not going_on

    asyncio.run(main())


def test_a_block_that_is_shorter_than_the_window(limiter):
    """The next denial after it begins another one."""
    limiter = limiter(max_untracked_age=0.0)
    limiter.allow("k", cost=3)
    assert not limiter.allow("k", block="300ms")
    eventually(lambda: limiter.allow("k", block="300ms").source == "cache")
    first = limiter.block("k", "1ms", unless_blocked=True)
    time.sleep(max(0.0, first - time.time()) + 0.01)
    assert limiter.allow("k", block="300ms").source == "server"
    assert limiter.block("k", "1ms", unless_blocked=True) > time.time()


def test_long_names_take_no_more_memory():
    denials = DenialCache()
    for key in (b"k" * 10_000, b"k" * 10_001):
        denials.learn(denials.ticket(Demand(key, QUOTA, 1), NOW), denial(), NOW)
    assert len(denials) == 2
    assert denials.known(Demand(b"k" * 10_001, QUOTA, 1), NOW) is not None
    denials.forget([b"k" * 10_001])
    known = [denials.known(Demand(b"k" * length, QUOTA, 1), NOW) is not None for length in (10_000, 10_001)]
    assert known == [True, False]
    assert all(len(key) < 100 for shard in denials._shards for key in shard.quotas)


@pytest.mark.parametrize("number, max_keys", [
    (20_000, 2000), pytest.param(1_000_000, 100_000, marks=pytest.mark.long),
])
def test_many_of_them(number, max_keys):
    """The oldest are forgotten."""
    denials = DenialCache(max_keys)
    for one in range(number):
        demand = Demand(b"%d" % one, QUOTA, 1)
        denials.learn(denials.ticket(demand, NOW), denial(), NOW)
    assert 0.9 * max_keys < len(denials) <= max_keys
    assert denials.known(Demand(b"%d" % (number - 1), QUOTA, 1), NOW) is not None
    assert denials.known(Demand(b"0", QUOTA, 1), NOW) is None


def test_clients_let_go(server):
    """Neither a client nor a connection is kept when its limiters are gone, closed or not."""
    before = server.client().info("clients")["connected_clients"]
    for number in range(10):
        client = redis.Redis(port=server.port)
        limiter = swlimit.Limiter(client, 1, "1m", "1s", timeout=2.0)
        for _ in range(3):
            limiter.allow("k")
        if number % 2:
            limiter.close()
        gone = weakref.ref(client)
        del limiter, client
        eventually(lambda: gc.collect() is None or gone() is None)
    eventually(lambda: server.client().info("clients")["connected_clients"] <= before + 1)
