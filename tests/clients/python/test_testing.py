"""What programs test their limits with: the clock, the fakes, the fixtures."""

import asyncio
import math
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import freezegun
import pytest
import redis
import redis.asyncio
import time_machine

import swlimit
from support.server import ROOT
from swlimit.testing import AsyncFakeLimiter, FakeLimiter, TestClock

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[FakeLimiter, AsyncFakeLimiter], ids=["threads", "asyncio"])
def fake(request):
    return request.param(10, "1m", prefix="p:")


def outcome(call):
    """Of a call of either kind."""
    if hasattr(call, "__await__"):
        async def main():
            return await call
        return asyncio.run(main())
    return call


def test_a_window_slides_when_the_test_says_so(kind):
    clock = TestClock()
    limiter = kind.driven(clock, 3, "1m", "1s")
    assert [limiter.allow("k").granted for _ in range(4)] == [1, 1, 1, 0]
    assert limiter.allow("k").retry_after == 60.334  # the oldest second slides out little by little
    clock.advance("60333ms")
    assert limiter.allow("k").retry_after == 0.001
    clock.advance(timedelta(milliseconds=1))
    assert limiter.allow("k").granted and not limiter.allow("k")
    clock.advance(120)
    assert limiter.record("k", 3, age="30s").remaining == 0 and limiter.refund("k", 2) == 2
    assert limiter.block("k", "10s") == clock.now.timestamp() + 10
    assert not limiter.allow("k")
    clock.advance(10)
    assert limiter.allow("k").granted


def test_a_wait_moves_the_clock(kind):
    clock = TestClock()
    limiter = kind.driven(clock, 1, "1h", "1m")
    assert limiter.acquire("k").granted and clock.now == NEW_YEAR
    assert not limiter.acquire("k", timeout="30m")
    assert clock.now == NEW_YEAR
    assert limiter.acquire("k", timeout="2h").granted
    assert clock.now == NEW_YEAR + timedelta(minutes=61)


