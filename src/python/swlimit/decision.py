"""What a limiter answers."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .quota import Quota


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request; true when it is granted. Durations are in seconds."""

    granted: int
    """Units granted: the cost, with `partial` possibly less; 0 is a denial."""
    limit: int
    remaining: int
    """Units that are still available."""
    retry_after: float
    """Until the same request would be granted: 0 when it was, infinity when it never can be."""
    reset_after: float
    """Until nothing counts any more."""
    window: float
    local: bool = False
    """Whether it was decided without the server; the other fields are then what is known at the moment."""

    def __bool__(self) -> bool:
        return self.granted > 0

    @classmethod
    def of(cls, reply: Sequence[int], quota: Quota, local: bool = False) -> "Decision":
        """The decision that five integers tell, whose durations are in ms; −1: never."""
        granted, limit, remaining, retry_after, reset_after = reply
        return cls(granted, limit, remaining, math.inf if retry_after < 0 else retry_after / 1000, reset_after / 1000,
                   quota.geometry.window / 1000, local)

    @classmethod
    def unasked(cls, quota: Quota, granted: int, retry_after: float = 0.0) -> "Decision":
        """A decision about a window of which nothing is known."""
        return cls(granted, quota.limit, quota.limit if granted else 0, retry_after, 0.0,
                   quota.geometry.window / 1000, local=True)

    def later(self, seconds: float) -> "Decision":
        """The same denial, remembered for so long."""
        return replace(self, retry_after=max(0.0, self.retry_after - seconds),
                       reset_after=max(0.0, self.reset_after - seconds), local=True)

    @property
    def wait(self) -> int | None:
        """`retry_after` in whole seconds, rounded up, as HTTP has it; None where there is nothing to wait for."""
        return None if self.granted or math.isinf(self.retry_after) else math.ceil(self.retry_after)

    def headers(self, name: str = "default") -> dict[str, str]:
        """What to send with an HTTP response: `RateLimit-Policy`, `RateLimit`, the older three, and `Retry-After`."""
        return _headers([(name, self)], self)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The answer to a request that several limits have to grant; true when all do. Otherwise nothing is counted."""

    granted: bool
    members: tuple[Decision | None, ...]
    """Each limit's own decision, in order; None where another one's denial was known, and nobody asked."""
    local: bool = False

    def __bool__(self) -> bool:
        return self.granted

    @property
    def retry_after(self) -> float:
        """Until all of them would grant it."""
        return 0.0 if self.granted else max(member.retry_after for member in self.members if member is not None)

    @property
    def tightest(self) -> Decision:
        """The decision that tells a caller most: who waits longest, else who has the least left."""
        return min((member for member in self.members if member is not None),
                   key=lambda member: (-member.retry_after, member.remaining))

    def headers(self, *names: str) -> dict[str, str]:
        """What to send with an HTTP response, where the limits have these names. The older headers have room for one
        limit, the tightest."""
        told = [(name, member) for name, member in zip(names, self.members) if member is not None]
        return _headers(told, self.tightest)


def _headers(told: Sequence[tuple[str, Decision]], tightest: Decision) -> dict[str, str]:
    headers = {
        "RateLimit-Policy": ", ".join(f'"{name}";q={one.limit};w={math.ceil(one.window)}' for name, one in told),
        "RateLimit": ", ".join(f'"{name}";r={one.remaining};t={math.ceil(one.reset_after)}' for name, one in told),
        "X-RateLimit-Limit": str(tightest.limit),
        "X-RateLimit-Remaining": str(tightest.remaining),
        "X-RateLimit-Reset": str(int(time.time()) + math.ceil(tightest.reset_after)),
    }
    if tightest.wait is not None:
        headers["Retry-After"] = str(tightest.wait)
    return headers
