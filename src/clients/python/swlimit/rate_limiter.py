"""Limiters of rates: at most `limit` units in a sliding window."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ._acquisition import Acquisition
from ._base import ClusterMode, Key, KeyOf, checked_name, key_of, longest_wait
from ._core.decision import Decision
from ._core.quota import Duration, checked_flag, checked_integer, milliseconds
from ._core.rates import parse_rate
from ._protocol.commands import Allow, Block, Command, Delete, Peek, Record, Refund, Unblock
from ._rate_base import Options, RateLimiterBase, Request
from ._sync_async import AsyncClient, Awaited, C, Client, Threaded, dual_method
from ._transport.core import PendingRecord
from ._transport.thread_backend import run
from .errors import DeniedError, UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
R = TypeVar("R")


class _RateLimiter(RateLimiterBase[C]):
    """The methods of `Limiter` and `AsyncLimiter`."""

    @classmethod
    def from_url(cls, url: str, rate: str, resolution: Duration | None = None, *, cluster: ClusterMode = "auto",
                 **options: "Unpack[Options]") -> "Self":
        """A limiter of one rate, such as `100/minute`, on the server of a URL as redis-py takes it. Closing the limiter
        closes the client that it has made.

        cluster: whether the server is part of a cluster, whose servers are asked then: by default ("auto") the server
            says so.
        """
        limit, window = parse_rate(rate)
        client, open_cluster = cls._open_url(url, cluster)
        limiter = cls(client, limit, f"{window}ms", resolution, **options)
        limiter._opened_by(client, open_cluster)
        return limiter

    async def _allow(self, key: Key, cost: int = 1, *, partial: bool = False, block: Duration | None = None,
                     limit: int | None = None, deadline: Duration | None = None) -> Decision:
        """Decide, and count if granted.

        cost: units, 1 … 2^53 − 1. partial: grant as much of it as is left.
        block: for how long a denial blocks the key. limit: another limit, for this request.
        deadline: how long the caller waits at most; the decision is made a little before.
        """
        if self._state is None:
            return self._allow_here(key, cost, partial, block, limit, deadline)
        demand, wait = self._demand(key, cost, partial, block, limit), self._wait(deadline)
        known = self._known(demand)
        if known is not None:
            return known
        command = Allow(demand.key, demand.quota, cost, partial=partial, block=demand.block)
        return await self._decide(demand, command, wait)

    def _allow_here(self, key: Key, cost: int, partial: bool, block: Duration | None, limit: int | None,
                    deadline: Duration | None) -> Decision:
        """`allow` without a server: it awaits nothing, and needs no command."""
        if deadline is not None:
            self._wait(deadline)
        name, quota, blocked = self._checked(key, cost, partial, block, limit)
        return self._execute_here("local", Allow.name, name, quota, cost, partial, 0, blocked)

    async def _peek(self, key: Key, cost: int = 1, *, partial: bool = False, limit: int | None = None,
                    deadline: Duration | None = None) -> Decision:
        """The same decision, without counting."""
        demand, wait = self._demand(key, cost, partial, None, limit), self._wait(deadline)
        known = self._known(demand)
        if known is not None:
            return known
        return await self._decide(demand, Peek(demand.key, demand.quota, cost, partial=partial), wait)

    async def _record(self, key: Key, cost: int = 1, *, age: Duration = 0, block: Duration | None = None,
                      limit: int | None = None, keep: bool = False) -> Decision:
        """Count, whatever the limit; `age` ago.

        While the server is unavailable, raises UnavailableError; with `keep` it is counted here, and on the server when
        that is back.
        """
        demand = self._demand(key, cost, False, block, limit)
        checked_flag(keep, "keep")
        aged = milliseconds(age, "age", least=0)

        def make(passed: int) -> Record:
            return Record(demand.key, demand.quota, cost, age=aged + passed, block=demand.block)

        began = time.monotonic()
        try:
            return await self._decide(demand, make(0), self._timeout)
        except UnavailableError:
            server = self._state.of(demand.key) if keep and self._state is not None else None
            if self._state is None or server is None:
                raise
            self._state.keep(PendingRecord(server, began, demand.quota.geometry.window / 1000, make))
        return self._count_here(make(0), "failure")

    async def _refund(self, key: Key, units: int = 1, *, age: Duration | None = None) -> int:
        """Give back units: the newest, or those counted that long ago. Returns how many. Raises UnavailableError."""
        checked_integer(units, "units", least=1)
        aged = None if age is None else milliseconds(age, "age", least=0)
        taken: int = await self._change(Refund(self._name(key), units, age=aged), units=units, age=aged)
        return taken

    async def _block(self, key: Key, duration: Duration, *, unless_blocked: bool = False) -> float:
        """Let the key grant nothing for a duration; `unless_blocked`: if it is not blocked yet. Returns until when
        (Unix time). Raises UnavailableError."""
        ms = milliseconds(duration)
        until: int = await self._change(Block(self._name(key), ms, checked_flag(unless_blocked, "unless_blocked")),
                                          duration=ms, unless_blocked=unless_blocked)
        if self._state is None:  # the windows of this process go by a clock that nobody sets
            until += self._clock.shown() - self._clock.instant()
        return until / 1000

    async def _unblock(self, key: Key) -> bool:
        """Lift a block; whether there was one. Raises UnavailableError."""
        return bool(await self._change(Unblock(self._name(key))))

    async def _reset(self, key: Key) -> bool:
        """Forget what is counted for a key, and its block; whether there was anything. Raises UnavailableError."""
        return bool(await self._change(Delete(self._name(key))))

    async def _change(self, command: Command, **options: Any) -> Any:
        """Send a command that decides nothing; this process forgets the key's denials at once."""
        if self._state is None:
            return self._local.change(command.name, command.key, self._clock.instant(), **options)
        reply = await self._send(command)
        if self._denials is not None:
            self._denials.forget([command.key])
        if command.name == Delete.name:
            self._local.change(Delete.name, command.key, 0)
        return reply

    async def _acquire(self, key: Key, cost: int = 1, timeout: Duration | None = None) -> Decision:
        """`allow` that waits for its turn, at most `timeout`; it does not wait when that would be too short."""
        demand = self._demand(key, cost, False, None, None)
        return await Acquisition(self, demand, self._clock.monotonic() + longest_wait(timeout)).outcome()

    allow = dual_method(_allow)
    peek = dual_method(_peek)
    record = dual_method(_record)
    refund = dual_method(_refund)
    block = dual_method(_block)
    unblock = dual_method(_unblock)
    reset = dual_method(_reset)
    acquire = dual_method(_acquire)
    close = dual_method(RateLimiterBase._close)

    def request(self, key: Key, cost: int = 1, *, limit: int | None = None,
                name: str | None = None) -> "Request[Self]":
        """A part of a request that several limits must grant; see `allow_all` and `admit`.

        name: by which the `settle` of an admission says what was used.
        """
        return Request(self, self._demand(key, cost, False, None, limit), checked_name(name))

    def limit(self, key: KeyOf, cost: int = 1, *, timeout: Duration | None = 0) -> "Limit":
        """A context, or a decorator, that is entered only when granted, and raises DeniedError otherwise.

        As a decorator, the key may be a function of the call's arguments. A timeout waits; None for ever.
        """
        return Limit(self, key, cost, timeout)


