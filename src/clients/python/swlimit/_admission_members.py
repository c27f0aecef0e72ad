"""The members of an admission: what it asks of each limiter, and how each counts and gives back."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ._base import Claim
from ._core.calendar import Span
from ._core.clock import running
from ._core.decision import Decision, HoldDecision
from ._hold_base import HoldRequest
from ._local_holds import LocalHold
from ._protocol.commands import Allow, Budget, BudgetClause, HoldClause, RateClause, Record, Refund
from ._rate_base import Request
from ._transport.hold_renewer import LiveHold
from .budget_limiter import BudgetRequest, budget_decision


class RateMember:
    """A request to a limiter of rates."""

    def __init__(self, request: Request[Any]) -> None:
        self.limiter, self._demand = request.limiter, request.demand
        self.name, self.key, self.cost = request.name, request.demand.key, request.demand.cost
        self.is_strict = request.demand.quota.strict
        self._taken = 0
        """The instant of it, if this process decides."""

    def clause(self) -> RateClause:
        return RateClause(*self._demand[:3])

    def decision(self, reply: Sequence[int]) -> Decision:
        decision = Decision.of(reply, self._demand.quota)
        self.limiter.statistics.add(decision)
        return decision

    def take_here(self) -> Decision:
        self._taken = self.limiter._clock.instant()
        decision: Decision = self.limiter._count_here(Allow(*self._demand[:3]), self.limiter._local_source)
        return decision

    def by_policy(self) -> Decision:
        decision: Decision = self.limiter._by_policy(self._demand.quota, self.cost)
        return decision

    def refund_here(self, units: int) -> int:
        """Gives back units of those that were counted when these were taken here, or since."""
        given: int = self.limiter._local.change(
            "REFUND", self.key, self.limiter._clock.instant(), units=units, since=self._taken)
        return given

    def record_here(self, units: int) -> None:
        self.limiter._count_here(self.record(units), self.limiter._local_source)

    def refund(self, units: int, age: int) -> Refund | None:
        """Gives back units that were counted at most `age` ms ago."""
        return Refund(self.key, units, age=age)

    def record(self, units: int) -> Record:
        return Record(self.key, self._demand.quota, units)

    def forget(self) -> None:
        """Forget the key's denials: units were given back."""
        if self.limiter._denials is not None:
            self.limiter._denials.forget([self.key])


class BudgetMember:
    """A request to a limiter of budgets."""

    is_strict = None

    def __init__(self, request: BudgetRequest[Any]) -> None:
        self.limiter, self._request = request.limiter, request
        self.name, self.key, self.cost = request.name, request.key, request.cost
        self.span: Span = self.limiter.period_at(self.limiter._clock.shown())

    def clause(self) -> BudgetClause:
        return BudgetClause(self.key, self._request.limit, self.span.end, self.cost)

    def decision(self, reply: Sequence[int]) -> Decision:
        decision = budget_decision(reply, self.span, "server")
        self.limiter.statistics.add(decision)
        return decision

    def take_here(self) -> Decision:
        self.span = self.limiter.period_at(self.limiter._clock.shown())
        decision: Decision = self.limiter._count_here(self._request)
        return decision

    def by_policy(self) -> Decision:
        decision: Decision = self.limiter._by_policy(self._request)
        return decision

    def refund_here(self, units: int) -> int:
        """Gives back units that were taken here; none when their period is over."""
        now = self.limiter._clock.shown()
        given: int = self.limiter._local.refund(self.key, units, now) if now < self.span.end else 0
        return given

    def record_here(self, units: int) -> None:
        self.limiter._count_here(replace(self._request, cost=units), force=True)

    def refund(self, units: int, age: int) -> Refund | None:
        """Gives back units; None when their period is over."""
        return None if self.limiter._clock.shown() >= self.span.end else Refund(self.key, units)

    def record(self, units: int) -> Budget:
        until = self.limiter.period_at(self.limiter._clock.shown()).end
        return Budget(self.key, self._request.limit, until, units, force=True)

    def forget(self) -> None:
        """Denials of budgets are not remembered."""


class HoldMember:
    """A request to a limiter of holds.

    max_age: for how many seconds the hold is renewed at most.
    """

    is_strict = None

    def __init__(self, request: HoldRequest[Any], max_age: float = math.inf) -> None:
        self.limiter, self.request = request.limiter, request
        self.name, self.key, self.cost = request.name, request.key, request.cost
        self._max_age = max_age
        self.claim: Claim = None

    def clause(self, id: bytes, own_id: bool) -> HoldClause:
        return HoldClause(self.key, self.request.limit, self.request.ttl, id, self.cost, own_id)

    def decision(self, reply: Sequence[int]) -> HoldDecision:
        decision = HoldDecision.of(reply)
        self.limiter.statistics.add(decision)
        return decision

    def take_here(self) -> HoldDecision:
        return self._taken(self.limiter._take_here(self.request, running() + self._max_age))

    def by_policy(self) -> HoldDecision:
        return self._taken(self.limiter._by_policy(self.request))

    def _taken(self, outcome: tuple[HoldDecision, Claim]) -> HoldDecision:
        decision, self.claim = outcome
        self.limiter.statistics.add(decision)
        return decision

    def refund_here(self, units: int) -> None:
        if isinstance(self.claim, LocalHold):
            self.limiter._release_here(self.claim)

    def held(self, id: bytes, sent: float) -> None:
        """The server granted it."""
        self.claim = LiveHold(self.key, id, self.request.ttl, sent, self._max_age)


CountedMember = RateMember | BudgetMember
AnyMember = CountedMember | HoldMember
AnyRequest = Request[Any] | BudgetRequest[Any] | HoldRequest[Any]


def member_of(request: AnyRequest, max_age: float) -> AnyMember:
    if isinstance(request, Request):
        return RateMember(request)
    if isinstance(request, BudgetRequest):
        return BudgetMember(request)
    if isinstance(request, HoldRequest):
        return HoldMember(request, max_age)
    raise TypeError(f"admit takes what `limiter.request(key)` returns, not {request!r}")
