"""One connection that all requests share: what waits is sent in one write, and replies come in the order of requests.

An exchange belongs to the line, not to whoever asked: a task that is cancelled leaves it, its reply is still heard, and
the command is undone.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Coroutine
from itertools import chain
from typing import Any

import redis

from .. import fork
from ..backend import MOST_ROUNDS
from ..breaker import PROBE_TIMEOUT, SILENT_TIMEOUTS
from ..commands import Command, Words, nothing, probe
from ..errors import BROKEN, REPLIES, ServerAway
from ..servers import SILENCE, Server
from .timing import time_limit

MOST_UNANSWERED = 1000
LATEST = 10.0
"""Seconds after which a line that takes nothing new is closed, whatever it owes."""
ROUNDS = 3
"""How often the loop goes round, once time is up, before that is believed: it may have been busy elsewhere."""


class Exchange:
    """A command, and whoever waits for its reply, if anybody still does."""

    __slots__ = ("asking", "command", "due", "is_late", "is_wanted", "owes_asking", "reply", "rounds", "sent",
                 "spelled", "timeout", "wait")

    def __init__(self, command: Command, timeout: float, wait: float, asking: bool, due: float,
                 reply: "asyncio.Future[Any]") -> None:
        self.command, self.timeout, self.wait, self.asking = command, timeout, wait, asking
        self.due = due
        """When it is to be looked at, unless the reply has come."""
        self.reply = reply
        self.sent = 0.0
        """When it was written; 0: not yet."""
        self.is_late = False
        self.is_wanted = True
        """Whether somebody takes the reply, or has been told already that it is late; else the command is undone."""
        self.spelled = command.words
        """The command as it was sent."""
        self.rounds = 0
        self.owes_asking = False
        """The reply to ASKING comes first."""

    @property
    def is_abandoned(self) -> bool:
        return not self.is_wanted or self.reply.cancelled()

    def settle(self, reply: Any) -> None:
        """The reply has come, or never will."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def look(self, server: Server, now: float, heard: float) -> None:
        """Time is up for whoever waits, or for the server."""
        self.due = math.inf
        in_time_until = self.sent + self.timeout
        if self.sent and in_time_until > now and self.wait >= self.timeout and not self.reply.done():
            self.due = in_time_until  # written late, by a pause of the loop
            return
        self.settle(ServerAway(f"{server.home.name} has not replied in time"))
        if not self.sent:
            return
        if in_time_until > now:
            self.due = in_time_until
        elif not self.is_late:
            self.is_late = True
            self.due = self.sent + SILENT_TIMEOUTS * self.timeout
            server.breaker.failed(f"no reply within {self.timeout * 1000:.0f} ms", self.command.key)
        elif now - max(heard, self.sent) >= SILENT_TIMEOUTS * self.timeout:
            server.breaker.open(f"nothing heard for {SILENT_TIMEOUTS} times {self.timeout * 1000:.0f} ms")


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
        self._next_look = math.inf
        self._timer: asyncio.Handle | None = None
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
        return not self._unanswered or time.monotonic() - max(self._unanswered[0].sent, self.heard) < SILENCE

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        """See `Wire.send`."""
        self._server.backend.check(command.words)
        due = time.monotonic() + wait
        exchange = Exchange(command, timeout, wait, asking, due, self.loop.create_future())
        self._unsent.append(exchange)
        if due < self._next_look:
            self._look_at(due)
        try:
            if self._connection is not None and not self._unanswered:
                with contextlib.suppress(*BROKEN):  # whoever reads finds it broken, too
                    await self._flush()  # which does not pause, as nothing is waiting to be written
            else:
                self._wake.set()
            reply = await exchange.reply
        except asyncio.CancelledError:
            exchange.is_wanted = False
            if exchange.reply.done() and not exchange.reply.cancelled():  # it came just before
                self._undo(exchange, exchange.reply.result())
            raise
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

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_look = due
        self._timer = self.loop.call_later(max(0.0, due - time.monotonic()), self._time_is_up)

    def _time_is_up(self) -> None:
        """For somebody. After a pause of the loop, the reply may have come, and nobody has read it yet."""
        self._timer = self.loop.call_soon(self._look, time.monotonic(), ROUNDS - 1)

    def _look(self, instant: float, rounds: int) -> None:
        """At those for whom time was up at an instant; the loop may have paused again since."""
        if rounds:
            self._timer = self.loop.call_soon(self._look, instant, rounds - 1)
            return
        self._timer, self._next_look = None, math.inf
        for exchange in list(chain(self._unanswered, self._unsent)):
            if exchange.due <= instant:
                exchange.look(self._server, instant, self.heard)
        due = min((exchange.due for exchange in chain(self._unanswered, self._unsent)), default=math.inf)
        if due < math.inf:
            self._look_at(due)

    def _undo(self, exchange: Exchange, reply: Any) -> None:
        """Nobody takes this reply; None: none came."""
        for command in self._server.undoing(exchange.command, reply, exchange.sent):
            self._unsent.append(self._own(command, exchange.asking))
            self._wake.set()

    def _own(self, command: Command, asking: bool = False) -> Exchange:
        """An exchange that nobody waits for."""
        exchange = Exchange(command, SILENCE, SILENCE, asking, math.inf, self.loop.create_future())
        exchange.is_wanted = False
        return exchange

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
            self._server.backend.begin_anew()
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
            self._server.lost(error, self._unanswered[-1].command.key)
        for exchange in (*self._unanswered, *self._unsent):
            if exchange.is_abandoned and exchange.sent:
                self._undo(exchange, None)
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
        now, backend = time.monotonic(), self._server.backend
        while self._unsent and len(self._unanswered) < MOST_UNANSWERED:
            exchange = self._unsent.popleft()
            if exchange.reply.done():
                continue  # given up before it was sent: it never is
            exchange.sent = now
            exchange.owes_asking = exchange.asking
            exchange.spelled = backend.spelled(exchange.command.words)
            self._unanswered.append(exchange)
            if exchange.asking:
                commands.append(("ASKING",))
            commands.append(exchange.spelled)
        if commands:
            await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    async def _read(self, connection: Any) -> None:
        unanswered, server = self._unanswered, self._server
        while True:
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except REPLIES as error:
                reply = error
            self.heard = now = time.monotonic()
            exchange = unanswered[0]
            if exchange.owes_asking:
                exchange.owes_asking = False
                continue
            unanswered.popleft()
            if isinstance(reply, redis.ResponseError) and self._is_sent_again(exchange, reply):
                continue
            server.round_trip = now - exchange.sent
            if exchange.is_late:
                outcome = server.heard_late(exchange.command, reply, now - exchange.sent, exchange.timeout)
            else:
                outcome = server.heard(exchange.command, reply)
            if exchange.is_abandoned:
                self._undo(exchange, outcome)
            elif not exchange.reply.done():
                exchange.reply.set_result(outcome)
            if self._unsent or self._retired:
                self._wake.set()

    def _is_sent_again(self, exchange: Exchange, reply: redis.ResponseError) -> bool:
        """Whether the server has done nothing, and is asked in other words."""
        before = self._server.backend.again(exchange.command.words, exchange.spelled, reply)
        if before is None or exchange.rounds == MOST_ROUNDS:
            return False
        exchange.rounds += 1
        self._unsent.appendleft(exchange)
        for words in before:
            self._unsent.appendleft(self._own(Command(exchange.command.key, words, nothing)))
        self._wake.set()
        return True


class Wire:
    """The line to one server, made anew when it is needed, in the loop that runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._line: Line | None = None

    @property
    def worker(self) -> "asyncio.Task[None] | None":
        return None if self._line is None else self._line.task

    def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Coroutine[Any, Any, Any]:
        line = self._line
        if line is None or not line.takes_more or line.loop is not asyncio.get_running_loop():
            self.close()
            line = self._line = Line(self._server)
        return line.send(command, timeout, wait, asking)

    async def probe(self, key: bytes) -> None:
        """Ask over a new line, which is the server's from then on if it answers."""
        line = Line(self._server, connect_within=PROBE_TIMEOUT)
        try:
            await line.send(probe(key), PROBE_TIMEOUT, PROBE_TIMEOUT)
        except ServerAway:
            line.close()
            raise
        except BaseException:
            line.retire()
            raise
        self.close()
        self._line = line

    def close(self) -> None:
        """Take nothing new on this line; from any thread."""
        line, self._line = self._line, None
        if line is not None and not line.loop.is_closed():
            with contextlib.suppress(RuntimeError):
                line.loop.call_soon_threadsafe(line.retire)
