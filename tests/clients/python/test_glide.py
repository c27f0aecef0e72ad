"""Clients of valkey-glide: what they show less than others."""

import asyncio

import glide
import pytest
import pytest_asyncio

import swlimit
from support.cluster import Cluster
from support.relay import Relay

pytestmark = pytest.mark.asyncio


async def client_of(port, make=glide.GlideClient, configuration=glide.GlideClientConfiguration, **options):
    address = glide.NodeAddress("127.0.0.1", port)
    return await make.create(configuration([address], **{"request_timeout": 5000} | options))


@pytest_asyncio.fixture
async def opened():
    """Makes clients, and limiters on them, which are closed with the test."""
    made = []

    async def opened(port, make=swlimit.AsyncLimiter, *words, client=None, **options):
        client = client or await client_of(port)
        made.append((make(client, *words or (3, "1m", "1s"), **{"timeout": 2.0} | options), client))
        return made[-1][0]

    yield opened
    for limiter, client in made:
        await limiter.close()
        await client.close()


@pytest.mark.parametrize("module", ["always", "never"])
async def test_every_kind_of_limit(opened, server, module):
    """The script decides as the module does."""
    options = {"module": module, "prefix": f"{module}:"}
    rate = await opened(server.port, **options)
    client = rate._state.topology.all()[0].endpoint.connection_kwargs["client"]
    decisions = [await rate.allow("k", 2) for _ in range(2)]
    assert [(one.granted, one.remaining, one.source) for one in decisions] == [(2, 1, "server"), (0, 1, "server")]
    assert 50 < decisions[1].retry_after < 62
    assert (await rate.refund("k", 1), (await rate.record("k", 1)).remaining) == (1, 1)
    assert await rate.reset("k") and await rate.block("k", "1h") and await rate.unblock("k")
    holds = swlimit.AsyncHoldLimiter(client, 1, **options)
    async with await holds.hold("h", wait=1) as held:
        assert held.is_live and [one.id for one in await holds.holders("h")] == [held.id]
        assert not await holds.hold("h", wait=0.1)
    budget = swlimit.AsyncBudgetLimiter(client, 5, "year", timeout=2, **options)
    assert [(await budget.allow("b", 2)).remaining, (await budget.peek("b")).remaining] == [3, 3]
    admission = await swlimit.admit([rate.request("{u}r", 2), holds.request("{u}h"), budget.request("{u}b", 2)])
    assert [one.remaining for one in admission.each] == [1, 0, 3]
    assert await admission.settle(1, 1) == [-1, -1]
    assert rate.servers()[0].backend == {"always": "module", "never": "script"}[module]
    assert rate.servers()[0].address == f"127.0.0.1:{server.port}"
    await holds.close()
    await budget.close()


async def test_a_server_without_the_module(opened, start):
    limiter = await opened(start(module=None).port)
    assert [(await limiter.allow("k")).remaining for _ in range(3)] == [2, 1, 0]
    assert limiter.servers()[0].backend == "script"


async def test_holds_are_renewed(opened, server):
    limiter = await opened(server.port, swlimit.AsyncHoldLimiter, 1, ttl="3s")
    async with await limiter.hold("renewed") as held:
        await asyncio.sleep(3.5)
        assert held.is_live
    assert await limiter.hold("renewed")


