"""How much may be used in which window, and durations as people write them."""

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

MAX_EXACT = 2**53 - 1  # the largest limit, cost and count
MAX_WINDOW = 3650 * 24 * 60 * 60 * 1000  # 3650 days, in ms
MAX_SUBINTERVALS = 1_000_000

Duration = str | int | float | timedelta

_WRITTEN = re.compile(r"([0-9]+)(ms|[smhd]?)", re.IGNORECASE | re.ASCII)
_UNITS = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(duration: Duration, name: str = "duration", least: int = 1) -> int:
    """A duration in whole ms: seconds, a timedelta, or a text such as 60, 500ms, 5m, 1h or 7d."""
    if isinstance(duration, str):
        found = _WRITTEN.fullmatch(duration)
        ms: float = int(found[1]) * _UNITS[found[2].lower()] if found else -1
    elif isinstance(duration, timedelta):
        ms = duration / timedelta(milliseconds=1)
    else:
        ms = round(duration * 1000, 6)  # 0.07 · 1000 is not 70
    if ms != int(ms) or not least <= ms <= MAX_WINDOW:
        raise ValueError(f"{name} must be a duration such as 60, 500ms, 5m, 1h or 7d, not {duration!r}")
    return int(ms)


def checked_integer(value: int, name: str, least: int) -> int:
    """The value, if it is an integer that every client holds exactly."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_EXACT:
        raise ValueError(f"{name} must be an integer between {least} and {MAX_EXACT}, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Geometry:
    """A window that is cut into subintervals of one resolution, both in ms."""

    window: int
    resolution: int

    @property
    def subintervals(self) -> int:
        return self.window // self.resolution

    def end_of(self, subinterval: int) -> int:
        """The first instant at which a subinterval has slid out wholly."""
        return (subinterval + self.subintervals + 1) * self.resolution


@dataclass(frozen=True)
class Quota:
    """`limit window resolution`, and whether the limit holds for any span of the window."""

    limit: int
    geometry: Geometry
    strict: bool = False

    @classmethod
    def of(cls, limit: int, window: Duration, resolution: Duration, strict: bool = False) -> "Quota":
        """The quota that these words mean."""
        checked_integer(limit, "limit", least=0)
        geometry = Geometry(milliseconds(window, "window"), milliseconds(resolution, "resolution"))
        if geometry.window % geometry.resolution:
            raise ValueError("resolution must divide the window evenly")
        if geometry.subintervals > MAX_SUBINTERVALS:
            raise ValueError(f"window / resolution is {geometry.subintervals} subintervals, above {MAX_SUBINTERVALS}")
        return cls(limit, geometry, strict)

    @cached_property
    def words(self) -> tuple[int, str, str]:
        """As commands take it."""
        return self.limit, f"{self.geometry.window}ms", f"{self.geometry.resolution}ms"
