"""Connections to one server, one for each request that is under way."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis

from .. import fork
from ..backend import MOST_ROUNDS, Backend
from ..breaker import PROBE_TIMEOUT, SILENT_TIMEOUTS
from ..commands import Command, Words, probe
from ..errors import BROKEN, REPLIES, ServerAway, is_unknown_command
from ..servers import Server

CERTAIN = 0.05
"""Seconds for which a connection that has just been used is taken for alive."""
LATEST = 10.0
"""Seconds after which nobody waits for a reply any more."""
MOST_OPENING = 4
SLICE = 0.1
"""Seconds after which whoever waits for a late reply looks whether it still matters."""


class Late:
    """A command that is under way, and its connection; kept where the reply does not come while somebody waits."""

    def __init__(self, connection: Any, command: Command, timeout: float) -> None:
        self.connection, self.command, self.timeout = connection, command, timeout
        self.sent = time.monotonic()
        self.is_asked = False
        """Whether the command was sent, and its reply not read yet."""
        self.reply: Any = None
        self.is_wanted = True
        """Not where whoever asked was interrupted: then nobody has decided otherwise, and the command is undone."""
        self.is_counted = False


class Pool:
    """What requests to one server are sent with. Connecting is nobody's: it has a thread and a time of its own."""

    worker = None

    def __init__(self, server: Server) -> None:
        self._server = server
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._idle: deque[tuple[Any, float]] = deque()
        self._late: list[Late] = []
        self._opening = 0
        self._wanted = 0
        self._error: BaseException | None = None
        self._attempts = 0
        self._changed = threading.Condition()
        """Reentrant: a link may be collected, and closed, while this thread holds it."""

    async def send(self, command: Command, timeout: float, wait: float, asking: bool = False) -> Any:
        ends, backend = time.monotonic() + wait, self._server.backend
        backend.check(command.words)
        if self._late:
            self._hear_late()
        connection = self._take(ends)
        late = Late(connection, command, timeout)

        def in_time(connection: Any, *spelled: Any) -> Any:
            if asking:
                call(connection, "ASKING")
            late.is_asked = True
            connection.send_packed_command(connection.pack_command(*spelled), check_health=False)
            if not connection.can_read(max(0.0, ends - time.monotonic())) and not connection.can_read(0):
                raise TimeoutError  # the second look: this thread may have had to wait for the others
            late.reply, late.is_asked = read(connection), False
            return late.reply

        try:
            reply = answer(connection, backend, command.words, in_time)
            self._server.round_trip = time.monotonic() - late.sent
            reply = self._server.heard(command, reply)
        except TimeoutError:
            raise self._give_up(late) from None
        except BROKEN as error:
            connection.disconnect()
            raise self._server.lost(error, command.key) from error
        except BaseException:
            late.is_wanted = False
            self._give_up(late)
            raise
        self._put(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def probe(self, key: bytes) -> None:
        """Ask over a connection made anew, which may take half a second."""
        command = probe(key)
        connection = self._server.home.connection(socket_timeout=PROBE_TIMEOUT, socket_connect_timeout=PROBE_TIMEOUT)
        try:
            connection.connect()
            backend = self._server.backend
            backend.begin_anew()
            reply = self._server.heard(command, answer(connection, backend, command.words))
        except (*BROKEN, redis.RedisError) as error:
            self._server.breaker.open(error)
            raise ServerAway(str(error)) from error
        finally:
            connection.disconnect()
        if isinstance(reply, Exception):
            raise reply

    def close(self) -> None:
        """Let go of the connections that nobody uses; the others when they are given back."""
        with self._changed:
            idle, self._idle = self._idle, deque()
            late, self._late = self._late, []
        for connection, _ in idle:
            connection.disconnect()
        for one in late:
            one.connection.disconnect()

    def _take(self, ends: float) -> Any:
        """A connection that nobody else uses."""
        while True:
            with self._changed:
                if not self._idle:
                    self._wait_for_one(ends)
                connection, since = self._idle.pop()
            if time.monotonic() - since < CERTAIN or _is_alive(connection):
                return connection
            connection.disconnect()
            self._server.backend.begin_anew()  # it may be another server's place by now

    def _wait_for_one(self, ends: float) -> None:
        """Until there is an idle connection; with the lock held. Opens one for each who waits."""
        self._wanted += 1
        attempts = self._attempts
        try:
            while not self._idle:
                if self._error is not None and self._attempts != attempts:
                    raise ServerAway(f"{self._server.home.name}: {self._error or type(self._error).__name__}")
                if self._opening < min(self._wanted, MOST_OPENING):
                    try:
                        threading.Thread(target=self._open, name="swlimit-connect", daemon=True).start()
                    except RuntimeError as error:
                        raise ServerAway(f"{self._server.home.name}: cannot connect: {error}") from error
                    self._opening += 1
                left = ends - time.monotonic()
                if left <= 0 or not self._changed.wait(left) and not self._idle:
                    raise ServerAway(f"{self._server.home.name}: no connection was free or ready in time")
        finally:
            self._wanted -= 1

    def _open(self) -> None:
        changed = self._changed  # in a forked process there is another
        connection, error = self._server.home.connection(), None
        try:
            connection.connect()
        except Exception as raised:
            error = raised
            connection.disconnect()
            if isinstance(raised, redis.TimeoutError):
                self._server.breaker.open(raised)
            else:
                self._server.breaker.failed(raised)
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

    def _give_up(self, late: Late) -> ServerAway:
        """Nobody waits for this reply any more."""
        if time.monotonic() - late.sent >= late.timeout:
            self._count(late)
        if not late.is_asked and (late.reply is None or isinstance(late.reply, Exception)):
            late.connection.disconnect()  # nothing is under way but what came before the command
        elif late.is_wanted or not self._outlive(late):
            with self._changed:
                self._late.append(late)
        return ServerAway(f"{self._server.home.name} has not replied in time")

    def _outlive(self, late: Late) -> bool:
        """Have a thread hear the reply, and undo the command; whether there is one."""
        def hear() -> None:
            while not self._hear(late):
                with suppress(*BROKEN, redis.RedisError):
                    late.connection.can_read(SLICE)

        thread = threading.Thread(target=hear, name="swlimit-late", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        return True

    def _hear_late(self) -> None:
        """Take in the replies that have come since nobody waited for them."""
        with self._changed:
            late, self._late = self._late, []
        still = [one for one in late if not self._hear(one)]
        if still:
            with self._changed:
                self._late += still

    def _hear(self, late: Late) -> bool:
        """Whether it is over: the reply has come, or never will."""
        passed = time.monotonic() - late.sent
        try:
            if not late.is_asked or late.connection.can_read(0):
                self._settle(late, passed)
                return True
        except (*BROKEN, redis.RedisError):
            passed = LATEST
        if passed >= LATEST:
            late.connection.disconnect()
            if not late.is_wanted:
                self._server.undoing(late.command, None, late.sent)
            return True
        if passed >= late.timeout and not late.is_counted:
            self._count(late)
        if passed >= SILENT_TIMEOUTS * late.timeout:
            self._server.breaker.open(f"no reply within {passed * 1000:.0f} ms")
        return False

    def _count(self, late: Late) -> None:
        late.is_counted = True
        self._server.breaker.failed(f"no reply within {late.timeout * 1000:.0f} ms", late.command.key)

    def _settle(self, late: Late, passed: float) -> None:
        """The reply has come. What nobody takes is undone, over the same connection."""
        reply = read(late.connection) if late.is_asked else late.reply
        late.is_asked, late.reply = False, reply
        if isinstance(reply, redis.exceptions.NoScriptError) or is_unknown_command(reply):
            self._put(late.connection)  # the server has done nothing
            return
        if late.is_counted:
            reply = self._server.heard_late(late.command, reply, passed, late.timeout)
        else:
            reply = self._server.heard(late.command, reply, in_time=False)
        if not late.is_wanted:
            self._undo(late.connection, late.command, reply, late.sent)
        self._put(late.connection)

    def _undo(self, connection: Any, command: Command, reply: Any, sent: float) -> None:
        for one in self._server.undoing(command, reply, sent):
            asked = time.monotonic()
            self._undo(connection, one, answer(connection, self._server.backend, one.words), asked)


def _is_alive(connection: Any) -> bool:
    """Nothing is expected: what there is to read is the end."""
    try:
        return not connection.can_read(0)
    except (*BROKEN, redis.RedisError):
        return False


def read(connection: Any) -> Any:
    """The reply, an error's too."""
    try:
        return connection.read_response(disconnect_on_error=False)
    except REPLIES as error:
        return error


def call(connection: Any, *words: Any) -> Any:
    """The reply to a command on a connection that waits for nothing else."""
    connection.send_packed_command(connection.pack_command(*words), check_health=False)
    return read(connection)


def answer(connection: Any, backend: Backend, words: Words, ask: Callable[..., Any] = call) -> Any:
    """The reply to a command of the module's, by whatever the server decides with. `ask` asks for it as `call` does."""
    for _ in range(MOST_ROUNDS):
        spelled = backend.spelled(words)
        reply = ask(connection, *spelled)
        before = backend.again(words, spelled, reply)
        if before is None:
            break
        for one in before:
            call(connection, *one)
    return reply