async def test_waiting_holds_up_nobody(opened, server):
    """The client's connection is the program's own: who waits does so in this process."""
    limiter = await opened(server.port, swlimit.AsyncLimiter, 1, "1s", "1ms")
    await limiter.allow("waited")
    waiting = [asyncio.create_task(limiter.acquire("waited", timeout=5)) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert (await limiter.allow("other")).source == "server"
    assert [bool(one) for one in await asyncio.gather(*waiting)] == [True, True]
    calls = server.client().info("commandstats")
    assert "cmdstat_swlimit.acquire" not in calls and "cmdstat_client|tracking" not in calls


async def test_a_known_denial_ends_soon(opened, server):
    """Nothing announces what is given back: a denial is known for max_untracked_age."""
    limiter = await opened(server.port, max_untracked_age=0.2)
    await limiter.allow("k:known", 3)
    sources = [(await limiter.allow("k:known")).source for _ in range(2)]
    assert sources == ["server", "cache"]
    await asyncio.sleep(0.25)
    assert (await limiter.allow("k:known")).source == "server"


async def test_error_replies_are_in_the_server_s_words(opened, server):
    limiter = await opened(server.port, mode="direct", on_failure="error")
    server.cli("SET", "text", "v")
    with pytest.raises(swlimit.RefusedError, match="^WRONGTYPE "):
        await limiter.allow("text")
    for reply, reason in [("OOM no room", "OOM"), ("READONLY a replica", "READONLY"), ("LOADING it", "LOADING"),
                          ("NOAUTH first", "auth"), ("CLUSTERDOWN now", "CLUSTERDOWN"), ("BUSY a script", "BUSY")]:
        with pytest.raises(swlimit.UnavailableError) as raised:
            await (await opened(server.port, client=await refused(server, reply), mode="direct",
                                on_failure="error")).allow("k")
        assert raised.value.reason == reason
    redirected = await opened(server.port, client=await refused(server, "MOVED 1 127.0.0.1:1"), mode="direct")
    with pytest.raises(swlimit.WrongClientError, match="GlideClusterClient of glide"):
        await redirected.allow("k")


async def refused(server, reply):
    """A client that gets this error whatever it asks."""
    client = await client_of(server.port)
    ask = client.custom_command
    client.custom_command = lambda words: ask(["EVAL", "return redis.error_reply(ARGV[1])", "0", reply])
    return client


async def test_an_unanswered_request_is_decided_by_the_policy(opened, server):
    """Its late grant stays counted: nobody sees which server would get the refund. The next one is answered."""
    with Relay(server.port) as relay:
        limiter = await opened(relay.port, mode="direct", on_failure="deny", timeout=0.2)
        await limiter.allow("warm")
        relay.delay = 0.6
        assert (await limiter.allow("late")).source == "failure"
        relay.delay = 0.0
        await asyncio.sleep(1)
        assert server.cli("SWLIMIT.PEEK", "late", "3", "1m", "1s").split()[2] == "2"
        for _ in range(100):
            if (decision := await limiter.allow("back")).source == "server":
                break
            await asyncio.sleep(0.05)
        assert decision.source == "server"


async def test_a_reply_that_the_client_drops_is_no_answer(opened, server):
    with Relay(server.port) as relay:
        client = await client_of(relay.port, request_timeout=200)
        limiter = await opened(relay.port, client=client, mode="direct", on_failure="error", timeout=0.2)
        await limiter.allow("k")
        relay.swallows = True
        with pytest.raises(swlimit.UnavailableError) as raised:
            await limiter.allow("k")
        assert raised.value.reason == "no_answer"


async def test_a_client_that_is_closed_leaves_the_policy(opened, server):
    limiter = await opened(server.port, mode="direct", on_failure="deny")
    client = limiter._state.topology.all()[0].endpoint.connection_kwargs["client"]
    assert (await limiter.allow("closed")).source == "server"
    await client.close()
    assert (await limiter.allow("closed")).source == "failure"


async def test_what_it_cannot_do_is_said_when_the_limiter_is_made(server):
    client = await client_of(server.port, request_timeout=250)
    await swlimit.AsyncLimiter(client, 3, "1m", timeout=0.25).close()
    sentence = "^timeout must be at most 250 ms, after which the client drops replies, not"
    with pytest.raises(ValueError, match=sentence):
        swlimit.AsyncLimiter(client, 3, "1m", timeout=0.251)
    with pytest.raises(ValueError, match=sentence):
        swlimit.AsyncHoldLimiter(client, 3)
    with pytest.raises(TypeError, match="not a glide"):
        swlimit.Limiter(client, 3, "1m")
    await client.close()
    replicas = await client_of(server.port, read_from=glide.ReadFrom.PREFER_REPLICA)
    with pytest.raises(TypeError, match=r"make it with ReadFrom\.PRIMARY"):
        swlimit.AsyncLimiter(replicas, 3, "1m")
    await replicas.close()


@pytest.fixture(scope="module")
def cluster(starting):
    with starting() as start:
        yield Cluster(start)


@pytest.mark.parametrize("module", ["always", "never"])
async def test_a_cluster(opened, cluster, module):
    """Each key at its own primary; a decision of several keys, too."""
    client = await client_of(cluster.masters()[0].port, glide.GlideClusterClient, glide.GlideClusterClientConfiguration)
    limiter = await opened(None, client=client, module=module, prefix=f"{module}:")
    other = swlimit.AsyncLimiter(client, 5, "1m", timeout=2, module=module, prefix=f"{module}:other:")
    for number in range(20):
        assert [(await limiter.allow(f"k:{number}")).source for _ in range(2)] == ["server"] * 2
        assert (await limiter.peek(f"k:{number}")).remaining == 1
    decisions = await swlimit.allow_all(limiter.request("{t}1"), other.request("{t}2"))
    assert [one.remaining for one in decisions.members] == [2, 4]
    assert limiter.servers()[0].state == "up"
    await other.close()
