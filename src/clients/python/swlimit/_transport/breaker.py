"""Whether to ask a server that has failed. It has no connection: callers report how each request went."""

import logging
import random
import threading
import time
from collections.abc import Callable

from .._core import fork
from .._protocol.replies import Failure

FAILURES = 3
SILENT_TIMEOUTS = 3
"""Timeouts without any reply after which it opens at once."""
FIRST_PROBE, LAST_PROBE, JITTER = 0.1, 0.5, 0.2
PROBE_TIMEOUT = 0.5
log = logging.getLogger("swlimit")


class Breaker:
    """Opens after three failures in a row. While it is open, only probes are sent, one at a time."""

    def __init__(self, server: str, draw: Callable[[], float] = random.random) -> None:
        self._server = server
        self._draw = draw
        self.on_open: Callable[[], None] = lambda: None
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self.is_open = False
        self.failure = Failure("other", "")
        """Why it is open, or was open last."""
        self.changed = 0.0
        """When it last opened or closed (Unix time)."""
        self.closed = 0.0
        """When it closed last (monotonic): what was sent before says how the server was, and not how it is."""
        self.failures = 0
        """In a row."""
        self.key = b""
        """The last key for which the server failed: probes ask about it."""
        self._is_announced = False
        """Whether the log says that it is unavailable."""
        self._pause = FIRST_PROBE
        self._lock = threading.Lock()

    def failed(self, failure: Failure, key: bytes | None = None) -> None:
        """A request failed because of the server."""
        with self._lock:
            self.failures += 1
            self.key = key or self.key
        if self.failures >= FAILURES:
            self.open(failure)

    def open(self, failure: Failure, key: bytes | None = None) -> None:
        with self._lock:
            self.key = key or self.key
            opens, self.is_open, self.failure = not self.is_open, True, failure
            if opens:
                self._pause, self.changed = FIRST_PROBE, time.time()
        if opens:
            self.announce(failure)
            self.on_open()

    def announce(self, failure: Failure) -> None:
        """Log that a policy decides, once until the server has answered."""
        with self._lock:
            if self._is_announced:
                return
            self._is_announced = True
        log.warning("server %s is unavailable (%s); on_failure decides until it answers (%s)", self._server,
                    failure.reason, failure.message, extra={"event": "unavailable"})

    def answered(self) -> None:
        """The server has answered in time."""
        if not self.failures and not self.is_open and not self._is_announced:
            return
        with self._lock:
            closes, self.is_open, self.failures = self.is_open, False, 0
            was_announced, self._is_announced = self._is_announced, False
        if closes:
            self.changed, self.closed = time.time(), time.monotonic()
        if was_announced:
            log.warning("server %s answers again", self._server, extra={"event": "available"})

    def pause(self) -> float:
        """Seconds until the next probe, doubled each time."""
        with self._lock:
            pause, self._pause = self._pause, min(LAST_PROBE, 2 * self._pause)
        return pause * (1 - JITTER + 2 * JITTER * self._draw())
