"""An independent model of one key: the specification's formulas, with fractions and a dictionary, and no cleverness.

What it is asked is answered in the most literal way: `retry_after` by asking again at later instants, for example.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor

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


@dataclass(frozen=True)
class Asked:
    """A request: its quota, its cost, and its options, which are named as the commands name them."""

    limit: int
    length: int
    resolution: int
    cost: int = 1
    partial: bool = False
    strict: bool = False
    warmup: int | None = None
    cold: int = 3

    @property
    def least(self):
        """The same for so many units as have to fit."""
        return replace(self, cost=1 if self.partial else self.cost, partial=False)


class Key:
    """The key: `window` is None where nothing is counted, `blocked_until` 0 where there is no block, `since` None where
    the key is out of use, or came into use without WARMUP."""

    def __init__(self, window=None, blocked_until=0, since=None):
        self.window = window
        self.blocked_until = blocked_until
        self.since = since

    @property
    def end(self):
        """When nothing here matters any more; 0 for a missing key."""
        counted = self._use_ends if self.since is not None else self.window.end if self.window else 0
        return max(self.blocked_until, counted)

    @property
    def _use_ends(self):
        """When nothing has counted for a window."""
        return self.window.end + self.window.length

    def allow(self, limit, length, resolution, now, cost=1, *options, block=None, **named):
        asked = Asked(limit, length, resolution, cost, *options, **named)
        in_force = self._limit(asked, now)
        granted, remaining = self._decide(asked, now, in_force)
        if not granted:
            self._begin_block(block, now)
            return self._look(asked, now)
        self._count(asked, now, self._seen(asked, now).decision_instant(now), granted)
        return [granted, in_force, remaining - granted, 0, self._reset_after(asked, now)]

    def peek(self, limit, length, resolution, now, cost=1, *options, **named):
        return self._look(Asked(limit, length, resolution, cost, *options, **named), now)

    def record(self, limit, length, resolution, now, cost=1, strict=False, age=0, block=None, **named):
        asked = Asked(limit, length, resolution, cost, False, strict, **named)
        window, instant = self._seen(asked, now), max(0, now - age)
        subinterval = instant // resolution
        too_late = window.counts and subinterval < window.newest - window.subintervals
        if too_late or window.end_of(subinterval) <= now:
            return self._look(asked, now)
        in_force = self._limit(asked, now)
        granted, _ = self._decide(asked, now, in_force)
        if self.window and now < self.window.end:
            full, trailing, _ = self._seen(asked, instant).load(instant)  # as they counted then
            if full + trailing + cost > MAX:
                raise CountOverflow
        self._count(asked, now, instant, cost)
        if not granted:
            self._begin_block(block, now)
        _, remaining = self._decide(replace(asked, cost=0), now, in_force)
        retry_after = 0 if granted else self._retry_after(asked, now)
        return [granted, in_force, remaining, retry_after, self._reset_after(asked, now)]

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
            self.window = self.since = None
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
            self.window, self.blocked_until, self.since = None, 0, None

    def _begin_block(self, block, now):
        if block and now >= self.blocked_until:
            self.blocked_until = now + block

    def _seen(self, asked, now):
        geometry = asked.length, asked.resolution
        return self.window.seen_at(*geometry, now) if self.window else Window(*geometry)

    def _counts(self, asked, now):
        return self._seen(asked, now).estimate(now, strict=False) > 0

    def _in_use(self, asked, now):
        return self._counts(asked, now) or self.since is not None and now < self._use_ends

    def _limit(self, asked, now):
        """The limit in force: from one part of `cold` on it rises to the whole, by the same in each ms."""
        if asked.warmup is None:
            return asked.limit
        in_use = self._in_use(asked, now)
        if in_use and self.since is None:
            return asked.limit
        used_for = max(0, self._seen(asked, now).decision_instant(now) - self.since) if in_use else 0
        coldest = Fraction(1, asked.cold)
        part = min(Fraction(1), coldest + (1 - coldest) * Fraction(used_for, asked.warmup))
        in_force = min(asked.limit, max(1, floor(asked.limit * part)))
        dear = not self._counts(asked, now) and not asked.partial and asked.cost <= asked.limit
        return max(in_force, asked.cost) if dear else in_force

    def _look(self, asked, now):
        in_force = self._limit(asked, now)
        granted, remaining = self._decide(asked, now, in_force)
        retry_after = 0 if granted else self._retry_after(asked, now)
        return [granted, in_force, remaining, retry_after, self._reset_after(asked, now)]

    def _decide(self, asked, now, in_force):
        """The units granted, and those that remain before they are counted."""
        if now < self.blocked_until:
            return 0, 0
        window = self._seen(asked, now)
        room = in_force - window.estimate(now, asked.strict)
        remaining = max(0, floor(room))
        granted = min(asked.cost, remaining) if asked.partial else asked.cost if asked.cost <= room else 0
        full, trailing, _ = window.load(now)
        if granted and full + trailing + granted > MAX:
            raise CountOverflow
        return granted, remaining

    def _count(self, asked, now, instant, units):
        window = self._seen(asked, now)
        if not self._in_use(asked, now):
            self.since = None if asked.warmup is None else max(1, instant)
        subinterval = instant // window.resolution
        window.counts[subinterval] = window.counts.get(subinterval, 0) + units
        window.counts = window.held()
        if sum(window.counts.values()) > MAX:
            raise CountOverflow
        self.window = window

    def _reset_after(self, asked, now):
        """The first instant from which on nothing counts, by asking again and again."""
        ends = max(0, self.window.end - now) if self.window else 0
        reset_after = bisect_left(range(ends), True, key=lambda after: not self._counts(asked, now + after))
        return max(reset_after, self.blocked_until - now)

    def _retry_after(self, asked, now):
        """The first instant from which on the same request fits, by asking again and again.

        Who asks later for a resolution that is not the key's own sees its newest units placed later, perhaps.
        """
        needed = asked.least
        if needed.cost > asked.limit:
            return -1

        def fits(after):
            at = now + after
            used = self._seen(needed, at).estimate(at, needed.strict)
            return at >= self.blocked_until and used + needed.cost <= self._limit(needed, at)

        denied, granted = -1, max(0, self.end - now)
        while granted - denied > 1:
            middle = (denied + granted) // 2
            denied, granted = (denied, middle) if fits(middle) else (middle, granted)
        return granted
