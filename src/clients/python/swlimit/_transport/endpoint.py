"""How to connect to a server: as the program's own client does, with the same TLS, user and database."""

from typing import Any, NamedTuple

from .libraries import raising_as_redis_py

SILENCE = 1.0
"""Seconds without any data after which a connection is checked; also the longest that connecting takes."""
LATEST = 10.0
"""Seconds after which a reply is given up."""
_OF_POOLS = ("retry", "retry_on_error", "retry_on_timeout", "cache", "cache_config")
_OPTIONS: dict[str, Any] = {
    "protocol": 2,  # invalidations are then messages, on a connection that reads nothing else
    "decode_responses": False,
    "health_check_interval": 0,
    "socket_timeout": SILENCE,
    "socket_connect_timeout": SILENCE,
}


class Endpoint(NamedTuple):
    """A server's name, and how the client's library connects to it."""

    name: str
    connection_class: Any
    connection_kwargs: dict[str, Any]

    @classmethod
    def of(cls, name: str, connection_class: Any, connection_kwargs: dict[str, Any]) -> "Endpoint":
        """An endpoint from a pool's options, without those that concern the pool itself."""
        kwargs = {key: value for key, value in connection_kwargs.items()
                  if key not in _OF_POOLS and not key.startswith("maint_notifications")}
        return cls(name, raising_as_redis_py(connection_class), kwargs)

    @classmethod
    def of_pool(cls, pool: Any) -> "Endpoint":
        """The endpoint of a client that has one server; with sentinels, each new connection asks them for a replica."""
        kwargs = pool.connection_kwargs
        address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        return cls.of(getattr(pool, "service_name", address), pool.connection_class, kwargs)

    @property
    def is_shared(self) -> bool:
        """Whether its connections are the client's own: none may wait or be tracked, and it is hidden where they lead.
        """
        return getattr(self.connection_class, "is_shared", False)

    def at(self, host: str, port: int) -> "Endpoint":
        """The same options for another server."""
        return Endpoint(f"{host}:{port}", self.connection_class, self.connection_kwargs | {"host": host, "port": port})

    def connection(self, **options: Any) -> Any:
        """A new connection outside any pool, whose replies are bytes; not yet connected."""
        if "path" not in self.connection_kwargs:  # a Unix socket is never half-open
            options["socket_keepalive"] = True
        return self.connection_class(**self.connection_kwargs | _OPTIONS | options)
