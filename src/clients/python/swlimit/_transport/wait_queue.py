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
        self._free = self._places = places
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
                self._free = min(self._places, self._free + 1)  # who was interrupted may release twice

    def _leave(self, turn: Signal) -> bool:
        """Whether it was still waiting."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
            return False


class KeyQueue(WaitQueue):
    """Those who wait for one key: the first has the place, and asks from time to time."""

    def __init__(self, interface: Interface) -> None:
        super().__init__(interface, 1)
        self._is_woken = self._hands_over = False
        self._pause: Signal | None = None

    @property
    def is_taken(self) -> bool:
        return not self._free

    async def pause(self, seconds: float) -> None:
        """For who has the place: wait so long, or until `wake`, which may have been called before."""
        pause = self._interface.signal()
        with self._lock:
            if not self._is_woken:
                self._pause = pause
        try:
            if self._pause is pause:
                await pause.wait(seconds)
        finally:
            with self._lock:
                self._is_woken, self._pause = False, None

    def wake(self, is_shared: bool) -> None:
        """See `KeyQueues.wake`."""
        with self._lock:
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
