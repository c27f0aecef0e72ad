"""Units that are held in this process while there is no server."""

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable

from ._core import fork
from ._core.clock import running


class LocalHold:
    """Units that are held in this process only, until the instant `ends` of `running` at most."""

    __slots__ = ("cost", "ends", "is_over", "key", "on_lost")

    def __init__(self, key: bytes, cost: int, ends: float) -> None:
        self.key, self.cost, self.ends = key, cost, ends
        self.on_lost: Callable[[], None] = lambda: None
        self.is_over = False

    @property
    def is_live(self) -> bool:
        return not self.is_over and running() < self.ends


class LocalHolds:
    """The units that are held in this process, by key."""

    def __init__(self) -> None:
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._units: defaultdict[bytes, int] = defaultdict(int)
        self._ending: defaultdict[bytes, set[LocalHold]] = defaultdict(set)
        """The holds that end by themselves."""
        self._dropped: deque[LocalHold] = deque()

    def take(self, key: bytes, cost: int, limit: int, ends: float = math.inf) -> tuple[LocalHold | None, int]:
        """The hold, if there was room; and how many units are left."""
        while self._dropped:
            self.release(self._dropped.popleft())
        if self._units.get(key, 0) + cost > limit:
            self._end_old(key)
        with self._lock:
            held = self._units.get(key, 0)
            if held + cost > limit:
                return None, max(0, limit - held)
            self._units[key] = held + cost
            hold = LocalHold(key, cost, ends)
            if ends < math.inf:
                self._ending[key].add(hold)
            return hold, limit - held - cost

    def _end_old(self, key: bytes) -> None:
        """End the holds of a key whose time is over."""
        with self._lock:
            old = [hold for hold in self._ending.get(key, ()) if not hold.is_live]
        for hold in old:
            self.release(hold)
            hold.on_lost()

    def release(self, hold: LocalHold) -> None:
        with self._lock:
            if hold.is_over:
                return
            hold.is_over = True
            if hold.ends < math.inf:
                self._ending[hold.key].discard(hold)
                if not self._ending[hold.key]:
                    del self._ending[hold.key]
            self._units[hold.key] -= hold.cost
            if not self._units[hold.key]:
                del self._units[hold.key]

    def drop(self, hold: LocalHold) -> None:
        """Release it when the next hold is taken; takes no lock."""
        self._dropped.append(hold)
