"""Which server has a key, how to connect to it, and what is known of it.

A client is `redis.Redis` or `redis.asyncio.Redis`, behind a sentinel or not, or a cluster of either kind. It is asked
where its servers are, and how to connect: same TLS, user and database. The connections are the limiters' own.
"""

import logging
import re
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import redis
from redis.crc import key_slot

from .backend import Backend, Module, unpacked
from .breaker import Breaker
from .commands import TIME, Command, Words
from .errors import REPLIES, ModuleMissing, NeedsModule, ServerAway, is_failure, is_unknown_command

NEWER = frozenset(f"SWLIMIT.{name}" for name in ("HOLD", "RELEASE", "RENEW", "HOLDERS", "BUDGET", "ADMIT", "SETTLE"))
"""The commands that a server which has served others may lack."""

log = logging.getLogger("swlimit")
SILENCE = 1.0
"""Seconds after which a connection that has told nothing is asked whether it is still there."""


class Home(NamedTuple):
    """How to connect to a server."""

    name: str
    connection_class: Any
    connection_kwargs: dict[str, Any]

    def connection(self, **options: Any) -> Any:
        """A connection to it, in no pool, whose replies are bytes; not yet connected."""
        if "path" not in self.connection_kwargs:  # a socket of the file system is never half-open
            options["socket_keepalive"] = True
        return self.connection_class(**self.connection_kwargs | _UNPOOLED | options)


_OF_POOLS = ("retry", "retry_on_error", "retry_on_timeout", "cache", "cache_config")
_UNPOOLED: dict[str, Any] = {
    "protocol": 2,  # invalidations are then messages, on a connection that reads nothing else
    "decode_responses": False,
    "health_check_interval": 0,
    "socket_timeout": SILENCE,
    "socket_connect_timeout": SILENCE,
}


def home(name: str, connection_class: Any, connection_kwargs: dict[str, Any]) -> Home:
    """What says how to connect; not what a pool does about it."""
    kwargs = {key: value for key, value in connection_kwargs.items()
              if key not in _OF_POOLS and not key.startswith("maint_notifications")}
    return Home(name, connection_class, kwargs)


class ServerState(NamedTuple):
    """How a server is, as far as this process can tell."""

    address: str
    """Host and port, a socket's path, or a sentinel's name of it."""
    state: Literal["up", "slow", "away"]
    """`up`: it answers in time, or was asked nothing yet; `slow`: its last reply came after the timeout; `away`: it is
    asked by probes only."""
    reason: str | None
    """Why it is away, in one word; None unless it is."""
    message: str
    """The same in the words of the server, the system or the client; empty unless it is away."""
    since: datetime
    """Since when its state is what it is; at first, since it is known of."""
    lacks: tuple[str, ...]
    """The rights that it refused when they were needed last, and that limiters do without, as ACLs name them."""
    round_trip: float | None
    """Of the last reply, in seconds; None before the first."""
    backend: Literal["module", "script"] | None
    """What it decides with; None before it is known."""
    failovers: int
    """How often sentinels have named another primary."""


