"""Limits that rise after idleness, wherever they are decided: the vectors say how, the scenarios what is sent."""

import pytest
from redis import ResponseError

import swlimit
from support.comparing import NOW
from swlimit._protocol.replies import is_unknown_warm_up


@pytest.mark.parametrize("options, error", [
    ({"warm_up": "9s"}, "warm_up must be at least ten times the window"),
    ({"warm_up": "soon"}, "warm_up must be a duration"),
    ({"cold": 2}, "cold needs warm_up"),
    *(({"warm_up": "10s", "cold": cold}, "cold must be an integer between 2 and 1000")
      for cold in (1, 1001, 2.0, True)),
])
def test_wrong_options(kind, options, error):
    with pytest.raises(ValueError, match=error):
        kind.limiter(None, 120, "1s", **options)


@pytest.fixture(params=["module", "script", "process"])
def limiters(kind, server, request):
    """Makes limiters that have one client."""
    client = None if request.param == "process" else kind.client(kind.redis, port=server.port)
    options = {} if client is None else {"mode": "direct", "module": "never" if request.param == "script" else "always",
                                         "timeout": 5.0}
    made = []

    def limiters(make=kind.limiter, *quota, **more):
        made.append(make(client, *quota, **options | more))
        return made[-1]

    yield limiters
    for one in made:
        one.close()


def test_every_method(kind, limiters):
    limiter = limiters(kind.limiter, 120, "1h", warm_up="10h")
    other = limiters(kind.limiter, 50, "1h")

    def decided(decision):
        return decision.granted, decision.limit, decision.remaining

    assert [decided(limiter.peek("k", cost)) for cost in (1, 60, 121)] == [(1, 40, 40), (60, 60, 60), (0, 40, 40)]
    assert decided(limiter.allow("k", 60)) == (60, 60, 0), "after idleness the first request is granted"
    denied = limiter.allow("k")
    assert decided(denied) == (0, 40, 0)
    assert 3000 < denied.retry_after < 4000 and limiter.allow("k", 121).never
    assert decided(limiter.allow("partial", 100, partial=True)) == (40, 40, 0)
    assert decided(limiter.allow("own", limit=30)) == (1, 10, 9)
    assert decided(limiter.acquire("waits", 30, timeout=1)) == (30, 40, 10)
    assert decided(limiter.acquire("waits", 30, timeout=0.01)) == (0, 40, 10)
    assert [decided(limiter.record("recorded", cost)) for cost in (39, 2)] == [(39, 40, 1), (0, 40, 0)]
    assert limiter.allow("blocks", 40) and not limiter.allow("blocks", block="9h")
    assert limiter.peek("blocks").retry_after > 8 * 3600
    for _ in range(2):
        both = kind.allow_all(limiter.request("{u}1", 30), other.request("{u}2"))
    assert [decided(one) for one in both.members] == [(0, 40, 10), (1, 50, 49)]
    admission = kind.admit([limiter.request("{u}3", 60), other.request("{u}4")])
    assert [decided(one) for one in admission.each] == [(60, 60, 0), (1, 50, 49)]
    kind.call(admission.settle, 35, 1)
    assert decided(limiter.peek("{u}3")) == (1, 40, 5)


@pytest.mark.parametrize("text, is_old", [
    ("syntax error near 'WARMUP'", True),
    ("limit must be an integer between 0 and 9007199254740991", True),
    ("syntax error near 'SOON'", False),
])
def test_what_an_older_module_says(text, is_old):
    words = ["SWLIMIT.MALLOW", "k", 3, "60000ms", "5000ms", 1, "WARMUP", "600000ms"]
    assert is_unknown_warm_up(ResponseError(text), words) == is_old
    assert not is_unknown_warm_up(ResponseError(text), words[:-2])


def test_several_rates(kind, limiters):
    limits = limiters(kind.limits, "10/s; 300/minute", warm_up="10m", cold=5)
    assert [one.limit for one in limits.allow("u").members] == [2, 60]


def test_who_joins_late_is_as_warm(kind, server):
    """The server knows since when a key is in use."""
    first, late = (kind.limiter(kind.client(kind.redis, port=server.port), 120, "1h", timeout=5, warm_up="10h")
                   for _ in range(2))
    now = int(server.cli("TIME").split()[0])
    for hours in range(5, 0, -1):
        server.cli("SWLIMIT.ALLOW", "late", "120", "1h", "5m", "WARMUP", "10h", "AT", str((now - 3600 * hours) * 1000))
    assert [one.allow("late").limit for one in (first, late)] == [80, 80]
    for one in (first, late):
        one.close()


def test_a_local_limit_rises(kind, monkeypatch):
    instants = iter(range(NOW, NOW + 12_001, 500))
    monkeypatch.setattr(swlimit._core.clock.Clock, "instant", lambda self: next(instants))
    limiter = kind.limiter(None, 120, "1s", warm_up="12s")
    limits = [limiter.allow("k").limit for _ in range(25)]
    assert (limits[0], limits[12], limits[24]) == (40, 80, 120)
