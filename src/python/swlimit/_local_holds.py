"""Units that are held in this process while there is no server."""

import threading
from collections import defaultdict, deque
from typing import NamedTuple

from ._core import fork
from ._transport.interface import Interface, Signal


class LocalHold(NamedTuple):
    """Units that are held in this process only."""

    key: bytes
    cost: int


class LocalHolds:
    """The units that are held in this process, by key."""

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._units: defaultdict[bytes, int] = defaultdict(int)
        self._waiting: defaultdict[bytes, list[Signal]] = defaultdict(list)
        self._dropped: deque[LocalHold] = deque()

    def take(self, key: bytes, cost: int, limit: int) -> tuple[LocalHold | None, int]:
        """The hold, if there was room; and how many units are left."""
        while self._dropped:
            self.release(self._dropped.popleft())
        with self._lock:
            held = self._units.get(key, 0)
            if held + cost > limit:
                return None, max(0, limit - held)
            self._units[key] = held + cost
            return LocalHold(key, cost), limit - held - cost

    def release(self, hold: LocalHold) -> None:
        key, cost = hold
        with self._lock:
            self._units[key] -= cost
            if not self._units[key]:
                del self._units[key]
            waiting = self._waiting.pop(key, ())
        for signal in waiting:
            signal.set()

    def drop(self, hold: LocalHold) -> None:
        """Release it when the next hold is taken; takes no lock."""
        self._dropped.append(hold)

    async def released(self, key: bytes, seconds: float) -> None:
        """Wait for the next release, at most so long."""
        signal = self._interface.signal()
        with self._lock:
            self._waiting[key].append(signal)
        try:
            await signal.wait(seconds)
        finally:
            with self._lock:
                if signal in self._waiting.get(key, ()):
                    self._waiting[key].remove(signal)
                    if not self._waiting[key]:
                        del self._waiting[key]
