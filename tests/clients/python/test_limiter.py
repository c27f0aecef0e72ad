"""What limiters offer, each command with its options, on a real server."""

import math
import threading
import time
from unittest.mock import patch

import pytest

import swlimit
from support.cli import ask
from swlimit import DeniedError


def shown(decision):
    return decision.granted, decision.limit, decision.remaining, decision.source


@pytest.mark.parametrize("mode", ["direct", "cached"])
def test_allow_peek_and_deny(limiter, mode):
    limiter = limiter(mode=mode)
    assert shown(limiter.peek("k")) == (1, 3, 3, "server")
    assert [bool(limiter.allow("k")) for _ in range(4)] == [True, True, True, False]
    denied = limiter.peek("k", cost=2)
    assert not denied
    assert shown(denied)[:3] == (0, 3, 0)
    assert 55 < denied.retry_after < denied.reset_after <= 61
    assert limiter.allow("other").granted == 1


def test_a_decision(limiter):
    decision = limiter().allow(b"k", cost=2)
    assert (decision.granted, decision.remaining, decision.retry_after, decision.window) == (2, 1, 0.0, 60.0)
    assert isinstance(decision.reset_after, float)
    with pytest.raises(AttributeError):
        decision.granted = 0
    assert list(decision._fields) == [
        "granted", "limit", "remaining", "retry_after", "reset_after", "window", "source", "never"]


def test_options_of_commands(limiter, server):
    limiter = limiter(10)
    assert limiter.allow("k", cost=12, partial=True).granted == 10
    assert limiter.peek("k", cost=5, partial=True).granted == 0
    assert limiter.refund("k", 4) == 4
    assert limiter.peek("k", cost=5, partial=True).granted == 4
    assert limiter.record("k", cost=20, age="30s").remaining == 0
    assert limiter.refund("k", 5, age=30) == 5
    assert limiter.refund("missing") == 0
    assert limiter.allow("punished", cost=11, block="1h").never
    assert 3590 < limiter.allow("punished").retry_after <= 3600
    assert limiter.record("caught", cost=11, block=0.5).granted == 0
    assert limiter.unblock("punished") is True
    assert limiter.unblock("punished") is False
    assert limiter.allow("punished")
    until = limiter.block("banned", "1h")
    assert limiter.block("banned", "2h", unless_blocked=True) == until == pytest.approx(time.time() + 3600, abs=30)
    assert ask(server, "SWLIMIT.PEEK", "banned", 10, "1m", "1s")[0] == 0


def test_strict(limiter, server):
    """Every command says it."""
    strict, plain = limiter(strict=True), limiter()
    now = int(time.time() * 1000) // 1000 * 1000
    ask(server, "SWLIMIT.RECORD", "k", 3, "1m", "1s", "COST", 3, "AT", now - 60_000)
    server.cli("CONFIG", "RESETSTAT")
    assert strict.peek("k").remaining <= plain.peek("k").remaining
    with server.client() as client, client.monitor() as monitor:
        for call in (strict.allow, strict.peek, strict.record, strict.acquire):
            call("s")
            commands = (seen["command"] for seen in monitor.listen())
            assert next(command for command in commands if "SWLIMIT" in command).endswith("STRICT")


