"""Quotas of the calendar, on a real server and without one."""

import time
from datetime import datetime
from unittest.mock import patch

import pytest

import swlimit
from swlimit import Calendar


@pytest.fixture
def budgets(kind, server):
    """Make a limiter of budgets on the server under test: ten a year, unless it says otherwise."""
    made = []

    def budgets(limit=10, period="year", *words, client=None, **options):
        client = client or kind.client(kind.redis, port=server.port)
        made.append(kind.budget_limiter(client, limit, period, *words, **{"timeout": 2.0} | options))
        return made[-1]

    yield budgets
    for one in made:
        one.close()


def test_granted_until_the_period_ends(budgets, server):
    limiter = budgets(10, "month", "Europe/Berlin", 15, prefix="plan:")
    decision = limiter.allow("a", 9)
    end = limiter.period_at(int(time.time() * 1000)).end
    assert (decision.granted, decision.limit, decision.remaining, decision.source) == (9, 10, 1, "server")
    assert 27.9 <= decision.window / 86_400 <= 31.1
    denied = limiter.allow("a", 2)
    assert not denied and denied.retry_after == pytest.approx(end / 1000 - time.time(), abs=60)
    assert denied.headers()["RateLimit-Policy"].startswith('"default";q=10;w=2')
    assert limiter.allow("a", 2, partial=True).granted == 1
    assert limiter.allow("a", 11).never
    assert limiter.allow("a", 2, limit=12).remaining == 0
    assert limiter.record("a", 5).granted == 0
    assert limiter.refund("a", 7, age="1h") == 0
    assert limiter.refund("a", 7, age=0) == 7
    assert limiter.refund("a") == 1
    with server.client() as client:
        assert client.pexpiretime("plan:a") == end
        assert datetime.fromtimestamp(end / 1000, tz=Calendar("day", "Europe/Berlin")._zone).day == 15
    assert limiter.reset("a") and not limiter.reset("a")
    assert limiter.allow("a").remaining == 9


@pytest.mark.parametrize("where", ["module", "script", "local"])
def test_a_peek_counts_nothing(kind, budgets, where):
    options = {"module": {"module": "always"}, "script": {"module": "never"}}
    limiter = kind.budget_limiter(None, 10, "year") if where == "local" else budgets(10, **options[where])
    fresh = limiter.peek("k", 10)
    assert (fresh.granted, fresh.limit, fresh.remaining, fresh.retry_after, fresh.reset_after) == (10, 10, 10, 0, 0)
    assert limiter.peek("k", 11).never
    counted = limiter.allow("k", 7)
    some = limiter.peek("k", 3)
    assert (some.granted, some.remaining, some.window) == (3, 3, counted.window)
    assert some.reset_after == pytest.approx(counted.reset_after, abs=60)
    denied = limiter.peek("k", 4)
    assert (denied.granted, denied.remaining) == (0, 3)
    assert denied.retry_after == pytest.approx(counted.reset_after, abs=60)
    assert limiter.peek("k", 4, partial=True).granted == 3
    assert limiter.peek("k", 4, limit=20).remaining == 13
    assert limiter.allow("k", 3).remaining == 0
    end = limiter.period_at(int(time.time() * 1000)).end
    with patch("swlimit._core.clock.shown", lambda: end):
        assert limiter.peek("k").remaining == 10
    for wrong in ({"cost": 0}, {"partial": 1}, {"limit": -1}):
        with pytest.raises((TypeError, ValueError)):
            limiter.peek("k", **wrong)


def test_a_peek_at_what_is_no_budget(budgets, server):
    server.cli("SWLIMIT.ALLOW", "k", 5, "1m", "1s")
    with pytest.raises(swlimit.RefusedError, match="^WRONGTYPE "):
        budgets().peek("k")


def test_a_clock_that_is_behind_asks_with_the_next_period(budgets, server):
    """Right after a period's end the server says that it is over."""
    limiter = budgets(10, "day")
    start = limiter.period_at(int(time.time() * 1000)).start
    with patch("swlimit._core.clock.shown", lambda: start - 500):
        assert limiter.allow("k").remaining == 9
    with server.client() as client:
        assert client.pexpiretime("k") > start


@pytest.mark.parametrize("words", [("month",), ("week", "America/New_York", "sunday")])
def test_without_a_server(kind, words):
    limiter = kind.budget_limiter(None, 3, *words)
    start, end = limiter.period_at(int(time.time() * 1000))
    with patch("swlimit._core.clock.shown", lambda: end - 1000):
        assert [limiter.allow("k", 2, partial=True).granted for _ in range(3)] == [2, 1, 0]
        assert limiter.allow("k").retry_after == 1.0 and limiter.allow("k", 4).never
        assert limiter.record("k", 2).remaining == 0 and limiter.refund("k", 4) == 4
        assert limiter.allow("k").remaining == 1
        assert limiter.statistics.local == 7
    with patch("swlimit._core.clock.shown", lambda: end):
        assert limiter.allow("k").remaining == 2
        assert limiter.reset("k") and not limiter.reset("k")


def test_by_policy(kind, budgets):
    def away(**options):
        return budgets(20, client=kind.client(kind.lazy, port=1), **options)

    local = away(local_share=0.1)
    assert [local.allow("k").granted for _ in range(3)] == [1, 1, 0]
    assert local.statistics.failure == 3
    assert local.peek("k").remaining == 0 and local.peek("new").remaining == 2
    assert away(on_failure="allow").allow("k", 7).granted == away(on_failure="allow").peek("k", 7).granted == 7
    assert not away(on_failure="deny").allow("k") and not away(on_failure="deny").peek("k")
    limiter = away(on_failure="error")
    for call in (limiter.allow, limiter.peek, limiter.record, limiter.refund, limiter.reset):
        with pytest.raises(swlimit.UnavailableError):
            call("k")


def test_the_same_on_both_sides(kind, budgets, server):
    """What decides without a server replies what the module replies."""
    remote, local = budgets(7, "month"), kind.budget_limiter(None, 7, "month")
    costs = [(1, False), (3, False), (9, False), (5, True), (2, False), (1, True)]

    def seen(limiter):
        found = [limiter.allow("k", cost, partial=partial) for cost, partial in costs]
        found += [limiter.record("k", 4), limiter.refund("k", 2), limiter.allow("k"), limiter.record("k", 1)]
        return [one if isinstance(one, int) else (one.granted, one.limit, one.remaining, one.window) for one in found]

    assert seen(remote) == seen(local)


def test_what_is_wrong_is_refused(budgets, server):
    for options in ({"period": "decade"}, {"time_zone": "Mars"}, {"anchor": 3}, {"limit": -1}, {"local_share": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
            budgets(**{"period": "day"} | options)
    limiter = budgets()
    with pytest.raises(ValueError, match="cost must be"):
        limiter.allow("k", 0)
    server.cli("SET", "text", "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        limiter.allow("text")
