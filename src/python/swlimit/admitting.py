"""One decision of everything: rates, budgets and a hold, all granted or none of it counted."""

import math
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import redis.exceptions as of_redis

from . import commands
from .asking import Asking
from .budgeting import BudgetRequest, decided, is_period_over
from .clock import running, shown
from .commands import Command, Repeat, Words
from .deciding import Request
from .decision import Decision
from .errors import DeniedError, ServerAway
from .facade import Awaited, Entering
from .holding import Claim, HoldDecision, HoldRequest
from .local import instant
from .periods import Span
from .quota import checked_integer
from .renewing import Errand, Held, errand
from .threads.outside import run

if TYPE_CHECKING:
    from typing_extensions import Self

AnyRequest = Request[Any] | BudgetRequest | HoldRequest
AnyDecision = Decision | HoldDecision


class _Rate:
    """What is asked of a limiter of rates."""

    def __init__(self, request: Request[Any]) -> None:
        self.limiter, self._demand = request.limiter, request.demand
        self.key, self.cost, self.is_strict = request.demand.key, request.demand.cost, request.demand.quota.strict

    def clause(self, id: bytes) -> Words:
        return "RATE", *self._demand.quota.words, self.cost

    def told(self, reply: Sequence[int]) -> Decision:
        self.limiter.statistics.add("server")
        return Decision.of(reply, self._demand.quota)

    def take_here(self) -> Decision:
        decision: Decision = self.limiter._counted("ALLOW", self._demand, self.cost, self.limiter._local_source)
        return decision

    def by_policy(self) -> Decision:
        decision: Decision = self.limiter._by_policy(self._demand.quota, self.cost)
        return decision

    def give_back_here(self, units: int) -> None:
        self.limiter._local.change("REFUND", self.key, instant(), units=units, age=None)

    def count_here(self, units: int) -> None:
        self.limiter._counted("RECORD", self._demand, units, self.limiter._local_source)

    def giving_back(self, units: int, age: int) -> Command:
        """The command that gives back what was counted `age` ms ago at most."""
        return commands.refund(self.key, units, "AGE", f"{age}ms")

    def counting(self, units: int) -> Command:
        """The command that counts what was used beyond."""
        return commands.record(self.key, self._demand.quota, units)

    def forget(self) -> None:
        """Something was given back."""
        if self.limiter._denials is not None:
            self.limiter._denials.forget([self.key])


class _Budget:
    """What is asked of a limiter of budgets."""

    is_strict = None

    def __init__(self, request: BudgetRequest) -> None:
        self.limiter, self._request = request.limiter, request
        self.key, self.cost = request.key, request.cost
        self.span: Span = self.limiter.period_at(shown())

    def clause(self, id: bytes) -> Words:
        return "BUDGET", self._request.limit, self.span.end, self.cost

    def told(self, reply: Sequence[int]) -> Decision:
        self.limiter.statistics.add("server")
        return decided(reply, self.span, "server")

    def take_here(self) -> Decision:
        decision: Decision = self.limiter._counted(self._request)
        return decision

    def by_policy(self) -> Decision:
        decision: Decision = self.limiter._by_policy(self._request)
        return decision

    def give_back_here(self, units: int) -> None:
        self.limiter._local.refund(self.key, units, shown())

    def count_here(self, units: int) -> None:
        self.limiter._counted(self._request._replace(cost=units), force=True)

    def giving_back(self, units: int, age: int) -> Command | None:
        """The command that gives back what was counted; None when the period is over."""
        return None if shown() >= self.span.end else commands.refund(self.key, units)

    def counting(self, units: int) -> Command:
        """The command that counts what was used beyond."""
        until = self.limiter.period_at(shown()).end
        return self._request._replace(cost=units).command(until, force=True)

    def forget(self) -> None:
        """No denials of budgets are remembered."""


class _Hold:
    """What is asked of a limiter of holds."""

    is_strict = None

    def __init__(self, request: HoldRequest) -> None:
        self.limiter, self.request = request.limiter, request
        self.key, self.cost = request.key, request.cost
        self.claim: Claim = None

    def clause(self, id: bytes) -> Words:
        return "HOLD", self.request.limit, f"{self.request.ttl}ms", id, self.cost

    def told(self, reply: Sequence[int]) -> HoldDecision:
        self.limiter.statistics.add("server")
        return HoldDecision.of(reply)

    def take_here(self) -> HoldDecision:
        decision: HoldDecision
        decision, self.claim = self.limiter._taken_here(self.request)
        self.limiter.statistics.add(decision.source)
        return decision

    def by_policy(self) -> HoldDecision:
        decision: HoldDecision
        decision, self.claim = self.limiter._by_policy(self.request)
        self.limiter.statistics.add(decision.source)
        return decision

    def give_back_here(self, units: int) -> None:
        self.limiter._local.release(self.claim)


_Part = _Rate | _Budget | _Hold


