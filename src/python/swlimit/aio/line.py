"""One connection that all requests share: what waits is sent in one write, and replies come in the order of requests.

An exchange belongs to the line, not to whoever asked: a task that is cancelled leaves it, its reply is still heard.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import redis

from ..breaker import SILENT_TIMEOUTS
from ..errors import BROKEN, REPLIES, ServerAway
from ..link import Send
from ..servers import SILENCE, Server, Words
from .timing import ROUNDS, time_limit

MOST_UNANSWERED = 1000
LATEST = 10.0
"""Seconds after which a line that takes nothing new is closed, whatever it owes."""


class Exchange:
    """A command, and whoever waits for its reply, if anybody still does."""

    __slots__ = ("_line", "_rounds", "_timer", "is_late", "reply", "send", "sent")

    def __init__(self, line: "Line", send: Send, loop: asyncio.AbstractEventLoop) -> None:
        self._line, self.send = line, send
        self.sent = 0.0
        """When it was written; 0: not yet."""
        self.is_late = False
        self.reply: asyncio.Future[Any] = loop.create_future()
        self._rounds = 0
        self._timer = loop.call_later(send.wait, self._look)

    def settle(self, reply: Any) -> None:
        """The reply has come, or never will."""
        self._timer.cancel()
        if not self.reply.done():
            self.reply.set_result(reply)

    def _look(self) -> None:
        """Time is up: after a pause of the loop, the reply may have come without anybody having read it."""
        loop, send = self.reply.get_loop(), self.send
        if self._rounds < ROUNDS:
            self._rounds += 1
            self._timer = loop.call_soon(self._look)  # type: ignore[assignment]
            return
        began = self.sent or time.monotonic()
        left = began + send.timeout - time.monotonic()
        if self.sent and left > 0 and send.wait >= send.timeout and not self.reply.done():
            self._rounds, self._timer = 0, loop.call_later(left, self._look)  # written late, by a pause of the loop
            return
        if not self.reply.done():
            self.reply.set_result(ServerAway(f"{send.server.home.name} has not replied in time"))
        if not self.sent:
            return
        if left > 0:
            self._rounds, self._timer = 0, loop.call_later(left, self._look)
        elif not self.is_late:
            self.is_late = True
            send.server.breaker.failed(f"no reply within {send.timeout * 1000:.0f} ms", send.key)
            self._rounds, self._timer = 0, loop.call_later((SILENT_TIMEOUTS - 1) * send.timeout, self._look)
        elif time.monotonic() - max(self._line.heard, self.sent) > SILENT_TIMEOUTS * send.timeout:
            send.server.breaker.open(f"nothing heard for {SILENT_TIMEOUTS} times {send.timeout * 1000:.0f} ms")


class Line:
    """Writes and reads in tasks of its own, which end with the connection."""

    def __init__(self, server: Server, connect_within: float = SILENCE) -> None:
        self._server = server
        self._connect_within = connect_within
        self.loop = asyncio.get_running_loop()
        self.heard = 0.0
        """When a reply came last."""
        self._unsent: deque[Exchange] = deque()
        self._unanswered: deque[Exchange] = deque()
        self._wake = asyncio.Event()
        self._retired = False
        self._connection: Any = None
        """Once it is connected."""
        self.is_over = False
        self.task = self.loop.create_task(self._run(), name="swlimit-line")

    @property
    def takes_more(self) -> bool:
        """Not one on which nothing is heard of what is unanswered."""
        if self.is_over or self._retired:
            return False
        oldest = self._unanswered[0] if self._unanswered else None
        return oldest is None or time.monotonic() - max(oldest.sent, self.heard) < SILENCE

    async def send(self, send: Send) -> Any:
        """The reply. Raises ServerAway where it does not come in time, and what the server says is wrong."""
        exchange = Exchange(self, send, self.loop)
        self._unsent.append(exchange)
        if self._connection is not None and not self._unanswered:
            with contextlib.suppress(*BROKEN):  # whoever reads finds it broken, too
                await self._flush()  # which does not pause, as nothing is waiting to be written
        else:
            self._wake.set()
        reply = await exchange.reply
        if isinstance(reply, Exception):
            raise reply
        return reply

    def retire(self) -> None:
        """Take nothing new, and end when all that is owed has come."""
        self._retired = True
        self._wake.set()
        self.loop.call_later(LATEST, self.close)

    def close(self) -> None:
        self.task.cancel()

    async def _run(self) -> None:
        connection = self._server.home.connection(socket_timeout=None, socket_connect_timeout=None)
        tasks: list[asyncio.Task[None]] = []
        error: BaseException = ConnectionError("closed")
        try:
            try:
                async with time_limit(self._connect_within):
                    await connection.connect()
            except asyncio.TimeoutError:
                error = redis.TimeoutError(f"no connection within {self._connect_within:.1f} s")
                self._server.breaker.open(error)
                return
            self._connection = connection
            tasks = [asyncio.create_task(self._read(connection)), asyncio.create_task(self._write())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next((task.exception() for task in tasks if task.done()), None) or error
        except (*BROKEN, redis.RedisError) as raised:
            error = raised
            self._server.breaker.failed(error)
        finally:
            self.is_over, self._connection = True, None
            for task in tasks:
                task.cancel()
            self._settle_all(error)
            await connection.disconnect(nowait=True)
            await asyncio.gather(*tasks, return_exceptions=True)

    def _settle_all(self, error: BaseException) -> None:
        """Nothing more will be heard."""
        away = ServerAway(f"{self._server.home.name}: {error or type(error).__name__}")
        if self._unanswered:
            self._server.lost(error, self._unanswered[-1].send.key)
        for exchange in (*self._unanswered, *self._unsent):
            exchange.settle(away)
        self._unanswered.clear()
        self._unsent.clear()

    async def _write(self) -> None:
        while not (self._retired and not self._unsent and not self._unanswered):
            await self._flush()
            await self._wake.wait()
            self._wake.clear()

    async def _flush(self) -> None:
        """Send what waits, in one write."""
        commands: list[Words] = []
        now = time.monotonic()
        while self._unsent and len(self._unanswered) < MOST_UNANSWERED:
            exchange = self._unsent.popleft()
            if exchange.reply.done():
                exchange.settle(None)  # given up before it was sent: it never is
                continue
            exchange.sent = now
            self._unanswered.append(exchange)
            if exchange.send.asking:
                commands.append(("ASKING",))
            commands.append(exchange.send.words)
        if commands:
            await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    async def _read(self, connection: Any) -> None:
        while True:
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except REPLIES as error:
                reply = error
            self.heard = time.monotonic()
            exchange = self._unanswered[0]
            send = exchange.send
            if send.asking:
                exchange.send = send._replace(asking=False)  # that was the reply to ASKING
                continue
            self._unanswered.popleft()
            exchange.settle(send.server.heard(send.key, send.words, reply, in_time=not exchange.is_late))
            if self._unsent or self._retired:
                self._wake.set()
