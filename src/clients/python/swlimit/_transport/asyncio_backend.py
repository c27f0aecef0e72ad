"""The interface for programs with asyncio."""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Coroutine
from typing import Any

import redis

from .._protocol.commands import Words
from .._protocol.replies import BROKEN, ERROR_REPLIES
from .asyncio_pipeline import Pipelines, background, time_limit
from .endpoint import SILENCE, Endpoint
from .interface import DedicatedConnection, Owned, Worker


class Signal(asyncio.Event):
    async def wait(self, seconds: float) -> bool:  # type: ignore[override]
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(max(0.0, seconds)):
                await super().wait()
        return self.is_set()


class Mailbox:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._mail: deque[object] = deque()
        self._came = asyncio.Event()

    @property
    def has_mail(self) -> bool:
        return bool(self._mail)

    def put(self, mail: object) -> None:
        self._mail.append(mail)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._came.set)

    async def get(self, seconds: float) -> object:
        if not self._mail and seconds > 0:
            self._came.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                async with time_limit(seconds):
                    await self._came.wait()
        return self._mail.popleft() if self._mail else None


class AsyncioConnection(DedicatedConnection):
    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, socket_timeout=None, socket_connect_timeout=None)

    async def connect(self, at_most: float = SILENCE) -> None:
        try:
            if self.redis.is_connected and await _has_data(self.redis):
                await self.close()
        except (*BROKEN, redis.RedisError):
            await self.close()  # the server has closed it
        if self.redis.is_connected:
            return
        self.run_id = b""
        try:
            async with time_limit(at_most):
                await self.redis.connect()
        except asyncio.TimeoutError:
            raise redis.TimeoutError(f"no connection within {at_most:.1f} s") from None

    async def write(self, *commands: Words) -> None:
        await self.redis.send_packed_command(self.redis.pack_commands(commands), check_health=False)

    async def read(self, seconds: float) -> Any:
        try:
            reply = await self.redis.read_response(timeout=seconds, disconnect_on_error=False)
        except ERROR_REPLIES as error:
            return error
        if reply is None:
            raise redis.TimeoutError("no reply in time")
        return reply

    @property
    def is_connected(self) -> bool:
        return bool(self.redis.is_connected)

    def shut_down(self) -> None:
        writer = self.redis._writer
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.get_extra_info("socket").shutdown(socket.SHUT_WR)  # TLS goes on reading

    async def close(self) -> None:
        await self.redis.disconnect(nowait=True)


async def _has_data(connection: Any) -> bool:
    """Whether there is anything to read, which means the end; redis-py 8 has renamed the method."""
    look = getattr(connection, "can_read", None) or connection.can_read_destructive
    return bool(await look())


class ReplyReader:
    def __init__(self, *connections: DedicatedConnection) -> None:
        self._replies: asyncio.Queue[tuple[DedicatedConnection, Any] | BaseException] = asyncio.Queue()
        self._tasks = [background(self._read(one)) for one in connections]

    async def _read(self, connection: DedicatedConnection) -> None:
        try:
            while True:
                try:
                    reply = await connection.redis.read_response(disconnect_on_error=False)
                except ERROR_REPLIES as error:
                    reply = error
                self._replies.put_nowait((connection, reply))
        except (*BROKEN, redis.RedisError) as error:
            self._replies.put_nowait(error)

    async def next(self, seconds: float) -> tuple[DedicatedConnection, Any] | None:
        if self._replies.empty():
            try:
                async with time_limit(seconds):
                    found = await self._replies.get()
            except asyncio.TimeoutError:
                return None
        else:
            found = self._replies.get_nowait()
        if isinstance(found, BaseException):
            raise found
        return found

    async def close(self) -> None:
        if self._tasks[0].get_loop().is_closed():
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class AsyncioBackend:
    signal, event, mailbox, connections = Signal, asyncio.Event, Mailbox, Pipelines
    connection, reply_reader = AsyncioConnection, ReplyReader

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def current_loop(self) -> object:
        return asyncio.get_running_loop()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def own(self, one: Owned) -> None:
        """See `Interface.own`."""

    def spawn(self, coroutine: Coroutine[Owned, None, None]) -> "asyncio.Task[None]":
        task = background(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def is_running(self, worker: Worker | None) -> bool:
        return (isinstance(worker, asyncio.Task) and not worker.done()
                and worker.get_loop() is asyncio.get_running_loop())

    def end(self, worker: Worker) -> None:
        if isinstance(worker, asyncio.Task) and not worker.get_loop().is_closed():
            with contextlib.suppress(RuntimeError):
                worker.get_loop().call_soon_threadsafe(worker.cancel)

    async def ended(self, workers: list[Worker]) -> None:
        if here := [one for one in workers if isinstance(one, asyncio.Task) and self.is_running(one)]:
            await asyncio.wait(here, timeout=SILENCE)

    def abort(self, connection: object) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            if (writer := getattr(connection, "_writer", None)) is not None:
                writer.transport.abort()

    def post(self, connection: DedicatedConnection, *commands: Words) -> None:
        async def send() -> None:
            with contextlib.suppress(*BROKEN, redis.RedisError):  # the reader sees it closed
                await connection.write(*commands)
        self.spawn(send())


ASYNCIO = AsyncioBackend()
