"""Limiters of both kinds, on clients of real servers, used alike: those of asyncio run in a loop in a thread.

The clients are redis-py's; with SWLIMIT_LIBRARY=valkey, valkey-py's.
"""

import asyncio
import importlib
import os
import threading
from inspect import isawaitable

import pytest

import swlimit

LIBRARY = os.environ.get("SWLIMIT_LIBRARY", "redis")
CLIENTS, ASYNC_CLIENTS = importlib.import_module(LIBRARY), importlib.import_module(f"{LIBRARY}.asyncio")


def client_of(module, suffix=""):
    """The class of clients of one server, or with this suffix another."""
    return getattr(module, LIBRARY.title() + suffix)


class Threads:
    """Programs without asyncio."""

    name, prefix, closing = "threads", "", "close"
    lazy = redis = client_of(CLIENTS)
    cluster, sentinel = client_of(CLIENTS, "Cluster"), CLIENTS.Sentinel
    allow_all = staticmethod(swlimit.allow_all)

    def limiter(self, client, *quota, **options):
        return swlimit.Limiter(client, *quota, **options)

    def limits(self, client, rates, **options):
        return swlimit.Limits(client, rates, **options)

    def opened(self, make, *words, **options):
        return make(*words, **options)

    def driven(self, clock, *quota, **options):
        return clock.limiter(*quota, **options)

    def hold_limiter(self, client, *words, **options):
        return swlimit.HoldLimiter(client, *words, **options)

    def budget_limiter(self, client, *words, **options):
        return swlimit.BudgetLimiter(client, *words, **options)

    def admit(self, requests, **options):
        return swlimit.admit(requests, **options)

    def client(self, make, *args, **options):
        return make(*args, **options)

    def call(self, function, *args, **options):
        return function(*args, **options)

    def close(self):
        pass


class Asyncio:
    """Programs with asyncio."""

    name, prefix, closing = "asyncio", "Async", "aclose"
    redis, cluster = client_of(ASYNC_CLIENTS), client_of(ASYNC_CLIENTS, "Cluster")
    sentinel = ASYNC_CLIENTS.Sentinel

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def limiter(self, client, *quota, **options):
        return Called(self, swlimit.AsyncLimiter(client, *quota, **options))

    def limits(self, client, rates, **options):
        return Called(self, swlimit.AsyncLimits(client, rates, **options))

    def opened(self, make, *words, **options):
        return Called(self, make(*words, **options))

    def driven(self, clock, *quota, **options):
        return Called(self, clock.async_limiter(*quota, **options))

    def hold_limiter(self, client, *words, **options):
        return Called(self, self.call(swlimit.AsyncHoldLimiter, client, *words, **options))

    def budget_limiter(self, client, *words, **options):
        return Called(self, swlimit.AsyncBudgetLimiter(client, *words, **options))

    def admit(self, requests, **options):
        return self.call(swlimit.admit, requests, **options)

    @staticmethod
    def lazy(**options):
        """A client that has not connected yet."""
        return client_of(ASYNC_CLIENTS)(**options)

    def client(self, make, *args, **options):
        async def made():
            client = make(*args, **options)
            if hasattr(client, "initialize") and make is not self.lazy:
                await client.initialize()
            return client
        return self.wait(made())

    def call(self, function, *args, **options):
        async def called():
            result = function(*args, **options)
            return await result if isawaitable(result) else result
        return self.wait(called())

    def allow_all(self, *requests):
        return self.wait(swlimit.allow_all(*requests))

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self):
        async def cancel():
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.wait(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Called:
    """A limiter of asyncio whose methods wait."""

    def __init__(self, kind, limiter):
        self.kind, self.limiter = kind, limiter

    def __getattr__(self, name):
        found = getattr(self.limiter, name)
        if not callable(found) or name in ("limit", "request", "forget", "forget_all", "servers"):
            return found
        return lambda *args, **options: self.kind.call(found, *args, **options)


@pytest.fixture(params=[Threads, Asyncio], ids=lambda kind: kind.name)
def kind(request):
    kind = request.param()
    yield kind
    kind.close()


@pytest.fixture
def limiter(kind, server):
    """Make a limiter on the server under test: 3 a minute, unless it says otherwise."""
    made = []

    def limiter(limit=3, window="1m", resolution="1s", client=None, client_options=None, **options):
        client = client or kind.client(kind.redis, port=server.port, **client_options or {})
        made.append(kind.limiter(client, limit, window, resolution, **{"timeout": 2.0} | options))
        return made[-1]

    yield limiter
    for one in made:
        one.close()
