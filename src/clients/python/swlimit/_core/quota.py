"""Quotas: how much in which window, and how that rises after idleness. And durations as people write them."""

import functools
import math
import re
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import NamedTuple

MAX_EXACT = 2**53 - 1  # the largest limit, cost and count
MAX_WINDOW = 3650 * 24 * 60 * 60 * 1000  # 3650 days, in ms
MAX_SUBINTERVALS = 1_000_000  # the most that a server can be configured to allow
DEFAULT_SUBINTERVALS = 12, 4096  # the fewest and the most when no resolution is given
DEFAULT_COLD, MAX_COLD = 3, 1000
LEAST_WINDOWS = 10  # in a warm-up: each window may begin with a burst of its limit

Duration = str | int | float | timedelta

_WRITTEN = re.compile(r"([0-9]+)(ms|[smhd]?)", re.IGNORECASE | re.ASCII)
_UNITS = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def written(ms: int) -> str:
    """The shortest text of a duration."""
    unit = max((unit for unit in _UNITS if unit and ms % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{ms // _UNITS[unit]}{unit}"


def milliseconds(duration: Duration, name: str = "duration", least: int = 1) -> int:
    """A duration in whole ms: seconds, a timedelta, or a text such as 60, 500ms, 5m, 1h or 7d."""
    ms = -1.0
    if isinstance(duration, str):
        if found := _WRITTEN.fullmatch(duration):
            ms = int(found[1]) * _UNITS[found[2].lower()]
    elif isinstance(duration, timedelta):
        ms = duration / timedelta(milliseconds=1)
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        ms = round(duration * 1000, 6) if math.isfinite(duration) else -1.0  # 0.07 · 1000 is not 70
    else:
        raise TypeError(f"{name} must be a text such as 500ms or 1h, seconds or a timedelta, not {duration!r}")
    if ms != int(ms) or not least <= ms <= MAX_WINDOW:
        raise ValueError(f"{name} must be a duration such as 60, 500ms, 5m, 1h or 7d, not {duration!r}")
    return int(ms)


def seconds(duration: Duration, name: str, least: int = 1) -> float:
    """A duration in seconds, at least so many ms; below one ms it need not be whole."""
    if isinstance(duration, float) and least / 1000 <= duration <= MAX_WINDOW / 1000:
        return duration
    return milliseconds(duration, name, least) / 1000


def checked_integer(value: int, name: str, least: int) -> int:
    """The value, if it is an integer that every client holds exactly."""
    if type(value) is int and least <= value <= MAX_EXACT:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_EXACT:
        raise ValueError(f"{name} must be an integer between {least} and {MAX_EXACT}, not {value!r}")
    return value


def checked_flag(value: bool, name: str) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def checked_share(value: float, name: str) -> int:
    """A part of a limit, in whole millionths."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, not {value!r}")
    return max(1, round(value * 1_000_000))


def part(limit: int, millionths: int) -> int:
    """A number of millionths of a limit, rounded up."""
    return -(-limit * millionths // 1_000_000)


def default_resolution(window: int) -> int:
    """The largest divisor of a window (ms) with at least 12 and at most 4096 subintervals; without one, the window."""
    fewest, most = DEFAULT_SUBINTERVALS
    fitting = (window // number for number in range(fewest, most + 1) if window % number == 0)
    return next(fitting, window)


@dataclass(frozen=True)
class Geometry:
    """A window that is cut into subintervals of one resolution, both in ms."""

    window: int
    resolution: int

    @cached_property
    def subintervals(self) -> int:
        return self.window // self.resolution

    def end_of(self, subinterval: int) -> int:
        """The first instant at which a subinterval has slid out wholly."""
        return (subinterval + 1) * self.resolution + self.window


class WarmUp(NamedTuple):
    """How limits rise once a key is in use: from one part of `cold` to the whole within `duration` ms."""

    duration: int
    cold: int = DEFAULT_COLD

    @classmethod
    def of(cls, duration: Duration | None, cold: int | None, window: int) -> "WarmUp | None":
        """The warm-up that these words mean, of limits with a window of this length."""
        if duration is None:
            if cold is not None:
                raise ValueError("cold needs warm_up")
            return None
        length, cold = milliseconds(duration, "warm_up"), DEFAULT_COLD if cold is None else cold
        if isinstance(cold, bool) or not isinstance(cold, int) or not 2 <= cold <= MAX_COLD:
            raise ValueError(f"cold must be an integer between 2 and {MAX_COLD}, not {cold!r}")
        if length < LEAST_WINDOWS * window:
            raise ValueError("warm_up must be at least ten times the window")
        return cls(length, cold)

    def limit(self, whole: int, used_for: int) -> int:
        """The limit in force of a key that has been in use for these ms."""
        if used_for >= self.duration:
            return whole
        part = whole * (self.duration + (self.cold - 1) * used_for) // (self.cold * self.duration)
        return min(whole, max(1, part))

    @property
    def words(self) -> tuple[str | int, ...]:
        """As commands take it."""
        return ("WARMUP", f"{self.duration}ms", *(() if self.cold == DEFAULT_COLD else ("COLD", self.cold)))


@dataclass(frozen=True)
class Quota:
    """`limit window resolution`, whether the limit holds for any span of the window, and how it rises."""

    limit: int
    geometry: Geometry
    strict: bool = False
    warm_up: WarmUp | None = None

    @classmethod
    def of(cls, limit: int, window: Duration, resolution: Duration | None = None, strict: bool = False,
           warm_up: Duration | None = None, cold: int | None = None) -> "Quota":
        """The quota that these words mean."""
        checked_integer(limit, "limit", least=0)
        checked_flag(strict, "strict")
        length = milliseconds(window, "window")
        cut = default_resolution(length) if resolution is None else milliseconds(resolution, "resolution")
        geometry = Geometry(length, cut)
        if geometry.window % geometry.resolution:
            raise ValueError("resolution must divide the window evenly")
        if geometry.subintervals > MAX_SUBINTERVALS:
            raise ValueError(f"window / resolution is {geometry.subintervals} subintervals, above {MAX_SUBINTERVALS}")
        return cls(limit, geometry, strict, WarmUp.of(warm_up, cold, length))

    @functools.lru_cache(maxsize=1024)  # noqa: B019  (a quota is small, and there are few)
    def at(self, limit: int) -> "Quota":
        """The same with another limit."""
        return Quota(checked_integer(limit, "limit", least=0), self.geometry, self.strict, self.warm_up)

    @cached_property
    def _hash(self) -> int:
        return hash((self.limit, self.geometry, self.strict, self.warm_up))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def seconds(self) -> float:
        """The window's length."""
        return self.geometry.window / 1000

    @cached_property
    def words(self) -> tuple[int, str, str]:
        """As commands take it."""
        return self.limit, f"{self.geometry.window}ms", f"{self.geometry.resolution}ms"
