"""Each method is written once, as a coroutine: limiters for threads run it, those for asyncio return it."""

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import redis
import redis.asyncio

from ._transport import glide
from ._transport.asyncio_backend import ASYNCIO
from ._transport.core import Cores
from ._transport.interface import Interface
from ._transport.libraries import clients, glide_clients
from ._transport.thread_backend import THREADS, run

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class dual_method(Generic[P, T]):
    """A method of both kinds of limiters: for threads it returns the coroutine's outcome, for asyncio the coroutine."""

    def __init__(self, coroutine: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.coroutine = coroutine
        self.__doc__ = coroutine.__doc__

    @overload
    def __get__(self, limiter: None, owner: object) -> "dual_method[P, T]": ...

    @overload
    def __get__(self, limiter: "Threaded", owner: object) -> Callable[P, T]: ...

    @overload
    def __get__(self, limiter: "Awaited", owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, limiter: Any, owner: object) -> Any:
        return self  # each kind of limiter replaces it by a function


def check_decorated(function: Callable[..., Any], refused: Sequence[Callable[[Any], bool]], hint: str) -> None:
    """Raise TypeError for a function whose calls return before its body has run."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if any(kind(function) or kind(called) for kind in refused):
        raise TypeError(f"{getattr(function, '__qualname__', function)!s} is {hint}")


class Kind:
    """Replaces each dual_method of a class by a method of its kind."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__mro__:
            for name, found in vars(base).items():
                if isinstance(found, dual_method) and name not in vars(cls):
                    setattr(cls, name, cls._method(name, found.coroutine))

    @staticmethod
    def _method(name: str, coroutine: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """Make the method with this name."""
        raise NotImplementedError

    @staticmethod
    def _within(context: Callable[P, Any], function: Callable[P, R]) -> Callable[P, R]:
        """A function that runs within the context for its arguments."""
        raise NotImplementedError


class RedisClient(Protocol):
    """A client of redis-py or valkey-py, of one server or of a cluster."""

    def __enter__(self) -> Any: ...

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class GlideClient(Protocol):
    """A client of valkey-glide."""

    def __enter__(self) -> Any: ...

    def custom_command(self, command_args: Any) -> Any: ...


class AsyncRedisClient(Protocol):
    """The same for asyncio."""

    async def __aenter__(self) -> Any: ...

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class AsyncGlideClient(Protocol):
    """The same for asyncio."""

    async def __aenter__(self) -> Any: ...

    def custom_command(self, command_args: Any) -> Awaitable[Any]: ...


Client = RedisClient | GlideClient
AsyncClient = AsyncRedisClient | AsyncGlideClient
C = TypeVar("C")
"""The clients that a limiter takes."""


class Threaded(Kind):
    """Limiters for programs with threads, or without."""

    _states = Cores(THREADS)
    _interface: Interface = THREADS
    _timeout: float
    _open = staticmethod(redis.Redis.from_url)
    _open_cluster_url = staticmethod(redis.RedisCluster.from_url)
    close: Any

    @staticmethod
    async def _close_client(client: redis.Redis | redis.RedisCluster) -> None:
        client.close()
        if isinstance(client, redis.RedisCluster):  # which leaves the pools open that it has made from a URL
            manager = client.nodes_manager
            for node in (*manager.startup_nodes.values(), *manager.nodes_cache.values()):
                if node.redis_connection is not None:
                    node.redis_connection.connection_pool.disconnect()

    def _check_client(self, client: Any) -> None:
        if not isinstance(client, clients(is_async=False)):
            other = (f"; Async{type(self).__name__} is for those of redis.asyncio, valkey.asyncio and glide"
                     * is_async(client))
            raise TypeError("client must be a redis.Redis, redis.RedisCluster, valkey.Valkey or valkey.ValkeyCluster, "
                            f"or a GlideClient or GlideClusterClient of glide_sync, not {kind_of(client)}{other}")
        if isinstance(client, glide_clients(is_async=False)):
            glide.check(client, self._timeout)

    @staticmethod
    def _method(name: str, coroutine: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **options: Any) -> Any:
            return run(coroutine(self, *args, **options))

        method.__name__, method.__doc__ = name, coroutine.__doc__
        method.__signature__ = inspect.signature(coroutine)  # type: ignore[attr-defined]
        return method

    @staticmethod
    def _within(context: Callable[P, Any], function: Callable[P, R]) -> Callable[P, R]:
        check_decorated(function, (inspect.iscoroutinefunction, inspect.isasyncgenfunction),
                        "asynchronous: use a limiter of asyncio")
        if inspect.isgeneratorfunction(function):
            @functools.wraps(function)
            def generating(*args: P.args, **kwargs: P.kwargs) -> Any:
                with context(*args, **kwargs):
                    return (yield from function(*args, **kwargs))
            return cast(Callable[P, R], generating)

        @functools.wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> R:
            with context(*args, **kwargs):
                return function(*args, **kwargs)
        return within

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Awaited(Kind):
    """Limiters for programs with asyncio, on clients of redis.asyncio."""

    _timeout: float
    _states = Cores(ASYNCIO)
    _interface: Interface = ASYNCIO
    _open = staticmethod(redis.asyncio.Redis.from_url)
    _open_cluster_url = staticmethod(redis.asyncio.RedisCluster.from_url)
    close: Any

    @staticmethod
    async def _close_client(client: redis.asyncio.Redis) -> None:
        await client.aclose()

    def _check_client(self, client: Any) -> None:
        if not is_async(client):
            raise TypeError("client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, a Valkey or "
                            "ValkeyCluster of valkey.asyncio, or a GlideClient or GlideClusterClient of glide, not "
                            f"{kind_of(client)}")
        if isinstance(client, glide_clients(is_async=True)):
            glide.check(client, self._timeout)

    @staticmethod
    def _method(name: str, coroutine: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        coroutine.__name__ = name
        return coroutine

    @staticmethod
    def _within(context: Callable[P, Any], function: Callable[P, R]) -> Callable[P, R]:
        check_decorated(function, (inspect.isgeneratorfunction,), "a generator: use a limiter for threads")
        if inspect.isasyncgenfunction(function):
            @functools.wraps(function)
            async def generating(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with context(*args, **kwargs), contextlib.aclosing(function(*args, **kwargs)) as values:
                    async for value in values:
                        yield value
            return cast(Callable[P, R], generating)

        @functools.wraps(function)
        async def within(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with context(*args, **kwargs):
                return await cast(Any, function(*args, **kwargs))
        return cast(Callable[P, R], within)

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AwaitableContext(Generic[T]):
    """A coroutine whose outcome is a context: awaited, or entered by `async with`."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._outcome: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> T:
        self._outcome = await self
        entered: T = await self._outcome.__aenter__()
        return entered

    async def __aexit__(self, *raised: Any) -> None:
        await self._outcome.__aexit__(*raised)


def kind_of(client: object) -> str:
    """Its type, without its repr: that may contain a password."""
    kind = type(client)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__name__}"


def is_async(client: object) -> bool:
    return isinstance(client, clients(is_async=True))
