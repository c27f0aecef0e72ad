"""One decision of rates, budgets and a hold, and its settlement."""

import asyncio
import contextlib
import time

import pytest
import redis
import redis.asyncio

import swlimit
from support.relay import Relay
from support.waiting import eventually

from .scripted import speaking


class Plan:
    """What a request to a language model takes: one of so many at once, one of so many a minute, and tokens a month."""

    def __init__(self, kind, client, **options):
        options = {"timeout": 2.0} | options
        self.kind = kind
        self.streams = kind.hold_limiter(client, 2, **options)
        self.requests = kind.limiter(client, 5, "1m", "1s", **options)
        self.tokens = kind.budget_limiter(client, 1000, "month", **options)

    def admit(self, tokens=300, **options):
        return self.kind.admit([self.requests.request("{u}:requests"), self.streams.request("{u}:streams"),
                                self.tokens.request("{u}:tokens", tokens)], **options)

    def left(self):
        """Requests and tokens that remain, and holds that are live."""
        with speaking(self.server) as connection:
            live = connection.call("SWLIMIT.HOLDERS", "{u}:streams")
            tokens = connection.call("SWLIMIT.BUDGET", "{u}:tokens", 1000, 2_000_000_000_000, "COST", 1001)
            requests = connection.call("SWLIMIT.PEEK", "{u}:requests", 5, "1m", "1s")
        return requests[2], tokens[2], len(live)

    def close(self):
        for one in (self.streams, self.requests, self.tokens):
            one.close()


@pytest.fixture
def plans(kind, server):
    made = []

    def plans(port=None, **options):
        client = None if port == 0 else kind.client(kind.redis if port is None else kind.lazy, port=port or server.port)
        made.append(Plan(kind, client, **options))
        made[-1].server = server
        return made[-1]

    yield plans
    for one in made:
        one.close()


def test_admitted_and_settled(plans, kind):
    plan = plans()
    admission = plan.admit()
    rate, hold, budget = admission.each
    assert admission.granted and (rate.remaining, hold.remaining, budget.remaining) == (4, 1, 700)
    assert admission.hold.is_live and admission.hold.token == hold.token
    assert plan.left() == (4, 700, 1)
    assert kind.call(admission.settle, 1, 120) == [0, -180]
    assert kind.call(admission.settle, 1, 120) is None
    assert not admission.hold.is_live and plan.left() == (4, 880, 0)
    beyond = plan.admit()
    assert kind.call(beyond.settle, 0, 400) == [-1, 100]
    assert plan.left() == (4, 480, 0)
    assert plan.requests.statistics.server == plan.tokens.statistics.server == 2


def test_denied_together(plans, kind):
    plan = plans()
    first = plan.admit(900)
    denied = plan.admit(101)
    assert not denied and denied.hold is None and [bool(one) for one in denied.each] == [True, True, False]
    assert denied.retry_after == denied.each[2].retry_after > 0
    assert plan.left() == (4, 100, 1)
    assert kind.call(denied.settle, 1, 1) is None
    second = plan.admit(1)
    assert second.granted and not plan.admit(1)
    kind.call(first.hold.release)
    assert plan.left() == (3, 99, 1), "what is not settled stays counted as it was asked for"


def test_a_hold_that_has_ended_settles_what_was_used_beyond(plans, kind, server):
    plan = plans()
    admission = plan.admit()
    with speaking(server) as connection:
        assert connection.call("SWLIMIT.RELEASE", "{u}:streams", admission.hold.id) == 1
    assert kind.call(admission.settle, 1, 350) is None
    assert plan.left() == (4, 650, 0)


def test_an_id_is_for_one_admission(plans):
    """Asked again with it, as after an error: nothing is counted twice."""
    plan = plans()
    admission = plan.admit(id=b"request-7")
    again = plan.admit(id=b"request-7")
    assert again.granted and again.hold.token == admission.hold.token
    assert plan.left() == (4, 700, 1)


def test_the_server_goes_away_between(plans, kind, server):
    """A settlement whose reply is lost happens once; so does one that could not be sent."""
    with Relay(server.port) as relay:
        plan = plans(relay.port, timeout=0.5, on_failure="deny")
        eventually(lambda: plan.streams.hold("warm").source == "server")
        first, second = eventually(plan.admit), eventually(plan.admit)
        relay.delay = 2.0
        assert kind.call(first.settle, 1, 100) in (None, [0, -200])
        relay.delay = 0.0
        eventually(plan.left, (3, 600, 1))
        relay.swallows = True
        eventually(lambda: not plan.requests.allow("{u}:x") and plan.streams.servers()[0].state == "away")
        assert kind.call(second.settle, 1, 320) is None
        relay.swallows = False
        eventually(plan.left, (3, 580, 0))


