"""The outside for programs with threads, or without: it waits as it is called."""

import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import redis

from .. import fork
from ..commands import Words
from ..errors import BROKEN
from ..outside import Conversation
from ..servers import Home, Server
from .pool import Pool, read

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The outcome of a coroutine that awaits this outside only."""
    if threading.Lock is not fork.lock_kind:
        fork.patched()
    try:
        coroutine.send(None)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
    raise AssertionError("what waits in a thread does not suspend")


class Signal(threading.Event):
    async def wait(self, seconds: float) -> bool:  # type: ignore[override]
        return super().wait(max(0.0, min(seconds, threading.TIMEOUT_MAX)))


class Mailbox:
    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    @property
    def is_full(self) -> bool:
        return not self._queue.empty()

    def put(self, mail: Any) -> None:
        self._queue.put(mail)

    async def get(self, seconds: float) -> Any:
        with suppress(queue.Empty):
            return self._queue.get(seconds > 0, max(0.0, min(seconds, threading.TIMEOUT_MAX)))


class ThreadConversation(Conversation):
    async def connect(self) -> None:
        try:
            if self.redis._sock and self.redis.can_read(0):
                self.redis.disconnect()
        except (*BROKEN, redis.RedisError):
            self.redis.disconnect()  # the server has closed it
        if not self.redis._sock:
            self.run_id = b""
            self.redis.connect()

    async def write(self, *commands: Words) -> None:
        self.redis.send_packed_command(self.redis.pack_commands(commands), check_health=False)

    async def read(self, seconds: float) -> Any:
        if not self.redis.can_read(max(0.0, min(seconds, threading.TIMEOUT_MAX))):
            raise redis.TimeoutError("no reply in time")
        return read(self.redis)

    @property
    def is_connected(self) -> bool:
        return self.redis._sock is not None

    def hang_up(self) -> None:
        socket.socket.shutdown(self.redis._sock, socket.SHUT_WR)  # with TLS too, which goes on reading

    async def close(self) -> None:
        self.redis.disconnect()


class Ears:
    def __init__(self, *conversations: Conversation) -> None:
        self._selector = selectors.DefaultSelector()
        self._all = deque(conversations)
        for one in conversations:
            self._selector.register(one.redis._sock, selectors.EVENT_READ)

    async def next(self, seconds: float) -> tuple[Conversation, Any] | None:
        self._all.rotate()  # that no one drowns the others
        ready = next((one for one in self._all if one.redis.can_read(0)), None)
        if ready is None and self._selector.select(seconds):
            ready = next((one for one in self._all if one.redis.can_read(0)), None)
        return None if ready is None else (ready, read(ready.redis))

    async def close(self) -> None:
        self._selector.close()


class Threads:
    def scene(self) -> object:
        return None

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def signal(self) -> Signal:
        return Signal()

    def event(self) -> threading.Event:
        return threading.Event()

    def mailbox(self) -> Mailbox:
        return Mailbox()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> threading.Thread:
        thread = threading.Thread(target=run, args=(coroutine,), name="swlimit", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread is to be had; whoever is interrupted here has started one
            coroutine.close()
            raise
        return thread

    def is_running(self, worker: threading.Thread | None) -> bool:
        return worker is not None and worker.is_alive()

    def end(self, worker: threading.Thread) -> None:
        """It looks itself whether it is needed."""

    async def ended(self, workers: list[threading.Thread]) -> None:
        """They look themselves."""

    def wire(self, server: Server) -> Pool:
        return Pool(server)

    def conversation(self, home: Home) -> Conversation:
        return ThreadConversation(home)

    def cut(self, connection: Any) -> None:
        with suppress(OSError):
            if (used := connection._sock) is not None:
                socket.socket.shutdown(used, socket.SHUT_RDWR)  # with TLS too; who reads sees its end

    def ears(self, *conversations: Conversation) -> Ears:
        return Ears(*conversations)

    def post(self, conversation: Conversation, *commands: Words) -> None:
        with suppress(*BROKEN, redis.RedisError):  # whoever reads sees it closed
            run(conversation.write(*commands))


THREADS = Threads()