class Admitting:
    """What was asked for together, and what became of it; true when it is granted, else nothing is counted."""

    granted: bool
    each: tuple[AnyDecision, ...]
    """The decision about each request, in order: what its limiter would have said."""
    hold: Any
    """The guard of the hold; None without one, and for a denial."""

    def __init__(self, requests: Sequence[AnyRequest], id: bytes | None) -> None:
        self._parts = [_part(request) for request in requests]
        self._counted = [part for part in self._parts if not isinstance(part, _Hold)]
        self._held = next((part for part in self._parts if isinstance(part, _Hold)), None)
        self._is_own_id = id is None
        self._id = os.urandom(16) if id is None else id
        self._first: Asking = self._parts[0].limiter
        self._is_settled = False
        self.hold = None
        self._check()

    def _check(self) -> None:
        limiters = [part.limiter for part in self._parts]
        if len({limiter._link for limiter in limiters}) > 1:
            raise ValueError("what is admitted together has one client")
        if len({part.is_strict for part in self._parts} - {None}) > 1:
            raise ValueError("rates that are decided together are all strict or all not")
        if sum(isinstance(part, _Hold) for part in self._parts) > 1:
            raise ValueError("there can be one hold in a decision")
        if len({part.key for part in self._parts}) < len(self._parts):
            raise ValueError("a key is named twice; requests that are decided together have keys that differ")

    def __bool__(self) -> bool:
        return self.granted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'granted' if self else 'denied'} {self.each}>"

    @property
    def retry_after(self) -> float:
        """Seconds until all of them would grant it, as far as is known; infinity when they never can."""
        return 0.0 if self else max(decision.retry_after or 0.0 for decision in self.each)

    # The decision.

    async def decide(self) -> None:
        self._sent, self._began = running(), time.monotonic()
        self._source = self._first._local_source
        if self._first._link is None:
            self._decide_here()
            return
        try:
            reply = await self._asked()
        except ServerAway:
            self._undo()
            if self._first._on_failure == "error":
                raise
            if self._first._on_failure == "local":
                self._decide_here()
            else:
                self.each = tuple(part.by_policy() for part in self._parts)
                self._decided(all(self.each), None)
            return
        self._source = "server"
        self.each = tuple(part.told(member) for part, member in zip(self._parts, reply[1:]))
        held = self._held
        self._decided(bool(reply[0]), Held(held.key, self._id, held.request.ttl, self._sent) if held else None)

    def _command(self) -> Command:
        return commands.admit([(part.key, part.clause(self._id)) for part in self._parts],
                              strict=any(part.is_strict for part in self._parts), is_own_id=self._is_own_id)

    async def _asked(self) -> Any:
        """The reply. A clock that is behind the server's asks with the next period at a period's end."""
        try:
            return await self._first._asking(self._command(), self._first._timeout)
        except of_redis.ResponseError as error:
            if not is_period_over(error):
                raise
        now = shown()
        for part in self._parts:
            if isinstance(part, _Budget) and part.span.end - now < SOON:
                part.span = part.limiter.calendar.period_at(part.span.end)
        return await self._first._asking(self._command(), self._first._timeout)

    def _undo(self) -> None:
        """Nobody knows whether the server has granted it: have that undone, as far as it can be."""
        for command in self._command().undo(None, self._began):
            self._first._beside(command.key, errand(command))

    def _decide_here(self) -> None:
        decisions: list[AnyDecision] = []
        for part in self._parts:
            decisions.append(part.take_here())
        self.each = tuple(decisions)
        if not all(decisions):
            for part, decision in zip(self._parts, decisions):
                if decision:
                    part.give_back_here(decision.granted)
        self._decided(all(decisions), self._held.claim if self._held else None)

    def _decided(self, granted: bool, claim: Claim) -> None:
        self.granted = granted
        if granted and self._held is not None:
            decision = self.each[self._parts.index(self._held)]
            self.hold = self._held.limiter._guarded(self._held.request, self._id, decision, claim)

    # The settlement.

    async def _settling(self, *used: int) -> list[int] | None:
        """Say how many units were really used: of each request but the hold, in order. The hold ends.

        It happens once, also where the server has to be asked again for it, which goes on in the background. Returns
        the units counted (above 0) or given back (below 0) of each; None where that is not known, as the hold had ended
        before: what was used beyond is counted then, too. Without a hold, raises ServerAway.
        """
        if len(used) != len(self._counted):
            raise ValueError(f"settle takes the units of {len(self._counted)} requests, not of {len(used)}")
        for units in used:
            checked_integer(units, "used", least=0)
        if not self.granted or self._is_settled:
            return None
        self._is_settled = True
        if self._source != "server":
            return await self._settle_here(used)
        if self.hold is None:
            return await self._settle_each(used)
        return await self._settle_once(used)

    async def _settle_here(self, used: Sequence[int]) -> list[int]:
        if self.hold is not None:
            await self.hold._leaving()
        is_counted = self._first._link is None or self._first._on_failure == "local"
        for part, units in zip(self._counted, used):
            if is_counted and units < part.cost:
                part.give_back_here(part.cost - units)
            elif is_counted and units > part.cost:
                part.count_here(units - part.cost)
        return [units - part.cost if is_counted else 0 for part, units in zip(self._counted, used)]

    async def _settle_each(self, used: Sequence[int]) -> list[int]:
        """Without a hold the server remembers nothing of it."""
        changes = []
        for part, units in zip(self._counted, used):
            change = units - part.cost
            if change < 0:
                age = math.ceil((time.monotonic() - self._began) * 1000)
                command = part.giving_back(-change, age)
                change = -await part.limiter._asking(command, part.limiter._timeout) if command else 0
                part.forget()
            elif change > 0:
                await part.limiter._asking(part.counting(change), part.limiter._timeout)
            changes.append(change)
        return changes

    async def _settle_once(self, used: Sequence[int]) -> list[int] | None:
        assert self._held is not None
        limiter, key = self._held.limiter, self._held.key
        command = commands.settle(key, self._id, [part.key for part in self._counted], used)
        claim = self.hold._give_up()
        server = limiter._link.of(key) if limiter._link is not None else None
        is_sent = server is not None and not server.breaker.is_open
        try:
            reply = await limiter._asking(command, limiter._timeout)
        except ServerAway:
            self._settle_beside(command, claim, used, is_sent)
            return None
        except BaseException:
            self._settle_beside(command, claim, used, True)
            raise
        for part in self._counted:
            part.forget()
        if reply[0]:
            return list(reply[1:])
        for part, change in self._beyond(used):
            await part.limiter._asking(part.counting(change), part.limiter._timeout)
        return None

    def _beyond(self, used: Sequence[int]) -> list[tuple[_Rate | _Budget, int]]:
        return [(part, units - part.cost) for part, units in zip(self._counted, used) if units > part.cost]

    def _settle_beside(self, command: Command, claim: Held, used: Sequence[int], is_sent: bool) -> None:
        """Have the server asked until it has answered. That the hold is not live means something only where it was
        asked once: else the first may have settled it."""
        assert self._held is not None
        limiter, lasts = self._held.limiter, claim.ttl / 1000

        def settles(reply: Any) -> bool:
            if not reply[0] and not is_sent and settling.tries == 1:
                for part, change in self._beyond(used):
                    limiter._beside(part.key, Errand(part.counting(change), math.inf, running() + lasts))
            return True

        settling = errand(command._replace(repeat=Repeat(lasts, settles)))
        limiter._beside(claim.key, settling)


