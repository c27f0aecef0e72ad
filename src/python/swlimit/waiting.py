"""Waiting for one's turn: queues within the process, and connections that the server lets wait."""

import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import redis

from . import fork
from .errors import BROKEN, NoFreeConnection, ServerAway
from .outside import Conversation, Outside, Signal
from .servers import SILENCE, Server
from .words import Words, giving_back


class Queue:
    """At most so many at a time; who comes when all places are taken waits, first come, first served."""

    def __init__(self, outside: Outside, places: int) -> None:
        self._outside = outside
        self._free = places
        self._waiting: deque[Signal] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def take(self, seconds: float) -> bool:
        """Whether there is a place in so many seconds. It is released."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = self._outside.signal()
            self._waiting.append(turn)
        try:
            await turn.wait(seconds)
        except BaseException:
            if not self._leave(turn):
                self.release()
            raise
        return not self._leave(turn)

    def release(self) -> None:
        """The next one's turn has come."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def _leave(self, turn: Signal) -> bool:
        """Whether it was still waiting."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
            return False


class Turns:
    """A queue for each key that somebody waits for."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._scene: object = None
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._queues: weakref.WeakValueDictionary[bytes, Queue] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, key: bytes) -> Queue:
        with self._lock:
            if (scene := self._outside.scene()) is not self._scene:
                self._scene, self._queues = scene, weakref.WeakValueDictionary()
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = Queue(self._outside, 1)
            return queue


class Waiting:
    """At most so many connections, each of which one request at a time may block. Their health is their own."""

    def __init__(self, outside: Outside, most: int) -> None:
        self._outside = outside
        self._most = most
        self._scene: object = None
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._places = Queue(self._outside, self._most)
        self._idle: defaultdict[str, list[Conversation]] = defaultdict(list)

    async def acquire(self, server: Server, words: Callable[[float], Words], ends: float) -> Any:
        """The reply to a command that the server answers by the instant `ends`, or soon after.

        The words are made once a connection is free, of the seconds that are left then. What is granted to somebody who
        is cancelled just then is given back.
        """
        if (scene := self._outside.scene()) is not self._scene:
            self._scene = scene
            self.begin_anew()
        places, idle = self._places, self._idle[server.home.name]
        if not await places.take(ends - time.monotonic()):
            raise NoFreeConnection
        try:
            connection = idle.pop() if idle else self._outside.conversation(server.home)
            asked: Words | None = None
            try:
                await connection.connect()
                left = max(0.0, ends - time.monotonic())
                asked = words(left)
                await connection.write(asked)
                reply = await connection.read(left + SILENCE)
            except (*BROKEN, redis.RedisError) as error:
                await connection.close()
                raise ServerAway(f"{server.home.name}: {error or type(error).__name__}") from error
            except BaseException:
                await self._leave(server, connection, asked)
                raise
            idle.append(connection)
        finally:
            places.release()
        if isinstance(reply, Exception):
            raise reply
        return reply

    @staticmethod
    async def _leave(server: Server, connection: Conversation, asked: Words | None) -> None:
        """Have the server forget who waited; what it has granted already is given back.

        The server counts nothing for a client that it knows to be gone. It answers the end of what it reads by the end
        of what it writes, and until then tells what it has granted.
        """
        gave_up = time.monotonic()
        try:
            if asked is not None and connection.is_connected:
                connection.hang_up()
                reply = await connection.read(SILENCE)
                for words in giving_back(asked, reply, time.monotonic() - gave_up + SILENCE):
                    await server.wire.send(words[1], words, SILENCE, SILENCE)
        except (*BROKEN, redis.RedisError, ServerAway):
            pass  # that was the end
        finally:
            await connection.close()

    async def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                await idle.pop().close()
