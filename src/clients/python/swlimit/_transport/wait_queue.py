"""Queues within the process: first come, first served."""

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from .._core import fork
from .interface import Interface, Signal


class WaitQueue:
    """A limited number of places; the others wait for one."""

    def __init__(self, interface: Interface, places: int) -> None:
        self.interface = interface
        self.free = places
        self.waiting: deque[weakref.ref[Place]] = deque()
        self.lock = threading.RLock()
        """Reentrant: a place may be collected while it is held."""

    def __len__(self) -> int:
        """How many are waiting."""
        return len(self.waiting)

    def place(self) -> "Place":
        """A place to take, and to leave."""
        return Place(self)


class Place:
    """One caller's place in a queue. `leave` may be interrupted anywhere, and repeated; a place that is collected is
    left."""

    def __init__(self, queue: WaitQueue) -> None:
        self._queue = queue
        self._has = False
        self._turn: Signal | None = None
        self._weak = weakref.ref(self)

    async def take(self, seconds: float) -> bool:
        """Whether it is taken, after `seconds` at most."""
        queue, ends = self._queue, time.monotonic() + seconds
        while True:
            with queue.lock:
                if not self._has and queue.free:
                    queue.free, self._has = queue.free - 1, True
                left = ends - time.monotonic()
                if self._has or left <= 0:
                    self._wait_no_longer()
                    return self._has
                turn = self._turn = queue.interface.signal()
                if self._weak not in queue.waiting:
                    queue.waiting.append(self._weak)
            await turn.wait(left)

    def leave(self) -> None:
        """Give it to the next in the queue."""
        queue = self._queue
        with queue.lock:
            self._wait_no_longer()
            while self._has and queue.waiting:
                other = queue.waiting[0]()
                if other is not None and not other._has and other._turn is not None:
                    other._turn.set()  # it looks when the lock is free
                    other._has, self._has = True, False
                queue.waiting.popleft()
            if self._has:
                queue.free, self._has = queue.free + 1, False

    def _wait_no_longer(self) -> None:
        with suppress(ValueError):
            self._queue.waiting.remove(self._weak)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and getattr(self, "_has", False):
            self.leave()


class KeyQueue(WaitQueue):
    """Those who wait for one key: the first has the place, and asks from time to time."""

    def __init__(self, interface: Interface) -> None:
        super().__init__(interface, 1)
        self._is_woken = self._hands_over = False
        self._pause: Signal | None = None

    @property
    def is_taken(self) -> bool:
        return not self.free

    async def pause(self, seconds: float) -> None:
        """For the caller that has the place: wait `seconds`, or until `wake`, which may have been called before."""
        pause = self.interface.signal()
        with self.lock:
            if not self._is_woken:
                self._pause = pause
        try:
            if self._pause is pause:
                await pause.wait(seconds)
        finally:
            with self.lock:
                self._is_woken, self._pause = False, None

    def wake(self, is_shared: bool) -> None:
        """See `KeyQueues.wake`."""
        with self.lock:
            self._hands_over = not (is_shared and self._hands_over)
            if not self._hands_over:
                return
            self._is_woken = True
            if self._pause is not None:
                self._pause.set()


class KeyQueues:
    """A queue for each key that somebody waits for."""

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._loop: object = None
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._queues: weakref.WeakValueDictionary[bytes, KeyQueue] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, key: bytes) -> KeyQueue:
        with self._lock:
            if (loop := self._interface.current_loop()) is not self._loop:
                self._loop, self._queues = loop, weakref.WeakValueDictionary()
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = KeyQueue(self._interface)
            return queue

    def is_taken(self, key: bytes) -> bool:
        """Whether somebody waits for this key."""
        return key in self._queues and self.of(key).is_taken

    def wake(self, key: bytes, is_shared: bool) -> None:
        """Have the first in the queue ask now: there may be room.

        is_shared: with other processes. Every second time the room is left to who asks next, or they would hardly ever
        come before a process that hands over within itself.
        """
        if key in self._queues:
            self.of(key).wake(is_shared)
