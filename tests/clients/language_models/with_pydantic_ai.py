"""Run by pydantic_ai_cases.py in the environment of the page's libraries: `with_pydantic_ai.py MODEL REDIS CASE…`.

All cases at once; the keys of each begin with its name.
"""

import asyncio
import contextlib
import sys

import redis.asyncio
from limited import LimitedModel, Places
from pydantic_ai import Agent, ConcurrencyLimiter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import swlimit

MODEL, REDIS, *WANTED = sys.argv[1:]


async def main():
    client = redis.asyncio.Redis.from_url(REDIS)
    async with (swlimit.AsyncLimiter(client, 1000, "1m", timeout=5.0) as tokens,
                swlimit.AsyncHoldLimiter(client, 3, "3s", timeout=5.0) as holds):
        async def run(name):
            def parts(estimate):
                return [tokens.request(f"{{{name}}}:tokens", estimate, name="tokens"),
                        holds.request(f"{{{name}}}:places")]

            wrapped = OpenAIChatModel("small", provider=OpenAIProvider(base_url=MODEL, api_key="none"))
            await CASES[name](Agent(LimitedModel(wrapped, parts, wait=0)), wrapped, holds)

        await asyncio.gather(*map(run, WANTED))


async def usage(agent, *_):
    """An attempt fails, and the client library repeats it."""
    await agent.run("usage uses=50 fails=1")


async def stream(agent, *_):
    async with agent.run_stream("stream uses=60 fails=1") as result:
        assert await result.get_output() == "word word word "


async def unread(agent, *_):
    async with agent.run_stream("uses=500"):
        pass


async def broken(agent, *_):
    with contextlib.suppress(Exception):
        async with agent.run_stream("uses=500 breaks=1") as result:
            await result.get_output()


async def failed(agent, *_):
    with contextlib.suppress(Exception):
        await agent.run("fails=9")


async def cancelled(agent, *_):
    task = asyncio.create_task(agent.run("uses=500 waits=1"))
    await asyncio.sleep(2)
    task.cancel()
    await asyncio.wait([task])


async def killed(agent, *_):
    await agent.run("uses=500 waits=1")


async def denied(agent, *_):
    with contextlib.suppress(swlimit.DeniedError):
        for _ in range(20):
            await agent.run("uses=250")
        print("served 20")


async def places(_agent, wrapped, holds):
    await waiting(wrapped, Places(holds, "{places}:places"))


async def own(_agent, wrapped, _holds):
    await waiting(wrapped, ConcurrencyLimiter(max_running=3))


async def waiting(wrapped, limiter):
    """Five requests at once; the model answers none of them."""
    agent = Agent(wrapped, max_concurrency=limiter)
    tasks = [asyncio.create_task(agent.run(f"waits=1 {number}")) for number in range(5)]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


CASES = {case.__name__: case for case in (
    usage, stream, unread, broken, failed, cancelled, killed, denied, places, own)}
asyncio.run(main())