SOON = 60_000
"""ms before the end of a period within which a server may say that it has passed."""


class Admission(Admitting):
    """The outcome of `admit`; entering a denied one raises DeniedError.

    Leaving it releases the hold: what was not settled stays counted as it was asked for.
    """

    def settle(self, *used: int) -> list[int] | None:
        return run(self._settling(*used))

    settle.__doc__ = Admitting._settling.__doc__

    def __enter__(self) -> "Self":
        _check_granted(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.release()


class AsyncAdmission(Admitting):
    """The outcome of `admit` with limiters of asyncio; entering a denied one raises DeniedError.

    Leaving it releases the hold: what was not settled stays counted as it was asked for.
    """

    async def settle(self, *used: int) -> list[int] | None:
        return await self._settling(*used)

    settle.__doc__ = Admitting._settling.__doc__

    async def __aenter__(self) -> "Self":
        _check_granted(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.hold is not None:
            await self.hold.release()


def _check_granted(admission: Admitting) -> None:
    if not admission:
        denied = next((part for part, one in zip(admission._parts, admission.each) if not one), admission._parts[0])
        raise DeniedError(denied.key, admission)


def _part(request: AnyRequest) -> _Part:
    for kind, part in ((Request, _Rate), (BudgetRequest, _Budget), (HoldRequest, _Hold)):
        if isinstance(request, kind):
            return part(request)  # type: ignore[arg-type]
    raise TypeError(f"admit takes what `limiter.request(key)` returns, not {request!r}")


def admit(requests: Sequence[AnyRequest], *, id: bytes | None = None) -> Any:
    """Take all of it in one decision, or nothing: `admit([rate.request("k"), streams.request("s"), ...])`.

    The requests are of Limiters, BudgetLimiters and at most one HoldLimiter, all of one client; their keys differ, and
    in a cluster have one slot. The first limiter's `on_failure` decides while the server is away.
    id: of the hold, 1 to 128 bytes that are used once; by default 16 random ones. What is granted under an id of
        yours after you gave up is not given back: ask for it again with the same id, or leave it to its time to live.

    Returns an `Admission`; with the limiters of asyncio an `AsyncAdmission`, to be awaited or entered by `async with`.
    """
    if not requests:
        raise TypeError("admit takes one or more of what `limiter.request(key)` returns")
    if id is not None and (not isinstance(id, bytes) or not 1 <= len(id) <= 128):
        raise ValueError(f"id must be 1 to 128 bytes, not {id!r}")
    kinds = {isinstance(_part(request).limiter, Awaited) for request in requests}
    if len(kinds) > 1:
        raise TypeError("limits that are decided together are all for threads, or all for asyncio")
    if kinds == {True}:
        return Entering(_admitting(AsyncAdmission(requests, id)))
    return run(_admitting(Admission(requests, id)))


async def _admitting(admission: Any) -> Any:
    await admission.decide()
    return admission
