"""Hearing of invalidations in a thread."""

import selectors
import threading
import time
from typing import Any

import redis

from .. import fork
from ..denials import Denials, Ticket
from ..errors import BROKEN, REPLIES
from ..servers import SILENCE, Server
from ..tracking import CHANNEL, Pauses, Register, Subscribers, log
from .pool import call, read


class ThreadTracker:
    """A tracker in a thread, which ends when nobody subscribes any more, or it is closed."""

    def __init__(self, server: Server, subscribers: Subscribers) -> None:
        self._home = server.home
        self._subscribers = subscribers
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self.is_refused = False
        """Whether the server does not track, as far as is known."""
        self.register = Register()
        self._lock = threading.Lock()  # held for the asker and its register together
        self._asker: Any = None
        self._thread: threading.Thread | None = None

    @property
    def is_up(self) -> bool:
        return self._asker is not None

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="swlimit-tracking", daemon=True)
                self._thread.start()

    def ask(self, denials: Denials, ticket: Ticket) -> bool:
        with self._lock:
            if self._asker is None:
                return False
            commands = self.register.ask(denials, ticket, time.monotonic())
            try:
                self._asker.send_packed_command(self._asker.pack_commands(commands), check_health=False)
            except (*BROKEN, redis.RedisError):
                return False  # the thread sees it closed
            return True

    def close(self) -> None:
        """Its thread ends within a moment; who asks again begins anew."""
        with self._lock:
            self._thread = self._asker = None
            self.register = Register()
        self._subscribers.lost()

    def _run(self) -> None:
        pauses, mine = Pauses(), threading.current_thread()
        while self._subscribers and self._thread is mine:
            connections = [self._home.connection() for _ in range(2)]
            try:
                self._connect(*connections)
                pauses.reset()
                self._listen(*connections)
            except (redis.RedisError, *BROKEN, ValueError) as error:
                self.is_refused = True
                log.debug("not tracking: %s", error)  # a connection was lost, or the server does not track
            finally:
                with self._lock:
                    was_tracking = self._asker is connections[1]
                    if was_tracking:
                        self._asker = None
                        self.register.clear()
                if was_tracking:
                    self._subscribers.lost()
                for connection in connections:
                    connection.disconnect()
            if self._subscribers and self._thread is mine:
                time.sleep(pauses.next())
        with self._lock:
            if self._thread is mine:
                self._thread = None

    def _connect(self, listener: Any, asker: Any) -> None:
        for connection in (listener, asker):
            connection.connect()
        identity = _must(listener, "CLIENT", "ID")
        _must(listener, "SUBSCRIBE", CHANNEL)
        _must(asker, "CLIENT", "TRACKING", "ON", "REDIRECT", identity)
        self._subscribers.lost()  # of what was asked before, nothing is told
        with self._lock:
            self._asker, self.is_refused = asker, False

    def _listen(self, listener: Any, asker: Any) -> None:
        """Pass on what the two connections tell, until one is lost or nobody wants to know."""
        mine, heard = threading.current_thread(), dict.fromkeys([listener, asker], time.monotonic())
        pinged: set[Any] = set()
        with selectors.DefaultSelector() as selector:
            for connection in heard:
                selector.register(connection._sock, selectors.EVENT_READ)
            while self._subscribers and self._thread is mine:
                selector.select(SILENCE / 4)
                for connection in heard:
                    if self._pass_on(connection, is_listener=connection is listener):
                        heard[connection] = time.monotonic()
                        pinged.discard(connection)
                    silent = time.monotonic() - heard[connection]
                    if silent > 2 * SILENCE:
                        raise redis.TimeoutError("a connection is open, but nobody answers")
                    if silent > SILENCE and connection not in pinged:
                        pinged.add(connection)
                        with self._lock:
                            words = (("PING",),) if connection is listener else self.register.ask_whether_alive()
                            connection.send_packed_command(connection.pack_commands(words), check_health=False)

    def _pass_on(self, connection: Any, is_listener: bool) -> bool:
        """Take in all that a connection has to tell; whether that is anything."""
        told = False
        while connection.can_read(0):
            told, reply = True, read(connection)
            if is_listener:
                self._subscribers.told(reply)
            else:
                with self._lock:
                    if self._asker is connection:  # else it was closed meanwhile
                        self.register.answered(reply, time.monotonic())
        return told


def _must(connection: Any, *words: Any) -> Any:
    reply = call(connection, *words)
    if isinstance(reply, REPLIES):
        raise reply
    return reply
