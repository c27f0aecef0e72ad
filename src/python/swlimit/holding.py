"""How many at once: limiters of holds, and the guards that they give."""

import math
import os
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import redis.exceptions as of_redis

from . import commands, fork
from .asking import ASK_AGAIN, Asking, Key, OnFailure, instant_after
from .backend import Module
from .breaker import LAST_PROBE
from .clock import running
from .commands import Command
from .decision import Source
from .errors import NoFreeConnection, ServerAway, is_let_go
from .outside import Outside, Signal
from .quota import Duration, checked_integer, milliseconds, part, seconds
from .renewing import Held, errand

LEAST_TTL = 3000  # ms
LONGEST_HOLD_WAIT = 3600.0


class HoldDecision(NamedTuple):
    """The answer to a request for a hold; true when granted. Durations are in seconds; what nobody knows is None."""

    granted: int
    """Units held: the cost; 0 is a denial."""
    limit: int
    remaining: int | None
    """Units that are still available."""
    retry_after: float | None
    """Until there is room, if nobody releases or renews: 0 when granted, infinity when there never can be."""
    expires_after: float | None
    """Until the hold ends unless it is renewed; None for a denial, and for a hold without a server."""
    token: int | None
    """Larger than that of every hold granted on this key before; None for a denial, and for a hold without a server."""
    source: Source

    def __bool__(self) -> bool:
        return self.granted > 0

    @classmethod
    def of(cls, reply: Any) -> "HoldDecision":
        """The decision that the server's six integers tell."""
        granted, limit, remaining, retry_after, expires_after, token = reply
        return cls(granted, limit, remaining, math.inf if retry_after < 0 else retry_after / 1000,
                   expires_after / 1000 if granted and token else None, token or None, "server")


class HoldRequest(NamedTuple):
    """A request for a hold. `limiter` is a HoldLimiter or an AsyncHoldLimiter, `ttl` in ms."""

    limiter: Any
    key: bytes
    cost: int
    ttl: int
    limit: int

    def command(self, id: bytes, wait: float | None = None) -> Command:
        """wait: in seconds."""
        return commands.hold(self.key, self.limit, self.ttl, id, self.cost, None if wait is None else int(wait * 1000))


class Holder(NamedTuple):
    """A live hold of a key, as the server knows it; durations are in seconds."""

    id: bytes
    units: int
    held_for: float
    expires_after: float
    token: int


class LocalHold(NamedTuple):
    """Units that are held in this process only."""

    key: bytes
    cost: int


Claim = Held | LocalHold | None
"""What a granted hold has taken: units of the server's, of this process's, or none."""


