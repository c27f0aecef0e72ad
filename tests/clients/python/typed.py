"""A program that type checkers read and nothing runs. They refuse exactly the lines that end with `# refused`."""

from wsgiref.simple_server import demo_app

import glide
import glide_sync
import redis
import redis.asyncio
import valkey
import valkey.asyncio

import swlimit
import swlimit.asgi
import swlimit.testing
import swlimit.wsgi

threads, tasks = redis.Redis(), redis.asyncio.Redis()
nodes, async_nodes = redis.RedisCluster("localhost"), redis.asyncio.RedisCluster("localhost")

# Clients.
limiter = swlimit.Limiter(threads, 1, "1m", 1.0, on_failure="deny")
async_limiter = swlimit.AsyncLimiter(tasks, 1, "1m")
swlimit.Limiter(nodes, 1, "1m"), swlimit.AsyncLimiter(async_nodes, 1, "1m"), swlimit.Limiter(None, 1, "1m")
swlimit.Limiter(tasks, 1, "1m")  # refused
swlimit.Limiter(async_nodes, 1, "1m")  # refused
swlimit.AsyncLimiter(threads, 1, "1m")  # refused
swlimit.AsyncLimiter(nodes, 1, "1m")  # refused
swlimit.Limiter("redis://localhost", 1, "1m")  # refused
swlimit.Limiter(valkey.Valkey(), 1, "1m"), swlimit.AsyncLimiter(valkey.asyncio.Valkey(), 1, "1m")
swlimit.Limiter(valkey.ValkeyCluster("localhost"), 1, "1m")
swlimit.AsyncHoldLimiter(valkey.asyncio.ValkeyCluster("localhost"), 1)
swlimit.Limiter(valkey.asyncio.Valkey(), 1, "1m")  # refused
swlimit.AsyncLimiter(valkey.Valkey(), 1, "1m")  # refused


def of_glide(tasks: glide.GlideClient, nodes: glide.GlideClusterClient, threads: glide_sync.GlideClient) -> None:
    swlimit.AsyncLimiter(tasks, 1, "1m"), swlimit.AsyncHoldLimiter(nodes, 1)
    swlimit.Limiter(threads, 1, "1m")
    swlimit.Limiter(tasks, 1, "1m")  # refused
    swlimit.AsyncLimiter(threads, 1, "1m")  # refused


swlimit.HoldLimiter(threads, 1), swlimit.AsyncHoldLimiter(tasks, 1)
swlimit.HoldLimiter(tasks, 1)  # refused
swlimit.AsyncHoldLimiter(threads, 1)  # refused
swlimit.BudgetLimiter(threads, 1), swlimit.AsyncBudgetLimiter(tasks, 1)
swlimit.BudgetLimiter(tasks, 1)  # refused
swlimit.AsyncBudgetLimiter(threads, 1)  # refused
swlimit.Limits(threads, "1/s"), swlimit.AsyncLimits(tasks, "1/s", strict=True, prefix=b"p")
swlimit.Limits(tasks, "1/s")  # refused
swlimit.AsyncLimits(threads, "1/s")  # refused

# Options.
by_url: swlimit.Limiter = swlimit.Limiter.from_url("redis://localhost", "1/s", "1s", on_failure="allow", timeout=1)
async_by_url: swlimit.AsyncLimiter = swlimit.AsyncLimiter.from_url("redis://localhost", "1/s")
limits: swlimit.Limits = swlimit.Limits.from_url("redis://localhost", "1/s; 2/m", max_keys=7)
swlimit.Limiter(None, 1, "1m", 1.0, on_failure="shrug")  # refused
swlimit.Limiter.from_url("redis://localhost", "1/s", on_failure="shrug")  # refused
swlimit.Limiter.from_url("redis://localhost", "1/s", window="1m")  # refused
swlimit.Limits.from_url("redis://localhost", "1/s", mode=7)  # refused

# What they return.
decision: swlimit.Decision = limiter.allow("k", cost=2, block="1h")
acquired: swlimit.Decision = limiter.acquire("k", timeout="1m")
wait: float | None = decision.retry_after
both: swlimit.Decisions = swlimit.allow_all(limiter.request("a"), limiter.request(b"b", cost=2))
several: swlimit.Decisions = limits.allow("k", 2, deadline=1)
given_back: list[int] = limits.refund("k")
units: int = limiter.refund("k", 3, age="1s")
peeked: swlimit.Decision = swlimit.BudgetLimiter(None, 1).peek("k", 2, limit=3)
holds = swlimit.HoldLimiter(None, 9)
hold: swlimit.Hold = holds.hold("k", ttl="1m", wait=1)
with holds.hold("k") as held:
    held_live: bool = held.is_live
with limiter.limit("k") as within:
    left: int | None = within.remaining
limiter.allow(7)  # refused
limiter.allow("k", costs=2)  # refused
limiter.acquire("k", timeout=[1])  # refused
holds.hold("k", wait=None)  # refused
text_of_a_hold: str = holds.hold("k")  # refused


@limiter.limit(lambda number: f"n:{number}")
def work(number: int) -> str:
    return str(number)


text: str = work(1)
work("one")  # refused
other = swlimit.Limiter(None, 9, "1m")
admission: swlimit.Admission = swlimit.admit([other.request("a"), swlimit.HoldLimiter(None, 9).request("b")], wait=1)
denied: swlimit.Member | None = admission.denied_by
swlimit.wsgi.RateLimit(demo_app, swlimit.Rule(limiter), swlimit.Rule(limiter, lambda environ: environ.get("KEY")))
fake: swlimit.Limiter = swlimit.testing.FakeLimiter()
driven: swlimit.BudgetLimiter = swlimit.testing.TestClock().drive(swlimit.BudgetLimiter(None, 1))


async def main(limiter: swlimit.AsyncLimiter) -> None:
    decision: swlimit.Decision = await limiter.allow("k", limit=3)
    acquired: swlimit.Decision = await limiter.acquire("k", 2)
    both: swlimit.Decisions = await swlimit.allow_all(limiter.request("a"), limiter.request("b"))
    several: swlimit.Decisions = await swlimit.AsyncLimits(None, "1/s").record("k")
    tokens, places = swlimit.AsyncBudgetLimiter(None, 9), swlimit.AsyncHoldLimiter(None, 9)
    peeked: swlimit.Decision = await tokens.peek("k")
    awaited: swlimit.AsyncHold = await places.hold("k", wait=1)
    async with places.hold("k") as entered:
        lost: bool = entered.lost.is_set()
    async with swlimit.spending([limiter.request("a"), tokens.request("b"), places.request("c")]) as spent:
        spent.saw(tokens=3)
        held: swlimit.AsyncHold | None = spent.hold
    settled: list[int] | None = await (await swlimit.admit([limiter.request("a")])).settle(tokens=1)
    swlimit.admit([limiter.request("a"), other.request("b")])  # refused
    swlimit.admit([limiter.request("a")], on_error="shrug")  # refused
    bool(limiter.allow("k").granted)  # refused
    bool(limiter.acquire("k").granted)  # refused
    at_once: swlimit.AsyncHold = places.hold("k")  # refused
    with places.hold("k"):  # refused
        pass
    with limiter:  # refused
        pass
    print(decision, acquired, both, several, peeked, awaited, lost, held, settled, at_once)
