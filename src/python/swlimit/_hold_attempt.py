"""One attempt to take a hold."""

import math
import os
import time

import redis.exceptions as redis_errors

from ._base import POLLING
from ._core.clock import running
from ._core.decision import HoldDecision
from ._hold_base import Claim, HoldLimiterBase, HoldRequest
from ._protocol.commands import Renew
from ._protocol.replies import can_wait_again, is_queue_full
from ._transport.hold_renewer import LiveHold, RepeatedCommand
from .errors import NoFreeConnection, ServerAway


class HoldAttempt:
    """Waits until the instant `ends` at most. All its requests have the same id."""

    def __init__(self, request: HoldRequest, ends: float) -> None:
        self._request = request
        self._limiter: HoldLimiterBase = request.limiter
        self._ends = ends
        self.id = os.urandom(16)
        self._is_in_doubt = False
        """Whether the server may have granted a hold whose reply was lost."""

    async def outcome(self) -> tuple[HoldDecision, Claim]:
        try:
            decision, claim = await self._try()
            while not decision and time.monotonic() < self._ends and decision.retry_after != math.inf:
                decision, claim = await self._queue() or await self._poll(decision)
        except BaseException:
            self._give_back()
            raise
        if not isinstance(claim, LiveHold):
            self._give_back()
        return decision, claim

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
        except ServerAway:
            self._is_in_doubt = limiter._state is not None
            if limiter._state is not None and limiter._on_failure == "error":
                raise
            return limiter._by_policy(request)
        decision = HoldDecision.of(reply)
        return decision, self._live(sent) if decision else None

    def _live(self, sent: float) -> LiveHold:
        return LiveHold(self._request.key, self.id, self._request.ttl, sent)

    async def _queue(self) -> tuple[HoldDecision, Claim] | None:
        """Wait in the server's queue; None when there is no place in it."""
        limiter, key = self._limiter, self._request.key
        server = None if limiter._state is None else limiter._state.of(key)
        if limiter._state is None or server is None or server.breaker.is_open:
            return None
        try:
            reply = await limiter._blocking.send(
                server, lambda left: self._request.command(self.id, left), self._ends)
        except redis_errors.AskError as error:
            limiter._state.redirected(error)
        except NoFreeConnection:
            pass
        except ServerAway:
            self._is_in_doubt = True
        except redis_errors.ResponseError as error:
            if not can_wait_again(error) and not is_queue_full(error):
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
        except ServerAway:
            return None
        self._is_in_doubt = False
        return (HoldDecision.of(reply), self._live(sent)) if is_live else None

    async def _poll(self, decision: HoldDecision) -> tuple[HoldDecision, Claim]:
        """Ask again a little later, or after a release in this process; first come, first served here."""
        limiter, key = self._limiter, self._request.key
        queue = limiter._queues.of(key)
        if not await queue.take(self._ends - time.monotonic()):
            return decision, None
        try:
            left = max(0.0, self._ends - time.monotonic())
            await limiter._local.released(key, left if limiter._state is None else min(left, POLLING))
            return await self._try()
        finally:
            queue.release()
