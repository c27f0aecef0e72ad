"""An independent model of one key: the specification's formulas, with fractions and a dictionary, and no cleverness.

What it is asked is answered in the most literal way: `retry_after` by asking again at later instants, for example.
"""

from dataclasses import dataclass, field
from fractions import Fraction

MAX = 2**53 - 1


class CountOverflow(Exception):
    """The count would pass 2^53 - 1."""


@dataclass
class Window:
    """Units by subinterval; all durations and instants in milliseconds."""

    length: int
    resolution: int
    counts: dict = field(default_factory=dict)

    @property
    def subintervals(self):
        return self.length // self.resolution

    @property
    def newest(self):
        return max(self.counts)

    @property
    def end(self):
        return (self.newest + self.subintervals + 1) * self.resolution if self.counts else 0

    def held(self):
        """The subintervals newest - N ... newest."""
        oldest = self.newest - self.subintervals if self.counts else 0
        return {i: units for i, units in self.counts.items() if i >= oldest}

    def decision_instant(self, now):
        return max(now, self.newest * self.resolution) if self.counts else now

    def load(self, now):
        """`full`, `trailing` and the part of the trailing subinterval that is still inside of the window."""
        current, elapsed = divmod(self.decision_instant(now), self.resolution)
        oldest = current - self.subintervals
        full = sum(units for i, units in self.counts.items() if oldest < i <= current)
        return full, self.counts.get(oldest, 0), Fraction(self.resolution - elapsed, self.resolution)

    def estimate(self, now, strict):
        full, trailing, part = self.load(now)
        return full + (trailing if strict else trailing * part)

    def seen_at(self, length, resolution, now):
        """This window at another length and resolution: its units at the latest instant they may have come."""
        if (length, resolution) == (self.length, self.resolution):
            return Window(length, resolution, dict(self.counts))
        seen = Window(length, resolution)
        for i, units in self.held().items():
            latest = min((i + 1) * self.resolution - 1, self.decision_instant(now))
            seen.counts[latest // resolution] = seen.counts.get(latest // resolution, 0) + units
        return seen


class Key:
    """The key, which may be missing (`window` is None)."""

    def __init__(self):
        self.window = None

    def allow(self, limit, length, resolution, now, cost=1, partial=False, strict=False):
        asked = limit, length, resolution
        granted, remaining = self._decide(*asked, now, cost, partial, strict)
        if not granted:
            return self.peek(limit, length, resolution, now, cost, partial, strict)
        window = self._seen(length, resolution, now)
        self._count(window, window.decision_instant(now) // resolution, granted)
        return [granted, limit, remaining - granted, 0, self._reset_after(length, resolution, now)]

    def peek(self, limit, length, resolution, now, cost=1, partial=False, strict=False):
        asked = limit, length, resolution
        granted, remaining = self._decide(*asked, now, cost, partial, strict)
        retry_after = 0 if granted else self._retry_after(*asked, now, cost, partial, strict)
        return [granted, limit, remaining, retry_after, self._reset_after(length, resolution, now)]

    def record(self, limit, length, resolution, now, cost=1, strict=False):
        asked = limit, length, resolution
        window = self._seen(length, resolution, now)
        if window.counts and now // resolution < window.newest - window.subintervals:
            return self.peek(*asked, now, cost, False, strict)
        full, trailing, _ = window.load(now)
        if full + trailing + cost > MAX:
            raise CountOverflow
        granted, _ = self._decide(*asked, now, cost, False, strict)
        self._count(window, now // resolution, cost)
        _, remaining = self._decide(*asked, now, 0, False, strict)
        retry_after = 0 if granted else self._retry_after(*asked, now, cost, False, strict)
        return [granted, limit, remaining, retry_after, self._reset_after(length, resolution, now)]

    def refund(self, units, now):
        if not self.window:
            return 0
        newest, left = self.window.newest, units
        self.window.counts = self.window.held()
        for i in sorted(self.window.counts, reverse=True):
            taken = min(left, self.window.counts[i])
            left -= taken
            self.window.counts[i] -= taken
            if not self.window.counts[i]:
                del self.window.counts[i]
        if not self.window.counts or self.window.newest != newest and self.window.end <= now:
            self.window = None
        return units - left

    def _seen(self, length, resolution, now):
        return self.window.seen_at(length, resolution, now) if self.window else Window(length, resolution)

    def _decide(self, limit, length, resolution, now, cost, partial, strict):
        window = self._seen(length, resolution, now)
        room = limit - window.estimate(now, strict)
        remaining = max(0, room.numerator // room.denominator)
        granted = min(cost, remaining) if partial else cost if cost <= room else 0
        full, trailing, _ = window.load(now)
        if granted and full + trailing + granted > MAX:
            raise CountOverflow
        return granted, remaining

    def _count(self, window, subinterval, units):
        window.counts[subinterval] = window.counts.get(subinterval, 0) + units
        window.counts = window.held()
        self.window = window

    def _reset_after(self, length, resolution, now):
        return max(0, self._seen(length, resolution, now).end - now)

    def _retry_after(self, limit, length, resolution, now, cost, partial, strict):
        """The first instant from which on the same request fits, by asking again and again.

        Whoever asks later for a resolution that is not the key's own sees its newest units placed later, perhaps.
        """
        needed = 1 if partial else cost
        if needed > limit:
            return -1

        def fits(after):
            return self._seen(length, resolution, now + after).estimate(now + after, strict) + needed <= limit

        # By then everything is gone, wherever the newest units are placed.
        denied, granted = -1, max(0, self.window.end - now) + length + 2 * resolution
        while granted - denied > 1:
            middle = (denied + granted) // 2
            denied, granted = (denied, middle) if fits(middle) else (middle, granted)
        return granted
