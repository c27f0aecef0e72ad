"""Connections to one server, one for each request that is under way."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import redis

from .. import fork
from ..backend import MOST_ROUNDS, Backend
from ..breaker import PROBE_TIMEOUT, SILENT_TIMEOUTS, probe
from ..errors import BROKEN, REPLIES, ServerAway, is_unknown_command
from ..servers import Server
from ..words import Words, giving_back

CERTAIN = 0.05
"""Seconds for which a connection that has just been used is taken for alive."""
LATEST = 10.0
"""Seconds after which nobody waits for a reply any more."""
MOST_OPENING = 4


class Late:
    """A connection whose reply did not come while somebody waited for it."""

    def __init__(self, connection: Any, key: bytes, words: Words, timeout: float, sent: float, is_wanted: bool) -> None:
        self.connection, self.key, self.words, self.timeout, self.sent = connection, key, words, timeout, sent
        self.is_wanted = is_wanted
        """Not where whoever asked was stopped meanwhile: then nobody has decided otherwise."""
        self.is_counted = False


class Pool:
    """What requests to one server are sent with. Connecting is nobody's: it has a thread and a time of its own."""

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

    async def send(self, key: bytes, words: Words, timeout: float, wait: float, asking: bool = False) -> Any:
        ends, backend = time.monotonic() + wait, self._server.backend
        backend.check(words)
        if self._late:
            self._hear_late()

        def in_time(connection: Any, *spelled: Any) -> Any:
            if asking:
                call(connection, "ASKING")
            connection.send_packed_command(connection.pack_command(*spelled), check_health=False)
            if not connection.can_read(max(0.0, ends - time.monotonic())) and not connection.can_read(0):
                raise TimeoutError  # the second look: this thread may have had to wait for the others
            return read(connection)

        connection = self._take(ends)
        sent = time.monotonic()
        try:
            reply = answer(connection, backend, words, in_time)
        except TimeoutError:
            raise self._give_up(Late(connection, key, words, timeout, sent, True)) from None
        except BROKEN as error:
            connection.disconnect()
            raise self._server.lost(error, key) from error
        except BaseException:
            self._give_up(Late(connection, key, words, timeout, sent, False))
            raise
        self._put(connection)
        self._server.round_trip = time.monotonic() - sent
        reply = self._server.heard(key, words, reply)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def probe(self, key: bytes) -> None:
        """Ask over a connection made anew, which may take half a second."""
        words = probe(key)
        connection = self._server.home.connection(socket_timeout=PROBE_TIMEOUT, socket_connect_timeout=PROBE_TIMEOUT)
        try:
            connection.connect()
            backend = self._server.backend
            backend.begin_anew()
            reply = self._server.heard(key, words, answer(connection, backend, words))
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
        if time.monotonic() - late.sent >= late.timeout:
            late.is_counted = True
            self._server.breaker.failed(f"no reply within {late.timeout * 1000:.0f} ms", late.key)
        with self._changed:
            self._late.append(late)
        return ServerAway(f"{self._server.home.name} has not replied in time")

    def _hear_late(self) -> None:
        """Take in the replies that have come since nobody waited for them."""
        with self._changed:
            late, self._late = self._late, []
        now, still = time.monotonic(), []
        for one in late:
            passed = now - one.sent
            try:
                if one.connection.can_read(0):
                    self._settle(one, passed)
                    continue
            except (*BROKEN, redis.RedisError):
                passed = LATEST
            if passed >= LATEST:
                one.connection.disconnect()
                continue
            if passed >= one.timeout and not one.is_counted:
                one.is_counted = True
                self._server.breaker.failed(f"no reply within {one.timeout * 1000:.0f} ms", one.key)
            if passed >= SILENT_TIMEOUTS * one.timeout:
                self._server.breaker.open(f"no reply within {passed * 1000:.0f} ms")
            still.append(one)
        if still:
            with self._changed:
                self._late += still

    def _settle(self, late: Late, passed: float) -> None:
        """The reply has come. What it grants to nobody is given back, over the same connection."""
        reply = read(late.connection)
        if isinstance(reply, redis.exceptions.NoScriptError) or is_unknown_command(reply):
            self._put(late.connection)  # the server has done nothing
            return
        if late.is_counted:
            reply = self._server.heard_late(late.key, late.words, reply, passed, late.timeout)
        else:
            reply = self._server.heard(late.key, late.words, reply, in_time=False)
        if not late.is_wanted:
            for words in giving_back(late.words, reply, passed + late.timeout):
                answer(late.connection, self._server.backend, words)
        self._put(late.connection)


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
