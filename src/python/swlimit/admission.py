"""One decision about rates, budgets and a hold: all of them are granted, or none is counted."""

import math
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import redis.exceptions as redis_errors

from ._admission_members import AnyRequest, BudgetMember, CountedMember, HoldMember, Member, member_of
from ._base import BaseLimiter
from ._core.clock import running, shown
from ._core.decision import Decision, HoldDecision
from ._core.quota import checked_integer
from ._hold_base import Claim
from ._protocol.commands import Admit, Repeat, Settle
from ._protocol.replies import is_period_over
from ._sync_async import AwaitableContext, Awaited
from ._transport.hold_renewer import LiveHold, RepeatedCommand
from ._transport.thread_backend import run
from .errors import DeniedError, NotExecuted, ServerAway

if TYPE_CHECKING:
    from typing_extensions import Self

AnyDecision = Decision | HoldDecision
MOST_ID_BYTES = 128
SOON = 60_000
"""ms before the end of a period within which a server may say that it is over."""


class AdmissionBase:
    """The decision about several requests; true when all are granted. Otherwise nothing is counted."""

    granted: bool
    each: tuple[AnyDecision, ...]
    """The decision about each request, in order: what its limiter would have said."""
    hold: Any
    """The guard of the hold; None without one, and for a denial."""

    def __init__(self, requests: Sequence[AnyRequest], id: bytes | None) -> None:
        self._members: list[Member] = [member_of(request) for request in requests]
        self._counted = [member for member in self._members if not isinstance(member, HoldMember)]
        self._held = next((member for member in self._members if isinstance(member, HoldMember)), None)
        self._is_own_id = id is None
        self._id = os.urandom(16) if id is None else id
        self._first: BaseLimiter = self._members[0].limiter
        self._is_settled = False
        self.hold = None
        self._check()

    def _check(self) -> None:
        if len({member.limiter._state for member in self._members}) > 1:
            raise ValueError("what is admitted together has one client")
        if len({member.is_strict for member in self._members} - {None}) > 1:
            raise ValueError("rates that are decided together are all strict or all not")
        if sum(isinstance(member, HoldMember) for member in self._members) > 1:
            raise ValueError("there can be one hold in a decision")
        if len({member.key for member in self._members}) < len(self._members):
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

    async def _decide(self) -> None:
        self._sent, self._began = running(), time.monotonic()
        self._source = self._first._local_source
        if self._first._state is None:
            self._decide_here()
            return
        try:
            reply = await self._send()
        except ServerAway as error:
            if not isinstance(error, NotExecuted):
                self._undo()
            if self._first._on_failure == "error":
                raise
            if self._first._on_failure == "local":
                self._decide_here()
            else:
                self.each = tuple(member.by_policy() for member in self._members)
                self._decided(all(self.each), None)
            return
        self._source = "server"
        self.each = tuple(member.decision(one) for member, one in zip(self._members, reply[1:]))
        held = self._held
        self._decided(bool(reply[0]), LiveHold(held.key, self._id, held.request.ttl, self._sent) if held else None)

    def _command(self) -> Admit:
        clauses = [member.clause(self._id, self._is_own_id) if isinstance(member, HoldMember) else member.clause()
                   for member in self._members]
        return Admit(clauses, strict=any(member.is_strict for member in self._members))

    async def _send(self) -> Any:
        """The reply. When this clock is behind the server's at the end of a period, ask with the next period."""
        try:
            return await self._first._send(self._command())
        except redis_errors.ResponseError as error:
            if not is_period_over(error):
                raise
        now = shown()
        for member in self._members:
            if isinstance(member, BudgetMember) and member.span.end - now < SOON:
                member.span = member.limiter.calendar.period_at(member.span.end)
        return await self._first._send(self._command())

    def _undo(self) -> None:
        """The reply was lost: undo what the server may have granted, as far as possible."""
        for command in self._command().undo(None, self._began):
            self._first._in_background(command.key, RepeatedCommand.of(command))

    def _decide_here(self) -> None:
        self.each = tuple(member.take_here() for member in self._members)
        granted = all(self.each)
        if not granted:
            for member, decision in zip(self._members, self.each):
                if decision:
                    member.refund_here(decision.granted)
        self._decided(granted, self._held.claim if self._held else None)

    def _decided(self, granted: bool, claim: Claim) -> None:
        self.granted = granted
        if granted and self._held is not None:
            decision = self.each[self._members.index(self._held)]
            self.hold = self._held.limiter._guard(self._held.request, self._id, decision, claim)

    # The settlement.

    async def _settle(self, *used: int) -> list[int] | None:
        """Say how many units each request really used, in order, without the hold. The hold ends.

        It happens once, also when the server must be asked again, which goes on in the background. Returns the units
        counted (above 0) or given back (below 0) for each; None when that is not known, because the hold had ended
        before: units used beyond are counted then, too. Without a hold, raises ServerAway.
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
            await self.hold._leave()
        is_counted = self._first._state is None or self._first._on_failure == "local"
        for member, units in zip(self._counted, used):
            if is_counted and units < member.cost:
                member.refund_here(member.cost - units)
            elif is_counted and units > member.cost:
                member.record_here(units - member.cost)
        return [units - member.cost if is_counted else 0 for member, units in zip(self._counted, used)]

    async def _settle_each(self, used: Sequence[int]) -> list[int]:
        """Without a hold, the server remembers nothing about the admission."""
        changes = []
        for member, units in zip(self._counted, used):
            change = units - member.cost
            if change < 0:
                age = math.ceil((time.monotonic() - self._began) * 1000)
                command = member.refund(-change, age)
                change = -await member.limiter._send(command) if command else 0
                member.forget()
            elif change > 0:
                await member.limiter._send(member.record(change))
            changes.append(change)
        return changes

    async def _settle_once(self, used: Sequence[int]) -> list[int] | None:
        assert self._held is not None
        limiter, key = self._held.limiter, self._held.key
        command = Settle(key, self._id, [(member.key, units) for member, units in zip(self._counted, used)])
        claim = self.hold._give_up()
        server = limiter._state.of(key) if limiter._state is not None else None
        is_sent = server is not None and not server.breaker.is_open
        try:
            reply = await limiter._send(command)
        except ServerAway:
            self._settle_in_background(command, claim, used, is_sent)
            return None
        except BaseException:
            self._settle_in_background(command, claim, used, True)
            raise
        limiter._queues.wake(key, is_shared=True)
        for member in self._counted:
            member.forget()
        if reply[0]:
            return list(reply[1:])
        for member, change in self._beyond(used):
            await member.limiter._send(member.record(change))
        return None

    def _beyond(self, used: Sequence[int]) -> list[tuple[CountedMember, int]]:
        return [(member, units - member.cost) for member, units in zip(self._counted, used) if units > member.cost]

    def _settle_in_background(self, command: Settle, claim: LiveHold, used: Sequence[int], is_sent: bool) -> None:
        """Send it until the server has answered. A hold that is not live has ended before only if this was the first
        command sent: an earlier one may have settled it."""
        assert self._held is not None
        limiter, lasts = self._held.limiter, claim.ttl / 1000

        def is_done(reply: Any) -> bool:
            if not reply[0] and not is_sent and settling.tries == 1:
                for member, change in self._beyond(used):
                    limiter._in_background(
                        member.key, RepeatedCommand(member.record(change), math.inf, running() + lasts))
            return True

        command.repeat = Repeat(lasts, is_done)
        settling = RepeatedCommand.of(command)
        limiter._in_background(claim.key, settling)


class Admission(AdmissionBase):
    """The outcome of `admit`; entering a denied one raises DeniedError.

    Leaving it releases the hold; units that were not settled stay counted.
    """

    def settle(self, *used: int) -> list[int] | None:
        return run(self._settle(*used))

    settle.__doc__ = AdmissionBase._settle.__doc__

    def __enter__(self) -> "Self":
        _check_granted(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.release()


class AsyncAdmission(AdmissionBase):
    """The outcome of `admit` with limiters of asyncio; entering a denied one raises DeniedError.

    Leaving it releases the hold; units that were not settled stay counted.
    """

    async def settle(self, *used: int) -> list[int] | None:
        return await self._settle(*used)

    settle.__doc__ = AdmissionBase._settle.__doc__

    async def __aenter__(self) -> "Self":
        _check_granted(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.hold is not None:
            await self.hold.release()


def _check_granted(admission: AdmissionBase) -> None:
    if not admission:
        members, each = admission._members, admission.each
        denied = next((member for member, decision in zip(members, each) if not decision), members[0])
        raise DeniedError(denied.key, admission)


def admit(requests: Sequence[AnyRequest], *, id: bytes | None = None) -> Any:
    """Take all of it in one decision, or nothing: `admit([rate.request("k"), streams.request("s"), ...])`.

    The requests are of Limiters, BudgetLimiters and at most one HoldLimiter, all of one client; their keys differ, and
    in a cluster have one slot. The first limiter's `on_failure` decides while the server is unavailable.
    id: of the hold, 1 to 128 bytes that are used once; by default 16 random ones. What is granted under an id of
        yours after you gave up is not given back: ask for it again with the same id, or wait for its time to live.

    Returns an `Admission`; with the limiters of asyncio an `AsyncAdmission`, to be awaited or entered by `async with`.
    """
    if not requests:
        raise TypeError("admit takes one or more of what `limiter.request(key)` returns")
    if id is not None and (not isinstance(id, bytes) or not 1 <= len(id) <= MOST_ID_BYTES):
        raise ValueError(f"id must be 1 to 128 bytes, not {id!r}")
    kinds = {isinstance(member_of(request).limiter, Awaited) for request in requests}
    if len(kinds) > 1:
        raise TypeError("limits that are decided together are all for threads, or all for asyncio")
    if kinds == {True}:
        return AwaitableContext(_admit(AsyncAdmission(requests, id)))
    return run(_admit(Admission(requests, id)))


async def _admit(admission: Any) -> Any:
    await admission._decide()
    return admission