class Limiter(Threaded, _RateLimiter[Client]):
    """Decides for any number of keys with one quota. Many threads may use one limiter."""

    def allow(self, key: Key, cost: int = 1, *, partial: bool = False, block: Duration | None = None,
              limit: int | None = None, deadline: Duration | None = None) -> Decision:
        if self._state is None:
            return self._allow_here(key, cost, partial, block, limit, deadline)
        return run(self._allow(key, cost, partial=partial, block=block, limit=limit, deadline=deadline))

    allow.__doc__ = _RateLimiter._allow.__doc__


class AsyncLimiter(Awaited, _RateLimiter[AsyncClient]):
    """Decides for any number of keys with one quota, on a client of redis.asyncio."""


class Limit:
    """See `Limiter.limit`. With an AsyncLimiter it is a context for `async with`, and decorates coroutines."""

    def __init__(self, limiter: Any, key: KeyOf, cost: int, timeout: Duration | None) -> None:
        self._limiter, self._key, self._cost, self._timeout = limiter, key, cost, timeout

    def __enter__(self) -> Decision:
        if isinstance(self._limiter, AsyncLimiter):
            raise TypeError("an AsyncLimiter's limit is entered by `async with`")
        return run(self._enter())

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Decision:
        return await self._enter()

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        def limit(*args: Any, **kwargs: Any) -> Limit:
            return Limit(self._limiter, key_of(self._key, *args, **kwargs), self._cost, self._timeout)

        return cast(Callable[P, R], self._limiter._within(limit, function))

    async def _enter(self) -> Decision:
        key = key_of(self._key)
        if self._timeout == 0:
            decision = await self._limiter._allow(key, self._cost)
        else:
            decision = await self._limiter._acquire(key, self._cost, self._timeout)
        if not decision:
            raise DeniedError(key, decision)
        return cast(Decision, decision)
