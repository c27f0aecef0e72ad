"""The limiters: one façade, whose methods a `Limiter` carries out and an `AsyncLimiter` has awaited."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import redis
import redis.asyncio

from .aio import link as of_tasks
from .aio.waiting import Turns as TaskTurns
from .aio.waiting import Waiting as TaskWaiting
from .deciding import Deciding, Key, Request, deciding_all
from .decision import Decision, Decisions
from .errors import Limited
from .link import Acquire, Link, Step, Steps, TakeTurn
from .quota import Duration
from .threads import link as of_threads
from .threads.waiting import Turns as ThreadTurns
from .threads.waiting import Waiting as ThreadWaiting

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _command(Generic[P, T]):
    """A method of both limiters, told by its steps: a Limiter returns the outcome, an AsyncLimiter has it awaited."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.steps = steps

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

    def __init_subclass__(cls) -> None:
        for name, found in vars(_Commands).items():
            if isinstance(found, _command):
                setattr(cls, name, cls._method(name, found.steps))

    @staticmethod
    def _method(name: str, steps: Callable[..., Steps[Any]]) -> Callable[..., Any]:
        """The method that carries these steps out."""
        raise NotImplementedError

    def request(self, key: Key, cost: int = 1, *, limit: int | None = None) -> "Request[Self]":
        """A part of a request that several limits have to grant; see `allow_all`."""
        return Request(self, self._demand(key, cost, False, None, limit))

    def limit(self, key: "KeyOf", cost: int = 1, *, timeout: Duration | None = 0) -> "Limit":
        """A context, or a decorator, that is entered only when granted, and raises Limited otherwise.

        As a decorator, the key may be a function of the call's arguments. A timeout waits; None for ever.
        """
        return Limit(self, key, cost, timeout)


def _named(name: str, method: Callable[..., Any], steps: Callable[..., Any]) -> Callable[..., Any]:
    method.__name__, method.__doc__ = name, steps.__doc__
    method.__signature__ = inspect.signature(steps)  # type: ignore[attr-defined]
    return method


class Limiter(_Commands):
    """Decides for any number of keys with one quota. One limiter may be used by many threads."""

    def _linked(self, client: Any) -> Link:
        if not isinstance(client, (redis.Redis, redis.RedisCluster)):
            raise TypeError(f"client must be a redis.Redis or redis.RedisCluster, not {client!r}"
                            + "; AsyncLimiter is for those of redis.asyncio" * _is_async(client))
        return of_threads.links.of(client)

    def _begin(self, max_waiting: int) -> None:
        self._waiting, self._turns = ThreadWaiting(max_waiting), ThreadTurns()

    def _do(self, step: Step) -> Any:
        if isinstance(step, Acquire):
            return self._waiting.acquire(step)
        if isinstance(step, TakeTurn):
            return self._turns.take(step.key, step.timeout)
        return of_threads.do(step)

    @staticmethod
    def _method(name: str, steps: Callable[..., Steps[Any]]) -> Callable[..., Any]:
        def method(self: "Limiter", *args: Any, **options: Any) -> Any:
            return of_threads.run(steps(self, *args, **options), self._do)
        return _named(name, method, steps)

    def close(self) -> None:
        """Let go of connections and of what is remembered."""
        self._waiting.close()
        if (link := self._leave()) is not None:
            link.close_connections()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLimiter(_Commands):
    """Decides for any number of keys with one quota, on a client of redis.asyncio."""

    def _linked(self, client: Any) -> Link:
        if not _is_async(client):
            raise TypeError(f"client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not {client!r}")
        return of_tasks.links.of(client)

    def _begin(self, max_waiting: int) -> None:
        self._waiting, self._turns = TaskWaiting(max_waiting), TaskTurns()

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Acquire):
            return await self._waiting.acquire(step)
        if isinstance(step, TakeTurn):
            return await self._turns.take(step.key, step.timeout)
        return await of_tasks.do(step)

    @staticmethod
    def _method(name: str, steps: Callable[..., Steps[Any]]) -> Callable[..., Any]:
        async def method(self: "AsyncLimiter", *args: Any, **options: Any) -> Any:
            return await of_tasks.run(steps(self, *args, **options), self._do)
        return _named(name, method, steps)

    async def close(self) -> None:
        """Let go of connections and of what is remembered."""
        await self._waiting.close()
        if (link := self._leave()) is not None:
            link.close_connections()

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
    run = of_tasks.run if isinstance(limiter, AsyncLimiter) else of_threads.run
    return run(deciding_all(requests, deadline), limiter._do)


KeyOf = Key | Callable[..., Key]


class Limit:
    """See `Limiter.limit`. With an AsyncLimiter it is a context for `async with`, and decorates coroutines."""

    def __init__(self, limiter: Any, key: KeyOf, cost: int, timeout: Duration | None) -> None:
        self._limiter, self._key, self._cost, self._timeout = limiter, key, cost, timeout

    def __enter__(self) -> Decision:
        if isinstance(self._limiter, AsyncLimiter):
            raise TypeError("an AsyncLimiter's limit is entered by `async with`")
        return of_threads.run(self._entering(), self._limiter._do)

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Decision:
        return await of_tasks.run(self._entering(), self._limiter._do)

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if not isinstance(self._limiter, AsyncLimiter):
            @functools.wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                of_threads.run(self._entering(*args, **kwargs), self._limiter._do)
                return function(*args, **kwargs)
            return limited

        @functools.wraps(function)
        async def limited_task(*args: P.args, **kwargs: P.kwargs) -> Any:
            await of_tasks.run(self._entering(*args, **kwargs), self._limiter._do)
            return await cast(Any, function(*args, **kwargs))
        return cast(Callable[P, R], limited_task)

    def _entering(self, *args: Any, **kwargs: Any) -> Steps[Decision]:
        key: Key = self._key(*args, **kwargs) if callable(self._key) else self._key
        if self._timeout == 0:
            decision = yield from self._limiter._allowing(key, self._cost)
        else:
            decision = yield from self._limiter._acquiring(key, self._cost, self._timeout)
        if not decision:
            raise Limited(key, decision)
        return cast(Decision, decision)
