"""Where the primary is, by its sentinels: each announces changes, and one is asked each second because an announcement
may be lost. A sentinel that was cut off may name an earlier primary: only the latest epoch counts. Sentinels that were
installed again begin at epoch 0: when the known primary is none any more, and a majority names another, that counts.
"""

import inspect
import logging
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import redis

from .._core import fork
from .._protocol.replies import BROKEN
from .endpoint import SILENCE, Endpoint
from .interface import DedicatedConnection, Interface, Worker
from .server import Server
from .topology import MakeServer, OneServer

ASKED_EVERY = 1.0
"""Seconds between two questions to any of them."""
SWITCH = "+switch-master"
log = logging.getLogger("swlimit")


class Statement(NamedTuple):
    """What one sentinel said last."""

    address: tuple[str, int]
    epoch: int
    sentinels: int
    """How many it knows, itself included."""
    down: frozenset[str]
    """Those that it holds to be down."""


class At:
    """One address, in place of a pool, for redis-py's connections of sentinels."""

    is_master, check_connection = True, False

    def __init__(self, address: tuple[str, int], is_async: bool) -> None:
        self._address, self._is_async = address, is_async

    def get_master_address(self) -> Any:
        return _known(self._address) if self._is_async else self._address


class PrimaryEndpoint(Endpoint):
    """The endpoint of a primary, which knows the connections that were made to it."""

    def connection(self, **options: Any) -> Any:
        connection = super().connection(**options)
        self.connection_kwargs["connection_pool"].made(connection)
        return connection


class Primary:
    """Where the primary is; redis-py's connections use it as their pool."""

    is_master = True

    def __init__(self, pool: Any, interface: Interface) -> None:
        manager, kwargs = pool.sentinel_manager, pool.connection_kwargs
        self._pool = kwargs["connection_pool"]
        self.check_connection = pool.check_connection
        self._interface = interface
        self._ip: str | None = getattr(manager, "_force_master_ip", None)
        self._epoch = -1
        self._address: tuple[str, int] | None = None
        self.endpoint = PrimaryEndpoint(
            *Endpoint.of(pool.service_name, pool.connection_class, kwargs | {"connection_pool": self}))
        self.server: Server
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.RLock()  # reentrant: collecting a client state closes it
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()

    def made(self, connection: Any) -> None:
        with self._lock:
            self._made.add(connection)

    def get_master_address(self) -> Any:
        """Awaited with asyncio. Until a sentinel has answered here, redis-py asks them itself."""
        ask = self._pool.get_master_address
        if self._address is None:
            return ask()
        return _known(self._address) if inspect.iscoroutinefunction(ask) else self._address

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def address(self) -> tuple[str, int] | None:
        return self._address

    def at(self, address: tuple[str, int]) -> Endpoint:
        """How to connect to an address, as to the primary."""
        pool = At((self._ip or address[0], address[1]), inspect.iscoroutinefunction(self._pool.get_master_address))
        return Endpoint(f"{address[0]}:{address[1]}", self.endpoint.connection_class,
                        self.endpoint.connection_kwargs | {"connection_pool": pool})

    def announced(self, ip: str, port: int, epoch: int, starts_over: bool = False) -> None:
        """Take in what a sentinel says. Connections that lead elsewhere are aborted, also those being made.

        starts_over: epochs have begun again.
        """
        before = None
        with self._lock:
            if starts_over or epoch > self._epoch:
                before, self._epoch, self._address = self._address, epoch, (self._ip or ip, port)
            address = self._address
            strays = [one for one in self._made if (one.host, one.port) != address]
        if before is not None and address is not None and before != address:
            self.server.failovers += 1
            log.warning("the primary of %s is %s:%d, and no longer %s:%d", self.endpoint.name, *address, *before)
            self.server.close()
        for one in strays:
            self._interface.abort(one)


async def _known(address: tuple[str, int]) -> tuple[str, int]:
    return address


