"""Which server has a key: the only one, or a cluster's."""

from collections.abc import Callable
from typing import Any

import redis
from redis.crc import key_slot

from .endpoint import Endpoint
from .interface import Worker
from .libraries import cluster_class
from .server import Server

MakeServer = Callable[[Endpoint], Server]


class OneServer:
    """The topology of a client that has one server."""

    follows = False
    """Whether it knows where a redirection leads."""

    def __init__(self, endpoint: Endpoint, make: MakeServer) -> None:
        self._server = make(endpoint)

    @property
    def cluster_class(self) -> str:
        """The class of clients that knows."""
        return cluster_class(self._server.endpoint.connection_class)

    def of(self, key: bytes) -> Server | None:
        return self._server

    def all(self) -> list[Server]:
        return [self._server]

    def redirected(self, error: Any) -> Server:
        raise error

    def refresh(self) -> Any:
        """There is nothing to ask."""

    def refreshed(self) -> list[Server]:
        return []

    def close(self) -> list[Worker]:
        """End what runs to learn the topology. Returns these workers, which end soon."""
        return []


class Cluster:
    """The primaries of a cluster: the client's own table of slots, and the redirections since."""

    follows, cluster_class = True, ""

    def __init__(self, client: Any, make: MakeServer) -> None:
        self._client = client
        self._make = make
        self._servers: dict[str, Server] = {}
        self._moved: dict[int, Server] = {}

    def of(self, key: bytes) -> Server | None:
        """None when the client has not asked for its slots yet."""
        slot = key_slot(key)
        if moved := self._moved.get(slot):
            return moved
        nodes = self._client.nodes_manager.slots_cache.get(slot)
        return self._server(nodes[0]) if nodes else None

    def all(self) -> list[Server]:
        return list(self._servers.values())

    def redirected(self, error: Any) -> Server:
        """The server that a MOVED or ASK names."""
        if not isinstance(error, redis.exceptions.AskError):
            raise error
        host, port = self._client.nodes_manager.remap_host_port(error.host, error.port)
        server = self._servers.get(f"{host}:{port}")
        if server is None:
            endpoint = next(iter(self._servers.values())).endpoint.at(host, port)
            server = self._servers[endpoint.name] = self._make(endpoint)
        if isinstance(error, redis.exceptions.MovedError):
            self._moved[error.slot_id] = server
        return server

    def refresh(self) -> Any:
        """Have the client ask for its slots; awaited with asyncio."""
        manager = self._client.nodes_manager
        client = manager if manager.slots_cache else self._client
        return getattr(client, "initialize", manager.initialize)()

    def refreshed(self) -> list[Server]:
        """The client has refreshed its slots. Returns the servers that have left."""
        self._moved.clear()
        nodes = {node.name for node in self._client.get_nodes()}
        return [self._servers.pop(name) for name in list(self._servers) if name not in nodes]

    def close(self) -> list[Worker]:
        return []

    def _server(self, node: Any) -> Server:
        server = self._servers.get(node.name)
        if server is None:
            maker = node  # a node of redis.asyncio is a pool itself
            if not hasattr(node, "connection_kwargs"):
                client = self._client
                connected = getattr(client, "get_redis_connection", None) or client.get_valkey_connection
                maker = connected(node).connection_pool
            server = self._servers.setdefault(node.name, self._make(
                Endpoint.of(node.name, maker.connection_class, maker.connection_kwargs)))
        return server
