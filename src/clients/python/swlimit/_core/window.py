"""A window in this process: the module's arithmetic, in integers. No clock and no server.

All instants and durations are in ms; a subinterval `i` covers the instants from `i·R` up to `(i + 1)·R`.
"""

from bisect import bisect_left

from .quota import MAX_EXACT, Geometry, Quota

Reply = list[int]
"""granted, limit, remaining, retry_after, reset_after: what the module replies."""


class CountOverflow(ArithmeticError):
    """Counting would hold more than 2^53 − 1 units."""

    def __init__(self) -> None:
        super().__init__("count would overflow")


class Window:
    """The units counted for one key, by subinterval, oldest first; at least one.

    since: since when the key is in use, for limits that rise; 0 if that is not known.
    """

    __slots__ = ("counts", "end", "geometry", "newest", "since", "total")

    def __init__(self, geometry: Geometry, counts: dict[int, int], since: int = 0) -> None:
        self.geometry, self.since = geometry, since
        self._hold(counts)

    def _hold(self, counts: dict[int, int]) -> None:
        """Take over these counts, and compute what each decision needs from them."""
        self.counts = counts
        self.total = sum(counts.values())
        self.newest = next(reversed(counts))
        self.end = self.geometry.end_of(self.newest)
        """The first instant at which nothing counts."""

    @property
    def forgotten(self) -> int:
        """The first instant at which nothing in it matters: a key stays in use until nothing has counted for a window.
        """
        return self.end + self.geometry.window if self.since else self.end

    def instant(self, now: int) -> int:
        """The instant of a decision: time never runs backwards for a key."""
        newest = self.newest * self.geometry.resolution
        return now if now > newest else newest

    def load(self, now: int, strict: bool) -> tuple[int, int]:
        """The estimate, rounded up to whole units, and the units without weights."""
        geometry, resolution = self.geometry, self.geometry.resolution
        newest = self.newest * resolution
        instant = now if now > newest else newest
        oldest = instant // resolution - geometry.subintervals
        full, trailing = self.total, 0
        for subinterval, units in self.counts.items():
            if subinterval > oldest:
                break
            full -= units
            trailing = units if subinterval == oldest else 0
        if strict or not trailing:
            return full + trailing, full + trailing
        return full - (-trailing * (resolution - instant % resolution) // resolution), full + trailing

    def fits_at(self, room: int, strict: bool) -> int:
        """The instant from which on the estimate is at most `room`; 0 when it always was.

        Subintervals slide out oldest first, so the one that matters is the first through which enough is counted that
        all younger ones fit. While it is trailing, its units weigh `(R − e) / R`.
        """
        younger = self.total
        if younger <= room:
            return 0
        for subinterval, units in self.counts.items():
            younger -= units
            if younger <= room:
                early = 0 if strict else (room - younger) * self.geometry.resolution // units
                return self.geometry.end_of(subinterval) - early
        raise AssertionError("a room is never negative")

    def seen(self, geometry: Geometry, now: int) -> "Window | None":
        """This window at another geometry: each unit at the latest instant at which it may have come, as long as
        neither window has passed it. None when nothing is left."""
        if now >= self.end:
            return None
        if geometry is self.geometry or geometry == self.geometry:
            return self
        instant, resolution = self.instant(now), self.geometry.resolution
        counts: dict[int, int] = {}
        for subinterval, units in self.counts.items():
            moved = min((subinterval + 1) * resolution - 1, instant) // geometry.resolution
            if min(self.geometry.end_of(subinterval), geometry.end_of(moved)) > instant:
                counts[moved] = counts.get(moved, 0) + units
        return Window(geometry, counts, self.since) if counts else None

    def end_at(self, geometry: Geometry) -> int:
        """The first instant at which nothing counts for requests at a geometry.

        They see the newest units later, the later they come: at last at the end of their subinterval.
        """
        if geometry is self.geometry or geometry == self.geometry:
            return self.end
        latest = (self.newest + 1) * self.geometry.resolution - 1
        return min(self.end, geometry.end_of(latest // geometry.resolution))

    def count(self, subinterval: int, units: int) -> None:
        """Count units, and forget those that no longer matter."""
        if subinterval == self.newest and self.total + units <= MAX_EXACT:
            self.counts[subinterval] += units
            self.total += units
            return
        oldest = max(self.newest, subinterval) - self.geometry.subintervals
        held = {one: units for one, units in self.counts.items() if one >= oldest}
        if sum(held.values()) + units > MAX_EXACT:
            raise CountOverflow
        held[subinterval] = held.get(subinterval, 0) + units
        self._hold(held if subinterval >= self.newest else dict(sorted(held.items())))

    def take(self, units: int, age: int | None, now: int) -> int:
        """Give back units, the newest first; with an age, from those counted that long ago on. Returns how many."""
        if now >= self.end:
            return 0
        order = list(reversed(self.counts))
        if age is not None:
            first = max(0, now - age) // self.geometry.resolution
            if self.geometry.end_of(first) <= self.instant(now):
                return 0
            order = [subinterval for subinterval in self.counts if subinterval >= first]
        left = units
        for subinterval in order:
            taken = min(left, self.counts[subinterval])
            left -= taken
            self.counts[subinterval] -= taken
            if not self.counts[subinterval]:
                del self.counts[subinterval]
        if self.counts:
            self._hold(self.counts)
        return units - left


class Key:
    """The contents of a key: a window when units are counted, and the instant until which it is blocked."""

    __slots__ = ("blocked_until", "window")

    def __init__(self, window: Window | None = None, blocked_until: int = 0) -> None:
        self.window = window
        self.blocked_until = blocked_until

    @property
    def end(self) -> int:
        """The first instant at which nothing in it matters."""
        return max(self.blocked_until, self.window.forgotten if self.window else 0)

    def peek(self, quota: Quota, now: int, cost: int = 1, partial: bool = False) -> Reply:
        window = self._seen(quota, now)
        limit = self._in_force(window, quota, now, cost, partial)
        granted, remaining = self._decide(window, limit, quota.strict, now, cost, partial)
        return self._untouched(quota, now, limit, granted, remaining, 1 if partial else cost)

    def allow(self, quota: Quota, now: int, cost: int = 1, partial: bool = False, block: int | None = None) -> Reply:
        window = self._seen(quota, now)
        limit = self._in_force(window, quota, now, cost, partial)
        granted, remaining = self._decide(window, limit, quota.strict, now, cost, partial)
        if not granted:
            if block is None:
                return self._untouched(quota, now, limit, 0, remaining, 1 if partial else cost)
            self._begin_block(block, now)
            return self.peek(quota, now, cost, partial)
        self._count(window, quota, now, window.instant(now) if window else now, granted)
        return [granted, limit, remaining - granted, 0, self._reset_after(quota, now)]

    def record(self, quota: Quota, now: int, cost: int = 1, age: int = 0, block: int | None = None) -> Reply:
        window, geometry = self._seen(quota, now), quota.geometry
        instant = max(0, now - age)
        subinterval = instant // geometry.resolution
        too_late = window is not None and subinterval < window.newest - geometry.subintervals
        if too_late or geometry.end_of(subinterval) <= now:
            return self.peek(quota, now, cost)
        limit = self._in_force(window, quota, now, cost)
        granted, _ = self._decide(window, limit, quota.strict, now, cost)
        self._count(window, quota, now, instant, cost)
        if not granted:
            self._begin_block(block, now)
        _, remaining = self._decide(self.window, limit, quota.strict, now, 0)
        retry_after = 0 if granted else self._retry_after(quota, now, cost)
        return [granted, limit, remaining, retry_after, self._reset_after(quota, now)]

    def refund(self, units: int, now: int, age: int | None = None, since: int | None = None) -> int:
        if since is not None:
            age = max(0, now - since)
        taken = self.window.take(units, age, now) if self.window else 0
        if self.window and not self.window.counts:
            self.window = None
        if taken:
            self._forget(now)
        return taken

    def block(self, duration: int, now: int, unless_blocked: bool = False) -> int:
        if not (unless_blocked and now < self.blocked_until):
            self.blocked_until = now + duration
        return self.blocked_until

    def unblock(self, now: int) -> int:
        blocked = now < self.blocked_until
        if blocked:
            self.blocked_until = 0
            self._forget(now)
        return int(blocked)

    def _forget(self, now: int) -> None:
        """Empty a changed key when nothing in it matters."""
        if self.end <= now:
            self.window, self.blocked_until = None, 0

    def _decide(self, window: Window | None, limit: int, strict: bool, now: int, cost: int,
                partial: bool = False) -> tuple[int, int]:
        """The units granted, and those that remain before they are counted."""
        if now < self.blocked_until:
            return 0, 0
        estimate, held = window.load(now, strict) if window else (0, 0)
        remaining = limit - estimate if limit > estimate else 0
        granted = cost if cost <= remaining else remaining if partial else 0
        if granted and held + granted > MAX_EXACT:
            raise CountOverflow
        return granted, remaining

    def _begin_block(self, block: int | None, now: int) -> None:
        if block is not None and now >= self.blocked_until:
            self.blocked_until = now + block

    def _untouched(self, quota: Quota, now: int, limit: int, granted: int, remaining: int, least: int) -> Reply:
        """The reply when nothing was counted, to a request that takes at least so many units."""
        retry_after = 0 if granted else self._retry_after(quota, now, least)
        return [granted, limit, remaining, retry_after, self._reset_after(quota, now)]

    def _seen(self, quota: Quota, now: int) -> Window | None:
        window = self.window
        if window is None or window.geometry is quota.geometry and now < window.end:
            return window
        return window.seen(quota.geometry, now)

    def _since(self, now: int) -> int:
        """Since when the key is in use; 0 where it is not, or where that is not known."""
        window = self.window
        return window.since if window is not None and now < window.forgotten else 0

    def _in_force(self, window: Window | None, quota: Quota, now: int, cost: int, partial: bool = False) -> int:
        """The limit in force. Where nothing counts it is at least the cost, or one that is higher than the limit is at
        first would never be granted: a denial begins no use."""
        whole, warm_up = quota.limit, quota.warm_up
        if warm_up is None:
            return whole
        since = self._since(now)
        if window is not None:
            return warm_up.limit(whole, max(0, window.instant(now) - since)) if since else whole
        limit = warm_up.limit(whole, max(0, now - since) if since else 0)
        return limit if partial or cost > whole else max(limit, cost)

    def _count(self, window: Window | None, quota: Quota, now: int, instant: int, units: int) -> None:
        subinterval = instant // quota.geometry.resolution
        if window is None:
            since = self._since(now) or (max(1, instant) if quota.warm_up else 0)
            window = Window(quota.geometry, {subinterval: units}, since)
        else:
            window.count(subinterval, units)
        self.window = window

    def _retry_after(self, quota: Quota, now: int, least: int) -> int:
        """ms until `least` units would be granted; −1 if they never can be."""
        if least > quota.limit:
            return -1
        return self._left(self._fits_at(quota, now, least), now)

    def _fits_at(self, quota: Quota, now: int, cost: int) -> int:
        """The instant from which on a cost of at most the limit fits; not after `now` where it does already."""
        if self.window is None:
            return 0
        if quota.warm_up is None and (
                self.window.geometry is quota.geometry or self.window.geometry == quota.geometry):
            return self.window.fits_at(quota.limit - cost, quota.strict)

        def fits(instant: int) -> bool:
            window = self._seen(quota, instant)
            if window is None:
                return True
            return window.load(instant, quota.strict)[0] + cost <= self._in_force(window, quota, instant, cost)

        # Units only ever slide out, and limits rise: what fits once fits from then on, at the latest at the end.
        return now + bisect_left(range(now, max(now, self.window.end)), True, key=fits)

    def _reset_after(self, quota: Quota, now: int) -> int:
        window = self.window
        if window is None:
            return self._left(0, now)
        return self._left(window.end if window.geometry is quota.geometry else window.end_at(quota.geometry), now)

    def _left(self, instant: int, now: int) -> int:
        """ms until an instant, and until the end of the block if that is later."""
        if instant < self.blocked_until:
            instant = self.blocked_until
        return instant - now if instant > now else 0
