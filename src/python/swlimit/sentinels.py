"""Where the primary is, as sentinels tell: all of them are listened to, and one is asked each second besides, because
word of a change may be lost. A sentinel that was cut off knows of an earlier primary: only the latest epoch counts.
"""

import inspect
import logging
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import redis

from . import fork
from .errors import BROKEN
from .outside import Conversation, Outside
from .servers import SILENCE, Home, OneServer, Server, Servers, home

ASKED_EVERY = 1.0
"""Seconds between two questions, whichever sentinels they are for."""
SWITCH = "+switch-master"
log = logging.getLogger("swlimit")


class Followed(Home):
    """The home of a primary: it knows the connections that were made to it."""

    def connection(self, **options: Any) -> Any:
        connection = super().connection(**options)
        self.connection_kwargs["connection_pool"].made(connection)
        return connection


class Primary:
    """What connections of redis-py's have for the pool that knows where to connect to."""

    is_master = True

    def __init__(self, pool: Any, outside: Outside) -> None:
        manager, kwargs = pool.sentinel_manager, pool.connection_kwargs
        self._pool = kwargs["connection_pool"]
        self.check_connection = pool.check_connection
        self._outside = outside
        self._ip: str | None = getattr(manager, "_force_master_ip", None)
        self._epoch = -1
        self._address: tuple[str, int] | None = None
        self.home = Followed(*home(pool.service_name, pool.connection_class, kwargs | {"connection_pool": self}))
        self.server: Server
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.RLock()  # reentrant: a link may be collected, and closed, while this thread holds it
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()

    def made(self, connection: Any) -> None:
        with self._lock:
            self._made.add(connection)

    def get_master_address(self) -> Any:
        """Awaited with asyncio. Until a sentinel has told here, redis-py asks them itself."""
        ask = self._pool.get_master_address
        if self._address is None:
            return ask()
        return _already(self._address) if inspect.iscoroutinefunction(ask) else self._address

    def told(self, ip: str, port: int, epoch: int) -> None:
        """A sentinel says so. Connections that lead elsewhere are given up, also such as were being made meanwhile."""
        before = None
        with self._lock:
            if epoch > self._epoch:
                before, self._epoch, self._address = self._address, epoch, (self._ip or ip, port)
            address = self._address
            strays = [one for one in self._made if (one.host, one.port) != address]
        if before is not None and address is not None and before != address:
            self.server.failovers += 1
            log.warning("the primary of %s is %s:%d, and no longer %s:%d", self.home.name, *address, *before)
            self.server.close()
        for one in strays:
            self._outside.cut(one)


async def _already(address: tuple[str, int]) -> tuple[str, int]:
    return address


class Sentinels(OneServer):
    """The server of a client that is behind sentinels. For each of them there is a worker, with two connections."""

    def __init__(self, client: Any, make: Servers, outside: Outside) -> None:
        pool = client.connection_pool
        self._outside = outside
        self._primary = Primary(pool, outside)
        super().__init__(self._primary.home, make)
        self._primary.server = self._server
        self._homes: dict[str, Home] = {}
        self._generation = 0
        """Raised when the workers are not needed any more."""
        self.begin_anew()
        for seed in pool.sentinel_manager.sentinels:
            kwargs = seed.connection_pool.connection_kwargs
            self._add(kwargs["host"], kwargs["port"], home("", seed.connection_pool.connection_class, kwargs))
        self._seeds = frozenset(self._homes)
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.RLock()  # reentrant: a link may be collected, and closed, while this thread holds it
        self._workers: dict[str, Any] = {}
        self._generation += 1

    def of(self, key: bytes) -> Server:
        for name in self._homes:
            if not self._outside.is_running(self._workers.get(name)):
                self._begin(name)
        return self._server

    def leave(self) -> list[Any]:
        with self._lock:
            workers, self._workers = self._workers, {}
            self._generation += 1
        return list(workers.values())

    def _begin(self, name: str) -> None:
        with self._lock, suppress(RuntimeError):  # no thread is to be had: there may be one for the next request
            if name in self._homes and not self._outside.is_running(self._workers.get(name)):
                self._workers[name] = self._outside.spawn(self._hear(name, self._homes[name], self._generation))

    def _add(self, host: str, port: int, like: Home) -> None:
        name = f"{host}:{port}"
        with self._lock:
            if name not in self._homes:
                made = Home(name, like.connection_class, like.connection_kwargs | {"host": host, "port": port})
                self._homes = self._homes | {name: made}  # another one, as there may be who walks through this

    def _drop(self, name: str) -> None:
        with self._lock:
            self._homes = {other: home for other, home in self._homes.items() if other != name}

    async def _hear(self, name: str, home: Home, generation: int) -> None:
        """Hear what one sentinel tells, as long as that is needed. One that others have named is forgotten when it is
        away, until they name it again."""
        while self._generation == generation:
            listener, asker = (self._outside.conversation(home) for _ in range(2))
            try:
                for one in (listener, asker):
                    await one.connect()
                await listener.exchange(("SUBSCRIBE", SWITCH))  # where that is refused, it is asked only
                while self._generation == generation:
                    await self._ask(asker, home)
                    await self._rest(listener, name, generation)
            except (*BROKEN, redis.RedisError, ValueError) as error:
                log.debug("no word from the sentinel %s: %s", name, error)
            finally:
                for one in (listener, asker):
                    await one.close()
            if name not in self._seeds:
                self._drop(name)
                return
            if self._generation == generation:
                await self._outside.sleep(ASKED_EVERY)

    async def _ask(self, asker: Conversation, home: Home) -> None:
        name = self._server.home.name
        told, others = [await asker.call("SENTINEL", question, name) for question in ("MASTER", "SENTINELS")]
        for one in others:
            found = _fields(one)
            self._add(found["ip"], int(found["port"]), home)
        found = _fields(told)
        self._primary.told(found["ip"], int(found["port"]), int(found["config-epoch"]))

    async def _rest(self, listener: Conversation, name: str, generation: int) -> None:
        """Until there is word of a change, or it is this sentinel's turn to be asked."""
        names, now = list(self._homes), time.monotonic()
        turn = now + (names.index(name) * ASKED_EVERY - now) % (len(names) * ASKED_EVERY)
        while self._generation == generation and (left := turn - time.monotonic()) > 0:
            with suppress(redis.TimeoutError):
                await listener.read(min(left, SILENCE / 4))
                return


def _fields(flat: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2]))
