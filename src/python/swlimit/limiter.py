"""The limiters: one façade, whose coroutines a `Limiter` carries out and an `AsyncLimiter` has awaited."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import redis
import redis.asyncio

from .aio.outside import TASKS
from .deciding import Deciding, Key, Request, deciding_all
from .decision import Decision, Decisions
from .errors import Limited
from .link import Links
from .quota import Duration
from .threads.outside import THREADS, run

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _command(Generic[P, T]):
    """A method of both limiters: a Limiter returns the outcome of its coroutine, an AsyncLimiter the coroutine."""

    def __init__(self, coroutine: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.coroutine = coroutine

    @overload
    def __get__(self, limiter: "Limiter", owner: object) -> Callable[P, T]: ...

    @overload
    def __get__(self, limiter: "AsyncLimiter", owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, limiter: Any, owner: object) -> Any:
        raise NotImplementedError  # each kind of limiter has a function in its place


class _Commands(Deciding):
    """What both limiters offer."""

    allow = _command(Deciding._allowing)
    peek = _command(Deciding._peeking)
    record = _command(Deciding._recording)
    refund = _command(Deciding._refunding)
    block = _command(Deciding._blocking)
    unblock = _command(Deciding._unblocking)
    reset = _command(Deciding._resetting)
    acquire = _command(Deciding._acquiring)
    close = _command(Deciding._closing)

    def __init_subclass__(cls) -> None:
        for name, found in vars(_Commands).items():
            if isinstance(found, _command):
                setattr(cls, name, cls._method(name, found.coroutine))

    @staticmethod
    def _method(name: str, coroutine: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """The method of this name."""
        raise NotImplementedError

    def request(self, key: Key, cost: int = 1, *, limit: int | None = None) -> "Request[Self]":
        """A part of a request that several limits have to grant; see `allow_all`."""
        return Request(self, self._demand(key, cost, False, None, limit))

    def limit(self, key: "KeyOf", cost: int = 1, *, timeout: Duration | None = 0) -> "Limit":
        """A context, or a decorator, that is entered only when granted, and raises Limited otherwise.

        As a decorator, the key may be a function of the call's arguments. A timeout waits; None for ever.
        """
        return Limit(self, key, cost, timeout)


class Limiter(_Commands):
    """Decides for any number of keys with one quota. One limiter may be used by many threads."""

    _links, _outside = Links(THREADS), THREADS

    def _check_client(self, client: Any) -> None:
        if not isinstance(client, (redis.Redis, redis.RedisCluster)):
            raise TypeError(f"client must be a redis.Redis or redis.RedisCluster, not {client!r}"
                            + "; AsyncLimiter is for those of redis.asyncio" * _is_async(client))

    @staticmethod
    def _method(name: str, coroutine: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        def method(self: "Limiter", *args: Any, **options: Any) -> Any:
            return run(coroutine(self, *args, **options))

        method.__name__, method.__doc__ = name, coroutine.__doc__
        method.__signature__ = inspect.signature(coroutine)  # type: ignore[attr-defined]
        return method

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLimiter(_Commands):
    """Decides for any number of keys with one quota, on a client of redis.asyncio."""

    _links, _outside = Links(TASKS), TASKS

    def _check_client(self, client: Any) -> None:
        if not _is_async(client):
            raise TypeError(f"client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not {client!r}")

    @staticmethod
    def _method(name: str, coroutine: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        coroutine.__name__ = name
        return coroutine

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _is_async(client: object) -> bool:
    return isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster))


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


KeyOf = Key | Callable[..., Key]


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
        if not isinstance(self._limiter, AsyncLimiter):
            @functools.wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                run(self._entering(*args, **kwargs))
                return function(*args, **kwargs)
            return limited

        @functools.wraps(function)
        async def limited_task(*args: P.args, **kwargs: P.kwargs) -> Any:
            await self._entering(*args, **kwargs)
            return await cast(Any, function(*args, **kwargs))
        return cast(Callable[P, R], limited_task)

    async def _entering(self, *args: Any, **kwargs: Any) -> Decision:
        key: Key = self._key(*args, **kwargs) if callable(self._key) else self._key
        if self._timeout == 0:
            decision = await self._limiter._allowing(key, self._cost)
        else:
            decision = await self._limiter._acquiring(key, self._cost, self._timeout)
        if not decision:
            raise Limited(key, decision)
        return cast(Decision, decision)
