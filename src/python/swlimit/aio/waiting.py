"""Connections that wait for one's turn, and turns within the process."""

import asyncio
import contextlib
import time
import weakref
from collections import defaultdict
from typing import Any

import redis

from .. import fork
from ..errors import BROKEN, REPLIES, NoFreeConnection, ServerAway
from ..link import Acquire
from ..servers import SILENCE
from .timing import time_limit
from .tracker import send


class Waiting:
    """At most so many connections, each of which one request at a time may block. Their health is their own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free: asyncio.Semaphore
        self._idle: defaultdict[str, list[Any]] = defaultdict(list)

    async def acquire(self, step: Acquire) -> Any:
        """The reply to a command that the server answers by `step.ends`, or soon after."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._free, self._idle = loop, asyncio.Semaphore(self._most), defaultdict(list)
        free, idle = self._free, self._idle[step.server.home.name]
        try:
            async with time_limit(max(0.001, step.ends - time.monotonic())):
                await free.acquire()
        except asyncio.TimeoutError:
            raise NoFreeConnection from None
        try:
            connection = idle.pop() if idle else step.server.home.connection(
                socket_timeout=None, socket_connect_timeout=None)
            try:
                reply = await self._ask(connection, step)
            except (*BROKEN, redis.RedisError, asyncio.TimeoutError) as error:
                await connection.disconnect(nowait=True)
                raise ServerAway(f"{step.server.home.name}: {error or type(error).__name__}") from error
            except BaseException:
                await connection.disconnect(nowait=True)  # the server then knows that nobody waits
                raise
            idle.append(connection)
        finally:
            free.release()
        if isinstance(reply, Exception):
            raise reply
        return reply

    @staticmethod
    async def _ask(connection: Any, step: Acquire) -> Any:
        try:
            if connection.is_connected and await _has_data(connection):
                await connection.disconnect()
        except (*BROKEN, redis.RedisError):
            await connection.disconnect()  # the server has closed it
        async with time_limit(SILENCE):
            await connection.connect()
        left = max(0.0, step.ends - time.monotonic())
        await send(connection, step.words(left))
        try:
            reply = await connection.read_response(timeout=left + SILENCE)
        except REPLIES as error:
            return error
        if reply is None:
            raise redis.TimeoutError("the server has not answered in time")
        return reply

    async def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                await idle.pop().disconnect(nowait=True)


class Turn:
    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self.has_come = False

    def release(self) -> None:
        """The next one's turn has come."""
        if self.has_come:
            self._lock.release()


class Turns:
    """First come, first served, a queue for each key that somebody waits for; asyncio's locks are that."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[tuple[int, bytes], asyncio.Lock] = weakref.WeakValueDictionary()

    async def take(self, key: bytes, timeout: float) -> Turn:
        """A turn that has come, or has not within so many seconds."""
        turn = Turn(self._locks.setdefault((id(asyncio.get_running_loop()), key), asyncio.Lock()))
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(max(0.001, timeout)):
                await turn._lock.acquire()
                turn.has_come = True
        return turn


async def _has_data(connection: Any) -> bool:
    """Nothing is expected; redis-py 8 has another name for looking."""
    look = getattr(connection, "can_read", None) or connection.can_read_destructive
    return bool(await look())
