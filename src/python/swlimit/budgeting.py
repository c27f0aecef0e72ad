"""Quotas of the calendar: so many units an hour, a day, a week, a month or a year."""

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis.exceptions as of_redis

from . import commands, fork
from .asking import Asking, Key, OnFailure
from .backend import Module
from .breaker import LAST_PROBE
from .clock import shown
from .commands import Command
from .decision import Decision, Source
from .errors import ServerAway
from .periods import Calendar, Period, Span
from .quota import MAX_EXACT, Duration, checked_flag, checked_integer, milliseconds, part
from .window import CountOverflow, Reply


class BudgetRequest(NamedTuple):
    """A request for units of a budget. `limiter` is a BudgetLimiter or an AsyncBudgetLimiter."""

    limiter: Any
    key: bytes
    cost: int
    limit: int

    def command(self, until: int, **options: bool) -> Command:
        return commands.budget(self.key, self.limit, until, self.cost, **options)


class LocalBudgets:
    """Budgets of the process's own: what the module does, without a server. The newest `max_keys` keys."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._used: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Units, and the end of their period."""
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._lock = threading.Lock()

    def execute(self, request: BudgetRequest, limit: int, until: int, now: int, *, partial: bool = False,
                force: bool = False) -> Reply:
        """What the module would reply to BUDGET at the instant `now`."""
        with self._lock:
            used, ends = self._used.get(request.key, (0, until))
            if now >= ends:
                used, ends = 0, until
            room = max(0, limit - used)
            granted = request.cost if request.cost <= room else room if partial else 0
            counted = request.cost if force else granted
            if used + counted > MAX_EXACT:
                raise CountOverflow
            if counted:
                self._keep(request.key, used + counted, ends)
            never = (1 if partial else request.cost) > limit
            retry_after = 0 if granted else -1 if never else ends - now
            return [granted, limit, max(0, limit - used - counted), retry_after, ends - now if used + counted else 0]

    def refund(self, key: bytes, units: int, now: int) -> int:
        """Give back units of the period in force; how many."""
        with self._lock:
            used, ends = self._used.get(key, (0, 0))
            taken = min(units, used) if now < ends else 0
            if taken == used:
                self._used.pop(key, None)
            elif taken:
                self._keep(key, used - taken, ends)
            return taken

    def forget(self, key: bytes) -> bool:
        with self._lock:
            return self._used.pop(key, None) is not None

    def _keep(self, key: bytes, used: int, ends: int) -> None:
        self._used[key] = used, ends
        self._used.move_to_end(key)
        if len(self._used) > self._max_keys:
            self._used.popitem(last=False)