class Server:
    """What is known of one server; `wire` sends to it, `tracker` hears from it, `renewer` renews holds there."""

    def __init__(self, home: Home, module: Module = "auto") -> None:
        self.home = home
        self.breaker = Breaker(home.name)
        self.backend = Backend(module)
        self.lacks: set[str] = set()
        self.wire: Any = None
        self.tracker: Any = None
        self.renewer: Any = None
        self.round_trip: float | None = None
        self.failovers = 0
        self._is_slow = False
        self._slow_changed = 0.0
        self._served = False
        self._known = time.time()

    @property
    def state(self) -> ServerState:
        breaker = self.breaker
        away, since = breaker.is_open, max(self._known, breaker.changed, self._slow_changed)
        state: Literal["up", "slow", "away"] = "away" if away else "slow" if self._is_slow else "up"
        message = breaker.reason if away else ""
        backend: Literal["module", "script"] = "script" if self.backend.uses_script else "module"
        return ServerState(self.home.name, state, reason(message) if away else None, message,
                           datetime.fromtimestamp(since, timezone.utc), tuple(sorted(self.lacks)), self.round_trip,
                           backend if self._served else None, self.failovers)

    def heard(self, command: Command, reply: Any, in_time: bool = True) -> Any:
        """Take in a reply, an error's too, and say what it comes to: itself, or an error that is to be raised."""
        key, words = command.key, command.words
        if isinstance(reply, REPLIES):
            if is_unknown_command(reply) and self.backend.lacks(words):
                self.breaker.answered()
                return NeedsModule(words)
            if is_unknown_command(reply) and words[0] != "SWLIMIT.ACQUIRE":  # which the first release lacks
                if not self._served or words[0] in NEWER:
                    self.breaker.answered()
                    return ModuleMissing(str(words[0]))
                self.breaker.failed(reply, key)
                return ServerAway(f"{self.home.name} has lost its module: {reply}")
            if is_failure(reply):
                if isinstance(reply, redis.ReadOnlyError):  # it is a primary no more
                    self.close()
                self.breaker.failed(failure(reply), key)
                return ServerAway(f"{self.home.name}: {reply or type(reply).__name__}")
        else:
            self._served = True
        if in_time:
            self.breaker.answered()
            if self._is_slow:
                self._is_slow, self._slow_changed = False, time.time()
                log.warning("%s is in time again", self.home.name)
        return unpacked(reply, words[2]) if words[0] in ("SWLIMIT.ALLOW", "SWLIMIT.PEEK") else reply

    def heard_late(self, command: Command, reply: Any, round_trip: float, timeout: float) -> Any:
        """Take in a reply that took `round_trip` seconds, more than the timeout."""
        self.round_trip = round_trip
        if not self._is_slow:
            self._is_slow, self._slow_changed = True, time.time()
            log.warning("%s is slow: a reply came after %.0f ms, and the timeout is %.0f ms", self.home.name,
                        round_trip * 1000, timeout * 1000)
        return self.heard(command, reply, in_time=False)

    @property
    def workers(self) -> list[Any]:
        """What goes on for it beside the requests."""
        return [one for one in (self.wire.worker, self.tracker.worker, self.renewer.worker) if one is not None]

    def undoing(self, command: Command, reply: Any, sent: float) -> list[Command]:
        """What is to be sent next over the same connection, as nobody takes this reply; None: none came. What has to
        be repeated, the renewer sends."""
        if isinstance(reply, Exception):
            if command.words == TIME:
                self.refused(TIME, reply)
            return []
        undone = command.undo(reply, sent)
        for one in undone:
            if one.repeat is not None:
                self.renewer.send(one)
        return [one for one in undone if one.repeat is None]

    def refused(self, words: Words, error: Exception) -> None:
        """The server is there, and refuses what was sent beside the requests."""
        if not isinstance(error, redis.exceptions.NoPermissionError):
            log.warning("%s refuses %s: %s", self.home.name, words[0], error)
            return
        right = _right(words)
        if right not in self.lacks:
            self.lacks.add(right)
            log.warning("%s refuses %s, and swlimit does without: %s", self.home.name, right, error)

    def allowed(self, words: Words) -> None:
        """The server has done what was sent beside the requests."""
        self.lacks.discard(_right(words))

    def close(self) -> None:
        """Give up all connections; who needs them connects anew."""
        self.backend.begin_anew()
        self.wire.close()
        self.tracker.close()

    def lost(self, error: BaseException, key: bytes | None = None) -> ServerAway:
        """A connection could not be made, or has broken."""
        self.backend.begin_anew()
        self.breaker.failed(error, key)
        return ServerAway(f"{self.home.name}: {error or type(error).__name__}")


def _right(words: Words) -> str:
    """What an ACL calls this command."""
    return "|".join(words[:2] if words[0] == "CLIENT" else words[:1]).lower()


