"""Whether to ask a server that has failed. It has no connection: callers report how each request went."""

import logging
import random
import threading
import time
from collections.abc import Callable

from .._core import fork

FAILURES = 3
SILENT_TIMEOUTS = 3
"""Timeouts without any reply after which it opens at once."""
FIRST_PROBE, LAST_PROBE, JITTER = 0.1, 0.5, 0.2
PROBE_TIMEOUT = 0.5
log = logging.getLogger("swlimit")


class CircuitBreaker:
    """Opens after three failures in a row. While it is open, only probes are sent, one at a time."""

    def __init__(self, server: str, draw: Callable[[], float] = random.random) -> None:
        self._server = server
        self._draw = draw
        self.on_open: Callable[[], None] = lambda: None
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self.is_open = False
        self.reason = ""
        self.changed = 0.0
        """When it last opened or closed (Unix time)."""
        self.failures = 0
        """In a row."""
        self.key = b""
        """The last key for which the server failed: probes ask about it."""
        self._pause = FIRST_PROBE
        self._lock = threading.Lock()

    def failed(self, reason: object, key: bytes | None = None) -> None:
        """A request failed because of the server."""
        with self._lock:
            self.failures += 1
            self.key = key or self.key
        if self.failures >= FAILURES:
            self.open(reason)

    def open(self, reason: object) -> None:
        with self._lock:
            opens, self.is_open = not self.is_open, True
            self.reason = str(reason) or type(reason).__name__
            if opens:
                self._pause, self.changed = FIRST_PROBE, time.time()
        if opens:
            log.warning("%s is away, and asked again by probes only: %s", self._server, self.reason)
            self.on_open()

    def answered(self) -> None:
        """The server has answered in time."""
        if not self.failures and not self.is_open:
            return
        with self._lock:
            closes, self.is_open, self.failures = self.is_open, False, 0
        if closes:
            self.changed = time.time()
            log.warning("%s is back", self._server)

    def pause(self) -> float:
        """Seconds until the next probe, doubled each time."""
        with self._lock:
            pause, self._pause = self._pause, min(LAST_PROBE, 2 * self._pause)
        return pause * (1 - JITTER + 2 * JITTER * self._draw())
