"""Hearing of invalidations in a task."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import redis

from .. import fork
from ..denials import Denials, Ticket
from ..errors import BROKEN, REPLIES
from ..servers import SILENCE, Server, Words
from ..tracking import CHANNEL, Pauses, Register, Subscribers, log
from .timing import time_limit


class TaskTracker:
    """A tracker in a task of the loop that runs, which ends when nobody subscribes any more, or it is closed."""

    def __init__(self, server: Server, subscribers: Subscribers) -> None:
        self._home = server.home
        self._subscribers = subscribers
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self.is_refused = False
        """Whether the server does not track, as far as is known."""
        self.register = Register()
        self._to_send: asyncio.Queue[Iterable[Words]] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._to_send is not None and self._is_running()

    def start(self) -> None:
        if not self._is_running():
            self._to_send = None
            self._subscribers.lost()
            self._task = asyncio.get_running_loop().create_task(self._track(), name="swlimit-tracking")

    def ask(self, denials: Denials, ticket: Ticket) -> bool:
        if self._to_send is None:
            return False
        self._to_send.put_nowait(self.register.ask(denials, ticket, time.monotonic()))
        return True

    def close(self) -> None:
        """From any thread; who asks again begins anew."""
        task, self._task, self._to_send = self._task, None, None
        self._subscribers.lost()
        if task is not None and not task.get_loop().is_closed():
            with contextlib.suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _is_running(self) -> bool:
        task = self._task
        return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()

    async def _track(self) -> None:
        pauses, mine = Pauses(), asyncio.current_task()
        while self._subscribers and self._task is mine:
            await self._track_once(pauses)
            if self._subscribers and self._task is mine:
                await asyncio.sleep(pauses.next())

    async def _track_once(self, pauses: Pauses) -> None:
        """As long as the connections live."""
        listener, asker = (self._home.connection(socket_timeout=None, socket_connect_timeout=None) for _ in range(2))
        tasks: list[asyncio.Task[None]] = []
        queue: asyncio.Queue[Iterable[Words]] = asyncio.Queue()
        try:
            identity = await _call(listener, "CLIENT", "ID")
            await _call(listener, "SUBSCRIBE", CHANNEL)
            await _call(asker, "CLIENT", "TRACKING", "ON", "REDIRECT", identity)
            pauses.reset()
            self._subscribers.lost()  # of what was asked before, nothing is told
            self.register, self._to_send, self.is_refused = Register(), queue, False
            tasks += [asyncio.create_task(step) for step in (
                self._listen(listener), self._hear(asker, queue), self._send(asker, queue))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except (redis.RedisError, *BROKEN, ValueError) as error:
            self.is_refused = True
            log.debug("not tracking: %s", error)  # the server does not track, or is away
        finally:
            if self._to_send is queue:
                self._to_send = None
            self._subscribers.lost()
            for task in tasks:
                task.cancel()
            for connection in (listener, asker):
                await connection.disconnect(nowait=True)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, listener: Any) -> None:
        async for message in _replies(listener, lambda: send(listener, ("PING",)), self._subscribers):
            self._subscribers.told(message)

    async def _hear(self, asker: Any, to_send: "asyncio.Queue[Iterable[Words]]") -> None:
        async def ping() -> None:
            to_send.put_nowait(self.register.ask_whether_alive())

        async for reply in _replies(asker, ping, self._subscribers):
            self.register.answered(reply, time.monotonic())

    async def _send(self, asker: Any, to_send: "asyncio.Queue[Iterable[Words]]") -> None:
        while True:
            await send(asker, *await to_send.get())


async def _replies(connection: Any, ping: Callable[[], Awaitable[None]], wanted: Subscribers) -> AsyncIterator[Any]:
    """All that a connection tells, errors too; an error is raised when it is lost, or says nothing even to a ping."""
    pinged = False
    while wanted:
        try:
            reply = await connection.read_response(timeout=SILENCE)
        except REPLIES as error:
            reply = error
        if reply is not None:
            pinged = False
            yield reply
        elif pinged:
            raise redis.TimeoutError("a connection is open, but nobody answers")
        else:
            pinged = True
            await ping()


async def send(connection: Any, *commands: Words) -> None:
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)


async def _call(connection: Any, *words: Any) -> Any:
    try:
        async with time_limit(SILENCE):
            await connection.connect()
            await send(connection, words)
            return await connection.read_response()
    except asyncio.TimeoutError as error:
        raise redis.TimeoutError("no reply in time") from error