def failure(error: Exception) -> str:
    """What a server has said, with the code that redis-py cuts off."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)


_CODES = {redis.exceptions.BusyLoadingError: "LOADING", redis.ReadOnlyError: "READONLY",
          redis.exceptions.OutOfMemoryError: "OOM", redis.exceptions.ClusterDownError: "CLUSTERDOWN"}
_REASONS = {
    "refused": ("connection refused", "no such file", "connect call failed"),
    "unresolved": ("name or service not known", "name resolution", "getaddrinfo", "nodename nor servname"),
    "certificate": ("certificate", "tls", "ssl", "fatal alert"),
    "password": ("noauth", "wrongpass", "password", "authentication"),
    "too_many_clients": ("max number of clients",),
    "module_missing": ("unknown command", "lost its module"),
    "no_answer": ("no reply", "no connection within", "has not replied", "nothing heard", "timed out", "timeout"),
    "disconnected": ("closed", "reset", "broken pipe", "terminated"),
}
_CODE = re.compile(r"(READONLY|OOM|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|FAILOVER)\b")


def reason(message: str) -> str:
    """Why a server is away, in the word that all clients have for it."""
    if found := _CODE.match(message):
        return found[0]
    text = message.lower()
    return next((word for word, parts in _REASONS.items() if any(part in text for part in parts)), "other")


def home_of(pool: Any) -> Home:
    """Of a client that has one server, by its pool; a replica's sentinels say with each connection where it is."""
    kwargs = pool.connection_kwargs
    address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    return home(getattr(pool, "service_name", address), pool.connection_class, kwargs)


Servers = Callable[[Home], Server]


class OneServer:
    """The server of a client that has one."""

    def __init__(self, home: Home, make: Servers) -> None:
        self._server = make(home)

    def of(self, key: bytes) -> Server | None:
        return self._server

    def all(self) -> list[Server]:
        return [self._server]

    def redirected(self, error: Any) -> Server:
        raise error

    def learn(self) -> None:
        """There is nothing to learn."""

    def learnt(self) -> None:
        pass

    def leave(self) -> list[Any]:
        """Nobody asks any more. Returns what goes on beside the servers, and is not needed then."""
        return []


class Cluster:
    """The primaries of a cluster, by the client's own table of slots and what redirections have told since."""

    def __init__(self, client: Any, make: Servers) -> None:
        self._client = client
        self._make = make
        self._servers: dict[str, Server] = {}
        self._moved: dict[int, Server] = {}

    def of(self, key: bytes) -> Server | None:
        """None where the client has not asked for its slots yet."""
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
            home = next(iter(self._servers.values())).home
            server = self._servers[f"{host}:{port}"] = self._make(Home(
                f"{host}:{port}", home.connection_class, home.connection_kwargs | {"host": host, "port": port}))
        if isinstance(error, redis.exceptions.MovedError):
            self._moved[error.slot_id] = server
        return server

    def learn(self) -> Any:
        """Have the client ask for its slots; to be awaited with asyncio."""
        manager = self._client.nodes_manager
        client = manager if manager.slots_cache else self._client
        return getattr(client, "initialize", manager.initialize)()

    def learnt(self) -> list[Server]:
        """The client knows its slots anew. Returns the servers that are no more."""
        self._moved.clear()
        nodes = {node.name for node in self._client.get_nodes()}
        return [self._servers.pop(name) for name in list(self._servers) if name not in nodes]

    def leave(self) -> list[Any]:
        return []

    def _server(self, node: Any) -> Server:
        server = self._servers.get(node.name)
        if server is None:
            maker = node  # of asyncio, which is a pool itself
            if not hasattr(node, "connection_kwargs"):
                maker = self._client.get_redis_connection(node).connection_pool
            server = self._servers.setdefault(node.name, self._make(
                home(node.name, maker.connection_class, maker.connection_kwargs)))
        return server
