"""Limiters of budgets: so many units an hour, a day, a week, a month or a year of the calendar."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._base import BaseLimiter, Key, OnFailure, checked_name
from ._core.calendar import Calendar, Period, Span
from ._core.decision import Decision, Source
from ._core.local_budgets import LocalBudgets, decide
from ._core.quota import Duration, checked_flag, checked_integer, milliseconds, part
from ._protocol.commands import Budget, Delete, Info, Refund
from ._protocol.replies import integer, is_missing_key, is_period_over
from ._protocol.script_fallback import Module
from ._sync_async import AsyncClient, Awaited, C, Client, Threaded, dual_method
from ._transport.breaker import LAST_PROBE
from .errors import RefusedError, UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

L = TypeVar("L", bound=BaseLimiter, covariant=True)


@dataclass(frozen=True, slots=True)
class BudgetRequest(Generic[L]):
    """A request for units of a budget."""

    limiter: L
    key: bytes
    cost: int
    limit: int
    name: str | None = None

    def command(self, until: int, **options: bool) -> Budget:
        return Budget(self.key, self.limit, until, self.cost, **options)


class _BudgetLimiter(BaseLimiter, Generic[C]):
    """The methods of `BudgetLimiter` and `AsyncBudgetLimiter`."""

    def __init__(
        self, client: C | None, limit: int, period: Period = "month", time_zone: str = "UTC",
        anchor: int | str | None = None, *, on_failure: OnFailure = "local", local_share: float = 0.1,
        timeout: Duration = 0.05, max_keys: int = 100_000, prefix: Key = b"",
        module: Module = "auto",
    ) -> None:
        """At most `limit` units in each period of the calendar.

        client: of redis-py; None for a limiter without a server, whose budgets are in this process.
        period: "hour", "day", "week", "month" or "year". time_zone: a name of the IANA database.
        anchor: where periods begin: of a week "monday" to "sunday", of a month 1 to 31 (in shorter months: the last
            day), of a year "MM-DD". Hours and days have none.
        on_failure: while the server is unavailable, "allow" or "deny" everything, raise UnavailableError ("error"), or
            count in this process ("local"), up to a part of the limit, `local_share`.
        timeout: the longest that a request waits for the server. max_keys: maximum keys counted in this process.
        prefix: begins the names of all keys.
        module: "always" uses the module's commands, "never" the script, which works where no module can be loaded, and
            "auto" the script when the server does not know the module.
        """
        self.limit = checked_integer(limit, "limit", least=0)
        self.calendar = Calendar(period, time_zone, anchor)
        self._set_up(client, on_failure, local_share, timeout, max_keys, 1, prefix, module)
        self._local = LocalBudgets(max_keys)
        self._span = Span(0, 0)
        self._connect(client)

    def _evicted(self) -> int:
        return self._local.evicted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit} {self.calendar}>"

    def request(self, key: Key, cost: int = 1, *, limit: int | None = None,
                name: str | None = None) -> "BudgetRequest[Self]":
        """A part of what `admit` decides. name: by which `settle` says what was used."""
        checked_integer(cost, "cost", least=1)
        most = self.limit if limit is None else checked_integer(limit, "limit", least=0)
        return BudgetRequest(self, self._name(key), cost, most, checked_name(name))

    def period_at(self, instant: int) -> Span:
        """The period of an instant (Unix time in ms): from `start` up to `end`."""
        span = self._span
        if not span.start <= instant < span.end:
            span = self._span = self.calendar.period_at(instant)
        return span

    async def _allow(self, key: Key, cost: int = 1, *, partial: bool = False, limit: int | None = None,
                     deadline: Duration | None = None) -> Decision:
        """Decide, and count if granted.

        cost: units, 1 … 2^53 − 1. partial: grant as much of it as is left. limit: another limit, for this request.
        deadline: how long the caller waits at most; the decision is made a little before.
        """
        request = self.request(key, cost, limit=limit)
        checked_flag(partial, "partial")
        wait = self._wait(deadline)
        if self._state is not None:
            try:
                return await self._decide(request, wait, partial=partial)
            except UnavailableError as error:
                if self._on_failure == "error":
                    raise
                decision = self._by_policy(request, partial=partial)
                error.keep({request.key: math.inf if self._on_failure == "allow" else decision.granted})
                return decision
        return self._by_policy(request, partial=partial)

    async def _peek(self, key: Key, cost: int = 1, *, partial: bool = False, limit: int | None = None,
                    deadline: Duration | None = None) -> Decision:
        """The same decision without counting, about the period that is in force by this machine's clock."""
        request = self.request(key, cost, limit=limit)
        checked_flag(partial, "partial")
        wait = self._wait(deadline)
        if self._state is not None:
            try:
                return await self._look(request, wait, partial)
            except UnavailableError:
                if self._on_failure == "error":
                    raise
        return self._by_policy(request, partial=partial, peek=True)

    async def _record(self, key: Key, cost: int = 1, *, limit: int | None = None) -> Decision:
        """Count, whatever the limit. Raises UnavailableError."""
        request = self.request(key, cost, limit=limit)
        if self._state is None:
            return self._count_here(request, force=True)
        return await self._decide(request, self._timeout, force=True)

    async def _refund(self, key: Key, units: int = 1, *, age: Duration | None = None) -> int:
        """Give back units of the period in force; of units counted `age` ago, nothing if the first unit of the period
        is younger. Returns how many. Raises UnavailableError."""
        checked_integer(units, "units", least=1)
        aged = None if age is None else milliseconds(age, "age", least=0)
        name = self._name(key)
        if self._state is None:
            return self._local.refund(name, units, self._clock.shown())
        taken: int = await self._send(Refund(name, units, age=aged))
        return taken

    async def _reset(self, key: Key) -> bool:
        """Forget what is counted for a key; whether there was anything. Raises UnavailableError."""
        name = self._name(key)
        forgotten = self._local.forget(name)
        if self._state is None:
            return forgotten
        return bool(await self._send(Delete(name)))

    async def _decide(self, request: BudgetRequest[Any], wait: float, **options: bool) -> Decision:
        """Ask the server. When this clock is behind the server's at the end of a period, ask with the next period."""
        span = self.period_at(self._clock.shown())
        try:
            reply = await self._send(request.command(span.end, **options), wait)
        except RefusedError as error:
            if not is_period_over(error):
                raise
            span = self.calendar.period_at(span.end)
            reply = await self._send(request.command(span.end, **options), wait)
        decision = budget_decision(reply, span, "server")
        self.statistics.add(decision)
        return decision

    async def _look(self, request: BudgetRequest[Any], wait: float, partial: bool) -> Decision:
        """Ask the server what is used, and decide."""
        now = self._clock.shown()
        span = self.period_at(now)
        try:
            reply = await self._send(Info(request.key), wait)
        except RefusedError as error:
            if not is_missing_key(error):
                raise
            used, ends = 0, span.end
        else:
            if "used" not in reply:
                raise RefusedError("WRONGTYPE the key holds no budget")
            used, ends = integer(reply["used"]), integer(reply["until"])
            if now >= ends:
                used, ends = 0, span.end
        found = decide(used, ends, request.limit, now, request.cost, partial=partial)
        decision = budget_decision(found, span, "server")
        self.statistics.add(decision)
        return decision

    def _count_here(self, request: BudgetRequest[Any], **options: bool) -> Decision:
        """Decide in this process."""
        now = self._clock.shown()
        span = self.period_at(now)
        limit = part(request.limit, self._share)
        reply = self._local.execute(request.key, limit, span.end, now, request.cost, **options)
        decision = budget_decision(reply, span, self._local_source)
        self.statistics.add(decision)
        return decision

    def _by_policy(self, request: BudgetRequest[Any], **options: bool) -> Decision:
        """The decision without a server."""
        if self._state is None or self._on_failure == "local":
            return self._count_here(request, **options)
        span = self.period_at(self._clock.shown())
        window = (span.end - span.start) / 1000
        granted, retry_after = (request.cost, 0.0) if self._on_failure == "allow" else (0, LAST_PROBE)
        decision = Decision(granted, request.limit, None, retry_after, None, window, "failure")
        self.statistics.add(decision)
        return decision

    allow = dual_method(_allow)
    peek = dual_method(_peek)
    record = dual_method(_record)
    refund = dual_method(_refund)
    reset = dual_method(_reset)
    close = dual_method(BaseLimiter._close)


class BudgetLimiter(Threaded, _BudgetLimiter[Client]):
    """So many units in each period of the calendar, for any number of keys. Many threads may use one limiter."""


class AsyncBudgetLimiter(Awaited, _BudgetLimiter[AsyncClient]):
    """So many units in each period of the calendar, for any number of keys, on a client of redis.asyncio."""


def budget_decision(reply: Sequence[int], span: Span, source: Source) -> Decision:
    """A decision about a period, from the five integers of a reply."""
    granted, limit, remaining, retry_after, reset_after = reply
    return Decision(granted, limit, remaining, None if retry_after < 0 else retry_after / 1000, reset_after / 1000,
                    (span.end - span.start) / 1000, source, retry_after < 0)
