"""What is wrong is refused at once, with a sentence that says what must be there."""

import asyncio
import math
import threading
from datetime import timedelta
from unittest.mock import patch

import pytest
import redis
import redis.asyncio

import swlimit
from swlimit import AsyncLimiter, Limiter

SYNC, ASYNC = redis.Redis(), redis.asyncio.Redis()


@pytest.mark.parametrize("make, sentence", [
    (lambda: Limiter("redis://localhost", 1, 60), "or a GlideClient or GlideClusterClient of glide_sync, not a str"),
    (lambda: Limiter(ASYNC, 1, 60), "AsyncLimiter is for those of redis.asyncio"),
    (lambda: AsyncLimiter(SYNC, 1, 60), "client must be a redis.asyncio.Redis"),
    (lambda: Limiter(SYNC, "10", 60), "limit must be an integer between 0 and 9007199254740991, not '10'"),
    (lambda: Limiter(SYNC, -1, 60), "limit must be an integer"),
    (lambda: Limiter(SYNC, math.inf, 60), "limit must be an integer"),
    (lambda: Limiter(SYNC, 1, "5 minutes"), "window must be a duration such as 60, 500ms, 5m, 1h or 7d"),
    (lambda: Limiter(SYNC, 1, math.inf), "window must be"),
    (lambda: Limiter(SYNC, 1, math.nan), "window must be"),
    (lambda: Limiter(SYNC, 1, None), "window must be a text such as 500ms or 1h, seconds or a timedelta, not None"),
    (lambda: Limiter(SYNC, 1, [60]), "window must be a text"),
    (lambda: Limiter(SYNC, 1, 60, 7), "resolution must divide the window evenly"),
    (lambda: Limiter(SYNC, 1, "1000001ms", "1ms"), "window / resolution is 1000001 subintervals, above 1000000"),
    (lambda: Limiter(SYNC, 1, 60, strict="yes"), "strict must be True or False"),
    (lambda: Limiter(SYNC, 1, 60, mode="denials"), "mode must be 'cached', 'direct', 'local', not 'denials'"),
    (lambda: Limiter(SYNC, 1, 60, mode="local"), "mode 'local' needs no client"),
    (lambda: Limiter(None, 1, 60, mode="cached"), "mode 'cached' needs a client"),
    (lambda: Limiter(SYNC, 1, 60, on_failure="open"),
     "on_failure must be 'local', 'allow', 'deny', 'error', not 'open'"),
    (lambda: Limiter(SYNC, 1, 60, local_share=0), "local_share must be above 0 and at most 1, not 0"),
    (lambda: Limiter(SYNC, 1, 60, local_share="0.1"), "local_share must be"),
    (lambda: Limiter(SYNC, 1, 60, timeout=None), "timeout must be a text such as"),
    (lambda: Limiter(SYNC, 1, 60, timeout=0), "timeout must be a duration"),
    (lambda: Limiter(SYNC, 1, 60, timeout=-1), "timeout must be a duration"),
    (lambda: Limiter(SYNC, 1, 60, max_keys=0), "max_keys must be an integer between 1"),
    (lambda: Limiter(SYNC, 1, 60, max_waiting=2.5), "max_waiting must be an integer"),
    (lambda: Limiter(SYNC, 1, 60, prefix=7), "prefix must be str or bytes, not 7"),
    (lambda: swlimit.allow_all(), "allow_all takes one or more of what `limiter.request"),
    (lambda: swlimit.allow_all("k"), "allow_all takes one or more"),
    (lambda: swlimit.allow_all(Limiter(None, 1, 60).request("k"), AsyncLimiter(None, 1, 60).request("k")), "all of"),
])
def test_limiters(make, sentence):
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    assert sentence in str(raised.value)


