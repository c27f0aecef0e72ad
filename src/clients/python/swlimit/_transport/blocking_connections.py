"""Connections on which a command may wait in the server."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import redis
import redis.exceptions as redis_errors

from .._core import fork
from .._protocol.commands import Command, Words
from .._protocol.replies import BROKEN, ERROR_REPLIES, BadReply, Failure, as_raised, is_failure
from ..errors import NoFreeConnection, NotExecuted, UnavailableError
from .endpoint import SILENCE
from .interface import DedicatedConnection, Interface, Owned
from .server_health import ServerHealth
from .wait_queue import Place, WaitQueue

INFO: Words = ("INFO", "server")
RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class BlockingConnections:
    """At most `most` connections, each for one request at a time. Their failures do not count for the breaker.

    timeout: how many seconds after the end of its wait a request is answered at the latest.
    """

    def __init__(self, interface: Interface, most: int, timeout: float) -> None:
        self._interface = interface
        self._most, self._timeout = most, timeout
        self._loop: object = None
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._places = WaitQueue(self._interface, self._most)
        self._idle: defaultdict[str, list[DedicatedConnection]] = defaultdict(list)
        self._used: set[DedicatedConnection] = set()

    async def send(self, health: ServerHealth, make: Callable[[float], Command], ends: float) -> Any:
        """The reply to a command that the server answers by the instant `ends`, or soon after. Raises UnavailableError
        when it does not, and NoFreeConnection when all connections are taken: their requests may wait for other keys,
        and for long.

        make: makes the command once a connection is free, from the seconds that are left then. When the caller is
        cancelled, the command is undone.
        """
        if (loop := self._interface.current_loop()) is not self._loop:
            self._loop = loop
            self.reset()
        waiting, idle = _Waiting(self, health, self._places.place()), self._idle[health.endpoint.name]
        await self._interface.own(waiting)
        if not await waiting.place.take(0.0):
            raise NoFreeConnection
        connection: DedicatedConnection | None = None
        try:
            connection = waiting.connection = idle.pop() if idle else self._interface.connection(health.endpoint)
            self._used.add(connection)
            await connection.connect(self._at_most(ends))
            waiting.run_id = await self._identify(health, connection, self._at_most(ends))
            left = max(0.0, ends - time.monotonic())
            command, waiting.sent = make(left), time.monotonic()
            waiting.command = command
            await connection.write(command.words())
            waiting.reply = reply = await connection.read(left + self._timeout)
            if not isinstance(reply, ERROR_REPLIES):
                waiting.reply = reply = command.decoded(reply)
            elif is_failure(reply):
                await connection.close()
                failure = Failure.of(reply)
                raise NotExecuted(f"{health.endpoint.name}: {failure.message}", failure.reason)
            waiting.connection = None
            idle.append(connection)
        except (*BROKEN, redis.RedisError, BadReply) as error:
            waiting.connection = None
            if connection is not None:
                await connection.close()
            failure = Failure("bad_reply", str(error)) if isinstance(error, BadReply) else Failure.of(error)
            raise UnavailableError(f"{health.endpoint.name}: {failure.message}", failure.reason) from error
        except BaseException:
            waiting.abandon()
            raise
        finally:
            waiting.place.leave()
            if connection is not None:
                self._used.discard(connection)
        if isinstance(reply, redis_errors.AskError):
            raise reply
        if isinstance(reply, Exception):
            raise as_raised(reply)
        return reply

    def spawn(self, coroutine: Coroutine[Owned, None, None]) -> None:
        with suppress(RuntimeError):  # no thread could be started, as when the interpreter ends
            self._interface.spawn(coroutine)

    def _at_most(self, ends: float) -> float:
        """How many seconds to wait for the server before the command is sent."""
        return min(SILENCE, max(0.0, ends + self._timeout - time.monotonic()))

    async def leave(self, waiting: "_Waiting") -> None:
        """Leave the server's queue, and undo what it has granted already.

        The server grants nothing to a client that has closed its side. It closes its own side then, and what it has
        sent before can still be read.
        """
        sent = max(waiting.sent, time.monotonic() - SILENCE)  # an earlier grant would have been read
        connection, waiting.connection = waiting.connection, None
        reply = waiting.reply
        try:
            if waiting.command is None:
                return
            if reply is None and connection is not None and connection.is_connected:
                connection.shut_down()
                with suppress(redis.TimeoutError):
                    reply = await connection.read(SILENCE)
                    if not isinstance(reply, Exception):
                        reply = waiting.command.decoded(reply)
            if commands := waiting.health.undo(waiting.command, reply, sent):
                await self._undo(waiting.health, waiting.run_id, commands)
        except (*BROKEN, redis.RedisError, BadReply):
            pass  # that was the end
        finally:
            if connection is not None:
                await connection.close()

    async def _undo(self, health: ServerHealth, run_id: bytes, commands: list[Command]) -> None:
        """Send these over a new connection, unless it leads to another server."""
        connection = self._interface.connection(health.endpoint)
        try:
            await connection.connect()
            if await self._identify(health, connection) != run_id or not run_id:
                return
            while commands:
                command, sent = commands.pop(), time.monotonic()
                reply = await connection.exchange(health.dialect.encode(command))
                commands += health.undo(command, reply, sent)
        finally:
            await connection.close()

    async def _identify(self, health: ServerHealth, connection: DedicatedConnection,
                        at_most: float = SILENCE) -> bytes:
        """The run_id of the server that a connection leads to; empty when the server refuses to say."""
        if not connection.run_id:
            reply = await connection.exchange(INFO, at_most)
            if isinstance(reply, redis_errors.NoPermissionError):
                health.refused(INFO, reply)
            found = RUN_ID.search(reply) if isinstance(reply, bytes) else None
            connection.run_id = found[1] if found else b""
        return connection.run_id

    async def close(self) -> None:
        """Who waits gets UnavailableError, and nothing from the server."""
        for connection in list(self._used):
            self._interface.abort(connection.redis)
        for idle in self._idle.values():
            while idle:
                await idle.pop().close()


class _Waiting:
    """A request that waits, and what it has borrowed."""

    def __init__(self, all_: BlockingConnections, health: ServerHealth, place: Place) -> None:
        self.health, self._all, self.place = health, all_, place
        self.connection: DedicatedConnection | None = None
        self.run_id = b""
        self.command: Command | None = None
        self.sent = 0.0
        self.reply: Any = None
        self._is_abandoned = False

    def delivered(self) -> None:
        """Its caller has the reply."""

    def abandon(self) -> None:
        """Its caller was cancelled, or interrupted."""
        if not self._is_abandoned:
            self._is_abandoned = True
            self._all.spawn(self._all.leave(self))
        self.place.leave()
