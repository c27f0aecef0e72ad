"""Connections of a limiter's own, made as the user's client makes its: same server, TLS, user, database.

A client is `redis.Redis` or `redis.asyncio.Redis`, behind a sentinel or not, or a cluster of either kind.
"""

import functools
import threading
import time
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SILENCE = 1.0
"""Seconds after which a connection that has told nothing is asked whether it is still there."""


class Home(NamedTuple):
    """The server that has a key, and how to connect to it."""

    name: str
    connection_class: Any
    connection_kwargs: dict[str, Any]

    def connection(self, **options: Any) -> Any:
        """A connection to it, in no pool, whose replies are bytes; not yet connected."""
        if "path" not in self.connection_kwargs:  # a socket of the file system is never half-open
            options["socket_keepalive"] = True
        return self.connection_class(**self.connection_kwargs | _UNPOOLED | options)


_OF_POOLS = ("retry", "cache", "cache_config")
_UNPOOLED: dict[str, Any] = {
    "protocol": 2,  # invalidations are then messages, on a connection that reads nothing else
    "decode_responses": False,
    "health_check_interval": 0,
    "socket_timeout": SILENCE,
    "socket_connect_timeout": SILENCE,
}


def home(client: Any, key: bytes) -> Home:
    """Where a key lives."""
    name, maker = "", client
    if hasattr(client, "get_node_from_key"):
        maker = client.get_node_from_key(key)
        name = maker.name
        if not hasattr(maker, "connection_kwargs"):  # asyncio's nodes are pools themselves
            maker = client.get_redis_connection(maker)
    pool = getattr(maker, "connection_pool", maker)
    return Home(name, pool.connection_class, _own(pool.connection_kwargs))


def _own(connection_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What says how to connect; not what a pool does about it."""
    return {key: value for key, value in connection_kwargs.items()
            if key not in _OF_POOLS and not key.startswith("maint_notifications")}


_deadline = threading.local()


class _Bounded:
    """A mixin for connections: connecting and each reply have what is left of the time for all.

    Sending has no need of that: one command is less than what the system takes at once.
    """

    _sock: Any
    socket_timeout: float
    socket_connect_timeout: float

    def _connect(self) -> Any:
        self.socket_connect_timeout = self.socket_timeout = _left()
        return super()._connect()  # type: ignore[misc]

    def read_response(self, *args: Any, **options: Any) -> Any:
        if self._sock:
            self._sock.settimeout(_left())  # redis-py sets it back whenever the connection is used again
        return super().read_response(*args, **options)  # type: ignore[misc]


def _left() -> float:
    left: float = _deadline.at - time.monotonic()
    if left <= 0:
        raise redis.TimeoutError("no time is left for the server")
    return left


@functools.cache
def _bounded(connection_class: Any) -> Any:
    return type(f"Bounded{connection_class.__name__}", (_Bounded, connection_class), {})


class Asking:
    """Sends commands and waits at most `timeout` seconds for a reply, through a client like the user's.

    The user's own has other timeouts, and may try again several times. It is used as it is where `timeout` is None.
    """

    def __init__(self, client: Any, timeout: float | None) -> None:
        self._timeout = timeout
        self._client = client if timeout is None else self._like(client, timeout)
        # Of a cluster's clients, the one that asks hears where keys have moved.
        self.guide = self._client if hasattr(client, "nodes_manager") else client

    def execute(self, words: tuple[Any, ...]) -> Any:
        if self._timeout is not None:
            _deadline.at = time.monotonic() + self._timeout
        return self._client.execute_command(*words)

    @staticmethod
    def _like(client: Any, timeout: float) -> Any:
        once = Retry(NoBackoff(), 0)
        if hasattr(client, "nodes_manager"):
            # Each of the trips that a redirection takes may last as long.
            options = client.nodes_manager.connection_kwargs | {"socket_timeout": timeout,
                                                                "socket_connect_timeout": timeout}
            nodes = [type(node)(node.host, node.port) for node in client.get_nodes()]
            return redis.RedisCluster(startup_nodes=nodes, retry=once, **options)
        pool = client.connection_pool
        return redis.Redis(connection_pool=redis.ConnectionPool(
            connection_class=_bounded(pool.connection_class), retry=once, **_own(pool.connection_kwargs)))
