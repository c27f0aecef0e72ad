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
from .._protocol.commands import NOTHING, Command, Kept, Preparation, Probe, Words
from .._protocol.exchange import Exchange
from .._protocol.replies import BROKEN, ERROR_REPLIES, Failure
from .._protocol.script_fallback import Dialect
from ..errors import UnavailableError
from .breaker import PROBE_TIMEOUT, SILENT_TIMEOUTS
from .endpoint import LATEST, SILENCE
from .server_health import ServerHealth

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

__all__ = ["Pipelines", "time_limit"]
MOST_UNANSWERED = 1000
LOOP_TURNS = 3
"""Turns of the loop to wait after a timeout before it counts: the loop may have been busy elsewhere."""


def background(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task of this package's own, which ends with its loop, cancelled or not."""
    task = asyncio.get_running_loop().create_task(coroutine, name="swlimit")
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class Request(Exchange):
    """A command, and the future of its caller."""

    __slots__ = ("asking", "due", "is_given_up", "is_late", "is_wanted", "kept", "owes_asking", "reply", "sent",
                 "timeout", "wait")

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
        self.is_given_up = False
        """Whether its caller has got an error in place of the reply, and what a policy granted is `kept`."""
        self.kept: Kept = NOTHING
        self.owes_asking = False
        """Whether the reply to ASKING comes first."""

    @property
    def is_abandoned(self) -> bool:
        return not self.is_wanted or self.reply.cancelled()

    def settle(self, reply: Any) -> None:
        """The reply has come, or never will."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def keep(self, units: Kept) -> None:
        self.kept = units

    def give_up(self, health: ServerHealth) -> None:
        """Time is up for the caller."""
        if not self.reply.done():
            self.is_given_up = True
            error = health.unanswered()
            error._keep = self.keep
            self.reply.set_result(error)


class Pipeline:
    """Writes and reads in tasks of its own, which end with the connection."""

    def __init__(self, health: ServerHealth, connect_within: float = SILENCE) -> None:
        self._health = health
        self._connect_within = connect_within
        self.loop = asyncio.get_running_loop()
        self.last_reply = self.last_in_time = 0.0
        """When the last reply came, and the last that was in time."""
        self._failed_write = 0.0
        """When that was written which failed last: one write is one failure."""
        self._unsent: deque[Request] = deque()
        self._unanswered: deque[Request] = deque()
        self._wake = asyncio.Event()
        self._next_check = math.inf
        self._timer: asyncio.Handle | None = None
        self._retired = False
        self._connection: Any = None
        """Once it is connected."""
        self.is_over = False
        self.task = background(self._run())

    @property
    def takes_more(self) -> bool:
        """Whether it is open, and the server answers."""
        if self.is_over or self._retired:
            return False
        return not self._unanswered or time.monotonic() - max(self._unanswered[0].sent, self.last_reply) < SILENCE

    @property
    def owes(self) -> bool:
        """Whether late replies may still come."""
        return not self.is_over and bool(self._unanswered or self._unsent)

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        """See `Connections.send`."""
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

    def retire(self, at_most: float = LATEST) -> None:
        """Take no new requests, and end when all replies have come, or after this many seconds."""
        self._retired = True
        self._wake.set()
        self.loop.call_later(at_most, self.close)

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
                self._check_request(request, instant)
        due = min((request.due for request in chain(self._unanswered, self._unsent)), default=math.inf)
        if due < math.inf:
            self._check_at(due)

    def _check_request(self, request: Request, now: float) -> None:
        """Time is up for the caller, or for the server."""
        request.due, health, timeout = math.inf, self._health, request.timeout
        in_time_until = request.sent + timeout
        was_before = request.sent < health.breaker.closed
        if request.wait >= timeout and not request.reply.done():
            if request.sent and in_time_until > now:
                request.due = in_time_until  # the loop paused before it was written
                return
            if not request.sent and now - self.last_in_time < timeout:
                request.due = now + timeout  # the server answers in time: what it waits for is its turn
                return
        request.give_up(health)
        if not request.sent:
            return
        if in_time_until > now:
            request.due = in_time_until
        elif not request.is_late:
            request.is_late = True
            request.due = request.sent + SILENT_TIMEOUTS * timeout
            if not was_before and request.sent != self._failed_write and now - self.last_in_time >= timeout:
                self._failed_write = request.sent
                health.breaker.failed(Failure("no_answer", f"no reply within {timeout * 1000:.0f} ms"),
                                      request.command.key)
        elif (silent_from := max(self.last_reply, request.sent) + SILENT_TIMEOUTS * timeout) > now:
            request.due = silent_from  # a reply to what was sent before it has come since
        elif not was_before:
            health.breaker.open(Failure(
                "no_answer", f"nothing heard for {SILENT_TIMEOUTS} times {timeout * 1000:.0f} ms"),
                request.command.key)

    def _undo(self, request: Request, reply: Any) -> None:
        """Nobody takes this reply; None: no reply. What a policy granted in place of it is kept."""
        for command in self._health.undo(request.command, reply, request.sent, request.kept):
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
        error: BaseException = redis.TimeoutError("closed before it replied")
        try:
            try:
                async with time_limit(self._connect_within):
                    await connection.connect()
            except asyncio.TimeoutError:
                error = redis.TimeoutError(f"no connection within {self._connect_within:.1f} s")
                self._health.breaker.open(Failure.of(error))
                return
            self._connection = connection
            self._health.dialect.reset()
            tasks = [background(self._read(connection)), background(self._write())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next((task.exception() for task in tasks if task.done()), None) or error
        except (*BROKEN, redis.RedisError) as raised:
            error = raised
            self._health.breaker.failed(Failure.of(error))
        finally:
            self.is_over, self._connection = True, None
            if not self.loop.is_closed():
                for task in tasks:
                    task.cancel()
                self._settle_all(error)
                await connection.disconnect(nowait=True)
                await asyncio.gather(*tasks, return_exceptions=True)

    def _settle_all(self, error: BaseException) -> None:
        """No more replies will come."""
        failure = Failure.of(error)
        lost = UnavailableError(f"{self._health.endpoint.name}: {failure.message}", failure.reason)
        if self._unanswered:
            self._health.lost(error, self._unanswered[-1].command.key)
        for request in (*self._unanswered, *self._unsent):
            if (request.is_abandoned or request.is_given_up) and request.sent:
                self._undo(request, None)
            request.settle(lost)
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
            if request.asks_module or request.needs_text or request.dialect.uses_text or isinstance(
                    reply, redis.ResponseError):
                if self._is_sent_again(request, reply):
                    continue
                reply = request.answer
            if request.is_late:
                outcome = health.replied_late(request.command, reply, now - request.sent, request.timeout)
            else:
                self.last_in_time = now
                health.measured(min(now - request.sent, request.timeout))  # the loop may have paused
                outcome = health.replied(request.command, reply)
            if request.is_abandoned:
                self._undo(request, outcome)
            elif request.is_given_up:
                self.loop.call_soon(self._undo, request, outcome)  # by then its caller has said what it keeps
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


class Pipelines:
    """The connections of `asyncio_backend`: one pipeline in the loop that runs, replaced when it is broken, and those
    that still owe replies."""

    def __init__(self, health: ServerHealth) -> None:
        self._health = health
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._pipeline: Pipeline | None = None
        self._retired: set[Pipeline] = set()

    @property
    def worker(self) -> "asyncio.Task[None] | None":
        return None if self._pipeline is None else self._pipeline.task

    @property
    def owes(self) -> bool:
        """Whether late replies may still come in the loop that runs."""
        loop = asyncio.get_running_loop()
        return any(one.loop is loop and one.owes for one in (*self._retired, self._pipeline) if one is not None)

    def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Coroutine[Any, Any, Any]:
        pipeline = self._pipeline
        if pipeline is None or not pipeline.takes_more or pipeline.loop is not asyncio.get_running_loop():
            self.close()
            pipeline = self._pipeline = Pipeline(self._health)
        return pipeline.send(command, timeout, wait, asking)

    async def probe(self, key: bytes, at_most: float = PROBE_TIMEOUT) -> float:
        """See `Connections.probe`. When the server answers, the new pipeline replaces the old one."""
        pipeline = Pipeline(self._health, connect_within=at_most)
        try:
            await pipeline.send(Probe(key), at_most, at_most)
        except BaseException:
            pipeline.close()
            raise
        self.close()
        self._pipeline = pipeline
        return self._health.round_trip or 0.0

    def close(self) -> None:
        """See `Connections.close`."""
        self._retire(LATEST)

    def end(self) -> None:
        """See `Connections.end`."""
        self._retire(0.0)

    def _retire(self, at_most: float) -> None:
        pipeline, self._pipeline = self._pipeline, None
        self._retired = {one for one in self._retired if not one.is_over}
        if pipeline is not None:
            self._retired.add(pipeline)
        for one in list(self._retired) if not at_most else [pipeline] if pipeline else []:
            if not one.loop.is_closed():
                with contextlib.suppress(RuntimeError):
                    one.loop.call_soon_threadsafe(one.retire, at_most)
