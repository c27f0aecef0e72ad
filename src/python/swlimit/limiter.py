"""Limiters of rates: one façade, whose coroutines a `Limiter` carries out and an `AsyncLimiter` has awaited."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from .asking import Key
from .deciding import Deciding, Request, deciding_all
from .decision import Decision, Decisions
from .errors import DeniedError
from .facade import Awaited, Threaded, command
from .holds import KeyOf, key_of
from .quota import Duration
from .threads.outside import run

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")


class _Commands(Deciding):
    """What limiters of rates offer."""

    allow = command(Deciding._allowing)
    peek = command(Deciding._peeking)
    record = command(Deciding._recording)
    refund = command(Deciding._refunding)
    block = command(Deciding._blocking)
    unblock = command(Deciding._unblocking)
    reset = command(Deciding._resetting)
    acquire = command(Deciding._acquiring)
    close = command(Deciding._closing)

    def request(self, key: Key, cost: int = 1, *, limit: int | None = None) -> "Request[Self]":
        """A part of a request that several limits have to grant; see `allow_all`."""
        return Request(self, self._demand(key, cost, False, None, limit))

    def limit(self, key: "KeyOf", cost: int = 1, *, timeout: Duration | None = 0) -> "Limit":
        """A context, or a decorator, that is entered only when granted, and raises DeniedError otherwise.

        As a decorator, the key may be a function of the call's arguments. A timeout waits; None for ever.
        """
        return Limit(self, key, cost, timeout)


class Limiter(Threaded, _Commands):
    """Decides for any number of keys with one quota. One limiter may be used by many threads."""


class AsyncLimiter(Awaited, _Commands):
    """Decides for any number of keys with one quota, on a client of redis.asyncio."""


@overload
def allow_all(*requests: Request[Limiter], deadline: Duration | None = None) -> Decisions: ...


@overload
def allow_all(*requests: Request[AsyncLimiter],
              deadline: Duration | None = None) -> Coroutine[Any, Any, Decisions]: ...


def allow_all(*requests: Request[Any], deadline: Duration | None = None) -> Any:
    """Grant what all of these limits grant, or count nothing: `allow_all(a.request("k"), b.request("l", cost=2))`.

    With AsyncLimiters it is awaited. Keys differ, and in a cluster have one slot. The first limiter's `on_failure`
    decides while the server is away.
    """
    if not requests or not all(isinstance(one, Request) for one in requests):
        raise TypeError("allow_all takes one or more of what `limiter.request(key)` returns")
    kinds = {type(one.limiter) for one in requests}
    if len(kinds) > 1:
        raise TypeError("limits that are decided together are all of Limiters, or all of AsyncLimiters")
    limiter = requests[0].limiter
    deciding = deciding_all(requests, deadline)
    return deciding if isinstance(limiter, AsyncLimiter) else run(deciding)


class Limit:
    """See `Limiter.limit`. With an AsyncLimiter it is a context for `async with`, and decorates coroutines."""

    def __init__(self, limiter: Any, key: KeyOf, cost: int, timeout: Duration | None) -> None:
        self._limiter, self._key, self._cost, self._timeout = limiter, key, cost, timeout

    def __enter__(self) -> Decision:
        if isinstance(self._limiter, AsyncLimiter):
            raise TypeError("an AsyncLimiter's limit is entered by `async with`")
        return run(self._entering())

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Decision:
        return await self._entering()

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        def limit(*args: Any, **kwargs: Any) -> Limit:
            return Limit(self._limiter, key_of(self._key, *args, **kwargs), self._cost, self._timeout)

        return cast(Callable[P, R], self._limiter._within(limit, function))

    async def _entering(self) -> Decision:
        key = key_of(self._key)
        if self._timeout == 0:
            decision = await self._limiter._allowing(key, self._cost)
        else:
            decision = await self._limiter._acquiring(key, self._cost, self._timeout)
        if not decision:
            raise DeniedError(key, decision)
        return cast(Decision, decision)
