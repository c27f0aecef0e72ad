"""What `Limiter` does in threads: hearing of invalidations, and connections that wait."""

import os
import selectors
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from .connections import SILENCE, Home
from .denials import Demand, Denials
from .errors import NobodyLetsWait
from .local import Words
from .tracking import CHANNEL, Pauses, Register, Subscribers, TrackersOfClients, log


class ThreadTracker:
    """A tracker in a thread, which ends when nobody subscribes any more."""

    def __init__(self, home: Home, subscribers: Subscribers) -> None:
        self._home = home
        self._subscribers = subscribers
        self._lock = threading.Lock()  # held for the asker and its register together
        self._register = Register()
        self._asker: Any = None
        self._thread: threading.Thread | None = None
        _trackers.add(self)

    def ask(self, denials: Denials, demand: Demand) -> bool:
        if self._thread is None:
            self._start()
        with self._lock:
            if self._asker is None or self._register.is_full:
                return False
            words = self._register.ask(denials, demand, time.monotonic())
            try:
                self._asker.send_command(*words, check_health=False)
            except (redis.RedisError, OSError):
                return False  # the thread sees it closed
            return True

    def begin_anew(self) -> None:
        """In a forked process there is no thread, and the connections are its parent's."""
        self._subscribers.begin_anew()
        self._lock = threading.Lock()
        self._register, self._asker, self._thread = Register(), None, None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="swlimit-tracking", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pauses = Pauses()
        while self._subscribers:
            connections = [self._home.connection() for _ in range(2)]
            try:
                self._connect(*connections)
                pauses.reset()
                self._listen(*connections)
            except (redis.RedisError, OSError, ValueError) as error:
                log.debug("not tracking: %s", error)  # a connection was lost, or the server does not track
            finally:
                with self._lock:
                    was_tracking, self._asker = self._asker is not None, None
                    self._register.clear()
                if was_tracking:
                    self._subscribers.lost()
                for connection in connections:
                    connection.disconnect()
            if self._subscribers:
                time.sleep(pauses.next())
        with self._lock:
            self._thread = None

    def _connect(self, listener: Any, asker: Any) -> None:
        for connection in (listener, asker):
            connection.connect()
        identity = _call(listener, "CLIENT", "ID")
        _call(listener, "SUBSCRIBE", CHANNEL)
        _call(asker, "CLIENT", "TRACKING", "ON", "REDIRECT", identity)
        with self._lock:
            self._asker = asker

    def _listen(self, listener: Any, asker: Any) -> None:
        """Pass on what the two connections tell, until one is lost or nobody wants to know."""
        heard = dict.fromkeys([listener, asker], time.monotonic())
        pinged: set[Any] = set()
        with selectors.DefaultSelector() as selector:
            for connection in heard:
                selector.register(connection._sock, selectors.EVENT_READ)
            while self._subscribers:
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
                            words = ("PING",) if connection is listener else self._register.ask_whether_alive()
                            connection.send_command(*words, check_health=False)

    def _pass_on(self, connection: Any, is_listener: bool) -> bool:
        """Take in all that a connection has to tell; whether that is anything."""
        told = False
        while connection.can_read(0):
            told = True
            try:
                reply = connection.read_response()
            except redis.ResponseError as error:
                reply = error
            if is_listener:
                self._subscribers.told(reply)
            else:
                with self._lock:
                    self._register.answered(reply, time.monotonic())
        return told


def _call(connection: Any, *words: Any) -> Any:
    connection.send_command(*words, check_health=False)
    return connection.read_response()


_trackers: "weakref.WeakSet[ThreadTracker]" = weakref.WeakSet()


def _after_fork() -> None:
    for tracker in list(_trackers):
        tracker.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

trackers = TrackersOfClients(ThreadTracker)


class Waiting:
    """At most so many connections, each of which one request at a time may block."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = threading.Semaphore(most)
        self._idle: defaultdict[str, list[Any]] = defaultdict(list)

    def execute(self, home: Home, words: Words, timeout: float) -> Any:
        """The reply to a command that the server answers within `timeout` seconds, or soon after."""
        ends = time.monotonic() + timeout
        if not self._free.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            raise NobodyLetsWait
        try:
            connection = self._connection(home)
            try:
                connection.send_command(*words, check_health=False)
                if not connection.can_read(max(0.0, ends - time.monotonic()) + SILENCE):
                    raise redis.TimeoutError("the server has not answered in time")
                return connection.read_response()
            except redis.ResponseError:
                raise
            except BaseException:
                connection.disconnect()
                raise
            finally:
                self._idle[home.name].append(connection)
        finally:
            self._free.release()

    def _connection(self, home: Home) -> Any:
        idle = self._idle[home.name]
        connection = idle.pop() if idle else home.connection()
        try:
            if connection._sock and connection.can_read(0):
                connection.disconnect()
        except (redis.RedisError, OSError):
            connection.disconnect()  # the server has closed it
        connection.connect()
        return connection

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().disconnect()


class Turns:
    """First come, first served, a queue for each key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[bytes, deque[threading.Event]] = {}

    @contextmanager
    def turn(self, key: bytes, timeout: float) -> Iterator[bool]:
        """Whether one's turn has come within so many seconds; it is over at the end of the context."""
        mine = threading.Event()
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            queue.append(mine)
            if queue[0] is mine:
                mine.set()
        try:
            yield mine.wait(min(timeout, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                queue.remove(mine)
                if queue:
                    queue[0].set()
                else:
                    self._queues.pop(key, None)
