"""The façade of holds: limiters of how many at once, and their guards."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from .asking import Key
from .errors import DeniedError
from .facade import Awaited, Entering, Threaded, command
from .holding import Guard, Holding
from .quota import Duration
from .threads.outside import run

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")
KeyOf = Key | Callable[..., Key]


class Hold(Guard):
    """A hold, for `with` or `release`. True when it is granted; entering a denied one raises DeniedError."""

    def release(self) -> None:
        """End the hold, once."""
        run(self._leaving())

    def __enter__(self) -> "Self":
        if not self:
            raise DeniedError(self.key, self.decision)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class AsyncHold(Guard):
    """A hold, for `async with` or `release`. True when it is granted; entering a denied one raises DeniedError."""

    async def release(self) -> None:
        """End the hold, once."""
        await self._leaving()

    async def __aenter__(self) -> "Self":
        if not self:
            raise DeniedError(self.key, self.decision)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class _HoldCommands(Holding):
    """What limiters of holds offer beside `hold`."""

    hold: Any
    _within: Any
    holders = command(Holding._listing)
    close = command(Holding._closing)

    def held(self, key: KeyOf, cost: int = 1, *, ttl: Duration | None = None,
             wait: Duration = 0) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: the function, of asyncio the coroutine, runs while it has a hold; a denial raises DeniedError.

        The key may be a function of the call's arguments.
        """
        def hold(*args: Any, **kwargs: Any) -> Any:
            return self.hold(key_of(key, *args, **kwargs), cost, ttl=ttl, wait=wait)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            return cast(Callable[P, R], self._within(hold, function))
        return decorate


class HoldLimiter(Threaded, _HoldCommands):
    """How many at once, for any number of keys. One limiter may be used by many threads."""

    _guard = Hold

    def hold(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, wait: Duration = 0,
             limit: int | None = None) -> Hold:
        guard: Hold = run(self._holding(key, cost, ttl=ttl, wait=wait, limit=limit))
        return guard

    hold.__doc__ = Holding._holding.__doc__


class AsyncHoldLimiter(Awaited, _HoldCommands):
    """How many at once, for any number of keys, on a client of redis.asyncio."""

    _guard = AsyncHold

    def hold(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, wait: Duration = 0,
             limit: int | None = None) -> Entering[AsyncHold]:
        return Entering(self._holding(key, cost, ttl=ttl, wait=wait, limit=limit))

    hold.__doc__ = Holding._holding.__doc__


def key_of(key: KeyOf, *args: Any, **kwargs: Any) -> Key:
    """The key of a call."""
    return key(*args, **kwargs) if callable(key) else key
