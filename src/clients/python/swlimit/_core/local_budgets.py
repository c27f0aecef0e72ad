"""Budgets in this process: the module's arithmetic, without a server."""

import threading

from . import fork
from .bounded import BoundedMap
from .quota import MAX_EXACT
from .window import CountOverflow, Reply


class LocalBudgets:
    """At most `max_keys` keys: those go first that were not used for the longest time."""

    def __init__(self, max_keys: int) -> None:
        self._used: BoundedMap[tuple[int, int]] = BoundedMap(
            max_keys, lambda used, now: False, lambda used, now: now < used[1])
        """Units, and the end of their period."""
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()

    def execute(self, key: bytes, limit: int, until: int, now: int, cost: int, *, partial: bool = False,
                force: bool = False, peek: bool = False) -> Reply:
        """What the module would reply to BUDGET at the instant `now`."""
        with self._lock:
            used, ends = self._used.used(key) or (0, until)
            if now >= ends:
                used, ends = 0, until
            reply = decide(used, ends, limit, now, cost, partial=partial)
            counted = 0 if peek else cost if force else reply[0]
            if used + counted > MAX_EXACT:
                raise CountOverflow
            if counted:
                self._used.put(key, (used + counted, ends), now)
                reply[2], reply[4] = max(0, limit - used - counted), ends - now
            return reply

    def refund(self, key: bytes, units: int, now: int) -> int:
        """Give back units of the period in force; how many."""
        with self._lock:
            used, ends = self._used.used(key) or (0, 0)
            taken = min(units, used) if now < ends else 0
            if taken == used:
                self._used.pop(key)
            elif taken:
                self._used.put(key, (used - taken, ends), now)
            return taken

    def forget(self, key: bytes) -> bool:
        with self._lock:
            return self._used.pop(key) is not None

    @property
    def evicted(self) -> int:
        """How many keys were forgotten that still counted, because there were too many."""
        return self._used.evicted


def decide(used: int, ends: int, limit: int, now: int, cost: int, *, partial: bool = False) -> Reply:
    """The reply about a period that is in force, when so much of it is used and nothing is counted."""
    room = max(0, limit - used)
    granted = cost if cost <= room else room if partial else 0
    never = (1 if partial else cost) > limit
    return [granted, limit, room, 0 if granted else -1 if never else ends - now, ends - now if used else 0]
