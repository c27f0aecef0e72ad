"""The storages for `limits`, and Flask-Limiter and slowapi on top of them, over HTTP."""

import asyncio
import math
import time

import limits
import pytest
from limits.storage import storage_from_string

import swlimit.limits  # noqa: F401  (the storages register)
from clients.python.serving import serve_asgi, serve_wsgi
from support.cli import ask
from support.http import fetch
from support.waiting import eventually

TEN_A_MINUTE = limits.parse("10/minute")
STRATEGIES = {"moving-window": limits.strategies.MovingWindowRateLimiter,
              "sliding-window-counter": limits.strategies.SlidingWindowCounterRateLimiter}


@pytest.fixture
def uri(server):
    return f"swlimit+redis://127.0.0.1:{server.port}"


@pytest.fixture(params=STRATEGIES)
def strategy(request, uri):
    return STRATEGIES[request.param](storage_from_string(uri))


def test_the_module_decides(strategy, server):
    assert strategy.hit(TEN_A_MINUTE, "ann", cost=7)
    assert strategy.test(TEN_A_MINUTE, "ann", cost=3)
    assert not strategy.test(TEN_A_MINUTE, "ann", cost=4)
    assert not strategy.hit(TEN_A_MINUTE, "ann", cost=4)
    assert strategy.get_window_stats(TEN_A_MINUTE, "ann").remaining == 3
    assert ask(server, "SWLIMIT.PEEK", "swlimit:LIMITER/ann/10/1/minute/window", 10, 60, "5s")[2] == 3
    strategy.clear(TEN_A_MINUTE, "ann")
    assert strategy.get_window_stats(TEN_A_MINUTE, "ann").remaining == 10


def test_denials_are_known(uri, server):
    strategy = STRATEGIES["moving-window"](storage_from_string(uri))
    assert strategy.hit(TEN_A_MINUTE, cost=10)
    calls = "cmdstat_swlimit.allow"

    def asked():
        return server.client().info("commandstats").get(calls, {}).get("calls", 0)

    def known():
        before = asked()
        assert not strategy.hit(TEN_A_MINUTE)
        return asked() == before

    eventually(known)
    strategy.clear(TEN_A_MINUTE)
    assert strategy.hit(TEN_A_MINUTE)


def test_reset_forgets_denials(uri):
    """All at once, also those that no message would have announced yet."""
    storage = storage_from_string(uri)
    strategy = STRATEGIES["moving-window"](storage)
    names = [f"user:{number}" for number in range(20)]
    for name in names:
        assert strategy.hit(TEN_A_MINUTE, name, cost=10)
        eventually(lambda: not strategy.hit(TEN_A_MINUTE, name) and storage._limiters.of(10, 60).statistics.cache)
    storage.reset()
    assert all(strategy.hit(TEN_A_MINUTE, name) for name in names)


def test_the_wait_is_never_too_short(uri):
    """In whole seconds after it was asked for; the strategy passes it on as the end of the window."""
    strategy = STRATEGIES["moving-window"](storage_from_string(uri))
    for seconds in (2, 3, 7):
        item = limits.RateLimitItemPerSecond(3, seconds)
        strategy.hit(item, cost=3)
        for _ in range(20):
            time.sleep(0.01)
            retry_after = strategy.storage._limiters.of(3, seconds).peek(
                strategy.storage._window_key(item.key_for())).retry_after
            told = int(strategy.get_window_stats(item).reset_time - time.time())
            assert retry_after <= told + 0.02
            assert told <= math.ceil(retry_after)


def test_what_it_costs_is_an_option(uri, server):
    storage = storage_from_string(uri, subintervals="10", strict=True, mode="direct", timeout=1.0, key_prefix="mine")
    assert storage.acquire_entry("k", 5, 60)
    assert server.cli("SWLIMIT.INFO", "mine:k/window").split()[3] == "6000"
    with pytest.raises(ValueError, match="resolution"):
        storage_from_string(uri, subintervals=7).acquire_entry("k", 5, 1)


def test_fixed_windows_stay_what_they_are(uri, server):
    strategy = limits.strategies.FixedWindowRateLimiter(storage_from_string(uri))
    assert [strategy.hit(TEN_A_MINUTE) for _ in range(11)] == [True] * 10 + [False]
    assert server.cli("TYPE", "swlimit:LIMITER/10/1/minute") == "string"
    assert 50 < strategy.get_window_stats(TEN_A_MINUTE).reset_time - time.time() <= 61


def test_errors_are_the_server_s(start):
    server = start()
    storage = storage_from_string(f"swlimit+redis://127.0.0.1:{server.port}", wrap_exceptions=True)
    server.cli("SET", storage._window_key("k"), "x")
    with pytest.raises(limits.errors.StorageError, match="WRONGTYPE"):
        storage.acquire_entry("k", 1, 60)
    assert storage.check()
    server.kill()
    with pytest.raises(limits.errors.StorageError):
        storage.acquire_entry("k", 1, 60)
    assert not storage.check()


def test_asyncio(uri):
    async def main():
        storage = storage_from_string(f"async+{uri}")
        strategy = limits.aio.strategies.MovingWindowRateLimiter(storage)
        assert [await strategy.hit(TEN_A_MINUTE) for _ in range(11)] == [True] * 10 + [False]
        assert (await strategy.get_window_stats(TEN_A_MINUTE)).remaining == 0

    asyncio.run(main())


def denied_and_back(url):
    """Ask until a request is denied, and again after as long as it says; the two responses."""
    responses = [fetch(url) for _ in range(4)]
    assert [response.status for response in responses] == [200, 200, 200, 429]
    wait = int(responses[-1].headers["Retry-After"])
    assert 1 <= wait <= 4  # a window of two seconds, rounded up to the second at its end; slowapi adds another
    time.sleep(wait)
    return responses[-1], fetch(url)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_flask_limiter(uri, strategy):
    from flask import Flask
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    app = Flask(__name__)
    limiter = Limiter(get_remote_address, app=app, storage_uri=uri, strategy=strategy, headers_enabled=True)

    @app.get("/")
    @limiter.limit("3 per 2 seconds")
    def hello():
        return "hello"

    with serve_wsgi(app) as url:
        denied, back = denied_and_back(url)
    assert denied.headers["X-RateLimit-Limit"] == "3"
    assert denied.headers["X-RateLimit-Remaining"] == "0"
    if strategy == "moving-window":
        assert back.status == 200


def test_slowapi(uri):
    from fastapi import FastAPI, Request
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address
    from starlette.responses import PlainTextResponse

    limiter = Limiter(get_remote_address, storage_uri=uri, strategy="moving-window", headers_enabled=True)
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit("3 per 2 seconds")
    async def hello(request: Request):
        return PlainTextResponse("hello")

    with serve_asgi(app) as url:
        denied, back = denied_and_back(url)
    assert denied.headers["X-RateLimit-Remaining"] == "0"
    assert back.status == 200