@pytest.mark.parametrize("ask, sentence", [
    (lambda one: one.allow(42), "key must be str or bytes, not 42"),
    (lambda one: one.allow(None), "key must be str or bytes, not None"),
    (lambda one: one.allow("k", 0), "cost must be an integer between 1"),
    (lambda one: one.allow("k", 1.5), "cost must be an integer"),
    (lambda one: one.allow("k", block="soon"), "block must be a duration"),
    (lambda one: one.allow("k", limit=-1), "limit must be an integer"),
    (lambda one: one.allow("k", deadline=-1), "deadline must be a duration"),
    (lambda one: one.acquire("k", timeout=[1]), "timeout must be a text"),
    (lambda one: one.acquire("k", timeout=-1), "timeout must be a duration"),
    (lambda one: one.acquire("k", timeout=math.inf), "timeout must be"),
    (lambda one: one.record("k", age=-1), "age must be a duration"),
    (lambda one: one.refund("k", 0), "units must be an integer between 1"),
    (lambda one: one.block("k", 0), "duration must be a duration"),
    (lambda one: one.allow("k", partial="yes"), "partial must be True or False, not 'yes'"),
    (lambda one: one.peek("k", partial=1), "partial must be True or False"),
    (lambda one: one.block("k", 60, unless_blocked=1), "unless_blocked must be True or False"),
    (lambda one: one.record("k", keep=None), "keep must be True or False"),
    (lambda one: one.request(7), "key must be str or bytes"),
    (lambda one: one.reset(7), "key must be str or bytes"),
])
def test_requests(kind, ask, sentence):
    limiter = kind.limiter(None, 1, 60)
    with pytest.raises((TypeError, ValueError)) as raised:
        ask(limiter)
    assert sentence in str(raised.value)


def test_no_sentence_tells_a_password():
    url = "redis://:secret@localhost"
    for make, client in ((Limiter, url), (AsyncLimiter, url), (Limiter, redis.asyncio.Redis.from_url(url)),
                         (AsyncLimiter, redis.Redis.from_url(url))):
        with pytest.raises(TypeError, match="client must be") as raised:
            make(client, 1, 60)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("timeout", ["1s", 1, 1.0, timedelta(seconds=1)])
def test_durations_are_the_same_everywhere(kind, timeout):
    limiter = kind.limiter(None, 1, timedelta(minutes=1), timeout=timeout)
    assert limiter.acquire("k", timeout=timeout)
    assert limiter.quota.words == (1, "60000ms", "5000ms")


def test_a_limit_of_asyncio_is_no_plain_context():
    with pytest.raises(TypeError, match="async with"), AsyncLimiter(None, 1, 60).limit("k"):
        pass


def test_keys_are_bytes(limiter, server):
    """A str, bytes or a view of them name the same key, with the prefix; the server is asked for that."""
    limiter = limiter(prefix="shop:")
    assert [limiter.allow(key).remaining for key in ("k", b"k", bytearray(b"k"), memoryview(b"other"))] == [2, 1, 0, 2]
    assert sorted(server.cli("KEYS", "*").split()) == ["shop:k", "shop:other"]


def test_a_limit_for_one_request(kind, limiter):
    limiter = limiter(2)
    assert limiter.allow("k", limit=10, cost=5).remaining == 5
    assert not limiter.allow("k")
    assert limiter.peek("k", limit=6).granted
    decision = kind.allow_all(limiter.request("k", limit=7), limiter.request("l"))
    assert [member.limit for member in decision.members] == [7, 2]


def test_reset(limiter, server):
    limiter = limiter()
    assert limiter.allow("k", cost=3) and not limiter.allow("k")
    assert limiter.reset("k") is True
    assert limiter.allow("k", cost=3)
    assert limiter.reset("missing") is False


def test_a_limiter_that_is_closed(kind, limiter):
    for one in (limiter(), kind.limiter(None, 1, 60)):
        one.close()
        for ask in (one.allow, one.acquire, one.refund, one.reset, one.request):
            with pytest.raises(swlimit.SwlimitError, match="the limiter is closed"):
                ask("k")
        one.close()


def test_a_process_that_gets_no_more_threads(server):
    """Requests are decided by the policy, and not for longer than that lasts."""
    limiter = Limiter(redis.Redis(port=server.port), 10, 60, timeout=5.0, on_failure="deny")
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        assert [limiter.allow("k").source for _ in range(5)] == ["failure"] * 5
    assert limiter.allow("k").source == "server"
    limiter.close()


def test_signatures_are_told():
    import inspect
    for kind in (Limiter, AsyncLimiter):
        assert list(inspect.signature(kind.allow).parameters)[:3] == ["self", "key", "cost"]
        assert "units" in kind.allow.__doc__ and kind.allow.__name__ == "allow"


def test_nothing_keeps_a_program_from_ending(server):
    """Neither threads nor loops, while the server is there or away."""
    threads = set(threading.enumerate())
    limiter = Limiter(redis.Redis(port=server.port), 1, 60, timeout=1.0)
    limiter.allow("k")
    assert not limiter.allow("k")
    assert all(thread.daemon for thread in set(threading.enumerate()) - threads)

    async def main():
        async with AsyncLimiter(redis.asyncio.Redis(port=server.port), 1, 60, timeout=1.0) as limiter:
            return await limiter.peek("k")
    assert asyncio.run(main()).granted == 0
    limiter.close()
