"""What decorators limit, whatever kind of function they are given."""

import asyncio
import inspect
import pydoc

import pytest
import redis
import redis.asyncio

import swlimit


@pytest.mark.parametrize("name", [name for name in swlimit.__all__ if inspect.isclass(getattr(swlimit, name))])
def test_help(name):
    assert name in pydoc.render_doc(getattr(swlimit, name))
    assert "Decide" in pydoc.render_doc(swlimit.Limiter.allow)


def decorators(limiter, holds):
    return [limiter.limit("k", cost=2), holds.held("h", cost=2)]


def held(holds):
    return len(holds.holders("h"))


def test_generators(server):
    """Each is limited while it runs, not while it is made."""
    client = redis.Redis(port=server.port)
    with swlimit.HoldLimiter(client, 1, timeout=5.0) as holds, swlimit.Limiter(client, 1, "1h", timeout=5.0) as limiter:
        @holds.held("h")
        def numbers(count):
            sent = yield from range(count)
            return sent

        @limiter.limit("k")
        def letters():
            yield "a"

        running = numbers(3)
        assert held(holds) == 0
        assert next(running) == 0 and held(holds) == 1
        with pytest.raises(swlimit.DeniedError):
            next(numbers(3))
        running.close()
        assert held(holds) == 0 and list(numbers(2)) == [0, 1] and held(holds) == 0
        assert list(letters()) == ["a"]
        with pytest.raises(swlimit.DeniedError):
            next(letters())


def test_generators_of_asyncio(server):
    async def main():
        client = redis.asyncio.Redis(port=server.port)
        async with swlimit.AsyncHoldLimiter(client, 1, timeout=5.0) as holds:
            @holds.held("h")
            async def numbers(count):
                for number in range(count):
                    yield number

            running = numbers(3)
            assert await anext(running) == 0 and len(await holds.holders("h")) == 1
            with pytest.raises(swlimit.DeniedError):
                await anext(numbers(3))
            await running.aclose()
            assert [number async for number in numbers(2)] == [0, 1] and not await holds.holders("h")
    asyncio.run(main())


class Callable:
    async def __call__(self):
        pass


async def coroutine():
    pass


async def async_generator():
    yield


def generator():
    yield


@pytest.mark.parametrize("function", [coroutine, async_generator, Callable()], ids=["coroutine", "generator", "object"])
def test_limiters_for_threads_refuse_what_is_asynchronous(function):
    for decorator in decorators(swlimit.Limiter(None, 1, "1h"), swlimit.HoldLimiter(None, 1)):
        with pytest.raises(TypeError, match="use a limiter of asyncio"):
            decorator(function)


def test_limiters_of_asyncio_refuse_generators():
    for decorator in decorators(swlimit.AsyncLimiter(None, 1, "1h"), swlimit.AsyncHoldLimiter(None, 1)):
        with pytest.raises(TypeError, match="use a limiter for threads"):
            decorator(generator)
