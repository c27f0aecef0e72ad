"""The machine's clock is set while limits are in force: nothing comes back sooner or later for that."""

import time
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from support.waiting import eventually

REAL = time.time
HOUR = 3600
SOON = 600  # more than any test lasts, and less than the clock is set by


@contextmanager
def set_by(hours):
    with patch("time.time", lambda: REAL() + hours * HOUR):
        yield


@pytest.fixture(params=[1, -1], ids=["forward", "back"])
def hours(request):
    return request.param


def test_denials(limiter, hours):
    """A known denial lasts as long as it did, and ends when it would have."""
    long, short = limiter(1, "1d", "1h"), limiter(1, "2s", "1s")
    for one, key in ((long, "l"), (short, "s")):
        eventually(lambda one=one, key=key: one.allow(key).source == "cache")
    before = long.allow("l").retry_after
    with set_by(hours):
        after = long.allow("l")
        assert after.source == "cache" and before - SOON < after.retry_after <= before
        eventually(lambda: short.allow("s").granted)


def test_windows_of_the_process(kind, limiter, hours):
    """Also those that decide while the server is away, and blocks."""
    away = limiter(2, "1d", "1h", client=kind.client(kind.lazy, port=1), local_share=0.5, timeout=0.2)
    for one, source in ((kind.limiter(None, 1, "1d", "1h"), "local"), (away, "failure")):
        assert one.allow("k")
        before = one.allow("k").retry_after
        with set_by(hours):
            after = one.allow("k")
            assert (after.granted, after.source) == (0, source) and before - SOON < after.retry_after <= before
    local = kind.limiter(None, 1, "1d", "1h")
    with set_by(hours):
        assert abs(local.block("b", "2h") - time.time() - 2 * HOUR) < SOON
    assert HOUR < local.allow("b").retry_after <= 2 * HOUR


def test_holds(kind, server, hours):
    limiters = [kind.hold_limiter(kind.client(kind.redis, port=server.port), 1, "30s", timeout=2.0),
                kind.hold_limiter(None, 1, "30s")]
    for one in limiters:
        guard = one.hold("k")
        with set_by(hours):
            assert guard.is_live and not one.hold("k")
        kind.call(guard.release)
        one.close()


def test_budgets(kind, server, hours):
    """The calendar goes by the clock. What is counted stays until the end that was in force when it was."""
    client = kind.client(kind.redis, port=server.port)
    for one in (kind.budget_limiter(client, 10, "day", timeout=2.0), kind.budget_limiter(None, 10, "day")):
        noon = one.period_at(int(REAL() * 1000)).end / 1000 - 12 * HOUR
        with patch("time.time", lambda noon=noon: noon):
            assert one.allow("k").remaining == 9
        with patch("time.time", lambda noon=noon: noon + hours * HOUR):
            decision = one.allow("k")
            assert decision.remaining == 8
        one.close()
    with patch("time.time", lambda: noon):
        local = kind.budget_limiter(None, 10, "hour")
        assert local.allow("k").remaining == 9
    with patch("time.time", lambda: noon + hours * HOUR):
        assert local.allow("k").remaining == (9 if hours > 0 else 8), "the next hour has begun, or this one goes on"
