"""Connections to one server, one for each request under way.

A request belongs to `thread_backend.run`, which is around all of its caller's code: when that is interrupted anywhere,
by an exception of a signal or of gevent, `abandon` has the command undone. What is not answered in time, or was
abandoned, is read by a thread of the pool.
"""

import socket
import ssl
import threading
import time
import weakref
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
from .interruptible import Event, Worker
from .server_health import ServerHealth

FRESH = 0.05
"""Seconds after its last use for which a connection is not checked."""
MOST_OPENING = 4
SLICE = 0.02
"""The longest that the reader of late replies waits before it checks what else there is to do."""
MOST_SEEN = 4096
"""Bytes: more than the reply to anything that grants."""
_NONE: Any = object()
Box = list[Any]
"""Holds a connection that is idle: who takes it out has it."""


class Request(Exchange):
    """A command under way, and its connection."""

    __slots__ = ("box", "connection", "counted", "generation", "is_only", "is_owned", "is_pending", "kept", "outcome",
                  "owed", "pool", "raw", "reply", "seen", "sent", "timeout")

    def __init__(self, pool: "ThreadPool", command: Command, timeout: float) -> None:
        super().__init__(command, pool.health.dialect)
        self.pool, self.timeout, self.generation = pool, timeout, pool.generation
        self.connection: Any = None
        self.box: Box | None = None
        """What holds the connection once it was put back."""
        self.sent = 0.0
        self.is_pending = False
        """Whether the command was sent, and its reply has not been read."""
        self.owed: deque[Preparation] = deque()
        """What was sent before the command, and not replied yet."""
        self.is_only = True
        """Whether the command was sent alone."""
        self.raw = _NONE
        """A reply that was read, and not taken in yet."""
        self.seen = b""
        """The bytes of a reply before it was read; empty where they cannot be looked at."""
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
        self.is_only = not before
        self.is_pending = True
        write(self.connection, packed)

    def receive(self, ends: float) -> bool:
        """Read the replies that come by the instant `ends`; whether that were all. It may be interrupted anywhere, and
        called again."""
        while self.owed or self.is_pending:
            if self.raw is _NONE and self.seen:
                self.raw = read_again(self.connection, self.seen)
            elif self.raw is _NONE:
                seen = look(self.connection, ends - time.monotonic(), self.is_only)
                if seen is None and (seen := look(self.connection, 0.0, self.is_only)) is None:
                    return False  # looked twice: this thread may have waited for the others
                self.seen = seen
                self.raw = read(self.connection)
            if self.owed:
                self.owed[0].answered(self.raw)
                del self.owed[0]
            else:
                self.reply, self.is_pending = self.raw, False
            self.raw, self.seen = _NONE, b""
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
        if self.connection is not None:
            self.box = [self.connection]
            self.connection = None
            self.pool.put(self.box, self.generation)

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
        if self.box is not None:
            try:
                self.connection = self.box.pop()
            except IndexError:
                self.connection = None  # another request has it
        if self.outcome is not None and not self.pool.health.undo(self.command, self.outcome, self.sent):
            self.put_back()  # undone, before a guard that is dropped can release what the undo needs
        elif self.connection is not None and (self.is_pending or self.reply is not None):
            self.pool.settle(self)
        else:
            self.disconnect()
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
        self._idle: deque[tuple[Box, float]] = deque()
        self._late: list[Request] = []
        self._reader: Worker | None = None
        self._opening: list[Worker] = []
        self._waiting: deque[weakref.ref[Event]] = deque()
        """The callers that wait for a connection; those that were interrupted are gone."""
        self._failure: Failure | None = None
        self._attempts = 0
        self._lock = threading.RLock()
        """Reentrant: collecting a core closes it."""

    @property
    def owes(self) -> bool:
        """Whether late replies may still come."""
        return bool(self._late)

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        ends, health = time.monotonic() + wait, self.health
        request = Request(self, command, timeout)
        await request
        request.connection = self._take(ends)
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
        """Close the connections that are idle; those in use are closed when they are put back. Late replies are
        read still."""
        self.generation = object()
        idle, self._idle = self._idle, deque()
        for box, _ in idle:
            with suppress(IndexError):
                box.pop().disconnect()

    def end(self) -> None:
        """Close everything: what late replies may grant is in doubt."""
        with self._lock:
            self._is_ended = True
            self._wake(len(self._waiting))
        self.close()
        late, self._late = self._late, []
        for request in late:
            request.disconnect()

    # Connections.

    def _take(self, ends: float) -> Any:
        """Take an idle connection."""
        while True:
            try:
                box, since = self._idle.pop()
            except IndexError:
                self._wait_for_one(ends)
                continue
            try:
                connection = box.pop()
            except IndexError:  # an interrupted request has it again
                continue
            if time.monotonic() - since < FRESH or _is_open(connection):
                return connection
            connection.disconnect()
            self.health.dialect.reset()  # there may be another server by now

    def _wait_for_one(self, ends: float) -> None:
        """Wait until there is an idle connection. Opens one for each caller that waits."""
        name, attempts = self.health.endpoint.name, self._attempts
        while True:
            turn = Event()
            with self._lock:
                if self._idle:
                    return
                if self._is_ended:
                    raise NotExecuted("the limiter was closed meanwhile")
                if self._failure is not None and self._attempts != attempts:
                    raise NotExecuted(f"{name}: {self._failure.message}", self._failure.reason)
                self._waiting = deque(one for one in self._waiting if one() is not None)
                self._waiting.append(weakref.ref(turn))
                self._opening = [one for one in self._opening if one.is_alive()]
                if len(self._opening) < min(len(self._waiting), MOST_OPENING):
                    self._open_in_background()
            left = ends - time.monotonic()
            if left <= 0:
                raise NotExecuted(f"{name}: no connection was free or ready in time", "no_answer")
            turn.wait(min(left, SLICE))  # the caller that was woken may have been interrupted

    def _open_in_background(self) -> None:
        worker = Worker("swlimit-connect", self._open)
        try:
            worker.start()
            self._opening.append(worker)
        except RuntimeError as error:
            name = self.health.endpoint.name
            raise NotExecuted(f"{name}: cannot connect: {error}", "no_answer") from error

    def _open(self) -> None:
        """Open a connection, and wake all callers that wait for one, whatever ends it."""
        connection: Any = None
        failure: Failure | None = Failure("other", "connecting was interrupted")
        generation, lock = self.generation, self._lock
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
            with lock:
                self._opening = [one for one in self._opening if one is not threading.current_thread()]
                self._attempts += 1
                self._failure = failure
                if failure is None and generation is self.generation and not self._is_ended:
                    self._idle.append(([connection], time.monotonic()))
                elif connection is not None:
                    connection.disconnect()
                self._wake(len(self._waiting))

    def put(self, box: Box, generation: object) -> None:
        if generation is not self.generation or self._is_ended:
            with suppress(IndexError):
                box.pop().disconnect()
            return
        self._idle.append((box, time.monotonic()))
        if self._waiting:
            with self._lock:
                self._wake(1)

    def _wake(self, most: int) -> None:
        """Wake the callers that wait, at most `most`, the first first."""
        while self._waiting and most:
            if (turn := self._waiting.popleft()()) is not None:
                turn.set()
                most -= 1

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
        with self._lock:
            if request not in self._late:
                self._late.append(request)
            if self._reader is None or not self._reader.is_alive():
                self._reader = Worker("swlimit-late", self._read_late)
                with suppress(RuntimeError):  # no thread could be started: the next late reply tries again
                    self._reader.start()

    def _read_late(self) -> None:
        """Take in late replies, until there are none."""
        while self._reader is threading.current_thread():
            with self._lock:
                late = list(self._late)
                if not late:
                    self._reader = None
                    return
            for request in late:
                if not request.is_owned and self._read(request):
                    with self._lock:
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


