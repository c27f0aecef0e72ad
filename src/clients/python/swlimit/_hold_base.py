"""How limiters of holds decide, and the guards of holds."""

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._base import BaseLimiter, Claim, Key, OnFailure, checked_name
from ._core.clock import running
from ._core.decision import HoldDecision
from ._core.quota import Duration, checked_integer, milliseconds, part
from ._local_holds import LocalHold, LocalHolds
from ._protocol.commands import Hold
from ._protocol.script_fallback import Module
from ._sync_async import C
from ._transport.breaker import LAST_PROBE
from ._transport.hold_renewer import LiveHold

if TYPE_CHECKING:
    from typing_extensions import Self

L = TypeVar("L", bound=BaseLimiter, covariant=True)
LEAST_TTL = 3000  # ms


@dataclass(frozen=True, slots=True)
class HoldRequest(Generic[L]):
    """A request for a hold; `ttl` in ms."""

    limiter: L
    key: bytes
    cost: int
    ttl: int
    limit: int
    name: str | None = None

    def command(self, id: bytes, wait: float | None = None) -> Hold:
        """wait: in seconds."""
        return Hold(self.key, self.limit, self.ttl, id, self.cost, None if wait is None else int(wait * 1000))


class HoldGuard:
    """A hold that was requested; true when it is granted. It is renewed until it is released, left or lost.

    It has the fields of its `decision`: `granted`, `limit`, `remaining`, `retry_after`, `token` and so on.
    """

    def __init__(self, request: HoldRequest[Any], id: bytes, decision: HoldDecision, claim: Claim) -> None:
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
        return self._is_mine and (self._claim is None or self._claim.is_live)

    @property
    def _is_mine(self) -> bool:
        return not self._is_left and os.getpid() == self._process

    def _lose(self) -> None:
        self._is_left = True
        self.lost.set()

    def release_soon(self) -> None:
        """End the hold, once, without waiting for the server."""
        if self._is_mine:
            self._is_left = True
            self._limiter._drop(self._claim)

    def _give_up(self) -> Claim:
        """Stop renewing it: another command ends it."""
        self._is_left = True
        if isinstance(self._claim, LiveHold):
            self._claim.is_over = True
        return self._claim

    def _hand_over(self) -> Claim:
        """Renew it for one more time to live at most, until another command has ended it."""
        self._is_left = True
        if isinstance(self._claim, LiveHold):
            self._claim.renewed_until = min(self._claim.renewed_until, running() + self._claim.ttl / 1000)
        return self._claim

    async def _leave(self) -> None:
        """Release the hold, once. When the server does not answer, that goes on in the background."""
        if self._is_mine:
            self._is_left = True
            await self._limiter._release(self._claim)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and not getattr(self, "_is_left", True) and self._is_mine:
            self._limiter._drop(self._claim)


class HoldLimiterBase(BaseLimiter, Generic[C]):
    """What `HoldLimiter` and `AsyncHoldLimiter` decide by."""

    _guard_type: type[HoldGuard]

    def __init__(
        self, client: C | None, limit: int, ttl: Duration = "30s", *, on_failure: OnFailure = "error",
        local_share: float = 0.1, timeout: Duration = 1, max_waiting: int = 10, prefix: Key = b"",
        module: Module = "auto",
    ) -> None:
        """At most `limit` units are held at once.

        client: of redis-py; None for a limiter without a server, whose holds are in this process.
        ttl: how long the server keeps a hold that is not renewed, at least 3 s; a guard renews every third of it.
        on_failure: while the server is unavailable, taking a hold raises UnavailableError ("error"); or holds are
            taken in this process, from a part of the limit ("local"), `local_share`; or all are granted ("allow") or
            denied ("deny").
        timeout: the longest that a request waits for the server, beside its own `wait`.
        max_waiting: how many connections may wait. prefix: begins the names of all keys.
        module: as of a Limiter.
        """
        self.limit = checked_integer(limit, "limit", least=0)
        self.ttl = _checked_ttl(ttl)
        self._set_up(client, on_failure, local_share, timeout, 1, max_waiting, prefix, module)
        self._local = LocalHolds()
        self._connect(client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit} {self.ttl}ms>"

    def request(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, limit: int | None = None,
                name: str | None = None) -> "HoldRequest[Self]":
        """A part of what `admit` decides. name: says in `denied_by` which part this is."""
        checked_integer(cost, "cost", least=1)
        ttl_ms = self.ttl if ttl is None else _checked_ttl(ttl)
        most = self.limit if limit is None else checked_integer(limit, "limit", least=0)
        return HoldRequest(self, self._name(key), cost, ttl_ms, most, checked_name(name))

    def _guard(self, request: HoldRequest[Any], id: bytes, decision: HoldDecision, claim: Claim) -> Any:
        """The guard of a decision, whose hold is renewed from now on."""
        guard = self._guard_type(request, id, decision, claim)
        if decision:
            self._keep(guard, claim)
        return guard

    async def _release(self, claim: Claim) -> None:
        if isinstance(claim, LocalHold):
            self._release_here(claim)
        else:
            await super()._release(claim)

    def _release_here(self, claim: LocalHold) -> None:
        self._local.release(claim)
        self._queues.wake(claim.key, is_shared=False)

    def _drop(self, claim: Claim) -> None:
        if isinstance(claim, LocalHold):
            self._local.drop(claim)
        else:
            super()._drop(claim)

    def _by_policy(self, request: HoldRequest[Any]) -> tuple[HoldDecision, Claim]:
        """The decision without a server. Who still waits when the limiter is closed is denied."""
        if not self._is_closed and (self._state is None or self._on_failure == "local"):
            return self._take_here(request)
        if not self._is_closed and self._on_failure == "allow":
            return HoldDecision(request.cost, request.limit, None, 0.0, None, None, "failure"), None
        return HoldDecision(0, request.limit, None, LAST_PROBE, None, None, self._local_source), None

    def _take_here(self, request: HoldRequest[Any], ends: float = math.inf) -> tuple[HoldDecision, Claim]:
        """Decide in this process; the hold ends at that instant of `running`."""
        limit, source = part(request.limit, self._share), self._local_source
        claim, left = self._local.take(request.key, request.cost, limit, ends)
        if claim is not None:
            return HoldDecision(request.cost, limit, left, 0.0, None, None, source), claim
        return HoldDecision(0, limit, left, None, None, None, source, request.cost > limit), None


def _checked_ttl(ttl: Duration) -> int:
    ms = milliseconds(ttl, "ttl")
    if ms < LEAST_TTL:
        raise ValueError(f"ttl must be at least 3s, not {ttl!r}")
    return ms
