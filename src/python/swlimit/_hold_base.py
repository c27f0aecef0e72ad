"""How limiters of holds decide, and the guards of holds."""

import math
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ._base import BaseLimiter, Key, OnFailure
from ._core.decision import HoldDecision
from ._core.quota import Duration, checked_integer, milliseconds, part
from ._local_holds import LocalHold, LocalHolds
from ._protocol.commands import Hold, Release, Repeat
from ._protocol.script_fallback import Module
from ._transport.circuit_breaker import LAST_PROBE
from ._transport.hold_renewer import LiveHold, RepeatedCommand
from .errors import ServerAway

LEAST_TTL = 3000  # ms


class HoldRequest(NamedTuple):
    """A request for a hold. `limiter` is a HoldLimiter or an AsyncHoldLimiter, `ttl` in ms."""

    limiter: Any
    key: bytes
    cost: int
    ttl: int
    limit: int

    def command(self, id: bytes, wait: float | None = None) -> Hold:
        """wait: in seconds."""
        return Hold(self.key, self.limit, self.ttl, id, self.cost, None if wait is None else int(wait * 1000))


Claim = LiveHold | LocalHold | None
"""What a granted hold has taken: units on the server, in this process, or none."""


class HoldGuard:
    """A hold that was requested; true when it is granted. It is renewed until it is released, left or lost.

    It has the fields of its `decision`: `granted`, `limit`, `remaining`, `retry_after`, `token` and so on.
    """

    def __init__(self, request: HoldRequest, id: bytes, decision: HoldDecision, claim: Claim) -> None:
        self.key, self.id, self.decision = request.key, id, decision
        self.lost = request.limiter._interface.event()
        """Set when the hold is over and was not released here. It may come a little late; `is_live` never does."""
        self._limiter = request.limiter
        self._claim = claim
        self._process = os.getpid()
        self._is_left = not decision

    def __getattr__(self, name: str) -> Any:
        if name in HoldDecision._fields:
            return getattr(self.decision, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __bool__(self) -> bool:
        return bool(self.decision)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} {'live' if self.is_live else 'over'} {self.decision}>"

    @property
    def is_live(self) -> bool:
        """Whether the holder may go on, by the clock at each call. Always False in a child process."""
        return self._is_mine and (self._claim.is_live if isinstance(self._claim, LiveHold) else True)

    @property
    def _is_mine(self) -> bool:
        return not self._is_left and os.getpid() == self._process

    def _lose(self) -> None:
        self._is_left = True
        self.lost.set()

    def _give_up(self) -> Claim:
        """Stop renewing it: another command ends it."""
        self._is_left = True
        if isinstance(self._claim, LiveHold):
            self._claim.is_over = True
        return self._claim

    async def _leave(self) -> None:
        """Release the hold, once. When the server does not answer, that goes on in the background."""
        if self._is_mine:
            self._is_left = True
            await self._limiter._release(self._claim)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and not getattr(self, "_is_left", True) and self._is_mine:
            self._limiter._drop(self._claim)


