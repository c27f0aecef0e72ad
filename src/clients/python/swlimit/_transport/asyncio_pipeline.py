"""One connection that all requests share: pending commands are sent in one write, and replies come in their order.

A request belongs to the pipeline, not to its caller: when the calling task is cancelled, the reply is still read, and
the command is undone.
"""

import asyncio
import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Coroutine
from itertools import chain
from typing import Any

import redis

from .._core import fork
from .._protocol.commands import Command, Preparation, Probe, Words
from .._protocol.exchange import Exchange
from .._protocol.replies import BROKEN, ERROR_REPLIES
from .._protocol.script_fallback import Dialect
from ..errors import ServerAway
from .circuit_breaker import PROBE_TIMEOUT, SILENT_TIMEOUTS
from .endpoint import LATEST, SILENCE
from .server_health import ServerHealth

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

__all__ = ["PipelineWire", "time_limit"]
MOST_UNANSWERED = 1000
LOOP_TURNS = 3
"""Turns of the loop to wait after a timeout before it counts: the loop may have been busy elsewhere."""


class Request(Exchange):
    """A command, and the future of its caller."""

    __slots__ = "asking", "due", "is_late", "is_wanted", "owes_asking", "reply", "sent", "timeout", "wait"

    def __init__(self, command: Command, dialect: Dialect, timeout: float, wait: float, asking: bool, due: float,
                 reply: "asyncio.Future[Any]") -> None:
        super().__init__(command, dialect)
        self.timeout, self.wait, self.asking = timeout, wait, asking
        self.due = due
        """When to check it, unless the reply has come."""
        self.reply = reply
        self.sent = 0.0
        """When it was written, first if it is sent again; 0: not yet."""
        self.is_late = False
        self.is_wanted = True
        """False when the caller was cancelled: the command is undone then."""
        self.owes_asking = False
        """Whether the reply to ASKING comes first."""

    @property
    def is_abandoned(self) -> bool:
        return not self.is_wanted or self.reply.cancelled()

    def settle(self, reply: Any) -> None:
        """The reply has come, or never will."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def check(self, health: ServerHealth, now: float, last_reply: float) -> None:
        """Time is up for the caller, or for the server."""
        self.due = math.inf
        in_time_until = self.sent + self.timeout
        if self.sent and in_time_until > now and self.wait >= self.timeout and not self.reply.done():
            self.due = in_time_until  # the loop paused before it was written
            return
        self.settle(ServerAway(f"{health.endpoint.name} has not replied in time"))
        if not self.sent:
            return
        if in_time_until > now:
            self.due = in_time_until
        elif not self.is_late:
            self.is_late = True
            self.due = self.sent + SILENT_TIMEOUTS * self.timeout
            health.breaker.failed(f"no reply within {self.timeout * 1000:.0f} ms", self.command.key)
        elif now - max(last_reply, self.sent) >= SILENT_TIMEOUTS * self.timeout:
            health.breaker.open(f"nothing heard for {SILENT_TIMEOUTS} times {self.timeout * 1000:.0f} ms")


class Pipeline:
    """Writes and reads in tasks of its own, which end with the connection."""

    def __init__(self, health: ServerHealth, connect_within: float = SILENCE) -> None:
        self._health = health
        self._connect_within = connect_within
        self.loop = asyncio.get_running_loop()
        self.last_reply = 0.0
        """When the last reply came."""
        self._unsent: deque[Request] = deque()
        self._unanswered: deque[Request] = deque()
        self._wake = asyncio.Event()
        self._next_check = math.inf
        self._timer: asyncio.Handle | None = None
        self._retired = False
        self._connection: Any = None
        """Once it is connected."""
        self.is_over = False
        self.task = self.loop.create_task(self._run(), name="swlimit-pipeline")

    @property
    def takes_more(self) -> bool:
        """Whether it is open, and the server answers."""
        if self.is_over or self._retired:
            return False
        return not self._unanswered or time.monotonic() - max(self._unanswered[0].sent, self.last_reply) < SILENCE

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        """See `Wire.send`."""
        due = time.monotonic() + wait
        request = Request(command, self._health.dialect, timeout, wait, asking, due, self.loop.create_future())
        self._unsent.append(request)
        if due < self._next_check:
            self._check_at(due)
        try:
            if self._connection is not None and not self._unanswered:
                with contextlib.suppress(*BROKEN):  # the reader finds it broken, too
                    await self._flush()  # it does not suspend, as no data is waiting to be written
            else:
                self._wake.set()
            reply = await request.reply
        except asyncio.CancelledError:
            request.is_wanted = False
            if request.reply.done() and not request.reply.cancelled():  # it came just before
                self._undo(request, request.reply.result())
            raise
        if isinstance(reply, Exception):
            raise reply
        return reply

    def retire(self) -> None:
        """Take no new requests, and end when all replies have come."""
        self._retired = True
        self._wake.set()
        self.loop.call_later(LATEST, self.close)

    def close(self) -> None:
        self.task.cancel()

    def _check_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_check = due
        self._timer = self.loop.call_later(max(0.0, due - time.monotonic()), self._time_is_up)

    def _time_is_up(self) -> None:
        """Time is up for a request. After a pause of the loop, its reply may have come without being read yet."""
        self._timer = self.loop.call_soon(self._check, time.monotonic(), LOOP_TURNS - 1)

    def _check(self, instant: float, rounds: int) -> None:
        """Check the requests whose time was up at an instant; the loop may have paused again since."""
        if rounds:
            self._timer = self.loop.call_soon(self._check, instant, rounds - 1)
            return
        self._timer, self._next_check = None, math.inf
        for request in list(chain(self._unanswered, self._unsent)):
            if request.due <= instant:
                request.check(self._health, instant, self.last_reply)
        due = min((request.due for request in chain(self._unanswered, self._unsent)), default=math.inf)
        if due < math.inf:
            self._check_at(due)

    def _undo(self, request: Request, reply: Any) -> None:
        """Nobody takes this reply; None: no reply."""
        for command in self._health.undo(request.command, reply, request.sent):
            self._unsent.append(self._own(command, request.asking))
            self._wake.set()

    def _own(self, command: Command, asking: bool = False) -> Request:
        """A request without a caller."""
        request = Request(command, self._health.dialect, SILENCE, SILENCE, asking, math.inf, self.loop.create_future())
        request.is_wanted = False
        return request

    async def _run(self) -> None:
        connection = self._health.endpoint.connection(socket_timeout=None, socket_connect_timeout=None)
        tasks: list[asyncio.Task[None]] = []
        error: BaseException = ConnectionError("closed")
        try:
            try:
                async with time_limit(self._connect_within):
                    await connection.connect()
            except asyncio.TimeoutError:
                error = redis.TimeoutError(f"no connection within {self._connect_within:.1f} s")
                self._health.breaker.open(error)
                return
            self._connection = connection
            self._health.dialect.reset()
            tasks = [asyncio.create_task(self._read(connection)), asyncio.create_task(self._write())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next((task.exception() for task in tasks if task.done()), None) or error
        except (*BROKEN, redis.RedisError) as raised:
            error = raised
            self._health.breaker.failed(error)
        finally:
            self.is_over, self._connection = True, None
            for task in tasks:
                task.cancel()
            self._settle_all(error)
            await connection.disconnect(nowait=True)
            await asyncio.gather(*tasks, return_exceptions=True)

    def _settle_all(self, error: BaseException) -> None:
        """No more replies will come."""
        away = ServerAway(f"{self._health.endpoint.name}: {error or type(error).__name__}")
        if self._unanswered:
            self._health.lost(error, self._unanswered[-1].command.key)
        for request in (*self._unanswered, *self._unsent):
            if request.is_abandoned and request.sent:
                self._undo(request, None)
            request.settle(away)
        self._unanswered.clear()
        self._unsent.clear()

    async def _write(self) -> None:
        while not (self._retired and not self._unsent and not self._unanswered):
            await self._flush()
            await self._wake.wait()
            self._wake.clear()

    async def _flush(self) -> None:
        """Send all unsent commands in one write."""
        commands: list[Words] = []
        now = time.monotonic()
        while self._unsent and len(self._unanswered) < MOST_UNANSWERED:
            request = self._unsent.popleft()
            if request.reply.done():
                continue  # given up before it was sent
            request.sent = request.sent or now
            request.owes_asking = request.asking
            words = request.encode()
            self._unanswered.append(request)
            if request.asking:
                commands.append(("ASKING",))
            commands.append(words)
        if commands:
            await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    async def _read(self, connection: Any) -> None:
        unanswered, health = self._unanswered, self._health
        while True:
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except ERROR_REPLIES as error:
                reply = error
            self.last_reply = now = time.monotonic()
            request = unanswered[0]
            if request.owes_asking:
                request.owes_asking = False
                continue
            unanswered.popleft()
            if isinstance(request.command, Preparation):
                request.command.answered(reply)
                continue
            if request.asks_module or isinstance(reply, redis.ResponseError):
                if self._is_sent_again(request, reply):
                    continue
                reply = request.answer
            health.round_trip = now - request.sent
            if request.is_late:
                outcome = health.replied_late(request.command, reply, now - request.sent, request.timeout)
            else:
                outcome = health.replied(request.command, reply)
            if request.is_abandoned:
                self._undo(request, outcome)
            elif not request.reply.done():
                request.reply.set_result(outcome)
            if self._unsent or self._retired:
                self._wake.set()

    def _is_sent_again(self, request: Request, reply: Any) -> bool:
        """Whether the server has done nothing, and gets the command once more."""
        before = request.again(reply)
        if before is None:
            return False
        self._unsent.appendleft(request)
        self._unsent.extendleft(self._own(one, request.asking) for one in reversed(before))
        self._wake.set()
        return True


class PipelineWire:
    """The wire of `asyncio_backend`: one pipeline in the loop that runs, replaced when it is broken."""

    def __init__(self, health: ServerHealth) -> None:
        self._health = health
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._pipeline: Pipeline | None = None

    @property
    def worker(self) -> "asyncio.Task[None] | None":
        return None if self._pipeline is None else self._pipeline.task

    def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Coroutine[Any, Any, Any]:
        pipeline = self._pipeline
        if pipeline is None or not pipeline.takes_more or pipeline.loop is not asyncio.get_running_loop():
            self.close()
            pipeline = self._pipeline = Pipeline(self._health)
        return pipeline.send(command, timeout, wait, asking)

    async def probe(self, key: bytes) -> None:
        """See `Wire.probe`. When the server answers, the new pipeline replaces the old one."""
        pipeline = Pipeline(self._health, connect_within=PROBE_TIMEOUT)
        try:
            await pipeline.send(Probe(key), PROBE_TIMEOUT, PROBE_TIMEOUT)
        except ServerAway:
            pipeline.close()
            raise
        except BaseException:
            pipeline.retire()
            raise
        self.close()
        self._pipeline = pipeline

    def close(self) -> None:
        """See `Wire.close`."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None and not pipeline.loop.is_closed():
            with contextlib.suppress(RuntimeError):
                pipeline.loop.call_soon_threadsafe(pipeline.retire)
