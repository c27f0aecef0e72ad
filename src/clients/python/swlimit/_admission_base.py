"""What an admission decides, and how it is settled: the same with threads and with asyncio."""

import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ._admission_members import AnyMember, AnyRequest, BudgetMember, CountedMember, HoldMember, member_of
from ._base import POLLING, BaseLimiter, longest_wait, one_of, time_before
from ._core.clock import running
from ._core.decision import Decision, HoldDecision, headers_of
from ._core.names import tagged
from ._core.quota import MAX_EXACT, Duration, checked_integer, seconds
from ._hold_base import HoldGuard, HoldRequest
from ._protocol.commands import Admit, Command, Repeat, Settle
from ._protocol.replies import is_period_over
from ._transport.hold_renewer import LiveHold, RepeatedCommand
from .errors import NotExecuted, RefusedError, UnavailableError

AnyDecision = Decision | HoldDecision
OnError = Literal["keep", "give_back"]
MOST_ID_BYTES = 128
SOON = 60_000
"""ms before the end of a period within which a server may say that it is over."""
RESERVATION_TTL = 15_000
"""ms; without holds whose times to live it could have."""
LEAST_TIME = 0.001
"""Seconds: a caller that has less time left asks no server."""
ADMISSION_JITTER = 5
"""An admission that waits asks up to one part in so many later: those denied together do not come together."""
LONGEST_HOLD_RETRY = 1.0
"""The longest `Retry-After` of a denied hold, in seconds: holds may be released at any moment."""


