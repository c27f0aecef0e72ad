"""Connections to one server, one for each request under way.

A request belongs to `thread_backend.run`, which is around all of its caller's code: when that is interrupted anywhere,
by an exception of a signal or of gevent, `abandon` has the command undone. What is not answered in time, or was
abandoned, is read by a thread of the pool.
"""

import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

import redis

from .._core import fork
from .._protocol.commands import NOTHING, Command, Kept, Preparation, Probe
from .._protocol.exchange import Exchange
from .._protocol.replies import BROKEN, ERROR_REPLIES, Failure, is_unknown_command
from ..errors import NotExecuted, UnavailableError
from .breaker import PROBE_TIMEOUT, SILENT_TIMEOUTS
from .endpoint import LATEST, SILENCE
from .server_health import ServerHealth

FRESH = 0.05
"""Seconds after its last use for which a connection is not checked."""
MOST_OPENING = 4
SLICE = 0.02
"""The longest that the reader of late replies waits before it checks what else there is to do."""
_NONE: Any = object()


class Request(Exchange):
    """A command under way, and its connection."""

    __slots__ = ("connection", "generation", "counted", "is_owned", "is_pending", "kept", "outcome", "owed",
                  "pool", "raw", "reply", "sent", "timeout", "used")

    def __init__(self, pool: "ThreadPool", command: Command, timeout: float) -> None:
        super().__init__(command, pool.health.dialect)
        self.pool, self.timeout, self.generation = pool, timeout, pool.generation
        self.connection: Any = None
        self.used: Any = None
        """The connection, also after it was put back."""
        self.sent = 0.0
        self.is_pending = False
        """Whether the command was sent, and its reply has not been read."""
        self.owed: deque[Preparation] = deque()
        """What was sent before the command, and not replied yet."""
        self.raw = _NONE
        """A reply that was read, and not taken in yet."""
        self.reply: Any = None
        self.outcome: Any = None
        """The decoded reply."""
        self.is_owned = True
        """Whether its caller still decides what becomes of a late reply."""
        self.kept: Kept = NOTHING
        self.counted = 0
        """What the breaker knows: 1, that the reply is late; 2, that the server is silent."""

    def __await__(self) -> Generator[Any, None, None]:
        """Hands it to `run`."""
        yield self

    def keep(self, units: Kept) -> None:
        self.kept = units

    def send(self, before: Sequence[Preparation]) -> None:
        words = self.encode()
        packed = (self.connection.pack_commands([*(one.words() for one in before), words]) if before
                  else self.connection.pack_command(*words))
        self.sent = self.sent or time.monotonic()
        self.owed.extend(before)
        self.is_pending = True
        self.connection.send_packed_command(packed, check_health=False)

    def receive(self, ends: float) -> bool:
        """Read the replies that come by the instant `ends`; whether that were all. It may be interrupted anywhere, and
        called again."""
        while self.owed or self.is_pending:
            if self.raw is _NONE:
                if not self.connection.can_read(max(0.0, ends - time.monotonic())) and not self.connection.can_read(0):
                    return False  # checked twice: this thread may have waited for the others
                self.raw = read(self.connection)
            if self.owed:
                one, reply, self.raw = self.owed.popleft(), self.raw, _NONE
                one.answered(reply)
            else:
                self.reply, self.is_pending, self.raw = self.raw, False, _NONE
        return True

    def exchange(self, ends: float, asking: bool = False) -> Any:
        """The reply, to words that the server understands. Raises TimeoutError when it has not come by the instant
        `ends`."""
        before: Sequence[Preparation] | None = ()
        while before is not None:
            if asking:  # each command needs it
                ask = Preparation(self.command.key, "ASKING")
                before = [*(one for other in before for one in (ask, other)), ask]
            self.send(before)
            if not self.receive(ends):
                raise TimeoutError
            before = self.again(self.reply)
        return self.answer

    def put_back(self) -> None:
        """The connection may serve others."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.pool.put(connection, self.generation)

    def disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()

    def delivered(self) -> None:
        """Its caller has returned, with the reply or with what a policy decided."""
        if self.connection is not None and not (self.is_pending or self.owed):
            self.put_back()
        self.is_owned = False

    def abandon(self) -> None:
        """Its caller was interrupted: what it was granted goes back. Has no effect before it was sent."""
        self.kept = NOTHING
        reply = self.reply if self.outcome is None else self.outcome
        is_granted = isinstance(reply, bytes) or self.command.grants(reply)
        if self.connection is None and is_granted and self.pool.reclaim(self):
            self.connection = self.used
        if self.connection is not None:
            if self.is_pending or is_granted:
                self.pool.settle(self)
            else:
                self.disconnect()  # perhaps it was being sent
        self.is_owned = False


class ThreadPool:
    """The connections of `thread_backend`. Connecting has threads and timeouts of its own."""

    worker = None

    def __init__(self, health: ServerHealth) -> None:
        self.health = health
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self.generation = object()
        """Another one after all connections were given up."""
        self._is_ended = False
        self._idle: deque[tuple[Any, float]] = deque()
        self._late: list[Request] = []
        self._reader: threading.Thread | None = None
        self._opening = 0
        self._wanted = 0
        self._failure: Failure | None = None
        self._attempts = 0
        self._changed = threading.Condition()
        """Reentrant: collecting a core closes it."""

    @property
    def owes(self) -> bool:
        """Whether late replies may still come."""
        return bool(self._late)

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        ends, health = time.monotonic() + wait, self.health
        request = Request(self, command, timeout)
        await request
        request.connection = request.used = self._take(ends)
        request.generation = self.generation
        try:
            reply = request.exchange(ends, asking)
            health.measured(min(time.monotonic() - request.sent, timeout))  # this thread may have waited for others
            request.outcome = reply = health.replied(command, reply)
        except TimeoutError:
            raise self._give_up(request) from None
        except BROKEN as error:
            request.disconnect()
            raise health.lost(error, command.key) from error
        if not command.grants(reply):
            request.put_back()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def probe(self, key: bytes, at_most: float = PROBE_TIMEOUT) -> float:
        """See `Connections.probe`; it may take half a second."""
        request = Request(self, Probe(key), at_most)
        request.connection = connection = self.health.endpoint.connection(
            socket_timeout=at_most, socket_connect_timeout=at_most)
        try:
            connection.connect()
            self.health.dialect.reset()
            reply = self.health.replied(request.command, request.exchange(time.monotonic() + at_most))
            round_trip = time.monotonic() - request.sent
        except (*BROKEN, redis.RedisError) as error:
            failure = Failure.of(error)
            self.health.breaker.open(failure)
            raise UnavailableError(f"{self.health.endpoint.name}: {failure.message}", failure.reason) from error
        finally:
            connection.disconnect()
        if isinstance(reply, Exception):
            raise reply
        return round_trip

    def close(self) -> None:
        """Close the connections that nobody uses; those in use are closed when they are put back. Late replies are
        read still."""
        self.generation = object()
        idle, self._idle = self._idle, deque()
        for connection, _ in idle:
            connection.disconnect()

    def end(self) -> None:
        """Close everything: what late replies may grant is in doubt."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self.close()
        late, self._late = self._late, []
        for request in late:
            request.disconnect()

    # Connections.

    def _take(self, ends: float) -> Any:
        """Take an idle connection."""
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                self._wait_for_one(ends)
                continue
            if time.monotonic() - since < FRESH or _is_open(connection):
                return connection
            connection.disconnect()
            self.health.dialect.reset()  # there may be another server by now

    def _wait_for_one(self, ends: float) -> None:
        """Wait until there is an idle connection. Opens one for each caller that waits."""
        name = self.health.endpoint.name
        with self._changed:
            self._wanted += 1
            attempts = self._attempts
        try:
            while True:
                with self._changed:
                    if self._idle:
                        return
                    if self._is_ended:
                        raise NotExecuted("the limiter was closed meanwhile")
                    if self._failure is not None and self._attempts != attempts:
                        raise NotExecuted(f"{name}: {self._failure.message}", self._failure.reason)
                    opens = self._opening < min(self._wanted, MOST_OPENING)
                    self._opening += opens
                if opens:
                    self._open_in_background()
                with self._changed:
                    left = ends - time.monotonic()
                    if not self._idle and (left <= 0 or not self._changed.wait(left) and not self._idle):
                        raise NotExecuted(f"{name}: no connection was free or ready in time", "no_answer")
        finally:
            with self._changed:
                self._wanted -= 1

    def _open_in_background(self) -> None:
        """`_opening` counts the thread already: an interrupt comes before or after its start."""
        thread = threading.Thread(target=self._open, args=(self._changed,), name="swlimit-connect", daemon=True)
        try:
            thread.start()
        except BaseException as error:
            if thread.ident is None:
                with self._changed:
                    self._opening -= 1
            if isinstance(error, RuntimeError):
                name = self.health.endpoint.name
                raise NotExecuted(f"{name}: cannot connect: {error}", "no_answer") from error
            raise

    def _open(self, changed: threading.Condition) -> None:
        """Open a connection. However it ends, `_opening` counts it no longer."""
        connection: Any = None
        failure: Failure | None = Failure("other", "connecting was interrupted")
        generation = self.generation
        try:
            connection = self.health.endpoint.connection()
            connection.connect()
            failure = None
        except (*BROKEN, redis.RedisError) as error:
            failure = Failure.of(error)
            if failure.reason == "no_answer":
                self.health.breaker.open(failure)
            else:
                self.health.breaker.failed(failure)
        except Exception as error:  # an option that redis-py takes only when it connects, say
            failure = Failure.of(error)
            self.health.breaker.failed(failure)
        finally:
            with changed:
                self._opening -= 1
                self._attempts += 1
                self._failure = failure
                if failure is None and generation is self.generation and not self._is_ended:
                    self._idle.append((connection, time.monotonic()))
                elif connection is not None:
                    connection.disconnect()
                changed.notify_all()

    def put(self, connection: Any, generation: object) -> None:
        if generation is not self.generation or self._is_ended:
            connection.disconnect()
            return
        self._idle.append((connection, time.monotonic()))
        if self._wanted:
            with self._changed:
                self._changed.notify()

    def reclaim(self, request: Request) -> bool:
        """Take the connection of a request that was put back, unless another caller has it by now."""
        for one in list(self._idle):
            if one[0] is request.used:
                with suppress(ValueError):
                    self._idle.remove(one)
                    return True
        return False

    # Late replies.

    def _give_up(self, request: Request) -> UnavailableError:
        """The caller no longer waits for this reply."""
        if time.monotonic() - request.sent >= request.timeout:
            self._count(request)
        self.settle(request)
        error = self.health.unanswered()
        error._keep = request.keep
        return error

    def settle(self, request: Request) -> None:
        """Have the reader read the reply, and undo what nobody keeps."""
        with self._changed:
            if request not in self._late:
                self._late.append(request)
            if self._reader is not None and self._reader.is_alive():
                return
            reader = self._reader = threading.Thread(target=self._read_late, name="swlimit-late", daemon=True)
        with suppress(RuntimeError):  # no thread could be started: the next late reply tries again
            reader.start()

    def _read_late(self) -> None:
        """Take in late replies, until there are none."""
        while True:
            with self._changed:
                late = list(self._late)
                if not late:
                    self._reader = None
                    return
            for request in late:
                if not request.is_owned and self._read(request):
                    with self._changed:
                        if request in self._late:
                            self._late.remove(request)
            time.sleep(SLICE / 10 if any(one.is_owned for one in late) else SLICE)

    def _read(self, request: Request) -> bool:
        """Whether the late reply has come, or never will."""
        passed = time.monotonic() - request.sent
        try:
            if request.receive(0.0):
                self._settle(request, passed)
                return True
        except (*BROKEN, redis.RedisError, AttributeError):  # the connection may have been closed meanwhile
            passed = LATEST
        if passed >= LATEST:
            request.disconnect()
            self.health.undo(request.command, None, request.sent, request.kept)
            return True
        if passed >= request.timeout and not request.counted:
            self._count(request)
        if passed >= SILENT_TIMEOUTS * request.timeout and request.counted == 1:
            request.counted = 2
            if request.sent >= self.health.breaker.closed:
                self.health.breaker.open(Failure("no_answer", f"no reply within {passed * 1000:.0f} ms"),
                                         request.command.key)
        return False

    def _count(self, request: Request) -> None:
        request.counted = 1
        if request.sent >= self.health.breaker.closed:
            self.health.breaker.failed(Failure("no_answer", f"no reply within {request.timeout * 1000:.0f} ms"),
                                       request.command.key)

    def _settle(self, request: Request, passed: float) -> None:
        """Take in a late reply, and undo what nobody keeps of it."""
        reply = request.reply
        if request.outcome is None:
            if request.is_looking:
                request.again(reply)  # the next request knows what it has shown
            if isinstance(reply, redis.exceptions.NoScriptError) or is_unknown_command(reply):
                request.put_back()  # the server has done nothing
                return
            if request.counted:
                request.outcome = self.health.replied_late(request.command, reply, passed, request.timeout)
            else:
                request.outcome = self.health.replied(request.command, reply, in_time=False)
        self._undo(request, request.command, request.outcome, request.sent)
        request.put_back()

    def _undo(self, request: Request, command: Command, reply: Any, sent: float) -> None:
        kept = request.kept if command is request.command else NOTHING
        for undoing in self.health.undo(command, reply, sent, kept):
            own = Request(self, undoing, SILENCE)
            own.connection = request.connection
            reply = self.health.replied(undoing, own.exchange(time.monotonic() + SILENCE))
            self._undo(request, undoing, reply, own.sent)


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