class Sentinels(OneServer):
    """The topology of a client behind sentinels: a worker for each of them, with two connections."""

    def __init__(self, client: Any, make: MakeServer, interface: Interface) -> None:
        pool = client.connection_pool
        self._interface = interface
        self._primary = Primary(pool, interface)
        super().__init__(self._primary.endpoint, make)
        self._primary.server = self._server
        self._endpoints: dict[str, Endpoint] = {}
        self._generation = 0
        """Incremented when the workers are no longer needed."""
        self._said: dict[str, Statement] = {}
        self.reset()
        for seed in pool.sentinel_manager.sentinels:
            kwargs = seed.connection_pool.connection_kwargs
            self._add(kwargs["host"], kwargs["port"], Endpoint.of("", seed.connection_pool.connection_class, kwargs))
        self._seeds = frozenset(self._endpoints)
        fork.remember(self)

    def reset(self) -> None:
        self._lock = threading.RLock()  # reentrant: collecting a client state closes it
        self._workers: dict[str, Worker] = {}
        self._is_checking = False
        self._generation += 1

    def of(self, key: bytes) -> Server:
        for name in self._endpoints:
            if not self._interface.is_running(self._workers.get(name)):
                self._start(name)
        return self._server

    def close(self) -> list[Worker]:
        with self._lock:
            workers, self._workers = self._workers, {}
            self._generation += 1
        return list(workers.values())

    def _start(self, name: str) -> None:
        with self._lock, suppress(RuntimeError):  # no thread could be started: the next request tries again
            if name in self._endpoints and not self._interface.is_running(self._workers.get(name)):
                self._workers[name] = self._interface.spawn(self._follow(name, self._endpoints[name], self._generation))

    def _add(self, host: str, port: int, like: Endpoint) -> None:
        made = like.at(host, port)
        with self._lock:
            if made.name not in self._endpoints:
                self._endpoints = self._endpoints | {made.name: made}  # a copy, as others may be iterating

    def _drop(self, name: str) -> None:
        with self._lock:
            self._endpoints = {other: one for other, one in self._endpoints.items() if other != name}

    async def _follow(self, name: str, endpoint: Endpoint, generation: int) -> None:
        """Follow one sentinel's announcements, as long as that is needed. One that others have named is forgotten when
        it is unavailable, until they name it again."""
        while self._generation == generation:
            listener, asker = (self._interface.connection(endpoint) for _ in range(2))
            try:
                for one in (listener, asker):
                    await one.connect()
                await listener.exchange(("SUBSCRIBE", SWITCH))  # when that is refused, it is only asked
                while self._generation == generation:
                    await self._ask(asker, endpoint)
                    await self._wait(listener, name, generation)
            except (*BROKEN, redis.RedisError, ValueError) as error:
                log.debug("the sentinel %s does not answer: %s", name, error)
            finally:
                for one in (listener, asker):
                    await one.close()
            self._said.pop(name, None)
            if name not in self._seeds:
                self._drop(name)
                return
            if self._generation == generation:
                await self._interface.sleep(ASKED_EVERY)

    async def _ask(self, asker: DedicatedConnection, endpoint: Endpoint) -> None:
        name = self._server.endpoint.name
        # The epoch first: in a failover MASTER says the new one already, and still the old address.
        questions = "MASTER", "GET-MASTER-ADDR-BY-NAME", "SENTINELS"
        primary, address, others = [await asker.call("SENTINEL", question, name) for question in questions]
        down = set()
        for one in others:
            found = _fields(one)
            self._add(found["ip"], int(found["port"]), endpoint)
            if "s_down" in found.get("flags", ""):
                down.add(f"{found['ip']}:{found['port']}")
        ip, port, fields = address[0].decode(), int(address[1]), _fields(primary)
        epoch = int(fields["config-epoch"])
        self._said[endpoint.name] = Statement(
            (ip, port), epoch, 1 + int(fields.get("num-other-sentinels", 0)), frozenset(down))
        self._primary.announced(ip, port, epoch)
        if (ip, port) != self._primary.address and epoch < self._primary.epoch:
            await self._start_over((ip, port), epoch)

    async def _start_over(self, address: tuple[str, int], epoch: int) -> None:
        """Follow a primary of a lower epoch, if the known one is none any more, and most sentinels name that one."""
        said = list(self._said.values())
        down = frozenset().union(*(one.down for one in said))
        known = max(len(self._seeds), *(one.sentinels for one in said)) - len(down)
        if 2 * sum(one.address == address for one in said) <= known or self._is_checking:
            return
        self._is_checking = True
        try:
            before = self._primary.address
            if before is not None and await self._role(before) != b"master" and await self._role(address) == b"master":
                log.warning("the sentinels of %s have begun again at epoch %d", self._server.endpoint.name, epoch,
                            extra={"event": "sentinels_began_again"})
                self._primary.announced(*address, epoch, starts_over=True)
        finally:
            self._is_checking = False

    async def _role(self, address: tuple[str, int]) -> bytes | None:
        """What a server says it is; None when it cannot be reached."""
        connection = self._interface.connection(self._primary.at(address))
        try:
            await connection.connect()
            role: bytes = (await connection.call("ROLE"))[0]
        except (*BROKEN, redis.RedisError):
            return None
        else:
            return role
        finally:
            await connection.close()

    async def _wait(self, listener: DedicatedConnection, name: str, generation: int) -> None:
        """Until a change is announced, or it is this sentinel's turn to be asked."""
        names, now = list(self._endpoints), time.monotonic()
        turn = now + (names.index(name) * ASKED_EVERY - now) % (len(names) * ASKED_EVERY)
        while self._generation == generation and (left := turn - time.monotonic()) > 0:
            with suppress(redis.TimeoutError):
                await listener.read(min(left, SILENCE / 4))
                return


def _fields(flat: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2]))
