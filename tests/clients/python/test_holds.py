"""How many at once: guards that renew themselves, are released once, and know when they are lost."""

import asyncio
import gc
import os
import time
from unittest.mock import patch

import pytest
import redis
import redis.asyncio

import swlimit
from support.contents import info
from support.relay import Relay
from support.waiting import eventually
from swlimit._protocol.replies import Failure

from .scripted import speaking

SHORTEST = "3s"


@pytest.fixture
def holds(kind, server):
    """Make a limiter of holds on the server under test: two at once, unless it says otherwise."""
    made = []

    def holds(limit=2, ttl="30s", client=None, **options):
        client = client or kind.client(kind.redis, port=server.port)
        made.append(kind.hold_limiter(client, limit, ttl, **{"timeout": 2.0} | options))
        return made[-1]

    yield holds
    for one in made:
        one.close()


def live(server, key="k"):
    with speaking(server) as connection:
        return connection.call("SWLIMIT.HOLDERS", key)


def end_of(server, guard):
    """When its hold ends, in ms; a renewal moves it."""
    with speaking(server) as connection:
        seconds, micros = map(int, connection.call("TIME"))
        rows = connection.call("SWLIMIT.HOLDERS", guard.key)
    return seconds * 1000 + micros // 1000 + next(row[3] for row in rows if row[0] == guard.id)


def count(server, name):
    return int(info(server, "swlimit")[f"swlimit_{name}"])


def calls_of_renew(server):
    with server.client() as client:
        return client.info("commandstats")["cmdstat_swlimit.renew"]["calls"]


def test_taken_denied_and_released(holds, server, kind):
    limiter = holds()
    first, second, denied = limiter.hold("k"), limiter.hold("k"), limiter.hold("k")
    assert (first.granted, first.limit, first.remaining, first.retry_after, first.source) == (1, 2, 1, 0.0, "server")
    assert first.is_live and first.token < second.token and 20 < first.expires_after <= 30
    assert not denied and not denied.is_live and denied.token is None and 20 < denied.retry_after <= 30
    assert [holder.id for holder in limiter.holders("k")] == [first.id, second.id]
    assert len(first.id) == 16
    kind.call(first.release)
    kind.call(first.release)
    kind.call(denied.release)
    assert not first.is_live and not first.lost.is_set()
    assert [holder.token for holder in limiter.holders("k", 1)] == [second.token]
    assert limiter.hold("k", 2).retry_after is not None
    assert limiter.hold("k", 2, limit=3, ttl="1h").granted == 2
    assert limiter.hold("k", 3).never
    assert limiter.statistics.server == 6


