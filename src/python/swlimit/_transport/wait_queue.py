"""Queues within the process: first come, first served."""

import threading
import weakref
from collections import deque

from .._core import fork
from .interface import Interface, Signal


class WaitQueue:
    """A limited number of places; the others wait for one."""

    def __init__(self, interface: Interface, places: int) -> None:
        self._interface = interface
        self._free = places
        self._waiting: deque[Signal] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are waiting."""
        return len(self._waiting)

    async def take(self, seconds: float) -> bool:
        """Take a place, to be released later; whether one became free in so many seconds."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = self._interface.signal()
            self._waiting.append(turn)
        try:
            await turn.wait(seconds)
        except BaseException:
            if not self._leave(turn):
                self.release()
            raise
        return not self._leave(turn)

    def release(self) -> None:
        """Give the place to the next in the queue."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def _leave(self, turn: Signal) -> bool:
        """Whether it was still waiting."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
            return False


class KeyQueues:
    """A queue with one place for each key that somebody waits for."""

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._loop: object = None
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._queues: weakref.WeakValueDictionary[bytes, WaitQueue] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, key: bytes) -> WaitQueue:
        with self._lock:
            if (loop := self._interface.current_loop()) is not self._loop:
                self._loop, self._queues = loop, weakref.WeakValueDictionary()
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = WaitQueue(self._interface, 1)
            return queue
