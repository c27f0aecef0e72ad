"""Connections to one server, one for each request under way."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis

from .._core import fork
from .._protocol.commands import Command, Preparation, Probe
from .._protocol.exchange import Exchange
from .._protocol.replies import BROKEN, ERROR_REPLIES, is_unknown_command
from .._protocol.script_fallback import Dialect
from ..errors import NotExecuted, ServerAway
from .circuit_breaker import PROBE_TIMEOUT, SILENT_TIMEOUTS
from .endpoint import LATEST, SILENCE
from .server_health import ServerHealth

FRESH = 0.05
"""Seconds after its last use for which a connection is not checked."""
MOST_OPENING = 4
SLICE = 0.1
"""The longest that a thread waits for a late reply before it checks whether that still matters."""


class Request(Exchange):
    """A command under way, and its connection."""

    __slots__ = "connection", "is_counted", "is_pending", "is_wanted", "owed", "reply", "sent", "timeout"

    def __init__(self, connection: Any, command: Command, dialect: Dialect, timeout: float) -> None:
        super().__init__(command, dialect)
        self.connection, self.timeout = connection, timeout
        self.sent = time.monotonic()
        self.is_pending = False
        """Whether the command was sent, and its reply has not been read."""
        self.owed: deque[Preparation] = deque()
        """What was sent before the command, and not replied yet."""
        self.reply: Any = None
        self.is_wanted = True
        """False when the caller was interrupted: the command is undone then."""
        self.is_counted = False
        """Whether the breaker knows that the reply is late."""

    def send(self, before: Sequence[Preparation]) -> None:
        self.owed.extend(before)
        words = self.encode()
        self.is_pending = True
        packed = (self.connection.pack_commands([*(one.words() for one in before), words]) if before
                  else self.connection.pack_command(*words))
        self.connection.send_packed_command(packed, check_health=False)

    def receive(self, ends: float) -> bool:
        """Read the replies that come by the instant `ends`; whether that were all."""
        while self.owed or self.is_pending:
            if not self.connection.can_read(max(0.0, ends - time.monotonic())) and not self.connection.can_read(0):
                return False  # checked twice: this thread may have waited for the others
            reply = read(self.connection)
            if self.owed:
                self.owed.popleft().answered(reply)
            else:
                self.reply, self.is_pending = reply, False
        return True


class ThreadPool:
    """The wire of `thread_backend`. Connecting has threads and timeouts of its own."""

    worker = None

    def __init__(self, health: ServerHealth) -> None:
        self._health = health
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._idle: deque[tuple[Any, float]] = deque()
        self._late: list[Request] = []
        self._opening = 0
        self._wanted = 0
        self._error: BaseException | None = None
        self._attempts = 0
        self._changed = threading.Condition()
        """Reentrant: collecting a client state closes it."""

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        ends, health = time.monotonic() + wait, self._health
        if self._late:
            self._read_late()
        request = Request(self._take(ends), command, health.dialect, timeout)
        try:
            reply = self._exchange(request, ends, asking)
            health.round_trip = time.monotonic() - request.sent
            reply = health.replied(command, reply)
        except TimeoutError:
            raise self._give_up(request) from None
        except BROKEN as error:
            request.connection.disconnect()
            raise health.lost(error, command.key) from error
        except BaseException:
            request.is_wanted = False
            self._give_up(request)
            raise
        self._put(request.connection)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def probe(self, key: bytes) -> None:
        """See `Wire.probe`; it may take half a second."""
        connection = self._health.endpoint.connection(
            socket_timeout=PROBE_TIMEOUT, socket_connect_timeout=PROBE_TIMEOUT)
        try:
            connection.connect()
            self._health.dialect.reset()
            request = Request(connection, Probe(key), self._health.dialect, PROBE_TIMEOUT)
            reply = self._health.replied(
                request.command, self._exchange(request, time.monotonic() + PROBE_TIMEOUT))
        except (*BROKEN, redis.RedisError) as error:
            self._health.breaker.open(error)
            raise ServerAway(str(error)) from error
        finally:
            connection.disconnect()
        if isinstance(reply, Exception):
            raise reply

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._changed:
            idle, self._idle = self._idle, deque()
            late, self._late = self._late, []
        for connection, _ in idle:
            connection.disconnect()
        for request in late:
            request.connection.disconnect()

    def _exchange(self, request: Request, ends: float, asking: bool = False) -> Any:
        """The reply to a request, sent in words that the server understands. Raises TimeoutError when it has not come
        by the instant `ends`."""
        before: Sequence[Preparation] | None = ()
        while before is not None:
            if asking:  # each command needs it
                ask = Preparation(request.command.key, "ASKING")
                before = [*(one for other in before for one in (ask, other)), ask]
            request.send(before)
            if not request.receive(ends):
                raise TimeoutError("no reply in time")
            before = request.again(request.reply)
        return request.answer

    def _take(self, ends: float) -> Any:
        """Take an idle connection."""
        while True:
            with self._changed:
                if not self._idle:
                    self._wait_for_one(ends)
                connection, since = self._idle.pop()
            if time.monotonic() - since < FRESH or _is_open(connection):
                return connection
            connection.disconnect()
            self._health.dialect.reset()  # there may be another server by now

    def _wait_for_one(self, ends: float) -> None:
        """Wait for an idle connection, with the lock held. Opens one for each caller that waits."""
        name = self._health.endpoint.name
        self._wanted += 1
        attempts = self._attempts
        try:
            while not self._idle:
                if self._error is not None and self._attempts != attempts:
                    raise NotExecuted(f"{name}: {self._error or type(self._error).__name__}")
                if self._opening < min(self._wanted, MOST_OPENING):
                    try:
                        threading.Thread(target=self._open, name="swlimit-connect", daemon=True).start()
                    except RuntimeError as error:
                        raise NotExecuted(f"{name}: cannot connect: {error}") from error
                    self._opening += 1
                left = ends - time.monotonic()
                if left <= 0 or not self._changed.wait(left) and not self._idle:
                    raise NotExecuted(f"{name}: no connection was free or ready in time")
        finally:
            self._wanted -= 1

    def _open(self) -> None:
        changed = self._changed  # a forked process has another
        connection, error = self._health.endpoint.connection(), None
        try:
            connection.connect()
        except Exception as raised:
            error = raised
            connection.disconnect()
            if isinstance(raised, redis.TimeoutError):
                self._health.breaker.open(raised)
            else:
                self._health.breaker.failed(raised)
        with changed:
            self._opening -= 1
            self._attempts += 1
            self._error = error
            if error is None:
                self._idle.append((connection, time.monotonic()))
            changed.notify_all()

    def _put(self, connection: Any) -> None:
        with self._changed:
            self._idle.append((connection, time.monotonic()))
            if self._wanted:
                self._changed.notify()

    def _give_up(self, request: Request) -> ServerAway:
        """The caller no longer waits for this reply."""
        if time.monotonic() - request.sent >= request.timeout:
            self._count(request)
        if not request.is_pending and (request.reply is None or isinstance(request.reply, Exception)):
            request.connection.disconnect()  # the command was not sent
        elif request.is_wanted or not self._read_in_background(request):
            with self._changed:
                self._late.append(request)
        return ServerAway(f"{self._health.endpoint.name} has not replied in time")

    def _read_in_background(self, request: Request) -> bool:
        """Start a thread that reads the reply and undoes the command; whether one could be started."""
        def read_reply() -> None:
            while not self._read(request):
                with suppress(*BROKEN, redis.RedisError):
                    request.connection.can_read(SLICE)

        thread = threading.Thread(target=read_reply, name="swlimit-late", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        return True

    def _read_late(self) -> None:
        """Take in the late replies that have come."""
        with self._changed:
            late, self._late = self._late, []
        still = [request for request in late if not self._read(request)]
        if still:
            with self._changed:
                self._late += still

    def _read(self, request: Request) -> bool:
        """Whether the late reply has come, or never will."""
        passed = time.monotonic() - request.sent
        try:
            if request.receive(0.0):
                self._settle(request, passed)
                return True
        except (*BROKEN, redis.RedisError):
            passed = LATEST
        if passed >= LATEST:
            request.connection.disconnect()
            if not request.is_wanted:
                self._health.undo(request.command, None, request.sent)
            return True
        if passed >= request.timeout and not request.is_counted:
            self._count(request)
        if passed >= SILENT_TIMEOUTS * request.timeout:
            self._health.breaker.open(f"no reply within {passed * 1000:.0f} ms")
        return False

    def _count(self, request: Request) -> None:
        request.is_counted = True
        self._health.breaker.failed(f"no reply within {request.timeout * 1000:.0f} ms", request.command.key)

    def _settle(self, request: Request, passed: float) -> None:
        """Take in a late reply, and undo a command that nobody wants."""
        reply = request.reply
        if request.is_looking:
            request.again(reply)  # the next request knows what it has shown
        if isinstance(reply, redis.exceptions.NoScriptError) or is_unknown_command(reply):
            self._put(request.connection)  # the server has done nothing
            return
        if request.is_counted:
            reply = self._health.replied_late(request.command, reply, passed, request.timeout)
        else:
            reply = self._health.replied(request.command, reply, in_time=False)
        if not request.is_wanted:
            self._undo(request, reply)
        self._put(request.connection)

    def _undo(self, request: Request, reply: Any) -> None:
        for command in self._health.undo(request.command, reply, request.sent):
            undoing = Request(request.connection, command, request.dialect, SILENCE)
            self._undo(undoing, self._exchange(undoing, undoing.sent + SILENCE))


def _is_open(connection: Any) -> bool:
    """Whether an idle connection is open: it has no data to read."""
    try:
        return not connection.can_read(0)
    except (*BROKEN, redis.RedisError):
        return False


def read(connection: Any) -> Any:
    """The next reply, also an error reply."""
    try:
        return connection.read_response(disconnect_on_error=False)
    except ERROR_REPLIES as error:
        return error
