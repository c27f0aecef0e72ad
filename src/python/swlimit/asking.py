"""What all limiters have in common: the servers of a client, and how these are asked."""

import threading
import time
from collections.abc import Iterable
from typing import Any, Literal, get_args

import redis.exceptions as of_redis

from . import fork
from .backend import MODULES, Module
from .commands import Command
from .decision import Source
from .denials import Denials
from .errors import ServerAway, SwlimitError
from .link import Link, Links
from .outside import Outside
from .quota import Duration, checked_integer, checked_share, seconds
from .renewing import Errand, Held
from .servers import Server, ServerState
from .waiting import Turns, Waiting

Key = str | bytes
OnFailure = Literal["local", "allow", "deny", "error"]

ASK_AGAIN = 0.1
"""Seconds after which who waits without a place in the server's queue asks again."""
LONGEST_WAIT = 20 * 24 * 60 * 60.0  # about the most that the system waits for at once


class Statistics:
    """How many decisions came from which source."""

    def __init__(self) -> None:
        self.server = self.cache = self.failure = self.local = 0
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()

    def add(self, source: Source) -> None:
        with self._lock:
            self.__dict__[source] += 1

    def __repr__(self) -> str:
        return f"<{', '.join(f'{source}: {getattr(self, source)}' for source in get_args(Source))}>"


class Asking:
    """The base of all limiters."""

    _links: Links
    _outside: Outside
    _link: Link | None
    _denials: Denials | None = None

    def _set_up(self, client: Any, on_failure: OnFailure, local_share: float, timeout: Duration, max_keys: int,
                max_waiting: int, prefix: Key, module: Module) -> None:
        """Check and keep the options that all limiters have."""
        one_of("on_failure", on_failure, get_args(OnFailure))
        one_of("module", module, MODULES)
        self.statistics = Statistics()
        self._module: Module = module
        self._on_failure = on_failure
        self._timeout = seconds(timeout, "timeout")
        self._prefix = as_bytes(prefix, "prefix")
        checked_integer(max_keys, "max_keys", least=1)
        checked_integer(max_waiting, "max_waiting", least=1)
        share = checked_share(local_share, "local_share")
        self._share = 1_000_000 if client is None else share
        """The millionths of a limit that this process may use when it decides alone."""
        self._local_source: Source = "local" if client is None else "failure"
        self._is_closed = False
        self._waiting, self._turns = Waiting(self._outside, max_waiting), Turns(self._outside)
        self._link = None

    def _connect(self, client: Any) -> None:
        """Join the other limiters of this client, if there is one."""
        if client is not None:
            self._check_client(client)
            self._link = self._links.of(client, self._module)
            self._link.join(self, self._denials)

    def _check_client(self, client: Any) -> None:
        """Raise TypeError unless it is one of this kind of limiters."""
        raise NotImplementedError

    def servers(self) -> tuple[ServerState, ...]:
        """How its servers are, as far as they have been met; none without a client."""
        return () if self._link is None else tuple(server.state for server in self._link.topology.all())

    def _name(self, key: Key) -> bytes:
        if self._is_closed:
            raise SwlimitError("the limiter is closed")
        return self._prefix + as_bytes(key)

    async def _closing(self) -> None:
        """Let go of connections and of what is remembered."""
        await self._waiting.close()
        link, denials = self._link, self._denials
        self._is_closed = True
        self._link = self._denials = None
        if link is not None and link.leave(self, denials):
            await self._outside.ended(link.close_connections())

    async def _asking(self, command: Command, wait: float) -> Any:
        """The reply to a command. Raises ServerAway where the failure policy decides."""
        if self._link is None:
            raise ServerAway("the limiter was closed meanwhile")
        server = self._link.of(command.key)
        if server is None:
            server = await self._located(command.key, wait)
        asking = again = False
        while True:
            if server.breaker.is_open:
                raise ServerAway(server.breaker.reason)
            try:
                return await server.wire.send(command, self._timeout, wait, asking)
            except (of_redis.AskError, of_redis.TryAgainError) as error:
                if again:
                    raise server.lost(error, command.key) from error
                again = True
                asking = isinstance(error, of_redis.AskError) and not isinstance(error, of_redis.MovedError)
                if isinstance(error, of_redis.AskError):
                    server = self._link.redirected(error)

    def _beside(self, key: bytes, one: Held | Errand) -> None:
        """Have the worker of the key's server see to it."""
        server = None if self._link is None else self._link.topology.of(key)
        if server is not None:
            server.renewer.add(one)

    async def _located(self, key: bytes, wait: float) -> Server:
        """The server of a cluster that has not told yet which it has."""
        assert self._link is not None
        await self._link.locate(wait)
        server = self._link.of(key)
        if server is None:
            raise ServerAway("no server of the cluster is known to have this key")
        return server

    def _wait(self, deadline: Duration | None) -> float:
        """How long a request may wait for a server whose caller waits so long."""
        if deadline is None:
            return self._timeout
        return min(self._timeout, time_before(seconds(deadline, "deadline", least=0)))


def as_bytes(key: Key, name: str = "key") -> bytes:
    """Servers name keys in bytes, so does everything behind the door."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"{name} must be str or bytes, not {key!r}")


def instant_after(timeout: Duration | None, name: str = "timeout") -> float:
    """When a wait ends; None is as good as never."""
    waits = LONGEST_WAIT if timeout is None else min(seconds(timeout, name, least=0), LONGEST_WAIT)
    return time.monotonic() + waits


def time_before(deadline: float) -> float:
    """How long to wait for a server where the caller waits so long: until a tenth before, 1 to 5 ms."""
    return 0.0 if deadline < 0.002 else deadline - min(0.005, max(0.001, deadline / 10))


def one_of(name: str, value: object, values: Iterable[object]) -> None:
    if value not in values:
        raise ValueError(f"{name} must be {', '.join(repr(one) for one in values if one)}, not {value!r}")
