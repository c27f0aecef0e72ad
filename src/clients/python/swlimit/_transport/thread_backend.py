"""The interface for programs with threads, or without: every call blocks."""

import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

import redis

from .._core import fork
from .._protocol.commands import Words
from .._protocol.replies import BROKEN
from ..errors import SwlimitError
from .endpoint import SILENCE, Endpoint
from .interface import DedicatedConnection, Owned
from .interface import Worker as AnyWorker
from .interruptible import Event, Worker
from .thread_pool import ThreadPool, look, read, read_again, write

T = TypeVar("T")


class _Handing:
    """Hands something over to `run`."""

    def __init__(self, one: Owned) -> None:
        self._one = one

    def __await__(self) -> Generator[Owned, None, None]:
        yield self._one


def run(coroutine: Coroutine[Owned, None, T]) -> T:
    """The outcome of a coroutine that awaits nothing but this backend. It suspends only to hand over what it is about
    to send, which is undone when an exception leaves here, whatever code that has interrupted."""
    owned: list[Owned] = []
    try:
        if threading.Lock is not fork.lock_type:
            fork.reset_after_patch()
        try:
            while True:
                owned.append(coroutine.send(None))
        except StopIteration as done:
            for one in owned:
                one.delivered()
            outcome: T = done.value
            return outcome
        except SwlimitError:  # an outcome as well: its raiser has said what is kept
            for one in owned:
                one.delivered()
            raise
    except SwlimitError:
        raise
    except BaseException:
        for one in owned:
            one.abandon()
        raise


class Signal(Event):
    async def wait(self, seconds: float) -> bool:  # type: ignore[override]
        return super().wait(seconds)


class Mailbox:
    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()

    @property
    def has_mail(self) -> bool:
        return not self._queue.empty()

    def put(self, mail: object) -> None:
        self._queue.put(mail)

    async def get(self, seconds: float) -> object:
        with suppress(queue.Empty):
            return self._queue.get(seconds > 0, max(0.0, min(seconds, threading.TIMEOUT_MAX)))
        return None


class ThreadConnection(DedicatedConnection):
    def __init__(self, endpoint: Endpoint, **options: float | None) -> None:
        super().__init__(endpoint, **options)
        self._pending = 0
        self._is_only = False
        """Whether a command was sent after all others were answered."""
        self._seen = b""
        """The bytes of a reply that is being read."""

    async def connect(self, at_most: float = SILENCE) -> None:
        try:
            if self.redis._sock and self.redis.can_read(0):
                self.redis.disconnect()
        except (*BROKEN, redis.RedisError):
            self.redis.disconnect()  # the server has closed it
        if not self.redis._sock:
            self.run_id, self._pending, self._seen = b"", 0, b""
            self.redis.socket_connect_timeout = self.redis.socket_timeout = max(0.001, at_most)
            self.redis.connect()
            self.redis.socket_timeout = SILENCE
            if isinstance(self.redis._sock, socket.socket):  # fakeredis has another
                self.redis._sock.settimeout(SILENCE)

    async def write(self, *commands: Words) -> None:
        self._is_only = not self._pending and len(commands) == 1
        self._pending += len(commands)
        write(self.redis, self.redis.pack_commands(commands))

    async def read(self, seconds: float) -> Any:
        """It may be interrupted anywhere, and called again."""
        if self._seen:
            reply = read_again(self.redis, self._seen)
        else:
            seen = look(self.redis, min(seconds, threading.TIMEOUT_MAX), self._is_only)
            if seen is None:
                raise redis.TimeoutError("no reply in time")
            self._seen = seen
            reply = read(self.redis)
        self._seen = b""
        self._pending -= 1
        return reply

    @property
    def is_connected(self) -> bool:
        return self.redis._sock is not None

    def shut_down(self) -> None:
        socket.socket.shutdown(self.redis._sock, socket.SHUT_WR)  # also with TLS, which goes on reading

    async def close(self) -> None:
        self.redis.disconnect()


class ReplyReader:
    def __init__(self, *connections: DedicatedConnection) -> None:
        self._selector = selectors.DefaultSelector()
        self._all = deque(connections)
        for one in connections:
            self._selector.register(one.redis._sock, selectors.EVENT_READ)

    async def next(self, seconds: float) -> tuple[DedicatedConnection, Any] | None:
        self._all.rotate()  # so that each gets its turn
        ready = next((one for one in self._all if one.redis.can_read(0)), None)
        if ready is None and self._selector.select(seconds):
            ready = next((one for one in self._all if one.redis.can_read(0)), None)
        return None if ready is None else (ready, read(ready.redis))

    async def close(self) -> None:
        self._selector.close()


class ThreadBackend:
    signal, mailbox, connections, connection, reply_reader = Signal, Mailbox, ThreadPool, ThreadConnection, ReplyReader

    def current_loop(self) -> object:
        return None

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def own(self, one: Owned) -> None:
        await _Handing(one)

    def event(self) -> threading.Event:
        return threading.Event()  # gevent may have replaced it by now

    def spawn(self, coroutine: Coroutine[Owned, None, None]) -> threading.Thread:
        thread = Worker("swlimit", run, coroutine)
        try:
            thread.start()
        except RuntimeError:  # no thread could be started; an interrupt here comes after the start
            coroutine.close()
            raise
        return thread

    def is_running(self, worker: AnyWorker | None) -> bool:
        return isinstance(worker, threading.Thread) and worker.is_alive()

    def end(self, worker: AnyWorker) -> None:
        """Threads stop by themselves."""

    async def ended(self, workers: list[AnyWorker]) -> None:
        """Threads stop by themselves."""

    def abort(self, connection: object) -> None:
        with suppress(OSError):
            if (used := getattr(connection, "_sock", None)) is not None:
                socket.socket.shutdown(used, socket.SHUT_RDWR)  # also with TLS; the reader sees the end

    def post(self, connection: DedicatedConnection, *commands: Words) -> None:
        with suppress(*BROKEN, redis.RedisError):  # the reader sees it closed
            run(connection.write(*commands))


THREADS = ThreadBackend()
