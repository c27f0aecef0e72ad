"""An independent model of one key: the specification's formulas, with fractions and a dictionary, and no cleverness.

What it is asked is answered in the most literal way: `retry_after` by asking again at later instants, for example.
"""

from bisect import bisect_left
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
        return self.end_of(self.newest) if self.counts else 0

    def end_of(self, subinterval):
        """When a subinterval has slid out wholly."""
        return (subinterval + self.subintervals + 1) * self.resolution

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
        """This window at another length and resolution: its units at the latest instant they may have come, without
        those that either window has passed; none from its own end on."""
        if now >= self.end:
            return Window(length, resolution)
        if (length, resolution) == (self.length, self.resolution):
            return Window(length, resolution, dict(self.counts))
        seen, decided = Window(length, resolution), self.decision_instant(now)
        for i, units in self.held().items():
            latest = min((i + 1) * self.resolution - 1, decided)
            if min(self.end_of(i), seen.end_of(latest // resolution)) > decided:
                seen.counts[latest // resolution] = seen.counts.get(latest // resolution, 0) + units
        return seen


class Key:
    """The key: `window` is None where nothing is counted, `blocked_until` 0 where there is no block."""

    def __init__(self, window=None, blocked_until=0):
        self.window = window
        self.blocked_until = blocked_until

    @property
    def end(self):
        """When nothing here matters any more; 0 for a missing key."""
        return max(self.blocked_until, self.window.end if self.window else 0)

    def allow(self, limit, length, resolution, now, cost=1, partial=False, strict=False, block=None):
        asked = limit, length, resolution
        granted, remaining = self._decide(*asked, now, cost, partial, strict)
        if not granted:
            self._begin_block(block, now)
            return self.peek(*asked, now, cost, partial, strict)
        window = self._seen(length, resolution, now)
        self._count(window, window.decision_instant(now) // resolution, granted)
        return [granted, limit, remaining - granted, 0, self._reset_after(length, resolution, now)]

    def peek(self, limit, length, resolution, now, cost=1, partial=False, strict=False):
        asked = limit, length, resolution
        granted, remaining = self._decide(*asked, now, cost, partial, strict)
        retry_after = 0 if granted else self._retry_after(*asked, now, cost, partial, strict)
        return [granted, limit, remaining, retry_after, self._reset_after(length, resolution, now)]

    def record(self, limit, length, resolution, now, cost=1, strict=False, age=0, block=None):
        asked = limit, length, resolution
        window, subinterval = self._seen(length, resolution, now), max(0, now - age) // resolution
        too_late = window.counts and subinterval < window.newest - window.subintervals
        if too_late or window.end_of(subinterval) <= now:
            return self.peek(*asked, now, cost, False, strict)
        granted, _ = self._decide(*asked, now, cost, False, strict)
        self._count(window, subinterval, cost)
        if not granted:
            self._begin_block(block, now)
        _, remaining = self._decide(*asked, now, 0, False, strict)
        retry_after = 0 if granted else self._retry_after(*asked, now, cost, False, strict)
        return [granted, limit, remaining, retry_after, self._reset_after(length, resolution, now)]

    def refund(self, units, now, age=None, since=None):
        if since is not None:
            age = max(0, now - since)
        window, left = self.window, units
        if not window or now >= window.end:
            return 0
        order = sorted(window.held(), reverse=True)
        if age is not None:
            first = max(0, now - age) // window.resolution
            if window.end_of(first) <= window.decision_instant(now):
                return 0
            order = [i for i in sorted(window.held()) if i >= first]
        if not order:
            return 0
        counts = window.held()
        for i in order:
            taken = min(left, counts[i])
            left -= taken
            counts[i] -= taken
        window.counts = {i: held for i, held in counts.items() if held}
        if not window.counts:
            self.window = None
        self._forget(now)
        return units - left

    def block(self, duration, now, nx=False):
        if not (nx and now < self.blocked_until):
            self.blocked_until = now + duration
        return self.blocked_until

    def unblock(self, now):
        if now >= self.blocked_until:
            return 0
        self.blocked_until = 0
        self._forget(now)
        return 1

    def _forget(self, now):
        """A key that is changed goes when nothing in it matters any more."""
        if self.end <= now:
            self.window, self.blocked_until = None, 0

    def _begin_block(self, block, now):
        if block and now >= self.blocked_until:
            self.blocked_until = now + block

    def _seen(self, length, resolution, now):
        return self.window.seen_at(length, resolution, now) if self.window else Window(length, resolution)

    def _decide(self, limit, length, resolution, now, cost, partial, strict):
        """The units granted, and those that remain before they are counted."""
        if now < self.blocked_until:
            return 0, 0
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
        if sum(window.counts.values()) > MAX:
            raise CountOverflow
        self.window = window

    def _reset_after(self, length, resolution, now):
        """The first instant from which on nothing counts, by asking again and again."""
        def counts(after):
            return self._seen(length, resolution, now + after).estimate(now + after, False) > 0

        ends = max(0, self.window.end - now) if self.window else 0
        return max(bisect_left(range(ends), True, key=lambda after: not counts(after)), self.blocked_until - now)

    def _retry_after(self, limit, length, resolution, now, cost, partial, strict):
        """The first instant from which on the same request fits, by asking again and again.

        Who asks later for a resolution that is not the key's own sees its newest units placed later, perhaps.
        """
        needed = 1 if partial else cost
        if needed > limit:
            return -1

        def fits(after):
            seen = self._seen(length, resolution, now + after)
            return now + after >= self.blocked_until and seen.estimate(now + after, strict) + needed <= limit

        denied, granted = -1, max(0, self.end - now)
        while granted - denied > 1:
            middle = (denied + granted) // 2
            denied, granted = (denied, middle) if fits(middle) else (middle, granted)
        return granted
