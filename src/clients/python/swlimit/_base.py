"""What all limiters have in common: a client's servers, and the options for failures."""

import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, get_args

from ._core import fork
from ._core.clock import MACHINE, Clock
from ._core.decision import Decision, HoldDecision, Source
from ._core.denial_cache import DenialCache
from ._core.quota import Duration, checked_integer, checked_share, seconds
from ._local_holds import LocalHold
from ._protocol.commands import Command, Release, Repeat
from ._protocol.script_fallback import MODULES, Module, TakenOver
from ._transport.blocking_connections import BlockingConnections
from ._transport.core import Core, Cores
from ._transport.hold_renewer import LiveHold, RepeatedCommand
from ._transport.interface import Interface, Signal, Worker
from ._transport.server_health import ServerState
from ._transport.wait_queue import KeyQueues
from .errors import SwlimitError, UnavailableError

Key = str | bytes
KeyOf = Key | Callable[..., Key]
"""A key, or a function of a call's arguments that returns it."""
ClusterMode = Literal["auto", "on", "off"]
"""Whether an address that a limiter opens is a cluster's: "auto" finds out."""
OnFailure = Literal["local", "allow", "deny", "error"]
Claim = LiveHold | LocalHold | None
"""What a granted hold has taken: units on the server, in this process, or none."""

POLLING = 0.1
"""Seconds between two requests of a caller that waits without a place in the server's queue."""
LONGEST_WAIT = 20 * 24 * 60 * 60.0  # about the longest that the system can wait at once


class Statistics:
    """How many decisions came from which source."""

    def __init__(self, taken_over: TakenOver, evicted: Callable[[], int]) -> None:
        self._taken_over, self._evicted = taken_over, evicted
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        """A forked child counts its own."""
        self._lock = threading.Lock()
        self.server = self.cache = self.failure = self.local = 0
        self.denied: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        """How many of those were denials."""

    def add(self, decision: Decision | HoldDecision) -> None:
        with self._lock:
            self.__dict__[decision.source] += 1
            if not decision.granted:
                self.denied[decision.source] += 1

    def of(self, source: Source) -> tuple[int, int]:
        """How many requests were granted, and how many denied: at one moment, so that neither number falls."""
        with self._lock:
            denied = self.denied[source]
            return self.__dict__[source] - denied, denied

    @property
    def taken_over(self) -> int:
        """How many keys of the script the limiter's client has handed to the module."""
        return self._taken_over.count

    @property
    def evicted(self) -> int:
        """How many keys this process has forgotten that still counted, because there were more than `max_keys`."""
        return self._evicted()

    def __repr__(self) -> str:
        return f"<{', '.join(f'{source}: {getattr(self, source)}' for source in get_args(Source))}>"