class Member(NamedTuple):
    """What one limiter decided in an admission."""

    name: str | None
    key: bytes
    decision: AnyDecision


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `admit`; durations are in seconds."""

    id: bytes | None
    max_age: float | None
    on_error: OnError
    wait: float
    deadline: float
    spends: bool
    """Whether it is always settled."""

    @classmethod
    def checked(cls, id: bytes | None, max_age: Duration | None, on_error: OnError, wait: Duration,
                deadline: Duration | None, spends: bool) -> "Options":
        if id is not None and (not isinstance(id, bytes) or not 1 <= len(id) <= MOST_ID_BYTES):
            raise ValueError(f"id must be 1 to 128 bytes, not {id!r}")
        one_of("on_error", on_error, get_args(OnError))
        return cls(id, None if max_age is None else seconds(max_age, "max_age"), on_error, longest_wait(wait, "wait"),
                   math.inf if deadline is None else time_before(seconds(deadline, "deadline", least=0)), spends)


def reservation_of(name: bytes) -> bytes:
    """The key of the reservation, for the key of the first request."""
    return tagged(name) + b":reserved"


class AdmissionBase:
    """The decision about several requests; true when all are granted. Otherwise nothing is counted."""

    granted: bool
    each: tuple[AnyDecision, ...]
    """The decision about each request, in order: what its limiter would have said."""
    holds: tuple[Any, ...]
    """The guards of the holds, in order; none for a denial."""

    def __init__(self, requests: Sequence[AnyRequest], options: Options) -> None:
        self._options = options
        self._id = os.urandom(16) if options.id is None else options.id
        max_age = math.inf if options.max_age is None else options.max_age
        self._members: list[AnyMember] = [member_of(request, max_age) for request in requests]
        self._counted = [member for member in self._members if not isinstance(member, HoldMember)]
        self._held = [member for member in self._members if isinstance(member, HoldMember)]
        self._first: BaseLimiter = self._members[0].limiter
        self._clock = self._first._clock
        self._deadline = self._clock.monotonic() + options.deadline
        self._reserved: HoldMember | None = None
        """The hold that remembers all the others on the server."""
        if self._counted and (self._held or options.max_age is not None or options.spends):
            ttl = max((member.request.ttl for member in self._held), default=RESERVATION_TTL)
            name = reservation_of(self._members[0].key)
            self._reserved = HoldMember(HoldRequest(self._first, name, 1, ttl, MAX_EXACT), max_age)
        self._reservation: HoldGuard | None = None
        self._process = os.getpid()
        self._is_settled = self._is_in_doubt = False
        self._kept: dict[bytes, float] = {}
        """What a policy granted in place of the server."""
        self._seen: dict[str, int] = {}
        self.holds = ()
        self._check()

    def _check(self) -> None:
        if len({member.limiter._state for member in self._members}) > 1:
            raise ValueError("what is admitted together has one client")
        if len({member.is_strict for member in self._members} - {None}) > 1:
            raise ValueError("rates that are decided together are all strict or all not")
        if len({member.key for member in self._members}) < len(self._members):
            raise ValueError("a key is named twice; requests that are decided together have keys that differ")
        names = [member.name for member in self._members if member.name is not None]
        if len(set(names)) < len(names):
            raise ValueError("two requests have one name; requests that are decided together have names that differ")

    def __bool__(self) -> bool:
        return self.granted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'granted' if self else 'denied'} {self.each}>"

    @property
    def never(self) -> bool:
        """Whether all of them can never grant it."""
        return any(decision.never for decision in self.each)

    @property
    def retry_after(self) -> float | None:
        """Seconds until all of them would grant it, as far as is known; None where they `never` can."""
        return None if self.never else 0.0 if self else max(decision.retry_after or 0.0 for decision in self.each)

    @property
    def denied_by(self) -> Member | None:
        """The request that was denied, of several the one with the longest `retry_after`; None when all are granted."""
        denied = [Member(member.name, member.key, decision)
                  for member, decision in zip(self._members, self.each) if not decision]
        return max(denied, key=lambda one: math.inf if one.decision.never else one.decision.retry_after or 0.0,
                   default=None)

    def headers(self) -> dict[str, str]:
        """What to send with an HTTP response: rates and budgets by their names, `Retry-After` and `retry-after-ms`.

        A hold may be released at any moment: who is denied one should try again after a second at most.
        """
        named = [(member.name or "default", decision) for member, decision in zip(self._members, self.each)
                 if isinstance(decision, Decision)]
        waits = [min(wait, LONGEST_HOLD_RETRY) if isinstance(decision, HoldDecision) else wait
                 for decision in self.each if (wait := decision.retry_after)]
        headers, wait = headers_of(named), max(waits, default=0.0)
        headers.pop("Retry-After", None)
        if not self and not self.never and wait > 0:
            headers |= {"Retry-After": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}
        return headers

    # The decision.

    async def _decide(self) -> None:
        """Ask until it is granted, or as long as the caller waits, with the same id."""
        ends = min(self._clock.monotonic() + self._options.wait, self._deadline)
        try:
            await self._try()
            if self._source == "failure":
                ends = -math.inf  # the policy has decided, which takes no wait
            while (left := ends - self._clock.monotonic()) > 0 and self._may_be_granted(left):
                pause = min(self.retry_after or POLLING, POLLING) * random.uniform(1, 1 + 1 / ADMISSION_JITTER)
                await self._clock.sleep(max(0.001, min(left, pause)), self._first._interface.sleep)
                if self._is_over() or self._first._is_closed:
                    break
                try:
                    await self._try(has_waited=True)
                except UnavailableError:  # a wait survives restarts and failovers
                    if self._clock.monotonic() >= ends:
                        raise
        except BaseException:
            self._undo()
            raise
        if not self.granted or self._source != "server":
            self._undo()

    def _may_be_granted(self, left: float) -> bool:
        """Whether waiting until then can help. Holds may be released at any moment."""
        return not (self.granted or self.never or self._first._is_closed) and not any(
            (decision.retry_after or 0.0) > left and not isinstance(member, HoldMember)
            for member, decision in zip(self._members, self.each))

    def _is_over(self) -> bool:
        """Whether the caller's own time is over: who has waited then gets the last denial, not a policy's decision."""
        left: float = self._deadline - self._clock.monotonic()
        return left < LEAST_TIME

    async def _try(self, has_waited: bool = False) -> None:
        self._sent, self._began = running(), time.monotonic()
        if self._first._state is None:
            self._decide_here()
            return
        try:
            reply = await self._send()
        except UnavailableError as error:
            if not isinstance(error, NotExecuted):
                self._is_in_doubt = True
            held = self._command().held
            if held is not None:
                error.keep({held.key: math.inf})  # a late grant may be the next try's: `_undo` settles it
            if has_waited and self._is_over():
                return
            if any(member.limiter._on_failure == "error" for member in self._members):
                raise
            self._decide_here()
            if self.granted:
                self._kept = {member.key: math.inf if member.limiter._on_failure == "allow" else decision.granted
                              for member, decision in zip(self._members, self.each)
                              if not isinstance(member, HoldMember)}
                if held is None:
                    error.keep(self._kept)
            return
        self._source = "server"
        reserved = [] if self._reserved is None else [self._reserved]
        self.each = tuple(member.decision(one) for member, one in zip(self._members, reply[1 + len(reserved):]))
        for member in [*reserved, *self._held] if reply[0] else []:
            member.held(self._id, self._sent)
        self._decided(bool(reply[0]))
        if self.granted and self._reserved is not None:
            self._reservation = HoldGuard(
                self._reserved.request, self._id, HoldDecision.of(reply[1]), self._reserved.claim)
            self._first._keep(self._reservation, self._reserved.claim)

    def _command(self) -> Admit:
        members = self._members if self._reserved is None else [self._reserved, *self._members]
        clauses = [member.clause(self._id, self._options.id is None) if isinstance(member, HoldMember)
                   else member.clause() for member in members]
        return Admit(clauses, strict=any(member.is_strict for member in self._members))

    async def _send(self) -> Any:
        """The reply. When this clock is behind the server's at the end of a period, ask with the next period."""
        left = max(0.0, min(self._first._timeout, self._deadline - self._clock.monotonic()))
        try:
            return await self._first._send(self._command(), left)
        except RefusedError as error:
            if not is_period_over(error):
                raise
        now = self._clock.shown()
        for member in self._members:
            if isinstance(member, BudgetMember) and member.span.end - now < SOON:
                member.span = member.limiter.calendar.period_at(member.span.end)
        return await self._first._send(self._command(), left)

    def _undo(self) -> None:
        """Undo what the server may have granted in replies that were lost, as far as possible."""
        if self._is_in_doubt:
            for command in self._command().undo(None, self._began, self._kept):
                self._first._in_background(command.key, RepeatedCommand.of(command))

    def _decide_here(self) -> None:
        """Decide each part by its own limiter's policy, or without a client by what this process counts."""
        self._source = self._first._local_source
        self.each = tuple(member.take_here() if member.limiter._counts_here else member.by_policy()
                          for member in self._members)
        granted = all(self.each)
        if not granted:
            for member, decision in zip(self._members, self.each):
                if decision and member.limiter._counts_here:
                    member.refund_here(decision.granted)
        self._decided(granted)

    def _decided(self, granted: bool) -> None:
        self.granted = granted
        if granted:
            self.holds = tuple(
                member.limiter._guard(member.request, self._id, decision, member.claim)
                for member, decision in zip(self._members, self.each) if isinstance(member, HoldMember))

    # The settlement.

    def saw(self, /, **used: int) -> None:
        """Keep how many units the requests of these names used so far. Leaving settles with the last of each name."""
        self._used((), self._seen | used)
        self._seen |= used

    def settle_soon(self, /, *used: int, **named: int) -> None:
        """As `settle`, in the background, without waiting for the server. It is sent until the server answers; without
        holds and `max_age`, once."""
        units = self._used(used, named)
        if not self._begin_settlement():
            return
        if self._source != "server":
            self._settle_here(units)
        elif self._reservation is None:
            self.release_soon()
            for member, _, command in self._changes(units):
                member.limiter._in_background(
                    member.key, RepeatedCommand(command, math.inf, running() + RESERVATION_TTL / 1000))
                member.forget()
        else:
            self._settle_in_background(self._settlement(units), self._give_up(), units, is_sent=False)

    def release_soon(self) -> None:
        """As `release`, in the background."""
        for hold in self.holds:
            hold.release_soon()

    async def _release(self) -> None:
        """End the holds, once. Everything else stays counted, and can be settled later."""
        for hold in self.holds:
            await hold._leave()

    async def _settle(self, used: Sequence[int], named: dict[str, int]) -> list[int] | None:
        """Say how many units were really used: of each request but the holds, in order, or by name. The holds end.

        Of a name that is not given, as many as were asked for; without any units, what `saw` was given. It happens
        once, also when the server must be asked again, which goes on in the background. Returns the units counted
        (above 0) or given back (below 0) for each; None when that is not known, or the reservation had ended before:
        units used beyond are counted then, too. Without holds and `max_age`, raises UnavailableError.
        """
        return await self._settle_units(self._used(used, named))

    async def _leave(self, error: BaseException | None) -> None:
        """Settle with what was seen, or else with what was asked for; with nothing after an error, if so wanted."""
        if not self._seen and self._options.on_error == "give_back" and isinstance(error, Exception):
            await self._settle_units([0] * len(self._counted))
        else:
            await self._settle_units(self._used((), {}))

    def _used(self, used: Sequence[int], named: dict[str, int]) -> Sequence[int]:
        """The units of each request that counts; where none are given, those that were seen."""
        if used and named:
            raise TypeError("units are settled by position or by name, not both")
        names = {member.name for member in self._counted}
        if unknown := sorted(named.keys() - names):
            raise ValueError(f"no rate or budget of this admission has the name {', '.join(map(repr, unknown))}")
        for units in [*used, *named.values()]:
            checked_integer(units, "used", least=0)
        if not used:
            named = named or self._seen
            return [named.get(member.name or "", member.cost) for member in self._counted]
        if len(used) != len(self._counted):
            raise ValueError(f"settle takes the units of {len(self._counted)} requests, not of {len(used)}")
        return used

    def _begin_settlement(self) -> bool:
        if not self.granted:
            raise ValueError("nothing was granted that could be settled")
        if self._is_settled or os.getpid() != self._process:
            return False
        self._is_settled = True
        return True

    async def _settle_units(self, used: Sequence[int]) -> list[int] | None:
        if not self._begin_settlement():
            return None
        if self._source != "server":
            return self._settle_here(used)
        if self._reservation is None:
            return await self._settle_each(used)
        return await self._settle_once(used)

    def _settle_here(self, used: Sequence[int]) -> list[int]:
        for hold in self.holds:
            hold._give_up()
        for held in self._held:
            held.refund_here(held.cost)
        changes = []
        for member, units in zip(self._counted, used):
            more = units - member.cost if member.limiter._counts_here else 0
            if more > 0:
                member.record_here(more)
            changes.append(more if more >= 0 else -member.refund_here(-more))
        return changes

    async def _settle_each(self, used: Sequence[int]) -> list[int]:
        """Without a reservation, the server remembers nothing about the admission."""
        changes = {member.key: 0 for member in self._counted}
        await self._release()
        for member, change, command in self._changes(used):
            reply = await member.limiter._send(command)
            changes[member.key] = change if change > 0 else -reply
            member.forget()
        return list(changes.values())

    def _changes(self, used: Sequence[int]) -> Iterator[tuple[CountedMember, int, Command]]:
        """What to count or give back of each request, and how."""
        age = math.ceil((time.monotonic() - self._began) * 1000)
        for member, units in zip(self._counted, used):
            change = units - member.cost
            command = member.record(change) if change > 0 else member.refund(-change, age) if change < 0 else None
            if command is not None:
                yield member, change, command

    def _settlement(self, used: Sequence[int]) -> Settle:
        assert self._reserved is not None
        units = {member.key: one for member, one in zip(self._counted, used)}
        used_of = [(member.key, units.get(member.key, 0)) for member in self._members]
        return Settle(self._reserved.key, self._id, used_of)

    def _give_up(self) -> LiveHold:
        """Leave the holds to another command, which ends them. Only the reservation is renewed until then."""
        assert self._reservation is not None
        for hold in self.holds:
            hold._give_up()
        claim = self._reservation._hand_over()
        assert isinstance(claim, LiveHold)
        return claim

    async def _settle_once(self, used: Sequence[int]) -> list[int] | None:
        limiter, command, claim = self._first, self._settlement(used), self._give_up()
        server = limiter._state.of(claim.key) if limiter._state is not None else None
        is_sent = server is not None and not server.breaker.is_open
        try:
            reply = await limiter._send(command)
        except UnavailableError:
            self._settle_in_background(command, claim, used, is_sent)
            return None
        except BaseException:
            self._settle_in_background(command, claim, used, True)
            raise
        self._settled(claim)
        if reply[0]:
            return [change for member, change in zip(self._members, reply[1:]) if not isinstance(member, HoldMember)]
        for member, record in self._beyond(used):
            await member.limiter._send(record)
        return None

    def _settled(self, claim: LiveHold) -> None:
        claim.is_over = True
        for held in self._held:
            held.limiter._queues.wake(held.key, is_shared=True)
        for member in self._counted:
            member.forget()

    def _beyond(self, used: Sequence[int]) -> list[tuple[CountedMember, Command]]:
        return [(member, command) for member, change, command in self._changes(used) if change > 0]

    def _settle_in_background(self, command: Settle, claim: LiveHold, used: Sequence[int], is_sent: bool) -> None:
        """Send it until the server has answered. A hold that is not live has ended before only if this was the first
        command sent: an earlier one may have settled it."""
        limiter, lasts = self._first, claim.ttl / 1000

        def is_done(reply: Any) -> bool:
            self._settled(claim)
            if not reply[0] and not is_sent and settling.tries == 1:
                for member, record in self._beyond(used):
                    limiter._in_background(member.key, RepeatedCommand(record, math.inf, running() + lasts))
            return True

        command.repeat = Repeat(lasts, is_done)
        settling = RepeatedCommand.of(command)
        limiter._in_background(claim.key, settling)
