"""Connections on which a command may wait in the server."""

import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from .._core import fork
from .._protocol.commands import Command, Words
from .._protocol.replies import BROKEN
from ..errors import NoFreeConnection, ServerAway
from .endpoint import SILENCE
from .interface import DedicatedConnection, Interface
from .server_health import ServerHealth
from .wait_queue import WaitQueue

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
        """The reply to a command that the server answers by the instant `ends`, or soon after. Raises ServerAway when
        it does not, and NoFreeConnection when all connections are taken: their requests may wait for other keys, and
        for long.

        make: makes the command once a connection is free, from the seconds that are left then. When the caller is
        cancelled, the command is undone.
        """
        if (loop := self._interface.current_loop()) is not self._loop:
            self._loop = loop
            self.reset()
        places, idle = self._places, self._idle[health.endpoint.name]
        if not await places.take(0.0):
            raise NoFreeConnection
        try:
            connection = idle.pop() if idle else self._interface.connection(health.endpoint)
            command: Command | None = None
            sent = time.monotonic()
            self._used.add(connection)
            try:
                await connection.connect(self._at_most(ends))
                await self._identify(health, connection, self._at_most(ends))
                left = max(0.0, ends - time.monotonic())
                command, sent = make(left), time.monotonic()
                await connection.write(command.words())
                reply = await connection.read(left + self._timeout)
            except (*BROKEN, redis.RedisError) as error:
                await connection.close()
                raise ServerAway(f"{health.endpoint.name}: {error or type(error).__name__}") from error
            except BaseException:
                self._interface.spawn(self._leave(health, connection, command, sent))
                raise
            finally:
                self._used.discard(connection)
            idle.append(connection)
        finally:
            places.release()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _at_most(self, ends: float) -> float:
        """How many seconds to wait for the server before the command is sent."""
        return min(SILENCE, max(0.0, ends + self._timeout - time.monotonic()))

    async def _leave(self, health: ServerHealth, connection: DedicatedConnection, command: Command | None,
                     sent: float) -> None:
        """Leave the server's queue, and undo what it has granted already.

        The server grants nothing to a client that has closed its side. It closes its own side then, and what it has
        sent before can still be read.
        """
        sent = max(sent, time.monotonic() - SILENCE)  # an earlier grant would have been read
        try:
            if command is not None and connection.is_connected:
                connection.shut_down()
                try:
                    reply = await connection.read(SILENCE)
                except redis.TimeoutError:
                    reply = None
                if commands := health.undo(command, reply, sent):
                    await self._undo(health, connection.run_id, commands)
        except (*BROKEN, redis.RedisError):
            pass  # that was the end
        finally:
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
            if isinstance(reply, NoPermissionError):
                health.refused(INFO, reply)
            found = RUN_ID.search(reply) if isinstance(reply, bytes) else None
            connection.run_id = found[1] if found else b""
        return connection.run_id

    async def close(self) -> None:
        """Who waits gets ServerAway, and nothing from the server."""
        for connection in list(self._used):
            self._interface.abort(connection.redis)
        for idle in self._idle.values():
            while idle:
                await idle.pop().close()