class BaseLimiter:
    """The base of all limiters."""

    _states: Cores
    _open: Any
    _open_cluster_url: Any
    _interface: Interface
    _state: Core | None
    """None without a client, and when the limiter is closed."""
    _denials: DenialCache | None = None
    _clock: Clock = MACHINE
    _tracing: Any = None
    """Called with a method's name, limiters, and the coroutine that decides; returns one that is traced."""
    _opened: Any = None
    """The client that this limiter has made, and closes."""

    def _set_up(self, client: Any, on_failure: OnFailure, local_share: float, timeout: Duration, max_keys: int,
                max_waiting: int, prefix: Key, module: Module) -> None:
        """Check and keep the options that all limiters have."""
        one_of("on_failure", on_failure, get_args(OnFailure))
        one_of("module", module, MODULES)
        self._module: Module = module
        self._on_failure = on_failure
        self._timeout = seconds(timeout, "timeout")
        self._prefix = as_bytes(prefix, "prefix")
        checked_integer(max_keys, "max_keys", least=1)
        checked_integer(max_waiting, "max_waiting", least=1)
        share = checked_share(local_share, "local_share")
        self._share = 1_000_000 if client is None else share
        """This process's share of each limit, in millionths, when it decides alone."""
        self._local_source: Source = "local" if client is None else "failure"
        self._is_closed = False
        self._guards: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pauses: set[Signal] = set()
        self._blocking = BlockingConnections(self._interface, max_waiting, self._timeout)
        self._state = None

    def _connect(self, client: Any) -> None:
        """Join the other limiters of this client, if there is a client."""
        if client is None:
            taken_over, self._queues = TakenOver(), KeyQueues(self._interface)
        else:
            self._check_client(client)
            self._state = self._states.of(client, self._module)
            taken_over, self._queues = self._state.taken_over, self._state.queues
            self._state.join(self, self._denials)
        self.statistics = Statistics(taken_over, self._evicted)

    def _evicted(self) -> int:
        """How many keys that this process counts were forgotten too early."""
        return 0

    @classmethod
    def _open_url(cls, url: str, cluster: ClusterMode) -> tuple[Any, "Callable[[], Awaitable[Any]] | None"]:
        """A client of a URL, and how to open one of the cluster that its address turns out to belong to."""
        one_of("cluster", cluster, get_args(ClusterMode))
        if cluster == "on":
            return cls._open_cluster_url(url), None

        async def open_cluster() -> Any:
            client = cls._open_cluster_url(url)
            if inspect.isawaitable(connecting := client.initialize() if hasattr(client, "initialize") else None):
                await connecting
            return client

        return cls._open(url), None if cluster == "off" else open_cluster

    def _opened_by(self, client: Any, open_cluster: "Callable[[], Awaitable[Any]] | None") -> None:
        """It closes this client, which it has opened."""
        self._opened = client
        if self._state is not None:
            self._state.open_cluster = open_cluster

    def _check_client(self, client: Any) -> None:
        """Raise TypeError unless the client is of this limiter's kind."""
        raise NotImplementedError

    @staticmethod
    async def _close_client(client: Any) -> None:
        """Close a client of this limiter's kind."""
        raise NotImplementedError

    @property
    def _counts_here(self) -> bool:
        """Whether this process counts what it decides in place of a server."""
        return self._local_source == "local" or self._on_failure == "local"

    def servers(self) -> tuple[ServerState, ...]:
        """The state of each server that was used so far; none without a client."""
        state = self._state  # another thread may close the limiter
        return () if state is None else tuple(server.state for server in state.topology.all())

    def _name(self, key: Key) -> bytes:
        if self._is_closed:
            raise SwlimitError("the limiter is closed")
        return self._prefix + as_bytes(key)

    async def _close(self) -> None:
        """Release all holds, close connections, and forget everything. The client's last limiter first takes the time
        to send what waits for a server that is away."""
        for guard in list(self._guards):
            if not guard._is_left:
                await guard._leave()
                guard.lost.set()
        self._is_closed = True
        for pause in list(self._pauses):
            pause.set()
        await self._blocking.close()
        state, denials = self._state, self._denials
        workers: list[Worker] = []
        opened = [self._opened]
        try:
            if state is not None:
                await state.settle(self)
        finally:
            self._state = self._denials = None
            if state is not None and state.leave(self, denials):
                workers = state.close_connections()
                opened.append(state.opened)
            self._opened = None
            for client in opened:
                if client is not None:
                    await self._close_client(client)
        await self._interface.ended(workers)

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until it is closed."""
        pause = self._interface.signal()
        self._pauses.add(pause)
        try:
            if not self._is_closed:
                await pause.wait(seconds)
        finally:
            self._pauses.discard(pause)

    def _send(self, command: Command, wait: float | None = None) -> Coroutine[Any, Any, Any]:
        """The reply to a command. Raises UnavailableError when the failure policy must decide."""
        if self._state is None:
            raise UnavailableError("the limiter was closed meanwhile")
        return self._state.send(command, self._timeout, self._timeout if wait is None else wait)

    def _in_background(self, key: bytes, one: LiveHold | RepeatedCommand) -> None:
        """Have the renewer of the key's server do it."""
        renewer = None if self._state is None else self._state.renewer_of(key)
        if renewer is not None:
            renewer.add(one)

    # Holds.

    def _keep(self, guard: Any, claim: Claim) -> None:
        """Renew the hold of a guard from now on."""
        self._guards.add(guard)
        if claim is None:
            return
        weak = weakref.ref(guard)

        def on_lost() -> None:
            if (guard := weak()) is not None:
                guard._lose()

        claim.on_lost = on_lost
        if isinstance(claim, LiveHold):
            self._in_background(claim.key, claim)

    async def _release(self, claim: Claim) -> None:
        """Release a hold. When the server does not answer, that goes on in the background."""
        if not isinstance(claim, LiveHold) or not claim.is_live:
            return
        claim.is_over = True
        command = Release(claim.key, [claim.id], Repeat(claim.ttl / 1000))
        try:
            await self._send(command)
        except BaseException as error:
            self._in_background(claim.key, RepeatedCommand.of(command))
            if not isinstance(error, UnavailableError):
                raise
        self._queues.wake(claim.key, is_shared=True)

    def _drop(self, claim: Claim) -> None:
        """Release a hold in the background. Takes no lock: this thread may hold any."""
        if isinstance(claim, LiveHold) and self._state is not None:
            renewer = self._state.renewer_of(claim.key)
            if renewer is not None:
                renewer.release(claim)

    def _wait(self, deadline: Duration | None) -> float:
        """How long a request may wait for a server when its caller waits until this deadline."""
        if deadline is None:
            return self._timeout
        return min(self._timeout, time_before(seconds(deadline, "deadline", least=0)))


def as_bytes(key: Key, name: str = "key") -> bytes:
    """Keys are bytes internally."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"{name} must be str or bytes, not {key!r}")


def checked_name(name: str | None) -> str | None:
    """The name of a part of what `admit` decides, if it has one."""
    if name is not None and not (isinstance(name, str) and name):
        raise ValueError(f"name must be a text, not {name!r}")
    return name


def key_of(key: KeyOf, *args: Any, **kwargs: Any) -> Key:
    """The key of a call."""
    return key(*args, **kwargs) if callable(key) else key


def longest_wait(timeout: Duration | None, name: str = "timeout") -> float:
    """How many seconds to wait at most; None is as good as for ever."""
    return LONGEST_WAIT if timeout is None else min(seconds(timeout, name, least=0), LONGEST_WAIT)


def time_before(deadline: float) -> float:
    """How long to wait for a server before a deadline: until a tenth before it, 1 to 5 ms."""
    return 0.0 if deadline < 0.002 else deadline - min(0.005, max(0.001, deadline / 10))


def one_of(name: str, value: object, values: Iterable[object]) -> None:
    if value not in values:
        raise ValueError(f"{name} must be {', '.join(repr(one) for one in values if one)}, not {value!r}")