def write(connection: Any, packed: Sequence[bytes]) -> None:
    """Send what was packed. redis-py's own method closes the connection after an interrupt, also when all is sent."""
    try:
        for one in packed:
            connection._sock.sendall(one)
    except AttributeError:  # the connection was closed meanwhile
        raise redis.ConnectionError("the connection was closed") from None
    except TimeoutError as error:
        raise redis.TimeoutError("cannot write in time") from error


def look(connection: Any, seconds: float, is_only: bool) -> bytes | None:
    """The bytes of the next reply, which stay there, or none where they cannot be seen; None when no reply comes in so
    many seconds. is_only: no other was read before it."""
    found = connection._sock
    if not is_only or not isinstance(found, socket.socket) or isinstance(found, ssl.SSLSocket):
        return b"" if connection.can_read(max(0.0, seconds)) else None
    try:
        found.settimeout(max(0.0, seconds))
        return found.recv(MOST_SEEN, socket.MSG_PEEK)
    except (TimeoutError, BlockingIOError):
        return None
    finally:
        found.settimeout(SILENCE)


def read(connection: Any) -> Any:
    """The next reply, also an error reply."""
    try:
        return connection.read_response(disconnect_on_error=False)
    except ERROR_REPLIES as error:
        return error


def read_again(connection: Any, seen: bytes) -> Any:
    """A reply whose bytes were seen: an interrupted call may have read it, and lost it."""
    return read(connection) if connection.can_read(0) else reply_in(seen)


def reply_in(data: bytes) -> Any:
    """The first reply in these bytes; those that grant nothing are b""."""
    def value(at: int) -> tuple[Any, int]:
        line, end, _ = data[at:].partition(b"\r\n")
        kind, after = line[:1], at + len(line) + len(end)
        if not end:
            raise redis.ConnectionError("a reply was interrupted")
        if kind == b":":
            return int(line[1:]), after
        if kind == b"$" and (length := int(line[1:])) >= 0:
            return data[after:after + length], after + length + 2
        values: list[Any] = []
        for _ in range(int(line[1:]) if kind == b"*" else 0):
            one, after = value(after)
            values.append(one)
        return values if kind == b"*" else b"", after
    return value(0)[0]