def test_what_is_wrong_is_refused(limiter):
    for option in ({"mode": "guess"}, {"on_failure": "shrug"}, {"local_share": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be"):
            limiter(**option)
    limiter = limiter()
    for call, argument in [(limiter.allow, 0), (limiter.peek, -1), (limiter.record, 1.5), (limiter.refund, 0),
                           (limiter.acquire, 2**53)]:
        with pytest.raises(ValueError, match="must be an integer between 1 and"):
            call("k", argument)
    with pytest.raises(ValueError, match="block must be a duration"):
        limiter.allow("k", block="5 minutes")
    with pytest.raises(ValueError, match="resolution must divide"):
        swlimit.Limiter(None, 1, 60, 7)


def test_a_key_of_another_type(limiter, server):
    server.cli("SET", "text", "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        limiter(on_failure="allow").allow("text")


def test_several_limits_at_once(kind, limiter, server):
    client = kind.client(kind.redis, port=server.port)
    per_second, per_hour = limiter(5, 10, 1, client=client), limiter(3, "1h", "1m", client=client)

    def both(cost=1):
        return kind.allow_all(per_second.request("s", cost), per_hour.request("h"))

    decision = both(cost=2)
    assert decision.granted and [member.remaining for member in decision.members] == [3, 2]
    assert not both(cost=4)
    assert both().members[1].remaining == 1
    assert both()
    denied = both()
    assert not denied and [bool(member) for member in denied.members] == [True, False]
    assert denied.retry_after == denied.tightest.retry_after > 3000
    assert per_second.peek("s").remaining == 1
    with pytest.raises(ValueError, match="one client"):
        kind.allow_all(per_second.request("s"), limiter(strict=True, client=client).request("h"))


def test_decorators_and_contexts(server):
    import redis
    limiter = swlimit.Limiter(redis.Redis(port=server.port), 2, "1m", "1s", timeout=2.0)
    with limiter.limit("k") as decision:
        assert decision.remaining == 1

    @limiter.limit(lambda user, **_: f"user:{user}", cost=2)
    def greet(user, loudly=False):
        """Say hello."""
        return user.upper() if loudly else user

    assert greet("ann", loudly=True) == "ANN"
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")
    with pytest.raises(DeniedError, match="user:ann") as raised:
        greet("ann")
    assert raised.value.decision.retry_after > 50
    assert greet("bob") == "bob"
    with limiter.limit("k"), pytest.raises(DeniedError), limiter.limit("k"):
        pytest.fail("entered without a grant")
    limiter.close()


def test_decorators_and_contexts_of_asyncio(server):
    import asyncio

    import redis.asyncio

    async def main():
        client = redis.asyncio.Redis(port=server.port)
        limiter = swlimit.AsyncLimiter(client, 1, "1m", "1s", timeout=2.0)

        @limiter.limit("call")
        async def call(number):
            return number

        assert await call(7) == 7
        with pytest.raises(DeniedError):
            await call(8)
        async with limiter.limit("k"):
            pass
        with pytest.raises(DeniedError):
            async with limiter.limit("k", timeout=1.0):
                pytest.fail("entered without a grant")
        await limiter.close()
        await client.aclose()

    asyncio.run(main())


def test_threads_share_a_limiter(server):
    import redis
    limiter = swlimit.Limiter(redis.Redis(port=server.port), 100, "1h", "1m", timeout=5.0)
    granted = []

    def work():
        granted.extend(limiter.allow("k").granted for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 100
    counts = limiter.statistics
    assert counts.server + counts.cache == 400 and sum(counts.denied.values()) == 300
    limiter.close()


def test_only_local(kind):
    """A limiter without a server."""
    limiter = kind.limiter(None, 2, "1h", "1m")
    assert [shown(limiter.allow("k")) for _ in range(3)] == [
        (1, 2, 1, "local"), (1, 2, 0, "local"), (0, 2, 0, "local")]
    assert limiter.refund("k") == 1
    assert limiter.record("k", cost=5).granted == 0
    assert limiter.block("b", 60) > 0
    assert not limiter.allow("b")
    assert limiter.unblock("b") is True
    other = kind.limiter(None, 1, "1h", "1m")
    assert kind.allow_all(other.request("o"), other.request("p")).members[1].source == "local"
    assert limiter.statistics.server == 0 < limiter.statistics.local
    assert limiter.statistics.denied == {"server": 0, "cache": 0, "failure": 0, "local": 3}


def test_a_clock_that_is_set_moves_no_window(kind):
    limiter = kind.limiter(None, 1, "1h")
    assert limiter.allow("k")
    with patch("time.time", lambda: 4_000_000_000.0):
        assert not limiter.allow("k")


def test_headers(limiter):
    limiter = limiter(1)
    granted, denied, never = limiter.allow("k"), limiter.allow("k"), limiter.allow("k", cost=2)
    assert granted.headers()["RateLimit-Policy"] == '"default";q=1;w=60'
    assert "Retry-After" not in granted.headers()
    assert int(denied.headers("burst")["Retry-After"]) == math.ceil(denied.retry_after)
    assert denied.headers("burst")["RateLimit"] == f'"burst";r=0;t={math.ceil(denied.reset_after)}'
    assert int(denied.headers()["X-RateLimit-Reset"]) == pytest.approx(time.time() + denied.reset_after, abs=2)
    assert never.never and limiter.peek("k", cost=2).never and never.retry_after is None
    assert "Retry-After" not in never.headers()
