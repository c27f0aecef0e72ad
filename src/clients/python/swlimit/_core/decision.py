"""Decisions: what a limiter returns."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Literal, NamedTuple

from .quota import Quota, written

Source = Literal["server", "cache", "failure", "local"]
"""What decided: the server; a known denial of the server; the failure policy; a limiter without a server."""


class Decision(NamedTuple):
    """The decision about one request; true when it is granted. Durations are in seconds; unknown values are None."""

    granted: int
    """Units granted: the cost, with `partial` possibly less; 0 is a denial."""
    limit: int
    """The limit in force: with `warm_up` less than the whole for a while after idleness."""
    remaining: int | None
    """Units that are still available."""
    retry_after: float | None
    """Until the same request would be granted: 0 when it was; None where it `never` can be."""
    reset_after: float | None
    """Until nothing counts any more."""
    window: float
    source: Source
    never: bool = False
    """Whether the same request can never be granted: it costs more than the limit."""

    def __bool__(self) -> bool:
        return self.granted > 0

    @classmethod
    def of(cls, reply: Sequence[int], quota: Quota, source: Source = "server") -> "Decision":
        """A decision from the five integers of a reply, whose durations are in ms; −1: never."""
        granted, limit, remaining, retry_after, reset_after = reply
        return tuple.__new__(cls, (  # faster than `cls(…)`, whose arguments have names
            granted, limit, remaining, None if retry_after < 0 else retry_after / 1000, reset_after / 1000,
            quota.seconds, source, retry_after < 0))

    @classmethod
    def unasked(cls, quota: Quota, granted: int, retry_after: float | None, source: Source,
                never: bool = False) -> "Decision":
        """A decision about a window whose contents are unknown."""
        return cls(granted, quota.limit, None, retry_after, None, quota.seconds, source, never)

    def later(self, seconds: float) -> "Decision":
        """The same denial, `seconds` later."""
        return Decision(0, self.limit, self.remaining, max(0.0, (self.retry_after or 0.0) - seconds),
                        max(0.0, (self.reset_after or 0.0) - seconds), self.window, "cache")

    @property
    def wait(self) -> int | None:
        """`retry_after` in whole seconds, rounded up, as in HTTP; None when waiting would not help."""
        if self.granted or self.retry_after is None:
            return None
        return math.ceil(self.retry_after)

    def headers(self, name: str = "default") -> dict[str, str]:
        """What to send with an HTTP response: `RateLimit-Policy`, `RateLimit`, the older three, and `Retry-After`."""
        return headers_of([(name, self)])


class HoldDecision(NamedTuple):
    """The decision about a hold; true when it is granted. Durations are in seconds; unknown values are None."""

    granted: int
    """Units held: the cost; 0 is a denial."""
    limit: int
    remaining: int | None
    """Units that are still available."""
    retry_after: float | None
    """Until there is room, if no hold is released or renewed: 0 when granted, None where there `never` can be."""
    expires_after: float | None
    """Until the hold ends unless it is renewed; None for a denial, and for a hold without a server."""
    token: int | None
    """Larger than that of every hold granted on this key before; None for a denial, and for a hold without a server."""
    source: Source
    never: bool = False
    """Whether there can never be room: it costs more than the limit."""

    def __bool__(self) -> bool:
        return self.granted > 0

    @classmethod
    def of(cls, reply: Any) -> "HoldDecision":
        """A decision from the six integers of a reply."""
        granted, limit, remaining, retry_after, expires_after, token = reply
        return cls(granted, limit, remaining, None if retry_after < 0 else retry_after / 1000,
                   expires_after / 1000 if granted and token else None, token or None, "server", retry_after < 0)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decision about a request that several limits must grant; true when all do. Otherwise nothing is counted."""

    granted: bool
    members: tuple[Decision, ...]
    """Each limit's decision, in order. A limit that was not asked has no `remaining`, and no times."""

    def __bool__(self) -> bool:
        return self.granted

    @property
    def never(self) -> bool:
        """Whether the same request can never be granted."""
        return any(member.never for member in self.members)

    @property
    def retry_after(self) -> float | None:
        """Until all of them would grant it, as far as is known; None where they `never` can."""
        return None if self.never else max(member.retry_after or 0.0 for member in self.members)

    @property
    def tightest(self) -> Decision:
        """The decision with the longest wait, then with the least left."""
        return _tightest(self.members)

    def headers(self, *names: str) -> dict[str, str]:
        """What to send with an HTTP response; the limits have these names, by default such as `default-1h`. The older
        headers have room for one limit, the tightest."""
        names = names or ("default",) * len(self.members)
        if len(names) != len(self.members):
            raise ValueError(f"headers need a name for each of {len(self.members)} limits, not {len(names)}")
        return headers_of(list(zip(names, self.members)))


class Holder(NamedTuple):
    """A live hold of a key, as the server knows it; durations are in seconds."""

    id: bytes
    units: int
    held_for: float
    expires_after: float
    token: int


def _tightest(decisions: Iterable[Decision]) -> Decision:
    return min(decisions, key=lambda decision: (
        -(math.inf if decision.never else decision.retry_after or 0.0),
        math.inf if decision.remaining is None else decision.remaining))


def policy_names(policies: Sequence[tuple[str, int]]) -> list[str]:
    """A name of its own for each policy of a header: those that are alike end in the window in ms, then in a number."""
    given = [name for name, _ in policies]
    names: list[str] = []
    for name, window in policies:
        own = name if given.count(name) == 1 else f"{name}-{written(window)}"
        names.append(next(one for one in chain([own], (f"{own}-{n}" for n in count(2))) if one not in names))
    return names


def headers_of(named: Sequence[tuple[str, Decision]]) -> dict[str, str]:
    """The headers of decisions with these names; none without decisions."""
    if not named:
        return {}
    names = policy_names([(name, round(one.window * 1000)) for name, one in named])
    named = [(name, one) for name, (_, one) in zip(names, named)]
    tightest = _tightest(one for _, one in named)
    headers = {"RateLimit-Policy": ", ".join(
        f'"{name}";q={one.limit};w={math.ceil(one.window)}' for name, one in named)}
    known = [(name, one) for name, one in named if one.remaining is not None and one.reset_after is not None]
    if known:
        headers["RateLimit"] = ", ".join(
            f'"{name}";r={one.remaining};t={math.ceil(one.reset_after or 0)}' for name, one in known)
    headers["X-RateLimit-Limit"] = str(tightest.limit)
    if tightest.remaining is not None and tightest.reset_after is not None:
        headers["X-RateLimit-Remaining"] = str(tightest.remaining)
        headers["X-RateLimit-Reset"] = str(int(time.time()) + math.ceil(tightest.reset_after))
    if tightest.wait is not None:
        headers["Retry-After"] = str(tightest.wait)
    return headers