def test_what_nobody_heard_of_is_undone(plans, server):
    """The server admits, and the reply is lost: nothing stays counted."""
    with Relay(server.port) as relay:
        plan = plans(relay.port, timeout=0.5, on_failure="error")
        eventually(lambda: plan.streams.hold("warm").source == "server")
        relay.delay = 3.0
        for _ in range(20):
            with contextlib.suppress(swlimit.ServerAway):
                plan.admit(1)
        relay.delay = 0.0
        eventually(lambda: plan.left()[2], 0)
        assert plan.left()[:2] != (0, 0)


def test_without_a_hold(plans, kind):
    plan = plans()

    def admit(tokens):
        return kind.admit([plan.requests.request("{u}:requests"), plan.tokens.request("{u}:tokens", tokens)])

    admission = admit(300)
    assert admission.granted and admission.hold is None
    assert kind.call(admission.settle, 0, 100) == [-1, -200]
    assert kind.call(admission.settle, 0, 100) is None
    assert kind.call(admit(10).settle, 3, 30) == [2, 20]
    assert plan.left() == (2, 870, 0)


@pytest.mark.parametrize("port", [0, 1])
def test_without_a_server(plans, kind, port):
    """All or nothing in this process too, with a part of the limits where there should be a server."""
    plan = plans(port, local_share=1)
    admissions = [plan.admit(400) for _ in range(3)]
    assert [bool(one) for one in admissions] == [True, True, False]
    assert {one.source for one in admissions[0].each} == {"local" if port == 0 else "failure"}
    assert admissions[0].hold.token is None
    assert kind.call(admissions[0].settle, 1, 150) == [0, -250]
    assert not admissions[0].hold.is_live
    third = plan.admit(1)
    assert [one.remaining for one in third.each] == [2, 0, 449]
    assert not plan.admit(1)


def test_policies(plans):
    assert plans(1, on_failure="allow").admit().granted
    assert not plans(1, on_failure="deny").admit()
    with pytest.raises(swlimit.ServerAway):
        plans(1, on_failure="error").admit()


def test_what_is_wrong_is_refused(plans, kind):
    plan, other = plans(), plans()
    with pytest.raises(TypeError, match="one or more"):
        kind.admit([])
    with pytest.raises(TypeError, match="admit takes"):
        kind.admit(["k"])
    with pytest.raises(ValueError, match="one client"):
        kind.admit([plan.requests.request("a"), other.tokens.request("b")])
    with pytest.raises(ValueError, match="one hold"):
        kind.admit([plan.streams.request("a"), plan.streams.request("b")])
    with pytest.raises(ValueError, match="named twice"):
        kind.admit([plan.requests.request("a"), plan.tokens.request("a")])
    with pytest.raises(ValueError, match="id must be"):
        plan.admit(id=b"")
    with pytest.raises(ValueError, match="units of 2 requests"):
        kind.call(plan.admit().settle, 1)


def test_contexts(server):
    client = redis.Redis(port=server.port)
    streams, rate = swlimit.HoldLimiter(client, 1, timeout=2.0), swlimit.Limiter(client, 9, "1m", timeout=2.0)
    requests = [streams.request("{k}s"), rate.request("{k}r", 2)]
    with swlimit.admit(requests) as admission:
        with pytest.raises(swlimit.DeniedError, match="{k}s"), swlimit.admit(requests):
            pytest.fail("entered without a grant")
        admission.settle(1)
    with swlimit.admit(requests) as admission:
        pass
    assert not streams.holders("{k}s") and rate.peek("{k}r").remaining == 6

    async def main():
        client = redis.asyncio.Redis(port=server.port)
        async with (swlimit.AsyncHoldLimiter(client, 1, timeout=5.0) as streams,
                    swlimit.AsyncLimiter(client, 9, "1m", timeout=5.0) as rate):
            requests = [streams.request("{k}s"), rate.request("{k}r", 3)]
            async with swlimit.admit(requests) as admission:
                assert await admission.settle(1) == [-2]
            before = (await rate.peek("{k}r")).remaining
            for rounds in range(40):
                task = asyncio.ensure_future(awaited(swlimit.admit(requests)))
                for _ in range(1 + rounds % 8):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    await task.result().settle(0)
            ends = time.monotonic() + 20
            while (await rate.peek("{k}r")).remaining < before or await streams.holders("{k}s"):
                assert time.monotonic() < ends
            assert (await rate.peek("{k}r")).remaining == before
    asyncio.run(main())


async def awaited(something):
    return await something