class Budgeting(Asking):
    """How limiters of budgets decide."""

    def __init__(
        self, client: Any, limit: int, period: Period = "month", time_zone: str = "UTC",
        anchor: int | str | None = None, *, on_failure: OnFailure = "local", local_share: float = 0.1,
        timeout: Duration = 0.05, max_keys: int = 100_000, prefix: Key = b"",
        module: Module = "auto",
    ) -> None:
        """At most `limit` units in each period of the calendar.

        client: of redis-py; None for a limiter that has no server, only budgets in this process.
        period: "hour", "day", "week", "month" or "year". time_zone: a name of the IANA database.
        anchor: where periods begin: of a week "monday" to "sunday", of a month 1 to 31 (in shorter months: the last
            day), of a year "MM-DD". Hours and days have none.
        on_failure: "allow" or "deny" everything while the server is away, or raise ServerAway ("error"), or count in
            this process, up to a part of the limit ("local"), `local_share`.
        timeout: the longest that a request waits because of the limiter. max_keys: how many keys this process counts.
        prefix: what the names of all keys begin with.
        module: "always" asks the module's commands, "never" the script, which works where no module can be loaded, and
            "auto" the script where the server does not know the module.
        """
        self.limit = checked_integer(limit, "limit", least=0)
        self.calendar = Calendar(period, time_zone, anchor)
        self._set_up(client, on_failure, local_share, timeout, max_keys, 1, prefix, module)
        self._local = LocalBudgets(max_keys)
        self._span = Span(0, 0)
        self._connect(client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit} {self.calendar}>"

    def request(self, key: Key, cost: int = 1, *, limit: int | None = None) -> BudgetRequest:
        """A part of what `admit` decides."""
        checked_integer(cost, "cost", least=1)
        most = self.limit if limit is None else checked_integer(limit, "limit", least=0)
        return BudgetRequest(self, self._name(key), cost, most)

    def period_at(self, instant: int) -> Span:
        """The period that an instant (Unix time in ms) is in: from `start` up to `end`."""
        span = self._span
        if not span.start <= instant < span.end:
            span = self._span = self.calendar.period_at(instant)
        return span

    async def _allowing(self, key: Key, cost: int = 1, *, partial: bool = False, limit: int | None = None,
                        deadline: Duration | None = None) -> Decision:
        """Decide, and count if granted.

        cost: units, 1 … 2^53 − 1. partial: grant as much of it as is left. limit: another one, for this request.
        deadline: how long the caller waits at most; it is decided a little before.
        """
        request = self.request(key, cost, limit=limit)
        checked_flag(partial, "partial")
        wait = self._wait(deadline)
        if self._link is not None:
            try:
                return await self._asked(request, wait, partial=partial)
            except ServerAway:
                if self._on_failure == "error":
                    raise
        return self._by_policy(request, partial=partial)

    async def _recording(self, key: Key, cost: int = 1, *, limit: int | None = None) -> Decision:
        """Count, whatever the limit says. Raises ServerAway."""
        request = self.request(key, cost, limit=limit)
        if self._link is None:
            return self._counted(request, force=True)
        return await self._asked(request, self._timeout, force=True)

    async def _refunding(self, key: Key, units: int = 1, *, age: Duration | None = None) -> int:
        """Give back units of the period in force; of units counted `age` ago, nothing if the first unit of the period
        is younger. Returns how many. Raises ServerAway."""
        checked_integer(units, "units", least=1)
        dated = () if age is None else ("AGE", f"{milliseconds(age, 'age', least=0)}ms")
        name = self._name(key)
        if self._link is None:
            return self._local.refund(name, units, shown())
        taken: int = await self._asking(commands.refund(name, units, *dated), self._timeout)
        return taken

    async def _resetting(self, key: Key) -> bool:
        """Forget all that is counted for a key; whether there was anything. Raises ServerAway."""
        name = self._name(key)
        forgotten = self._local.forget(name)
        if self._link is None:
            return forgotten
        return bool(await self._asking(commands.delete(name), self._timeout))

    async def _asked(self, request: BudgetRequest, wait: float, **options: bool) -> Decision:
        """The server's decision. A clock that is behind the server's asks with the next period at a period's end."""
        span = self.period_at(shown())
        try:
            reply = await self._asking(request.command(span.end, **options), wait)
        except of_redis.ResponseError as error:
            if not is_period_over(error):
                raise
            span = self.calendar.period_at(span.end)
            reply = await self._asking(request.command(span.end, **options), wait)
        self.statistics.add("server")
        return decided(reply, span, "server")

    def _counted(self, request: BudgetRequest, **options: Any) -> Decision:
        """Decided by this process."""
        now = shown()
        span = self.period_at(now)
        self.statistics.add(self._local_source)
        limit = part(request.limit, self._share)
        return decided(self._local.execute(request, limit, span.end, now, **options), span, self._local_source)

    def _by_policy(self, request: BudgetRequest, **options: Any) -> Decision:
        if self._link is None or self._on_failure == "local":
            return self._counted(request, **options)
        self.statistics.add("failure")
        span = self.period_at(shown())
        window = (span.end - span.start) / 1000
        granted, retry_after = (request.cost, 0.0) if self._on_failure == "allow" else (0, LAST_PROBE)
        return Decision(granted, request.limit, None, retry_after, None, window, "failure")


def is_period_over(error: Exception) -> bool:
    """Whether the server says that the end that it was given has passed."""
    return str(error).startswith("until must be ")


def decided(reply: Sequence[int], span: Span, source: Source) -> Decision:
    """The decision that five integers tell, about a period."""
    granted, limit, remaining, retry_after, reset_after = reply
    return Decision(granted, limit, remaining, math.inf if retry_after < 0 else retry_after / 1000, reset_after / 1000,
                    (span.end - span.start) / 1000, source)
