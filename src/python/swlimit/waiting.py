"""Waiting for one's turn: queues within the process, and connections that the server lets wait."""

import re
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from . import fork
from .commands import Command, Words
from .errors import BROKEN, NoFreeConnection, ServerAway
from .outside import Conversation, Outside, Signal
from .servers import SILENCE, Server

INFO: Words = ("INFO", "server")
RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


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

    async def acquire(self, server: Server, command: Callable[[float], Command], ends: float) -> Any:
        """The reply to a command that the server answers by the instant `ends`, or soon after. Raises NoFreeConnection
        where all places are taken: others may wait there for another key, and for long.

        The command is made once a connection is free, of the seconds that are left then. For somebody who is cancelled
        meanwhile it is undone.
        """
        if (scene := self._outside.scene()) is not self._scene:
            self._scene = scene
            self.begin_anew()
        places, idle = self._places, self._idle[server.home.name]
        if not await places.take(0.0):
            raise NoFreeConnection
        try:
            connection = idle.pop() if idle else self._outside.conversation(server.home)
            asked: Command | None = None
            sent = time.monotonic()
            try:
                await connection.connect()
                await self._identify(server, connection)
                left = max(0.0, ends - time.monotonic())
                asked, sent = command(left), time.monotonic()
                await connection.write(asked.words)
                reply = await connection.read(left + SILENCE)
            except (*BROKEN, redis.RedisError) as error:
                await connection.close()
                raise ServerAway(f"{server.home.name}: {error or type(error).__name__}") from error
            except BaseException:
                self._outside.spawn(self._leave(server, connection, asked, sent))
                raise
            idle.append(connection)
        finally:
            places.release()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _leave(self, server: Server, connection: Conversation, asked: Command | None, sent: float) -> None:
        """Have the server forget who waited; what it has granted already is given back.

        The server counts nothing for a client that it knows to be gone. It answers the end of what it reads by the end
        of what it writes, and until then tells what it has granted.
        """
        sent = max(sent, time.monotonic() - SILENCE)  # what was granted before that would have been read
        try:
            if asked is not None and connection.is_connected:
                connection.hang_up()
                try:
                    reply = await connection.read(SILENCE)
                except redis.TimeoutError:
                    reply = None
                if undone := server.undoing(asked, reply, sent):
                    await self._undo(server, connection.run_id, undone)
        except (*BROKEN, redis.RedisError):
            pass  # that was the end
        finally:
            await connection.close()

    async def _undo(self, server: Server, run_id: bytes, undone: list[Command]) -> None:
        """Over a connection made anew, as the other takes nothing any more; not where it leads to another server."""
        connection = self._outside.conversation(server.home)
        try:
            await connection.connect()
            if await self._identify(server, connection) != run_id or not run_id:
                return
            while undone:
                command, sent = undone.pop(), time.monotonic()
                reply = await connection.exchange(server.backend.spelled(command.words))
                undone += server.undoing(command, reply, sent)
        finally:
            await connection.close()

    async def _identify(self, server: Server, connection: Conversation) -> bytes:
        """The run of the server that a connection leads to; empty where it does not tell."""
        if not connection.run_id:
            reply = await connection.exchange(INFO)
            if isinstance(reply, NoPermissionError):
                server.refused(INFO, reply)
            found = RUN_ID.search(reply) if isinstance(reply, bytes) else None
            connection.run_id = found[1] if found else b""
        return connection.run_id

    async def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                await idle.pop().close()
