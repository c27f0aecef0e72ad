"""Limits that rise after idleness, as Guava's do under saturation. No clock, no connection; all times are in ms.

At `t` after its first units, a key of the limit L has L / √(c² − (c² − 1)·t/p), where p is the period of the warm-up
and c how much colder it begins; in steps of p/20. From p on it has L.
"""

import math
import threading
from collections import OrderedDict
from typing import NamedTuple

from . import fork
from .denial_cache import short_name
from .quota import Duration, milliseconds

STEPS = 20
WINDOWS = 10  # the fewest in a period: each window may begin with a burst of its limit
COLD, COLDEST = 3.0, 1000


class WarmUp(NamedTuple):
    """How limits rise."""

    period: int
    cold: float

    @classmethod
    def of(cls, period: Duration, cold: float | None, window: int) -> "WarmUp":
        """The warm-up that these words mean, of limits with this window."""
        length, cold = milliseconds(period, "warm_up"), COLD if cold is None else cold
        if isinstance(cold, bool) or not isinstance(cold, (int, float)) or not 1 < cold <= COLDEST:
            raise ValueError(f"cold must be above 1 and at most {COLDEST}")
        if length < WINDOWS * window:
            raise ValueError("warm_up must be at least ten times the window")
        return cls(length, float(cold))

    def step(self, t: int) -> int:
        return STEPS * t // self.period

    def begins(self, step: int) -> int:
        """The `t` at which a step begins."""
        return -(-step * self.period // STEPS)

    def limit(self, full: int, step: int) -> int:
        """What the full limit is in a step."""
        if step >= STEPS:
            return full
        square = self.cold * self.cold
        return min(full, max(1, int(full / math.sqrt(square - (square - 1) * step / STEPS))))

    def shown(self, full: int, used: int) -> int:
        """The least `t` that so many used units show; 0 where they are at most the cold limit."""
        if used * self.cold <= full:
            return 0
        square, ratio = self.cold * self.cold, full / used
        return min(self.period, max(0, int(self.period * ((square - ratio * ratio) / (square - 1)))))

    def wait(self, t: int, full: int, cost: int) -> int:
        """How long after `t` the limit is as large as a cost, which the full limit is."""
        return next(self.begins(step) - t for step in range(self.step(t), STEPS + 1) if self.limit(full, step) >= cost)


class _Warmth(NamedTuple):
    """What is known of a key."""

    t: int
    at: int
    """The instant of the last decision about the key, at which it was warm by `t`."""
    looked: int
    """The last step in which a denial made this process look at all that is counted; -1: none."""


class WarmingKeys:
    """How warm the newest `max_keys` keys are. Other processes warm a key up, too: replies tell how far.

    quiet: so long after its last decision about a key, nothing that this process knows of counts any more.
    """

    def __init__(self, warm_up: WarmUp, quiet: int, max_keys: int) -> None:
        self._warm_up, self._quiet, self._max_keys = warm_up, quiet, max_keys
        self._keys: OrderedDict[bytes, _Warmth] = OrderedDict()
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._keys)

    def limit(self, key: bytes, full: int, now: int) -> int:
        """The limit for a request."""
        return self._warm_up.limit(full, self._warm_up.step(self._t(key, now)))

    def wait(self, key: bytes, full: int, cost: int, now: int) -> int:
        """How long until the limit is as large as a cost, which the full limit is."""
        return self._warm_up.wait(self._t(key, now), full, cost)

    def heard(self, key: bytes, full: int, limit: int, granted: int, remaining: int | None, now: int) -> None:
        """The decision about a request with this limit; `remaining` is None where only this process knows of it."""
        with self._lock:
            t, _, looked = self._known(key, now)
            if remaining is not None:
                used = limit - remaining
                if granted > 0 and used <= granted:  # nothing else is counted
                    t, looked = 0, -1
                else:
                    t = max(t, self._warm_up.shown(full, used))
            name = short_name(key)
            self._keys[name] = _Warmth(t, now, looked)
            self._keys.move_to_end(name)
            if len(self._keys) > self._max_keys:
                self._keys.popitem(last=False)

    def looks(self, key: bytes) -> bool:
        """Whether a denial is worth a look at all that is counted: once in each step."""
        with self._lock:
            warmth = self._keys.get(short_name(key))
            step = self._warm_up.step(warmth.t) if warmth else 0
            if warmth is None or step <= warmth.looked:
                return False
            self._keys[short_name(key)] = warmth._replace(looked=step)
            return True

    def forget(self, key: bytes) -> None:
        with self._lock:
            self._keys.pop(short_name(key), None)

    def _t(self, key: bytes, now: int) -> int:
        with self._lock:
            warmth = self._keys.get(short_name(key))
            return 0 if warmth is None or now - warmth.at >= self._quiet else self._known(key, now).t

    def _known(self, key: bytes, now: int) -> _Warmth:
        """What is known of a key at an instant: it has warmed up meanwhile."""
        warmth = self._keys.get(short_name(key))
        passed = self._warm_up.period if warmth is None else max(0, now - warmth.at)
        if warmth is None or passed >= self._warm_up.period:
            return _Warmth(0, now, -1)
        return warmth._replace(t=min(self._warm_up.period, warmth.t + passed), at=now)
