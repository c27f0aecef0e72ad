"""Many tasks of one loop share a line to the server, and nobody takes its owner's delays for the server's."""

import asyncio
import contextlib
import gc
import select
import socket
import time

import pytest
import redis.asyncio

import swlimit
from support.contents import info
from support.server import free_port


@pytest.fixture
def run(server):
    """Run a function of a client and a limiter in a loop of its own."""
    def run(main, *quota, client=None, **options):
        async def with_limiter():
            ours = redis.asyncio.Redis(**{"port": server.port} | (client or {}))
            async with swlimit.AsyncLimiter(ours, *(quota or (1_000_000, "1h")), **options) as limiter:
                await main(limiter)
        asyncio.run(with_limiter())
    return run


def test_a_busy_loop_is_not_the_server_s_failure(run):
    """60 ms of work at least while the reply comes, with a timeout of 50; also where an earlier one was just up."""
    async def main(limiter):
        await limiter.allow("k")
        pipeline = limiter._state.of(b"k").connections._pipeline
        for number in range(20):
            pipeline._check_at(time.monotonic())
            for _ in range(number % 5):
                await asyncio.sleep(0)
            asking = asyncio.create_task(limiter.allow("k"))
            await asyncio.sleep(0)
            time.sleep(0.06)
            select.select([pipeline._connection._writer.get_extra_info("socket")], [], [], 20)
            assert (await asking).source == "server"
    run(main, mode="direct", timeout=0.05)


def test_a_loop_that_is_busy_before_anything_is_sent(run):
    async def main(limiter):
        await limiter.allow("k")
        for _ in range(3):
            asking = asyncio.create_task(limiter.allow("k"))
            asyncio.get_running_loop().call_soon(time.sleep, 0.6)
            await asyncio.sleep(0)
            assert (await asking).source == "server"
    run(main, mode="direct", timeout=0.5)


def test_tasks_that_are_cancelled_leave_the_line_in_step(run, server):
    """Each reply goes to its own exchange, also when others are gone; what was sent is counted."""
    async def main(limiter):
        async def one(number):
            return (await limiter.allow(f"k:{number}", cost=number + 1)).remaining
        for turn in range(20):
            tasks = [asyncio.create_task(one(number)) for number in range(50)]
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            kept = [await task for task in tasks[1::2]]
            assert kept == [1_000_000 - number - 1 for number in range(1, 50, 2)]
            server.cli("FLUSHALL")
    run(main, mode="direct", timeout=2.0)


def test_what_is_given_up_before_it_is_sent_never_is(run, server):
    async def main(limiter):
        await limiter.allow("other")
        first, task = (asyncio.create_task(limiter.allow(key)) for key in ("other", "k"))
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.wait([first, task])
        await limiter.allow("other")
        assert task.cancelled() and server.cli("EXISTS", "k") == "0"
    run(main, mode="direct", timeout=2.0)


def test_cancelled_requests_tell_the_breaker_too(run):
    """Their callers wait 5 ms; a server that says nothing is found to be away all the same."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async def main(limiter):
            for _ in range(40):
                try:
                    async with asyncio.timeout(0.005):
                        await limiter.allow("k")
                except TimeoutError:
                    await asyncio.sleep(0.02)
            assert (await limiter.allow("k")).source == "failure"
            server = limiter._state.of(b"k")
            assert server.breaker.is_open
        run(main, mode="direct", timeout=0.05, client={"port": silent.getsockname()[1]})


def test_several_loops_one_after_the_other(server):
    """A limiter that outlives its loop connects again; so do probes."""
    client = redis.asyncio.Redis(port=free_port())
    away = swlimit.AsyncLimiter(client, 5, "1m", on_failure="deny")
    limiter = swlimit.AsyncLimiter(redis.asyncio.Redis(port=server.port), 5, "1m", timeout=1.0)

    async def main():
        assert not await away.allow("k")
        return await limiter.allow("k")

    assert [asyncio.run(main()).remaining for _ in range(5)] == [4, 3, 2, 1, 0]


def test_nothing_leaks_when_limiters_come_and_go(server):
    """Neither clients nor connections, whether they are closed or not."""
    async def main():
        async def one(close):
            client = redis.asyncio.Redis(port=server.port)
            limiter = swlimit.AsyncLimiter(client, 1, "1h", timeout=1.0)
            for _ in range(3):
                await limiter.allow("k")
            if close:
                await limiter.close()
        before = int(info(server, "clients")["connected_clients"])
        for number in range(8):
            await one(number % 2 == 0)
        for _ in range(200):
            gc.collect()
            if int(info(server, "clients")["connected_clients"]) <= before:
                return
            await asyncio.sleep(0.02)
        pytest.fail(info(server, "clients")["connected_clients"])
    asyncio.run(main())


def test_a_message_to_a_server_that_comes_back(run, start):
    """Probes find it in a second, and what was to be kept is sent then."""
    server = start(options={"appendonly": "yes"})

    async def main(limiter):
        assert await limiter.allow("k")
        await asyncio.to_thread(server.kill)
        while (await limiter.allow("k")).source == "server" or not limiter._state.of(b"k").breaker.is_open:
            await asyncio.sleep(0.01)
        with pytest.raises(swlimit.UnavailableError):
            await limiter.record("k", cost=5)
        assert (await limiter.record("k", cost=7, keep=True)).source == "failure"
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(5):
            while (await limiter.peek("k")).remaining != 92:
                await asyncio.sleep(0.01)
    run(main, 100, "1h", mode="direct", client={"port": server.port}, timeout=1.0)


def test_silence_behind_a_reply():
    """A reply that was owed comes after a request was written that is never answered: three timeouts of silence count
    from that reply, and the probe asks about the silent request's key."""
    async def main():
        probes = []

        async def serve(reader, writer):
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    count = int((await reader.readline() or b"*0")[1:])
                    words = [await reader.readexactly(int((await reader.readline())[1:]) + 2) for _ in range(count)]
                    words = [word[:-2] for word in words]
                    if not words:
                        break
                    if words[0] == b"CLIENT":
                        writer.write(b"+OK\r\n")
                    elif words[2:3] == [b"0"]:
                        probes.append(words[1])
                    elif words[1:2] == [b"a"]:
                        await asyncio.sleep(0.05)
                        writer.write(b"*5\r\n:1\r\n:10\r\n:9\r\n:0\r\n:60000\r\n")
            writer.close()

        fake = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = redis.asyncio.Redis(port=fake.sockets[0].getsockname()[1])
        async with swlimit.AsyncLimiter(client, 10, "1m", mode="direct", timeout=0.2, on_failure="deny") as limiter:
            await asyncio.gather(limiter.allow("a"), limiter.allow("b"))
            state, = limiter.servers()
            while state.state == "up" or not probes:
                await asyncio.sleep(0.01)
                state, = limiter.servers()
        assert state.reason == "no_answer" and set(probes) == {b"b"}
        await client.aclose()
        fake.close()
    asyncio.run(asyncio.wait_for(main(), 20))
