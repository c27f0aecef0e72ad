"""The libraries that a program's own client may come from: redis-py, valkey-py, its fork, and valkey-glide.

The first two's connections are alike. valkey-py's errors have the names of redis-py's, and become those where they are
raised. For valkey-glide see `glide`.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import redis
import redis.asyncio

_RAISING = ("connect", "read_response", "send_packed_command", "can_read", "can_read_destructive")
"""The methods of connections that limiters call, and that raise."""


def clients(is_async: bool) -> tuple[type, ...]:
    """The classes of clients that limiters take, of the libraries that the program has imported."""
    ours = redis.asyncio if is_async else redis
    found: list[type] = [ours.Redis, ours.RedisCluster]
    if (valkey := sys.modules.get("valkey.asyncio" if is_async else "valkey")) is not None:
        found += [valkey.Valkey, valkey.ValkeyCluster]
    return *found, *glide_clients(is_async)


def glide_clients(is_async: bool) -> tuple[type, ...]:
    """The classes of valkey-glide's clients, if the program has imported it."""
    library = sys.modules.get("glide" if is_async else "glide_sync")
    return () if library is None else (library.GlideClient, library.GlideClusterClient)


def cluster_class(connection_class: Any) -> str:
    """The class for a whole cluster, in place of one for a server whose connections these are."""
    if getattr(connection_class, "is_shared", False):
        return "GlideClusterClient"
    modules = [one.__module__ for one in connection_class.__mro__]
    library = "valkey" if any(one.startswith("valkey.") for one in modules) else "redis"
    return f"{library.title()}Cluster of {library}{'.asyncio' * any('.asyncio' in one for one in modules)}"


@functools.cache
def raising_as_redis_py(connection_class: Any) -> Any:
    """The same class of connections, raising redis-py's errors."""
    if not any(one.__module__.startswith("valkey.") for one in connection_class.__mro__):
        return connection_class
    methods = {name: _translating(name, getattr(connection_class, name)) for name in _RAISING
               if hasattr(connection_class, name)}
    return type(connection_class.__name__, (connection_class,), methods | {"__module__": connection_class.__module__})


def _translating(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def translating(connection: Any) -> Iterator[None]:
        if hasattr(connection, "_swlimit_connects"):  # while it connects it handles its own errors
            yield
            return
        if name == "connect":
            connection._swlimit_connects = True
        try:
            yield
        except Exception as error:
            _raise(error)
        finally:
            if name == "connect":
                del connection._swlimit_connects

    async def awaited(connection: Any, *args: Any, **options: Any) -> Any:
        with translating(connection):
            return await method(connection, *args, **options)

    def called(connection: Any, *args: Any, **options: Any) -> Any:
        with translating(connection):
            return method(connection, *args, **options)

    return awaited if inspect.iscoroutinefunction(method) else called


def _raise(error: Exception) -> NoReturn:
    for one in type(error).__mro__:
        if one.__module__ == "valkey.exceptions" and (kind := getattr(redis.exceptions, one.__name__, None)):
            raise kind(*error.args) from error
    raise error
