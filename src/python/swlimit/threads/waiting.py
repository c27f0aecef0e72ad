"""Connections that wait for one's turn, and turns within the process."""

import threading
import time
import weakref
from collections import defaultdict, deque
from typing import Any

import redis

from .. import fork
from ..errors import BROKEN, NoFreeConnection, ServerAway
from ..link import Acquire
from ..servers import SILENCE
from .pool import read


class Waiting:
    """At most so many connections, each of which one request at a time may block. Their health is their own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._free = threading.Semaphore(self._most)
        self._idle: defaultdict[str, list[Any]] = defaultdict(list)

    def acquire(self, step: Acquire) -> Any:
        """The reply to a command that the server answers by `step.ends`, or soon after."""
        left = step.ends - time.monotonic()
        if not self._free.acquire(timeout=max(0.0, min(left, threading.TIMEOUT_MAX))):
            raise NoFreeConnection
        free, name = self._free, step.server.home.name
        try:
            idle = self._idle[name]
            connection = idle.pop() if idle else step.server.home.connection()
            try:
                self._connect(connection)
                left = max(0.0, step.ends - time.monotonic())
                connection.send_packed_command(connection.pack_command(*step.words(left)), check_health=False)
                if not connection.can_read(min(left + SILENCE, threading.TIMEOUT_MAX)):
                    raise redis.TimeoutError("the server has not answered in time")
                reply = read(connection)
            except (*BROKEN, redis.RedisError) as error:
                connection.disconnect()
                raise ServerAway(f"{name}: {error}") from error
            except BaseException:
                connection.disconnect()  # the server then knows that nobody waits
                raise
            idle.append(connection)
        finally:
            free.release()
        if isinstance(reply, Exception):
            raise reply
        return reply

    @staticmethod
    def _connect(connection: Any) -> None:
        try:
            if connection._sock and connection.can_read(0):
                connection.disconnect()
        except (*BROKEN, redis.RedisError):
            connection.disconnect()  # the server has closed it
        connection.connect()

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().disconnect()


class Turn:
    """A place in the queue of a key."""

    def __init__(self, queue: "deque[Turn]") -> None:
        self._queue = queue
        self.came = threading.Event()
        self.has_come = False

    def release(self) -> None:
        """The next one's turn has come."""
        self._queue.remove(self)
        if self._queue:
            self._queue[0].came.set()


class Turns:
    """First come, first served, a queue for each key that somebody waits for."""

    def __init__(self) -> None:
        self._queues: weakref.WeakValueDictionary[bytes, deque[Turn]] = weakref.WeakValueDictionary()
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._queues.clear()

    def take(self, key: bytes, timeout: float) -> Turn:
        """A turn that has come, or has not within so many seconds."""
        with self._lock:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = deque()
            mine = Turn(queue)
            queue.append(mine)
        try:
            mine.has_come = queue[0] is mine or mine.came.wait(max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        except BaseException:
            mine.release()
            raise
        return mine