def test_those_who_wait_together():
    clock = TestClock()

    async def main():
        async with clock.async_limiter(1, "1m", "1s") as limiter:
            return await asyncio.gather(*(limiter.acquire("k", timeout="1d") for _ in range(20)))
    assert all(asyncio.run(main()))
    assert clock.now == NEW_YEAR + timedelta(seconds=19 * 61)

    with clock.limiter(1, "1m", "1s") as limiter:
        threads = [threading.Thread(target=limiter.acquire, args=("k", 1, "1d")) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert limiter.statistics.local >= 20


def test_several_limits_and_budgets(kind):
    clock = TestClock(datetime(2026, 1, 31, 23, 59, tzinfo=UTC))
    limits = kind.limits(None, "2/minute; 3/hour")
    budget = kind.budget_limiter(None, 1, "month")
    for one in (limits, budget):
        assert clock.drive(getattr(one, "limiter", one)) is getattr(one, "limiter", one)
    assert [bool(limits.allow("k")) for _ in range(3)] == [True, True, False]
    assert [budget.allow("k").granted for _ in range(2)] == [1, 0]
    clock.advance("65s")
    assert [bool(limits.allow("k")) for _ in range(2)] == [True, False]
    assert budget.allow("k").granted


def test_an_admission_goes_by_the_clock(kind):
    clock = TestClock()
    limiter = kind.driven(clock, 2, "1m", "1s")
    admission = kind.admit([limiter.request("k", 2)])
    assert admission.granted and not kind.admit([limiter.request("k")]).granted
    clock.advance("61s")
    assert kind.admit([limiter.request("k")]).granted


def test_a_settlement_goes_by_the_clock(kind):
    """What was not used goes back to when it was counted, and not to what others have counted since."""
    clock = TestClock(datetime(2026, 1, 31, 23, 59, tzinfo=UTC))
    rate, budget = kind.driven(clock, 5, "1h", "1s"), kind.budget_limiter(None, 5, "month")
    clock.drive(getattr(budget, "limiter", budget))

    def admitted():
        admission = kind.admit([rate.request("k", 2), budget.request("b", 2)])
        assert admission.granted
        return admission

    early, late = admitted(), admitted()
    clock.advance("30s")
    assert kind.call(early.settle, 0, 1) == [-2, -1]
    clock.advance("2h")
    other = admitted()
    assert kind.call(late.settle, 0, 0) == [0, 0]
    assert (rate.peek("k").remaining, budget.peek("b").remaining) == (3, 3)
    assert kind.call(other.settle, 3, 0) == [1, -2]
    assert (rate.peek("k").remaining, budget.peek("b").remaining) == (2, 5)


def test_the_clock_refuses(kind, server):
    with pytest.raises(ValueError, match="start must have a time zone"):
        TestClock(datetime(2026, 1, 1))
    for wrong in (-1, "soon", math.inf):
        with pytest.raises(ValueError, match="duration must be"):
            TestClock().advance(wrong)
    with pytest.raises(ValueError, match="a server decides by its own clock"):
        TestClock().drive(swlimit.Limiter(redis.Redis(port=server.port), 1, "1m"))


@pytest.mark.parametrize("freeze", [
    lambda: freezegun.freeze_time("2030-01-01"), lambda: time_machine.travel("2030-01-01", tick=False)],
    ids=["freezegun", "time-machine"])
def test_the_clock_ignores_those_that_are_frozen(freeze):
    clock = TestClock()
    with freeze() as frozen:
        limiter = clock.limiter(1, "1m", "1s")
        assert [limiter.allow("k").granted for _ in range(2)] == [1, 0]
        (frozen.tick if hasattr(frozen, "tick") else frozen.shift)(3600)
        assert not limiter.allow("k")
        clock.advance("61s")
        assert limiter.allow("k").granted
        assert limiter.acquire("k", timeout="2m").granted
    assert not limiter.allow("k")


def test_a_server_while_clocks_are_frozen(server):
    """As the page says."""
    client, limits = redis.Redis(port=server.port), (2, "1h", "1m")
    for frozen in (freezegun.freeze_time("2030-01-01", ignore=["swlimit"]),
                   time_machine.travel("2030-01-01", tick=False)):
        with frozen, swlimit.Limiter(client, *limits, timeout="5s") as limiter:
            assert limiter.allow("k").source == limiter.peek("k").source == "server"

    async def main():
        async with swlimit.AsyncLimiter(redis.asyncio.Redis(port=server.port), *limits, timeout="5s") as limiter:
            return [(await limiter.allow("c")).source for _ in range(2)]
    with freezegun.freeze_time("2030-01-01", ignore=["swlimit"], real_asyncio=True):
        assert asyncio.run(main()) == ["server"] * 2


def test_a_fake_denies_on_demand(fake):
    assert outcome(fake.allow("a", 3)) == (3, 10, 7, 0.0, 65.0, 60.0, "local", False)
    fake.deny("30s")
    assert outcome(fake.allow("a")) == (0, 10, 0, 30.0, 30.0, 60.0, "local", False)
    assert outcome(fake.acquire("b", timeout="1h")).granted == 0
    fake.grant("b")
    assert (outcome(fake.peek("b")).granted, outcome(fake.peek("a")).granted) == (1, 0)
    fake.grant()
    for never in (None, math.inf):
        fake.deny(never, "b")
        assert outcome(fake.allow("b")).never
    assert outcome(fake.allow("a")).granted
    fake.deny()
    outcome(fake.block("b", "1h"))
    fake.grant()
    assert outcome(fake.allow("b")).granted


def test_a_fake_remembers_its_calls(fake):
    for call in (fake.allow("a", 2), fake.peek("a"), fake.record("a", 3), fake.acquire("a"), fake.refund("a", 2),
                 fake.block("a", "1m"), fake.unblock("a"), fake.reset("a")):
        outcome(call)
    assert fake.calls == [
        ("allow", "p:a", 2), ("peek", "p:a", 1), ("record", "p:a", 3), ("acquire", "p:a", 1), ("refund", "p:a", 2),
        ("block", "p:a", 0), ("unblock", "p:a", 0), ("reset", "p:a", 0)]


def test_a_fake_of_several(fake):
    other = type(fake)()
    both = fake.request("a", 2), other.request("b")
    assert outcome(swlimit.allow_all(*both))
    other.deny(5)
    denied = outcome(swlimit.allow_all(*both))
    assert not denied and denied.retry_after == 5
    assert fake.calls == [("allow", "p:a", 2)] * 2 and other.calls == [("allow", "b", 1)] * 2


def test_a_fake_limits_functions():
    fake = FakeLimiter()

    @fake.limit(lambda number: f"n:{number}", timeout="1h")
    def work(number):
        return number

    assert work(1) == 1
    fake.deny()
    with pytest.raises(swlimit.DeniedError):
        work(2)
    assert [call.key for call in fake.calls] == ["n:1", "n:2"]


FIXTURES = """
def test_it(swlimit_clock, fake_limiter, async_fake_limiter):
    limiter = swlimit_clock.limiter(1, "1m")
    fake_limiter.deny()
    assert limiter.allow("k") and not fake_limiter.allow("k") and async_fake_limiter.calls == []
"""


@pytest.mark.parametrize("words, head, asked", [
    ([], "", False), (["-p", "swlimit.testing.pytest"], "", True),
    ([], "pytest_plugins = ['swlimit.testing.pytest']", True)], ids=["not", "by option", "by name"])
def test_fixtures_are_there_where_they_are_asked_for(tmp_path, words, head, asked):
    (tmp_path / "conftest.py").write_text(head)
    (tmp_path / "test_it.py").write_text(FIXTURES)
    done = subprocess.run([sys.executable, "-m", "pytest", "-W", "error", *words], cwd=tmp_path, capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src/clients/python")})
    assert ("1 passed" in done.stdout, "fixture 'swlimit_clock' not found" in done.stdout) == (asked, not asked), (
        done.stdout + done.stderr)