class LocalHolds:
    """The units that are held in this process for as long as there is no server."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._units: defaultdict[bytes, int] = defaultdict(int)
        self._waiting: defaultdict[bytes, list[Signal]] = defaultdict(list)
        self._dropped: deque[LocalHold] = deque()

    def take(self, key: bytes, cost: int, limit: int) -> tuple[LocalHold | None, int]:
        """The units, if there was room; and how many are left."""
        while self._dropped:
            self.release(self._dropped.popleft())
        with self._lock:
            held = self._units.get(key, 0)
            if held + cost > limit:
                return None, max(0, limit - held)
            self._units[key] = held + cost
            return LocalHold(key, cost), limit - held - cost

    def release(self, hold: LocalHold) -> None:
        key, cost = hold
        with self._lock:
            self._units[key] -= cost
            if not self._units[key]:
                del self._units[key]
            waiting = self._waiting.pop(key, ())
        for signal in waiting:
            signal.set()

    def drop(self, hold: LocalHold) -> None:
        """Release it with the next one that is taken; without any lock."""
        self._dropped.append(hold)

    async def released(self, key: bytes, seconds: float) -> None:
        """Wait until somebody releases, at most so long."""
        signal = self._outside.signal()
        with self._lock:
            self._waiting[key].append(signal)
        try:
            await signal.wait(seconds)
        finally:
            with self._lock:
                if signal in self._waiting.get(key, ()):
                    self._waiting[key].remove(signal)
                    if not self._waiting[key]:
                        del self._waiting[key]


class Guard:
    """A hold that was asked for; true when it is granted. It renews itself until it is released, left or lost.

    It has the fields of its `decision`: `granted`, `limit`, `remaining`, `retry_after`, `token` and so on.
    """

    def __init__(self, request: HoldRequest, id: bytes, decision: HoldDecision, claim: Claim) -> None:
        self.key, self.id, self.decision = request.key, id, decision
        self.lost = request.limiter._outside.event()
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
        """Whether the holder may go on, by the clock at each call. Never in a child of the process that took it."""
        return self._is_mine and (self._claim.is_live if isinstance(self._claim, Held) else True)

    @property
    def _is_mine(self) -> bool:
        return not self._is_left and os.getpid() == self._process

    def _lose(self) -> None:
        self._is_left = True
        self.lost.set()

    def _give_up(self) -> Claim:
        """Renew it no more: something else ends it."""
        self._is_left = True
        if isinstance(self._claim, Held):
            self._claim.is_over = True
        return self._claim

    async def _leaving(self) -> None:
        """Release the hold, once. Where the server does not answer, that goes on in the background."""
        if self._is_mine:
            self._is_left = True
            await self._limiter._released(self._claim)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and not getattr(self, "_is_left", True) and self._is_mine:
            self._limiter._dropped(self._claim)


class Holding(Asking):
    """How limiters of holds decide."""

    _guard: type[Guard]

    def __init__(
        self, client: Any, limit: int, ttl: Duration = "30s", *, on_failure: OnFailure = "local",
        local_share: float = 0.1, timeout: Duration = 0.05, max_waiting: int = 10, prefix: Key = b"",
        module: Module = "auto",
    ) -> None:
        """At most `limit` units are held at once.

        client: of redis-py; None for a limiter that has no server, only holds in this process.
        ttl: how long the server keeps a hold that is not renewed, at least 3 s; a guard renews every third of it.
        on_failure: for taking only. While the server is away, holds are taken in this process, from a part of the limit
            ("local"), `local_share`; or all are granted ("allow") or denied ("deny"), or raise ServerAway ("error").
        timeout: the longest that a request waits because of the limiter, beside what it is told to wait.
        max_waiting: how many connections may wait. prefix: what the names of all keys begin with.
        module: "always" or "auto"; the script has no holds.
        """
        self.limit = checked_integer(limit, "limit", least=0)
        self.ttl = _checked_ttl(ttl)
        self._set_up(client, on_failure, local_share, timeout, 1, max_waiting, prefix, module)
        self._local = LocalHolds(self._outside)
        self._guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self._connect(client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit} {self.ttl}ms>"

    def request(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, limit: int | None = None) -> HoldRequest:
        """A part of what `admit` decides."""
        checked_integer(cost, "cost", least=1)
        ttl_ms = self.ttl if ttl is None else _checked_ttl(ttl)
        most = self.limit if limit is None else checked_integer(limit, "limit", least=0)
        return HoldRequest(self, self._name(key), cost, ttl_ms, most)

    async def _holding(self, key: Key, cost: int = 1, *, ttl: Duration | None = None, wait: Duration = 0,
                       limit: int | None = None) -> Any:
        """Take a hold: the guard, also of a denial.

        cost: units. ttl: another one than the limiter's. limit: another one, for this request.
        wait: how long to wait for room at most, up to 1h; first come, first served.
        """
        request = self.request(key, cost, ttl=ttl, limit=limit)
        if seconds(wait, "wait", least=0) > LONGEST_HOLD_WAIT:
            raise ValueError(f"wait must be at most 1h, not {wait!r}")
        taking = Taking(request, instant_after(wait, "wait"))
        decision, claim = await taking.outcome()
        self.statistics.add(decision.source)
        return self._guarded(request, taking.id, decision, claim)

    def _guarded(self, request: HoldRequest, id: bytes, decision: HoldDecision, claim: Claim) -> Any:
        """The guard of what was taken, renewed from now on."""
        guard = self._guard(request, id, decision, claim)
        if decision:
            self._guards.add(guard)
        if isinstance(claim, Held):
            weak = weakref.ref(guard)

            def on_lost() -> None:
                if (guard := weak()) is not None:
                    guard._lose()

            claim.on_lost = on_lost
            self._beside(request.key, claim)
        return guard

    async def _listing(self, key: Key, count: int = 100) -> list[Holder]:
        """The live holds of a key, oldest first, at most `count` (1 to 10,000). Raises ServerAway."""
        checked_integer(count, "count", least=1)
        name = self._name(key)
        rows = await self._asking(commands.holders(name, count), self._timeout)
        return [Holder(id, units, held / 1000, left / 1000, token) for id, units, held, left, token in rows]

    async def _closing(self) -> None:
        """Release what is held, and let go of connections."""
        for guard in list(self._guards):
            if not guard._is_left:
                await guard._leaving()
                guard.lost.set()
        await super()._closing()

    # What becomes of a hold.

    async def _released(self, claim: Claim) -> None:
        if isinstance(claim, LocalHold):
            self._local.release(claim)
        if not isinstance(claim, Held) or not claim.is_live:
            return
        claim.is_over = True
        release = commands.release(claim.key, claim.id, claim.ttl)
        try:
            await self._asking(release, self._timeout)
        except BaseException as error:
            self._beside(claim.key, errand(release))
            if not isinstance(error, ServerAway):
                raise

    def _dropped(self, claim: Claim) -> None:
        """Nobody has the guard any more, which may be noticed while this thread holds any lock."""
        if isinstance(claim, LocalHold):
            self._local.drop(claim)
        elif claim is not None and self._link is not None:
            server = self._link.topology.of(claim.key)
            if server is not None:
                server.renewer.dropped(claim)

    def _by_policy(self, request: HoldRequest) -> tuple[HoldDecision, Claim]:
        """What is decided without a server."""
        if self._link is None or self._on_failure == "local":
            return self._taken_here(request)
        if self._on_failure == "allow":
            return HoldDecision(request.cost, request.limit, None, 0.0, None, None, "failure"), None
        return HoldDecision(0, request.limit, None, LAST_PROBE, None, None, "failure"), None

    def _taken_here(self, request: HoldRequest) -> tuple[HoldDecision, Claim]:
        """Decided by this process."""
        limit, source = part(request.limit, self._share), self._local_source
        claim, left = self._local.take(request.key, request.cost, limit)
        if claim is not None:
            return HoldDecision(request.cost, limit, left, 0.0, None, None, source), claim
        return HoldDecision(0, limit, left, math.inf if request.cost > limit else None, None, None, source), None


class Taking:
    """One attempt to take a hold, which waits until the instant `ends` at most. All retries have the same id."""

    def __init__(self, request: HoldRequest, ends: float) -> None:
        self._request = request
        self._limiter: Holding = request.limiter
        self._ends = ends
        self.id = os.urandom(16)
        self._is_in_doubt = False
        """Whether the server may hold units that nobody here knows of."""

    async def outcome(self) -> tuple[HoldDecision, Claim]:
        try:
            decision, claim = await self._look()
            while not decision and self._has_hope(decision):
                decision, claim = await self._queue() or await self._poll(decision)
        except BaseException:
            self._give_back()
            raise
        if not isinstance(claim, Held):
            self._give_back()
        return decision, claim

    def _has_hope(self, decision: HoldDecision) -> bool:
        return time.monotonic() < self._ends and decision.retry_after != math.inf

    def _give_back(self) -> None:
        if self._is_in_doubt:
            for command in self._request.command(self.id).undo(None, 0.0):
                self._limiter._beside(command.key, errand(command))

    async def _look(self) -> tuple[HoldDecision, Claim]:
        """Ask without waiting, over the connections that all share; or go by the failure policy."""
        limiter, request = self._limiter, self._request
        sent = running()
        try:
            reply = await limiter._asking(request.command(self.id), limiter._timeout)
        except ServerAway:
            self._is_in_doubt = limiter._link is not None
            if limiter._link is not None and limiter._on_failure == "error":
                raise
            return limiter._by_policy(request)
        return self._told(reply, sent)

    def _told(self, reply: Any, sent: float) -> tuple[HoldDecision, Claim]:
        decision = HoldDecision.of(reply)
        return decision, Held(self._request.key, self.id, self._request.ttl, sent) if decision else None

    async def _queue(self) -> tuple[HoldDecision, Claim] | None:
        """Wait in the server's queue; None where that is not to be had."""
        limiter, key = self._limiter, self._request.key
        server = None if limiter._link is None else limiter._link.of(key)
        if limiter._link is None or server is None or server.breaker.is_open:
            return None
        try:
            reply = await limiter._waiting.acquire(
                server, lambda left: self._request.command(self.id, left), self._ends)
        except of_redis.AskError as error:
            limiter._link.redirected(error)
        except NoFreeConnection:
            pass
        except ServerAway:
            self._is_in_doubt = True
        except of_redis.ResponseError as error:
            if not is_let_go(error) and "too many clients are waiting" not in str(error):
                self._is_in_doubt = False  # where another client waits with this id, it is that client's
                raise
        else:
            return await self._renewed(reply) if reply[0] else self._told(reply, 0.0)
        return None

    async def _renewed(self, reply: Any) -> tuple[HoldDecision, Claim] | None:
        """A hold that was waited for may have been granted long ago: it is renewed before anybody has it."""
        limiter, request, sent = self._limiter, self._request, running()
        renew = commands.renew(request.key, request.ttl, [self.id])
        self._is_in_doubt = True
        try:
            is_live, = await limiter._asking(renew, limiter._timeout)
        except ServerAway:
            return None
        self._is_in_doubt = False
        return self._told(reply, sent) if is_live else None

    async def _poll(self, decision: HoldDecision) -> tuple[HoldDecision, Claim]:
        """Ask again a little later, or when somebody here releases; first come, first served in this process."""
        limiter, key = self._limiter, self._request.key
        queue = limiter._turns.of(key)
        if not await queue.take(self._ends - time.monotonic()):
            return decision, None
        try:
            left = max(0.0, self._ends - time.monotonic())
            await limiter._local.released(key, left if limiter._link is None else min(left, ASK_AGAIN))
            return await self._look()
        finally:
            queue.release()


def _checked_ttl(ttl: Duration) -> int:
    ms = milliseconds(ttl, "ttl")
    if ms < LEAST_TTL:
        raise ValueError(f"ttl must be at least 3s, not {ttl!r}")
    return ms
