"""How limiters of rates decide: by a known denial, by the server, or in this process."""

import math
import time
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args

from ._base import BaseLimiter, Key, OnFailure, one_of
from ._core.decision import Decision, Source
from ._core.denial_cache import Demand, DenialCache, Ticket
from ._core.local_windows import LocalWindows
from ._core.quota import Duration, Quota, checked_flag, checked_integer, milliseconds, seconds
from ._protocol.commands import RateCommand, Record
from ._protocol.script_fallback import Module
from ._sync_async import C
from ._transport.breaker import LAST_PROBE
from .errors import UnavailableError

Mode = Literal["cached", "direct", "local"]


class Options(TypedDict, total=False):
    """The options of a limiter of rates, beside its client and its quota."""

    strict: bool
    mode: Mode | None
    on_failure: OnFailure
    local_share: float
    timeout: Duration
    max_untracked_age: Duration
    max_keys: int
    max_waiting: int
    prefix: Key
    module: Module
    warm_up: Duration | None
    cold: int | None


class RateLimiterBase(BaseLimiter, Generic[C]):
    """What `Limiter` and `AsyncLimiter` decide by."""

    def __init__(
        self, client: C | None, limit: int, window: Duration | None = None, resolution: Duration | None = None, *,
        strict: bool = False, mode: Mode | None = None, on_failure: OnFailure = "local", local_share: float = 0.1,
        timeout: Duration = 0.05, max_untracked_age: Duration = 0.1, max_keys: int = 100_000, max_waiting: int = 10,
        prefix: Key = b"", module: Module = "auto", warm_up: Duration | None = None, cold: int | None = None,
    ) -> None:
        """At most `limit` units in each `window`, which slides in steps of `resolution`.

        client: of redis-py; None for a limiter without a server, whose windows are in this process.
        resolution: by default the largest that divides the window into 12 to 4096 parts.
        strict: no span of the window ever sees more than the limit.
        mode: "cached" repeats known denials without asking, "direct" always asks the server, "local" is the only mode
            without a client.
        on_failure: while the server is unavailable, "allow" or "deny" everything, raise UnavailableError ("error"), or
            decide in this process ("local") with a part of the limit, `local_share`, 0.000001 to 1.
        timeout: the longest that a request waits for the server.
        max_untracked_age: how long a denial is remembered when the server can't send invalidations; 0: not at all.
        max_keys: maximum cached keys. max_waiting: how many connections may wait in `acquire`.
        prefix: begins the names of all keys.
        module: "always" uses the module's commands, "never" the script, which works where no module can be loaded, and
            "auto" the script when the server does not know the module.
        warm_up: how long a key's limit takes to rise after idleness, at least ten windows. It begins at `limit / cold`;
            cold is an integer between 2 and 1000, and by default 3.
        """
        if window is None and isinstance(limit, str) or isinstance(client, str) and isinstance(limit, str):
            kind = type(self).__name__
            raise TypeError(f"{kind} takes a client, a limit and a window, such as {kind}(client, 100, \"1m\"); "
                            f"{kind}.from_url(url, \"100/minute\") takes a URL and a rate, and "
                            f"{kind.replace('Limiter', 'Limits')}(client, \"100/minute\") a client and a rate")
        one_of("mode", mode, (None, *get_args(Mode)))
        if (client is None) != (mode == "local") and not (client is None and mode is None):
            raise ValueError(f"mode {mode!r} needs {'no client' if client is not None else 'a client'}")
        self.quota = Quota.of(limit, window, resolution, strict, warm_up, cold)  # type: ignore[arg-type]
        self._set_up(client, on_failure, local_share, timeout, max_keys, max_waiting, prefix, module)
        self._untracked = seconds(max_untracked_age, "max_untracked_age", least=0)
        self._local = LocalWindows(self._share, max_keys)
        self._denials = DenialCache(max_keys) if client is not None and mode != "direct" else None
        self._connect(client)

    def _evicted(self) -> int:
        return self._local.evicted

    def __repr__(self) -> str:
        limit, window, resolution = self.quota.words
        return f"<{type(self).__name__} {limit} {window} {resolution}{' STRICT' * self.quota.strict}>"

    def forget(self, key: Key) -> None:
        """Ask the server about this key again. Use it after changing a key by other commands, if the server's
        invalidation would come too late."""
        if self._denials is not None:
            self._denials.forget([self._name(key)])

    def forget_all(self) -> None:
        """Ask the server about every key again."""
        if self._denials is not None:
            self._denials.forget_all()

    def _demand(self, key: Key, cost: int, partial: bool, block: Duration | None, limit: int | None) -> Demand:
        name, quota, blocked = self._checked(key, cost, partial, block, limit)
        return Demand(name, quota, 1 if partial else cost, blocked)

    def _checked(self, key: Key, cost: int, partial: bool, block: Duration | None,
                 limit: int | None) -> tuple[bytes, Quota, int]:
        """The key's name, the quota, and for how many ms a denial blocks the key."""
        checked_integer(cost, "cost", 1)
        if partial is not False:
            checked_flag(partial, "partial")
        return (self._name(key), self.quota if limit is None else self.quota.at(limit),
                0 if block is None else milliseconds(block, "block"))

    def _known(self, demand: Demand) -> Decision | None:
        """A denial that needs no request."""
        if self._denials is None:
            return None
        if demand.cost > demand.quota.limit:
            if demand.block:
                return None
            known: Decision | None = Decision.unasked(demand.quota, 0, None, "cache", never=True)
        else:
            known = self._denials.known(demand, time.monotonic())
        if known is not None:
            self.statistics.add(known)
        return known

    async def _decide(self, demand: Demand, command: RateCommand, wait: float) -> Decision:
        """Ask the server, or apply the failure policy."""
        try:
            return await self._decide_at_server(demand, command, wait)
        except UnavailableError as error:
            if command.name == Record.name or self._on_failure == "error":
                raise
            decision = (self._count_here(command, "failure") if self._on_failure == "local"
                        else self._by_policy(command.quota, command.cost))
            error.keep({command.key: self._kept(decision)})
            return decision

    def _kept(self, decision: Decision) -> float:
        """How many units of a late reply stay, after this decision by policy."""
        return math.inf if self._on_failure == "allow" else decision.granted

    async def _decide_at_server(self, demand: Demand, command: RateCommand, wait: float) -> Decision:
        """Ask the server, if there is one, and remember a denial."""
        if self._state is None and not self._is_closed:
            return self._count_here(command, "local")
        ticket = None
        if self._denials is not None and command.name != Record.name:
            ticket = self._denials.ticket(demand, time.monotonic())
        reply = await self._send(command, wait)
        decision = Decision.of(reply, command.quota)
        self.statistics.add(decision)
        if ticket is not None and not decision:
            self._learn(ticket, decision)
        return decision

    def _count_here(self, command: RateCommand, source: Source) -> Decision:
        """Decide by a window in this process."""
        return self._execute_here(source, command.name, command.key, command.quota, command.cost, command.partial,
                                  command.age, command.block)

    def _execute_here(self, source: Source, command: str, key: bytes, quota: Quota, cost: int, partial: bool, age: int,
                      block: int) -> Decision:
        reply = self._local.execute(command, key, quota, self._clock.instant(), cost, partial, age, block or None)
        decision = Decision.of(reply, quota, source)
        self.statistics.add(decision)
        return decision

    def _by_policy(self, quota: Quota, cost: int) -> Decision:
        """The decision of the failure policies `allow` and `deny`."""
        granted, retry_after = (cost, 0.0) if self._on_failure == "allow" else (0, LAST_PROBE)
        decision = Decision.unasked(quota, granted, retry_after, "failure")
        self.statistics.add(decision)
        return decision

    def _learn(self, ticket: Ticket, decision: Decision) -> None:
        """Remember a denial. The tracker asks the server for what to remember if that pays; without a tracker, or where
        the denial is short, this decision is remembered for a short time."""
        if self._denials is None or self._state is None:
            return
        server = self._state.of(ticket.demand.key)
        if server is None:
            return
        retry_after = decision.retry_after
        if retry_after is None:
            return
        at_most = self._state.track(server, self._denials, ticket, retry_after)
        age = self._untracked if at_most is None else min(at_most, self._untracked)
        if age > 0:
            self._denials.learn(ticket, decision, time.monotonic(), age)


L = TypeVar("L", bound=RateLimiterBase[Any], covariant=True)


@dataclass(frozen=True, slots=True)
class Request(Generic[L]):
    """A part of a request that several limits must grant."""

    limiter: L
    demand: Demand
    name: str | None = None