class HoldLimiterBase(BaseLimiter):
    """What `HoldLimiter` and `AsyncHoldLimiter` decide by."""

    _guard_type: type[HoldGuard]

    def __init__(
        self, client: Any, limit: int, ttl: Duration = "30s", *, on_failure: OnFailure = "local",
        local_share: float = 0.1, timeout: Duration = 0.05, max_waiting: int = 10, prefix: Key = b"",
        module: Module = "auto",
    ) -> None:
        """At most `limit` units are held at once.

        client: of redis-py; None for a limiter without a server, whose holds are in this process.
        ttl: how long the server keeps a hold that is not renewed, at least 3 s; a guard renews every third of it.
        on_failure: while the server is unavailable, holds are taken in this process, from a part of the limit
            ("local"), `local_share`; or all are granted ("allow") or denied ("deny"), or raise ServerAway ("error").
        timeout: the longest that a request waits for the server, beside its own `wait`.
        max_waiting: how many connections may wait. prefix: begins the names of all keys.
        module: as of a Limiter.
        """
        self.limit = checked_integer(limit, "limit", least=0)
        self.ttl = _checked_ttl(ttl)
        self._set_up(client, on_failure, local_share, timeout, 1, max_waiting, prefix, module)
        self._local = LocalHolds()
        self._guards: weakref.WeakSet[HoldGuard] = weakref.WeakSet()
        self._connect(client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit} {self.ttl}ms>"

    def request(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, limit: int | None = None) -> HoldRequest:
        """A part of what `admit` decides."""
        checked_integer(cost, "cost", least=1)
        ttl_ms = self.ttl if ttl is None else _checked_ttl(ttl)
        most = self.limit if limit is None else checked_integer(limit, "limit", least=0)
        return HoldRequest(self, self._name(key), cost, ttl_ms, most)

    def _guard(self, request: HoldRequest, id: bytes, decision: HoldDecision, claim: Claim) -> Any:
        """The guard of a decision, whose hold is renewed from now on."""
        guard = self._guard_type(request, id, decision, claim)
        if decision:
            self._guards.add(guard)
        if isinstance(claim, LiveHold):
            weak = weakref.ref(guard)

            def on_lost() -> None:
                if (guard := weak()) is not None:
                    guard._lose()

            claim.on_lost = on_lost
            self._in_background(request.key, claim)
        return guard

    async def _close(self) -> None:
        """Release all holds, and close connections."""
        for guard in list(self._guards):
            if not guard._is_left:
                await guard._leave()
                guard.lost.set()
        await super()._close()

    async def _release(self, claim: Claim) -> None:
        if isinstance(claim, LocalHold):
            self._release_here(claim)
        if not isinstance(claim, LiveHold) or not claim.is_live:
            return
        claim.is_over = True
        command = Release(claim.key, [claim.id], Repeat(claim.ttl / 1000))
        try:
            await self._send(command)
        except BaseException as error:
            self._in_background(claim.key, RepeatedCommand.of(command))
            if not isinstance(error, ServerAway):
                raise
        self._queues.wake(claim.key, is_shared=True)

    def _release_here(self, claim: LocalHold) -> None:
        self._local.release(claim)
        self._queues.wake(claim.key, is_shared=False)

    def _drop(self, claim: Claim) -> None:
        """Release the hold of a guard that was collected. Takes no lock: this thread may hold any."""
        if isinstance(claim, LocalHold):
            self._local.drop(claim)
        elif claim is not None and self._state is not None:
            renewer = self._state.renewer_of(claim.key)
            if renewer is not None:
                renewer.release(claim)

    def _by_policy(self, request: HoldRequest) -> tuple[HoldDecision, Claim]:
        """The decision without a server. Who still waits when the limiter is closed is denied."""
        if not self._is_closed and (self._state is None or self._on_failure == "local"):
            return self._take_here(request)
        if not self._is_closed and self._on_failure == "allow":
            return HoldDecision(request.cost, request.limit, None, 0.0, None, None, "failure"), None
        return HoldDecision(0, request.limit, None, LAST_PROBE, None, None, self._local_source), None

    def _take_here(self, request: HoldRequest) -> tuple[HoldDecision, Claim]:
        """Decide in this process."""
        limit, source = part(request.limit, self._share), self._local_source
        claim, left = self._local.take(request.key, request.cost, limit)
        if claim is not None:
            return HoldDecision(request.cost, limit, left, 0.0, None, None, source), claim
        return HoldDecision(0, limit, left, math.inf if request.cost > limit else None, None, None, source), None


def _checked_ttl(ttl: Duration) -> int:
    ms = milliseconds(ttl, "ttl")
    if ms < LEAST_TTL:
        raise ValueError(f"ttl must be at least 3s, not {ttl!r}")
    return ms
