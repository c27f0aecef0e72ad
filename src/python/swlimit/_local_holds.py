"""Units that are held in this process while there is no server."""

import threading
from collections import defaultdict, deque
from typing import NamedTuple

from ._core import fork


class LocalHold(NamedTuple):
    """Units that are held in this process only."""

    key: bytes
    cost: int


class LocalHolds:
    """The units that are held in this process, by key."""

    def __init__(self) -> None:
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._units: defaultdict[bytes, int] = defaultdict(int)
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

    def drop(self, hold: LocalHold) -> None:
        """Release it when the next hold is taken; takes no lock."""
        self._dropped.append(hold)
