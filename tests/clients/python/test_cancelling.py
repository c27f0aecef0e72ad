"""Who stops waiting has no decision, and nothing is counted for it: units counted = used + given back."""

import asyncio
import random
import signal
import sys
import threading
from contextlib import contextmanager

import pytest
import redis
import redis.asyncio

import swlimit
from support.contents import info
from support.resp import Connection
from support.waiting import eventually

LIMIT = 1_000_000


def used(server, *keys):
    with Connection(server.port) as connection:
        return sum(LIMIT - connection.call("SWLIMIT.PEEK", key, LIMIT, "1h", "5m")[2] for key in keys)


def asyncio_limiter(server, **options):
    return swlimit.AsyncLimiter(redis.asyncio.Redis(port=server.port), LIMIT, "1h", timeout=5.0, **options)


@pytest.mark.parametrize("seed", range(3))
def test_tasks_that_are_cancelled_at_random(server, seed):
    """Before they are sent, on the way, and as the reply comes, over the line that all share."""
    draw = random.Random(seed)

    async def ask(limiter, number):
        if number % 3 == 0:
            return (await limiter.acquire("k", cost=2)).granted
        if number % 3 == 1:
            return (await limiter.allow("k")).granted
        decision = await swlimit.allow_all(limiter.request("{k}1", cost=3), limiter.request("{k}2"))
        return sum(member.granted for member in decision.members)

    async def main():
        got = 0
        async with asyncio_limiter(server, mode="direct") as limiter:
            await limiter.peek("k")
            for _ in range(40):
                tasks = [asyncio.create_task(ask(limiter, number)) for number in range(30)]
                while not all(task.done() for task in tasks):
                    await asyncio.sleep(draw.choice([0, 0, 0, 0.0002]))
                    draw.choice(tasks).cancel()
                got += sum(task.result() for task in tasks if not task.cancelled())
            assert got > 0
            await asyncio.to_thread(eventually, lambda: used(server, "k", "{k}1", "{k}2"), got)
    asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_waiters_that_are_cancelled_as_they_are_granted(server, seed):
    draw, cancelled = random.Random(seed), 0

    async def main():
        nonlocal cancelled
        client = redis.asyncio.Redis(port=server.port)
        async with swlimit.AsyncLimiter(client, 1, "1h", "5m", timeout=5.0, mode="direct") as limiter:
            with Connection(server.port) as other:
                assert await limiter.allow("k")
                for _ in range(60):
                    waiting = asyncio.create_task(limiter.acquire("k", timeout="2h"))
                    await asyncio.to_thread(eventually, lambda: int(info(server, "swlimit")["swlimit_waiting"]), 1)
                    assert other.call("SWLIMIT.REFUND", "k", 1) == 1
                    for _ in range(draw.randrange(6)):
                        await asyncio.sleep(draw.choice([0, 0.0003]))
                    waiting.cancel()
                    await asyncio.wait([waiting])
                    if waiting.cancelled():
                        cancelled += 1
                        await asyncio.to_thread(eventually, lambda: other.call("SWLIMIT.PEEK", "k", 1, "1h", "5m")[2])
                        assert await limiter.allow("k")
    asyncio.run(main())
    assert cancelled


class Stopped(BaseException):
    pass


@contextmanager
def stopping_when(condition):
    """Raises Stopped in the main thread, as a worker's time limit does, once there is a condition."""
    def stop(*_):
        raise Stopped

    def wait():
        eventually(condition)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        with pytest.raises(Stopped):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def waiting_at(server):
    return int(info(server, "swlimit")["swlimit_waiting"])


def test_a_thread_that_is_stopped_while_it_waits(server):
    with swlimit.Limiter(redis.Redis(port=server.port), 1, "1h", timeout=5.0, mode="direct", max_waiting=1) as limiter:
        assert limiter.allow("k")
        for _ in range(3):
            with stopping_when(lambda: waiting_at(server) == 1):
                limiter.acquire("k", timeout="2h")
            eventually(lambda: waiting_at(server), 0)
            assert limiter.refund("k") == 1
            assert limiter.acquire("k", timeout=5)


def is_waiting_for_a_reply():
    """Whether the main thread has sent a command."""
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None:
        if frame.f_code.co_name == "look" and frame.f_locals["seconds"] > 0:
            return True
        frame = frame.f_back
    return False


def test_a_thread_that_is_stopped_before_the_reply(start):
    """The reply is heard with the next request, and what it grants is given back."""
    server = start()
    with swlimit.Limiter(redis.Redis(port=server.port), LIMIT, "1h", timeout=5.0, mode="direct") as limiter:
        assert limiter.allow("k")
        eventually(lambda: not any(one.name == "swlimit" for one in threading.enumerate()))  # its look at the server

        def settled():
            limiter.peek("k")
            return used(server, "k")

        for _ in range(3):
            server.process.send_signal(signal.SIGSTOP)
            try:
                with stopping_when(is_waiting_for_a_reply):
                    limiter.allow("k", cost=100)
            finally:
                server.process.send_signal(signal.SIGCONT)
            eventually(settled, 1)