def test_what_is_wrong_is_refused(holds, kind):
    for options in ({"ttl": "2s"}, {"limit": -1}, {"on_failure": "shrug"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
            holds(**options)
    limiter = holds()
    for options in ({"ttl": 2}, {"cost": 0}, {"wait": "2h"}, {"limit": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
            limiter.hold("k", **options)
    other = (redis if kind.name == "asyncio" else redis.asyncio).Redis()
    with pytest.raises(TypeError, match="client must be a redis"):
        holds(client=other)


def test_all_holds_of_a_key_are_renewed_in_one_command(holds, server):
    server.cli("CONFIG", "RESETSTAT")
    limiter, before = holds(10, ttl="6s"), count(server, "renewed")
    guards = [limiter.hold("k") for _ in range(5)] + [limiter.hold("other")]
    for round_ in (1, 2):
        eventually(lambda round_=round_: count(server, "renewed") >= before + 6 * round_)
    assert calls_of_renew(server) <= (count(server, "renewed") - before) // 3 + 1
    assert all(guard.is_live for guard in guards)


def test_a_lost_hold_tells_its_holder(holds, server):
    limiter = holds(ttl=SHORTEST)
    guard = limiter.hold("k")
    with speaking(server) as other:
        assert other.call("SWLIMIT.RELEASE", "k", guard.id) == 1
    eventually(guard.lost.is_set)
    assert not guard.is_live and not live(server)
    again = limiter.hold("k")
    assert again.is_live and again.token > guard.token


def test_a_hold_ends_by_the_clock(holds):
    """At every call: who was suspended finds it over at once, whatever anybody says later."""
    limiter = holds()
    guard = limiter.hold("k")
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    with patch("swlimit._transport.hold_renewer.running", lambda: at + 29.9):
        assert guard.is_live
    with patch("swlimit._transport.hold_renewer.running", lambda: at + 30):
        assert not guard.is_live


def test_the_server_is_away_and_comes_back(kind, holds, server):
    """Holds outlive an outage that is shorter than they are; no breaker keeps them from being renewed."""
    with Relay(server.port) as relay:
        limiter = holds(2, ttl="12s", client=kind.client(kind.redis, port=relay.port), timeout=0.3,
                        on_failure="deny")
        eventually(lambda: limiter.hold("warm").source == "server")
        guard = eventually(lambda: limiter.hold("k"))
        relay.swallows = True
        eventually(lambda: limiter.hold("other").source == "failure" and limiter.servers()[0].state == "unavailable")
        before = end_of(server, guard)
        time.sleep(1)
        relay.swallows = False
        eventually(lambda: end_of(server, guard) > before + 500)
        assert guard.is_live
        assert [row[0] for row in live(server)] == [guard.id]


def test_what_was_never_asked_is_not_released(kind, holds, server):
    """While the server is known to be away, or has refused: nothing is repeated for it, and closing waits for nothing.
    """
    client = kind.client(kind.redis, port=server.port)
    limiter = holds(1, client=client, on_failure="deny")
    assert limiter.hold("warm").source == "server"
    at, = limiter._state.topology.all()
    with patch.object(at.connections, "probe", side_effect=swlimit.UnavailableError("a test")):
        kind.call(at.breaker.open, Failure("other", "a test"))
        for _ in range(3):
            assert limiter.hold("k").source == "failure"
            assert not kind.admit([limiter.request("k")])
    eventually(lambda: limiter.hold("warm", limit=9).source == "server")
    server.cli("CONFIG", "SET", "maxmemory", 1)
    try:
        assert limiter.hold("k").source == "failure"
        assert not kind.admit([limiter.request("k")])
    finally:
        server.cli("CONFIG", "SET", "maxmemory", 0)
    eventually(lambda: not at.renewer._repeated())


def test_by_policy(kind, holds):
    """Without a server: a part of the limit in this process, until it is released."""
    local = holds(20, client=kind.client(kind.lazy, port=1), local_share=0.1, on_failure="local")
    guards = [local.hold("k") for _ in range(3)]
    assert [(guard.granted, guard.limit, guard.token, guard.source) for guard in guards] == [
        (1, 2, None, "failure"), (1, 2, None, "failure"), (0, 2, None, "failure")]
    kind.call(guards[0].release)
    assert local.hold("k") and guards[1].is_live


class Hanging(Relay):
    """Swallows everything from the last of so many times on that a word is sent."""

    def __init__(self, target, word, times):
        super().__init__(target)
        self.word, self.times = word, times

    def asked(self, data):
        self.times -= data.count(self.word)
        self.swallows = self.times <= 0
        return b"" if self.swallows else data


@pytest.mark.parametrize(("word", "times"), [(b"LIB-NAME", 2), (b"\r\nINFO\r\n", 1), (b"WAIT", 1)])
def test_a_wait_ends_in_time_where_the_server_hangs(kind, holds, server, word, times):
    """While the connection to wait on is opened, before it is used, or while it waits."""
    first = holds(1).hold("k")
    with Hanging(server.port, word, times) as relay:
        limiter = holds(1, client=kind.client(kind.redis, port=relay.port), timeout=1)
        before = time.monotonic()
        denied = limiter.hold("k", wait=0.1)
        assert relay.swallows and time.monotonic() - before < 2
        assert first and not denied and denied.source == "server"


@pytest.mark.parametrize("end", ["released", "dropped"])
def test_room_in_this_process_as_one_begins_to_wait(monkeypatch, end):
    """Between its first try and its place in the queue; and a guard that is collected wakes nobody."""
    limiter = swlimit.HoldLimiter(None, 1)
    guards, of = [limiter.hold("k")], limiter._queues.of

    def ends_before(key):
        if guards:
            guard = guards.pop()
            if end == "released":
                guard.release()
        return of(key)

    monkeypatch.setattr(limiter._queues, "of", ends_before)
    before = time.monotonic()
    assert limiter.hold("k", wait=30) and time.monotonic() - before < 25


def test_a_guard_that_is_dropped_is_released(holds, server):
    limiter = holds(1)
    assert limiter.hold("k").granted
    gc.collect()
    eventually(lambda: live(server), [])


def test_closing_releases(holds, server):
    limiter = holds()
    guard = limiter.hold("k")
    limiter.close()
    assert not guard.is_live and guard.lost.is_set() and not live(server)


def test_a_child_owns_none(server):
    with (swlimit.HoldLimiter(redis.Redis(port=server.port), 2, "6s", timeout=5.0) as limiter,
          limiter.hold("k") as guard):
        before = end_of(server, guard)
        child = os.fork()
        if child == 0:
            try:
                assert not guard.is_live
                guard.release()
                with limiter.hold("k") as mine:
                    assert mine.is_live and mine.source == "server" and len(limiter.holders("k")) == 2
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        eventually(lambda: end_of(server, guard) > before + 500)
        assert guard.is_live and [row[0] for row in live(server)] == [guard.id]


def test_contexts_and_decorators(server):
    limiter = swlimit.HoldLimiter(redis.Redis(port=server.port), 1, timeout=2.0)

    @limiter.held(lambda name: f"job:{name}")
    def run(name):
        """Do it."""
        assert live(server, f"job:{name}")
        if name == "nested":
            run(name)
        return name.upper()

    assert run("a") == "A" and not live(server, "job:a") and run.__doc__ == "Do it."
    with pytest.raises(swlimit.DeniedError, match="job:nested") as raised:
        run("nested")
    assert raised.value.decision.retry_after > 20 and not live(server, "job:nested")
    with pytest.raises(KeyError), limiter.hold("k") as guard:
        raise KeyError(guard.token)
    assert not live(server)
    limiter.close()


def test_contexts_and_decorators_of_asyncio(server):
    """Released also by a task that is cancelled: while it holds, and while it is taking."""
    async def main():
        async with swlimit.AsyncHoldLimiter(redis.asyncio.Redis(port=server.port), 1, timeout=5.0) as limiter:
            entered = asyncio.Event()

            @limiter.held("k")
            async def work():
                entered.set()
                await asyncio.sleep(600)

            task = asyncio.create_task(work())
            await entered.wait()
            with pytest.raises(swlimit.DeniedError):
                async with limiter.hold("k"):
                    pytest.fail("entered without a grant")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await limiter.holders("k")
            for rounds in range(40):
                task = asyncio.create_task(limiter._hold(b"k"))
                for _ in range(rounds % 8):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    await task.result().release()
            await asyncio.to_thread(eventually, lambda: live(server), [])
            guard = await limiter.hold("k")
            waiting = asyncio.create_task(limiter._hold(b"k", wait="10m"))
            await asyncio.to_thread(eventually, lambda: count(server, "waiting"), 1)
            waiting.cancel()
            await asyncio.wait([waiting])
            await guard.release()
            await asyncio.to_thread(eventually, lambda: live(server), [])
    asyncio.run(main())


def test_no_module(start, kind):
    plain = start(module=None)
    limiter = kind.hold_limiter(kind.client(kind.redis, port=plain.port), 1, timeout=2.0, module="always")
    with pytest.raises(swlimit.ModuleMissing, match=r"no command SWLIMIT\.HOLD"):
        limiter.hold("k")
    limiter.close()
