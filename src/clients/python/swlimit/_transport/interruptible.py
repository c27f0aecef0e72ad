"""Threads and events whose use may be interrupted anywhere, by an exception of a signal or of gevent.

The locks that are written in C are safe in a `with`. What threading writes in Python on top of them is not: interrupted
in `Condition` or `Event`, a thread leaves their lock taken for ever.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Event:
    """Happens once. It has no lock of its own."""

    def __init__(self) -> None:
        self._has_happened = False
        self._waiting: list[Any] = []

    def is_set(self) -> bool:
        return self._has_happened

    def set(self) -> None:
        """It may be repeated after an interrupt."""
        self._has_happened = True
        for turn in list(self._waiting):
            with suppress(RuntimeError):  # it was released before
                turn.release()

    def wait(self, timeout: float | None = None) -> bool:
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        if not self._has_happened:
            turn.acquire(True, -1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        return self._has_happened


class _NobodyWaits(Event):
    """`Thread.start` waits for this until its thread has begun."""

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def _at_fork_reinit(self) -> None:
        """What `threading` calls in a forked child."""


class Worker(threading.Thread):
    """A thread whose `start` waits for nothing, so that nothing interrupts it between its start and its owner."""

    _started: Any

    def __init__(self, name: str, function: Callable[..., None], *args: Any) -> None:
        super().__init__(target=function, args=args, name=name, daemon=True)
        self._started = _NobodyWaits()
        self._has_begun = self._has_ended = False

    def start(self) -> None:
        super().start()
        self._has_begun = True

    def run(self) -> None:
        self._has_begun = True
        try:
            super().run()
        finally:
            self._has_ended = True

    def is_alive(self) -> bool:
        return self._has_begun and not self._has_ended
