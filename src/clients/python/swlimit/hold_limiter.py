"""Limiters of holds: how many at once."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ._base import Key, KeyOf, key_of, longest_wait
from ._core.decision import Holder
from ._core.quota import Duration, checked_integer, seconds
from ._hold_attempt import HoldAttempt
from ._hold_base import HoldGuard, HoldLimiterBase
from ._protocol.commands import Holders
from ._sync_async import AsyncClient, AwaitableContext, Awaited, C, Client, Threaded, dual_method
from ._transport.thread_backend import run
from .errors import DeniedError

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_HOLD_WAIT = 3600.0


class Hold(HoldGuard):
    """A hold, for `with` or `release`. True when it is granted; entering a denied one raises DeniedError."""

    lost: threading.Event

    def release(self) -> None:
        """End the hold, once."""
        run(self._leave())

    def __enter__(self) -> "Self":
        if not self:
            raise DeniedError(self.key, self.decision)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class AsyncHold(HoldGuard):
    """A hold, for `async with` or `release`. True when it is granted; entering a denied one raises DeniedError."""

    lost: asyncio.Event

    async def release(self) -> None:
        """End the hold, once."""
        await self._leave()

    async def __aenter__(self) -> "Self":
        if not self:
            raise DeniedError(self.key, self.decision)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class _HoldLimiter(HoldLimiterBase[C]):
    """The methods of `HoldLimiter` and `AsyncHoldLimiter`."""

    hold: Any
    _within: Any

    async def _hold(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, wait: Duration = 0,
                    limit: int | None = None) -> Any:
        """Take a hold. Returns its guard, also for a denial.

        cost: units. ttl: replaces the limiter's. limit: replaces the limiter's.
        wait: how long to wait for room at most, up to 1h; first come, first served.
        """
        request = self.request(key, cost, ttl=ttl, limit=limit)
        if seconds(wait, "wait", least=0) > LONGEST_HOLD_WAIT:
            raise ValueError(f"wait must be at most 1h, not {wait!r}")
        attempt = HoldAttempt(request, time.monotonic() + longest_wait(wait, "wait"))
        decision, claim = await attempt.outcome()
        self.statistics.add(decision)
        return self._guard(request, attempt.id, decision, claim)

    async def _holders(self, key: Key, count: int = 100) -> list[Holder]:
        """The live holds of a key, oldest first, at most `count` (1 to 10,000). Raises UnavailableError."""
        checked_integer(count, "count", least=1)
        rows = await self._send(Holders(self._name(key), count))
        return [Holder(id, units, held / 1000, left / 1000, token) for id, units, held, left, token in rows]

    holders = dual_method(_holders)
    close = dual_method(HoldLimiterBase._close)

    def held(self, key: KeyOf, cost: int = 1, *, ttl: Duration | None = None,
             wait: Duration = 0) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: the function or coroutine runs while it has a hold; a denial raises DeniedError.

        The key may be a function of the call's arguments.
        """
        def hold(*args: Any, **kwargs: Any) -> Any:
            return self.hold(key_of(key, *args, **kwargs), cost, ttl=ttl, wait=wait)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            return cast(Callable[P, R], self._within(hold, function))
        return decorate


class HoldLimiter(Threaded, _HoldLimiter[Client]):
    """How many at once, for any number of keys. Many threads may use one limiter."""

    _guard_type = Hold

    def hold(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, wait: Duration = 0,
             limit: int | None = None) -> Hold:
        guard: Hold = run(self._hold(key, cost, ttl=ttl, wait=wait, limit=limit))
        return guard

    hold.__doc__ = _HoldLimiter._hold.__doc__


class AsyncHoldLimiter(Awaited, _HoldLimiter[AsyncClient]):
    """How many at once, for any number of keys, on a client of redis.asyncio."""

    _guard_type = AsyncHold

    def hold(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, wait: Duration = 0,
             limit: int | None = None) -> AwaitableContext[AsyncHold]:
        return AwaitableContext(self._hold(key, cost, ttl=ttl, wait=wait, limit=limit))

    hold.__doc__ = _HoldLimiter._hold.__doc__
