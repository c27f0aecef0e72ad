"""One attempt to take a hold."""

import math
import os
import random
import time
from typing import Any

import redis.exceptions as redis_errors

from ._base import POLLING, Claim
from ._core.clock import running
from ._core.decision import HoldDecision
from ._hold_base import HoldLimiterBase, HoldRequest
from ._protocol.commands import Renew
from ._protocol.replies import can_wait_again, has_no_queue
from ._transport.hold_renewer import LiveHold, RepeatedCommand
from .errors import NoFreeConnection, NotExecuted, RefusedError, UnavailableError

LEAST_POLL, MOST_POLL = 0.02, 0.06
"""Seconds between two requests of who waits first in this process, where the server lets nobody wait."""


class HoldAttempt:
    """Waits until the instant `ends` at most. All its requests have the same id."""

    def __init__(self, request: HoldRequest[Any], ends: float) -> None:
        self._request = request
        self._limiter: HoldLimiterBase[Any] = request.limiter
        self._ends = ends
        self.id = os.urandom(16)
        self._is_in_doubt = False
        """Whether the server may have granted a hold whose reply was lost."""

    async def outcome(self) -> tuple[HoldDecision, Claim]:
        try:
            outcome = None if self._is_behind_others() else await self._try()
            while outcome is None or self._may_wait(outcome[0]):
                outcome = await self._queue() or await self._poll(outcome)
        except BaseException:
            self._give_back()
            raise
        if not isinstance(outcome[1], LiveHold):
            self._give_back()
        return outcome

    def _may_wait(self, decision: HoldDecision) -> bool:
        return (not decision and time.monotonic() < self._ends and not decision.never
                and not self._limiter._is_closed)

    def _has_queue(self) -> bool:
        state = self._limiter._state
        return state is not None and state.has_queue(self._request.key)

    def _is_behind_others(self) -> bool:
        """Whether others of this process wait for the key, and the server does not know them."""
        return (time.monotonic() < self._ends and not self._has_queue()
                and self._limiter._queues.is_taken(self._request.key))

    def _give_back(self) -> None:
        if self._is_in_doubt:
            for command in self._request.command(self.id).undo(None, 0.0):
                self._limiter._in_background(command.key, RepeatedCommand.of(command))

    async def _try(self) -> tuple[HoldDecision, Claim]:
        """Ask without waiting, over the shared connections; or apply the failure policy."""
        limiter, request = self._limiter, self._request
        sent = running()
        try:
            reply = await limiter._send(request.command(self.id))
        except UnavailableError as error:
            error.keep({request.key: math.inf})  # a late hold may be the next try's: `_give_back` releases it
            if limiter._state is not None and not isinstance(error, NotExecuted):
                self._is_in_doubt = True
            if limiter._state is not None and limiter._on_failure == "error":
                raise
            return limiter._by_policy(request)
        decision = HoldDecision.of(reply)
        return decision, self._live(sent) if decision else None

    def _live(self, sent: float) -> LiveHold:
        return LiveHold(self._request.key, self.id, self._request.ttl, sent)

    async def _queue(self) -> tuple[HoldDecision, Claim] | None:
        """Wait in the server's queue; None when there is no place in it, or no time."""
        if time.monotonic() >= self._ends:
            return None
        limiter, key = self._limiter, self._request.key
        server = None if limiter._state is None else limiter._state.of(key)
        if limiter._state is None or server is None or server.breaker.is_open or not self._has_queue():
            return None
        try:
            reply = await limiter._blocking.send(
                server, lambda left: self._request.command(self.id, left), self._ends)
        except redis_errors.AskError as error:
            await limiter._state.follow(server, error, key, limiter._timeout)
        except NoFreeConnection:
            pass
        except UnavailableError:
            if not limiter._is_closed:  # else that has ended the wait, and the server grants nothing to who has gone
                self._is_in_doubt = True
        except RefusedError as error:
            if not can_wait_again(error) and not has_no_queue(error):
                self._is_in_doubt = False  # another client waits with this id: the hold is that client's
                raise
        else:
            return await self._renewed(reply) if reply[0] else (HoldDecision.of(reply), None)
        return None

    async def _renewed(self, reply: list[int]) -> tuple[HoldDecision, Claim] | None:
        """Renew a hold that was waited for before using it: it may have been granted long ago."""
        limiter, request, sent = self._limiter, self._request, running()
        self._is_in_doubt = True
        try:
            is_live, = await limiter._send(Renew(request.key, request.ttl, [self.id]))
        except UnavailableError:
            return None
        self._is_in_doubt = False
        return (HoldDecision.of(reply), self._live(sent)) if is_live else None

    async def _poll(self, outcome: tuple[HoldDecision, Claim] | None) -> tuple[HoldDecision, Claim]:
        """Ask again from time to time, and after each release in this process; first come, first served here."""
        queue = self._limiter._queues.of(self._request.key)
        is_behind = queue.is_taken
        place = queue.place()
        try:
            if not await place.take(self._ends - time.monotonic()):
                return outcome or await self._try()
            if outcome is None or is_behind:
                outcome = await self._try()
            while self._may_wait(outcome[0]):
                await queue.pause(self._pause(outcome[0]))
                outcome = await self._queue() or await self._try()
            return outcome
        finally:
            place.leave()

    def _pause(self, decision: HoldDecision) -> float:
        """Seconds until it is worth asking again, unless a hold is released here before."""
        left = max(0.0, self._ends - time.monotonic())
        if self._limiter._state is None or self._has_queue():
            return min(left, POLLING)  # a guard that is collected wakes nobody
        return min(left, max(0.001, min(decision.retry_after or math.inf, random.uniform(LEAST_POLL, MOST_POLL))))
