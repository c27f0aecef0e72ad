"""Nothing of a limiter keeps a program from ending, or from collecting what it no longer uses."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager

import pytest
import redis.asyncio

import swlimit
from support.relay import Relay
from support.server import ROOT
from support.waiting import eventually
from swlimit._protocol.replies import Failure
from swlimit._transport import core, hold_renewer

BEGINNING = """
import gc, sys, threading
import redis
import swlimit
from swlimit._transport.core import Core

limiter = swlimit.Limiter(redis.Redis(port=int(sys.argv[1])), 1, "1h", timeout="5s")
assert [bool(limiter.allow("k")) for _ in range(2)] == [True, False]
state = next(one for one in gc.get_objects() if isinstance(one, Core))
server, = state.topology.all()
locks = {"tracker": server.tracker._lock, "subscribers": state.subscribers._lock, "pool": server.connections._lock}
lock = locks[sys.argv[2]]
del locks, server, state
"""
# As where a thread stands still in the middle of something, because the interpreter ends. Which objects the
# interpreter then collects is chance: here it is the client's state, for certain.
THE_PROGRAM_ENDS = """
class Last:
    def __init__(self):
        self.state = next(one for one in gc.get_objects() if isinstance(one, Core))

    def __del__(self):
        self.state.__del__()

last = Last()
holder = threading.Thread(target=lock.acquire)
holder.start()
holder.join()
"""
# As a worker of the limiter that happens to be the one in which the last cycles are collected.
IT_IS_COLLECTED = """
with lock:
    del limiter
    gc.collect()
    assert not any(isinstance(one, Core) for one in gc.get_objects())
"""


@pytest.mark.parametrize("lock", ["tracker", "subscribers", "pool"])
@pytest.mark.parametrize("rest", [THE_PROGRAM_ENDS, IT_IS_COLLECTED], ids=["the program ends", "it is collected"])
def test_while_a_lock_is_held(server, rest, lock):
    done = subprocess.run([sys.executable, "-c", BEGINNING + rest, str(server.port), lock], capture_output=True,
                          text=True, timeout=60, cwd=ROOT / "src/clients/python")
    assert (done.returncode, done.stderr) == (0, "")


CLOSED = """
import asyncio, gc, logging, sys, threading, time
import redis, redis.asyncio
import swlimit, swlimit._transport.hold_renewer

swlimit._transport.hold_renewer.IDLE = 1e6
logging.getLogger("swlimit").disabled = True
port = int(sys.argv[1])


def in_threads():
    holds = swlimit.HoldLimiter(redis.Redis(port=port), 2, "1h", timeout=20.0)
    limiter = swlimit.Limiter(redis.Redis(port=port), 1, "1h", timeout=20.0)
    guard = holds.hold("held")
    while limiter.allow("k").source != "cache":
        pass
    assert guard and threading.active_count() > 1
    holds.close()
    limiter.close()
    deadline = time.monotonic() + 20
    while threading.active_count() > 1:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


async def in_a_loop():
    holds = swlimit.AsyncHoldLimiter(redis.asyncio.Redis(port=port), 2, "1h", timeout=20.0)
    limiter = swlimit.AsyncLimiter(redis.asyncio.Redis(port=port), 1, "1h", timeout=20.0)
    nobody = swlimit.AsyncLimiter(redis.asyncio.Redis(port=1), 1, "1h", timeout=20.0)
    guard = await holds.hold("held")
    while (await limiter.allow("k")).source != "cache":
        pass
    while nobody.servers()[0].state != "unavailable":
        await nobody.allow("k")
    assert guard and len(asyncio.all_tasks()) > 1
    for one in (holds, limiter, nobody):
        await one.close()


def in_asyncio():
    loop = asyncio.new_event_loop()
    loop.run_until_complete(in_a_loop())
    left = asyncio.all_tasks(loop)
    assert not left, left
    loop.close()
    gc.collect()


locals()[sys.argv[2]]()
"""


@pytest.mark.parametrize("way", ["in_threads", "in_asyncio"])
def test_nothing_is_left_when_all_are_closed(server, way):
    """No thread; and no task, which asyncio would complain about when its loop is closed."""
    done = subprocess.run([sys.executable, "-c", CLOSED, str(server.port), way], capture_output=True, text=True,
                          timeout=100, cwd=ROOT / "src/clients/python")
    assert (done.returncode, done.stderr) == (0, "")


@contextmanager
def owing(kind, server):
    """Limiters that owe a server that is away a record and a release; and the relay to it."""
    with Relay(server.port) as relay:
        client = kind.client(kind.redis, port=relay.port)
        options = {"timeout": 0.3, "on_failure": "deny"}
        limiter = kind.limiter(client, 100, "1h", mode="direct", **options)
        holds = kind.hold_limiter(client, 1, **options)
        guard = eventually(lambda: (guard := holds.hold("h")).source == "server" and guard)
        relay.swallows = True
        eventually(lambda: not limiter.allow("k") and limiter.servers()[0].state == "unavailable")
        limiter.record("k", 7, keep=True)
        kind.call(guard.release)
        yield relay, [limiter, holds]


def test_closing_says_what_is_lost(kind, server, monkeypatch, caplog):
    monkeypatch.setattr(core, "CLOSING", 0.2)
    with owing(kind, server) as (_, limiters):
        for one in limiters:
            one.close()
    assert "closed before the server answered; lost: SWLIMIT.RECORD 'k' 7, SWLIMIT.RELEASE 'h' 1" in caplog.messages


def test_closing_when_nothing_is_owed(kind, server, monkeypatch, caplog):
    """Also where the server was away after the last hold."""
    monkeypatch.setattr(core, "CLOSING", 0.2)
    monkeypatch.setattr(hold_renewer, "IDLE", 0.0)
    holds = kind.hold_limiter(kind.client(kind.redis, port=server.port), 1, "3s", timeout=5.0)
    kind.call(holds.hold("h").release)
    at, = holds._state.topology.all()
    eventually(lambda: at.renewer.worker, None)
    kind.call(at.breaker.open, Failure("other", "a test"))
    eventually(lambda: not at.breaker.is_open and at.renewer._mailbox.has_mail)
    holds.close()
    assert not [text for text in caplog.messages if "lost" in text]


def test_closing_what_nobody_asked():
    async def main():
        async with swlimit.AsyncLimiter(redis.asyncio.RedisCluster(host="127.0.0.1", port=1), 1, "1m"):
            pass
    asyncio.run(main())
