"""fakeredis, a server for tests, runs the script: rates, budgets, holds and admissions, by its clients and its port."""

import asyncio
import threading
import time

import fakeredis
import pytest
import redis

import swlimit

TTL = 3  # seconds, the shortest


@pytest.fixture(params=["client", "port"])
def client(request):
    if request.param == "client":
        yield fakeredis.FakeRedis()
        return
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with redis.Redis(port=server.server_address[1]) as found:
        yield found
    server.shutdown()
    server.server_close()


def options():
    return {"timeout": "20s", "on_failure": "error"}


def test_rates_budgets_holds_and_admissions(client):
    rate = swlimit.Limiter(client, 2, "1m", **options())
    assert [rate.allow("k").granted for _ in range(3)] == [1, 1, 0]
    budget = swlimit.BudgetLimiter(client, 2, "day", **options())
    assert [budget.allow("b").granted for _ in range(3)] == [1, 1, 0]
    holds = swlimit.HoldLimiter(client, 1, ttl=TTL, **options())
    with holds.hold("h") as held:
        assert not holds.hold("h")
        time.sleep(TTL + 0.5)
        assert held.is_live and not holds.hold("h")  # it has been renewed
    with swlimit.admit([holds.request("h"), rate.request("other", cost=2)]) as admission:
        assert admission.granted
    assert rate.allow("other").granted == 0
    holds.close()


def test_asyncio():
    async def run():
        client = fakeredis.FakeAsyncRedis()
        rate = swlimit.AsyncLimiter(client, 2, "1m", **options())
        assert [(await rate.allow("k")).granted for _ in range(3)] == [1, 1, 0]
        budget = swlimit.AsyncBudgetLimiter(client, 2, "day", **options())
        assert [(await budget.allow("b")).granted for _ in range(3)] == [1, 1, 0]
        holds = swlimit.AsyncHoldLimiter(client, 1, ttl=TTL, **options())
        async with holds.hold("h") as held:
            await asyncio.sleep(TTL + 0.5)
            assert held.is_live and not await holds.hold("h")
        assert await holds.hold("h")

    asyncio.run(run())
