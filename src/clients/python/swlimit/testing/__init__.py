"""For tests of programs that limit: a clock that the test moves, and limiters that deny on demand.

The fixtures are in `swlimit.testing.pytest`, which pytest loads only where a project names it.
"""

import math
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .._base import BaseLimiter, Key, longest_wait
from .._core.clock import Clock
from .._core.decision import Decision
from .._core.local_windows import LocalWindows
from .._core.quota import Duration, Quota, milliseconds
from .._core.window import Key as Window
from .._core.window import Reply
from .._rate_base import Options
from .._sync_async import AsyncClient, C, Client, dual_method
from ..rate_limiter import AsyncLimiter, Limiter, _RateLimiter
from ..rate_limits import AsyncLimits, Limits

if TYPE_CHECKING:
    from typing_extensions import Unpack

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
L = TypeVar("L", bound=BaseLimiter | Limits | AsyncLimits)


class TestClock(Clock):
    """A clock that stands still until the test moves it, or until somebody waits by it: a wait is over at once, and the
    clock shows the time after it."""

    __test__ = False  # pytest collects classes with such names

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)) -> None:
        """start: the time that it shows first, with a time zone."""
        if start.tzinfo is None:
            raise ValueError(f"start must have a time zone, not {start!r}")
        self._ms = (start - _EPOCH) // timedelta(milliseconds=1)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<TestClock {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        return _EPOCH + timedelta(milliseconds=self._ms)

    def advance(self, duration: Duration) -> None:
        """Move the clock forward: by seconds, a timedelta, or a text such as 500ms or 1h."""
        ms = milliseconds(duration, least=0)
        with self._lock:
            self._ms += ms

    def limiter(self, limit: int, window: Duration, resolution: Duration | None = None,
                **options: "Unpack[Options]") -> Limiter:
        """A limiter without a server, by this clock."""
        return self.drive(Limiter(None, limit, window, resolution, **options))

    def async_limiter(self, limit: int, window: Duration, resolution: Duration | None = None,
                      **options: "Unpack[Options]") -> AsyncLimiter:
        """A limiter without a server, by this clock."""
        return self.drive(AsyncLimiter(None, limit, window, resolution, **options))

    def drive(self, limiter: L) -> L:
        """Let a limiter without a server go by this clock: Limits, say, or a BudgetLimiter. Returns it."""
        for one in limiter.limiters if isinstance(limiter, (Limits, AsyncLimits)) else (limiter,):
            if one._state is not None:
                raise ValueError("a server decides by its own clock: give the limiter None as its client")
            one._clock = self
        return limiter

    def instant(self) -> int:
        return self._ms

    def shown(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return self._ms / 1000

    async def sleep(self, seconds: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.advance(math.ceil(seconds * 1000) / 1000)
        await sleep(0.0)  # other tasks run meanwhile


class Call(NamedTuple):
    """A call of a fake limiter."""

    method: str
    """`allow` (also for several limits at once), `peek`, `record`, `acquire`, `refund`, `block`, `unblock`, `reset`."""
    key: str
    """With the limiter's prefix."""
    cost: int
    """Or the units of a refund; 0 where a method has neither."""


class _FakeLimiter(_RateLimiter[C]):
    """The methods of `FakeLimiter` and `AsyncFakeLimiter`."""

    def __init__(self, limit: int = 100, window: Duration = "1m", *, prefix: Key = b"") -> None:
        """limit, window: what its decisions show."""
        super().__init__(None, limit, window, prefix=prefix)
        self._local = self._answers = _Answers()

    @property
    def calls(self) -> list[Call]:
        """What it was asked, oldest first."""
        return self._answers.calls

    def deny(self, retry_after: Duration | None = 1, key: Key | None = None) -> None:
        """Deny all requests from now on, or those for a key. retry_after: None, or `math.inf`: they can never be
        granted."""
        after = -1 if retry_after is None or retry_after == math.inf else milliseconds(retry_after, "retry_after")
        if key is None:
            self.grant()
        self._answers.denied[None if key is None else self._name(key)] = after

    def grant(self, key: Key | None = None) -> None:
        """Grant all requests again, or those for a key, also where it is blocked."""
        self._answers.grant(None if key is None else self._name(key))

    async def _acquire(self, key: Key, cost: int = 1, timeout: Duration | None = None) -> Decision:
        """Decide at once: nobody waits for a fake."""
        longest_wait(timeout)
        name, quota, _ = self._checked(key, cost, False, None, None)
        return self._execute_here("local", "ACQUIRE", name, quota, cost, False, 0, 0)

    acquire = dual_method(_acquire)


class FakeLimiter(_FakeLimiter[Client], Limiter):
    """A limiter that grants everything until the test says otherwise, and remembers what it was asked."""


class AsyncFakeLimiter(_FakeLimiter[AsyncClient], AsyncLimiter):
    """An AsyncLimiter that grants everything until the test says otherwise, and remembers what it was asked."""


class _Answers(LocalWindows):
    """What a fake answers: what a window does for which nothing is counted yet, or which is blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.denied: dict[bytes | None, int] = {}
        """For how many ms requests for a key are denied, for None those for all others; -1: for ever."""

    def grant(self, key: bytes | None) -> None:
        if key is None:
            self.denied.clear()
            self._keys.clear()
        else:
            self.denied[key] = 0
            self._keys.pop(key)

    def execute(self, command: str, key: bytes, quota: Quota, now: int, cost: int = 1, partial: bool = False,
                age: int = 0, block: int | None = None) -> Reply:
        self._note(command, key, cost)
        return super().execute(command, key, quota, now, cost, partial, age, block)

    def change(self, command: str, key: bytes, now: int, **options: Any) -> int:
        units: int = options.get("units", 0)
        self._note("RESET" if command == "DEL" else command, key, units)
        return units or super().change(command, key, now, **options)

    def check(self, key: bytes, quota: Quota, now: int, cost: int) -> Reply:
        self._note("ALLOW", key, cost)
        return super().check(key, quota, now, cost)

    def _execute(self, command: str, key: bytes, quota: Quota, now: int, cost: int, partial: bool = False,
                 age: int = 0, block: int | None = None) -> Reply:
        left = self.denied.get(key, self.denied.get(None, 0))
        if left < 0:
            return [0, quota.limit, 0, left, 0]
        if (kept := self._keys.used(key)) is not None:
            left = max(left, kept.blocked_until - now)
        now -= now % quota.geometry.resolution  # so that a request always has the same answer
        window = Window(blocked_until=now + left)
        if command == "PEEK":
            return window.peek(quota, now, cost, partial)
        if command == "RECORD":
            return window.record(quota, now, cost, age, block)
        return window.allow(quota, now, cost, partial, block)

    def _note(self, command: str, key: bytes, cost: int) -> None:
        self.calls.append(Call(command.lower(), key.decode(errors="backslashreplace"), cost))
