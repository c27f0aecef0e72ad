"""`acquire`: a request that waits until its units are granted."""

from contextlib import suppress
from typing import Any

import redis.exceptions as redis_errors

from ._base import POLLING
from ._core.decision import Decision
from ._core.denial_cache import Demand
from ._protocol.commands import Acquire, Allow, Peek
from ._protocol.replies import can_wait_again, has_no_queue
from ._rate_base import RateLimiterBase
from ._transport.breaker import LAST_PROBE
from .errors import NoFreeConnection, RefusedError, UnavailableError


class Acquisition:
    """One request that waits until the instant `ends` at most: in the server's queue if possible, else by polling."""

    def __init__(self, limiter: RateLimiterBase[Any], demand: Demand, ends: float) -> None:
        self._limiter, self._demand, self._ends = limiter, demand, ends
        self._denied: Decision | None = None
        """The server's last denial."""

    async def outcome(self) -> Decision:
        decision = await self._queue()
        if decision is not None:
            return decision
        queue = self._limiter._queues.of(self._demand.key)
        if not queue.is_taken and not self._has_queue():  # else it was asked already, or others were before
            decision = await self._ask()
            if decision or self._is_hopeless(decision):
                return decision
        place = queue.place()
        try:
            if not await place.take(self._ends - self._limiter._clock.monotonic()):
                return await self._ask()
            return await self._poll()
        finally:
            place.leave()

    def _has_queue(self) -> bool:
        state = self._limiter._state
        return state is not None and state.has_queue(self._demand.key)

    def _is_hopeless(self, denial: Decision) -> bool:
        """Whether waiting to the end would not help."""
        left: float = self._ends - self._limiter._clock.monotonic()
        return denial.never or (denial.retry_after or 0.0) > left

    async def _queue(self) -> Decision | None:
        """Ask without waiting, then wait in the server's queue; None when there is no such queue."""
        limiter, demand, ends = self._limiter, self._demand, self._ends
        if not self._has_queue():
            return None
        first = await self._first_try()
        if first is not None and (first or self._is_hopeless(first)):
            limiter.statistics.add(first)
            return first
        while limiter._state is not None and limiter._state.has_queue(demand.key):
            server = limiter._state.of(demand.key)
            if server is None or server.breaker.is_open:
                return None
            try:
                reply = await limiter._blocking.send(server, self._command, ends)
            except (NoFreeConnection, UnavailableError):
                return None
            except redis_errors.AskError as error:
                await limiter._state.follow(server, error, demand.key, limiter._timeout)
                await self._sleep(0.05)
            except RefusedError as error:
                if can_wait_again(error):
                    if limiter._clock.monotonic() >= ends:
                        return None
                    with suppress(UnavailableError):  # its redirection says where the key is now
                        await limiter._send(Peek(demand.key, demand.quota))
                    await self._sleep(0.05)
                    continue
                if not has_no_queue(error):
                    raise
                return None
            else:
                decision = Decision.of(reply, demand.quota)
                limiter.statistics.add(decision)
                return decision
        return None

    def _command(self, left: float) -> Acquire:
        return Acquire(self._demand.key, self._demand.quota, int(left * 1000), self._demand.cost)

    async def _first_try(self) -> Decision | None:
        """Ask without waiting, over the shared connections, so that a free key never waits for a place."""
        try:
            reply = await self._limiter._send(self._command(0.0))
        except UnavailableError:
            return None
        except RefusedError as error:
            if not has_no_queue(error):
                raise
            return None
        decision = Decision.of(reply, self._demand.quota)
        self._denied = None if decision else decision
        return decision

    async def _ask(self) -> Decision:
        """Ask without waiting. Who still waits when the limiter is closed is denied; whose time is over gets the
        server's last denial, not the policy's decision."""
        limiter, demand = self._limiter, self._demand
        if limiter._is_closed:
            denied = Decision.unasked(demand.quota, 0, LAST_PROBE, limiter._local_source)
            limiter.statistics.add(denied)
            return denied
        known = limiter._known(demand)
        if known is not None:
            return known
        command = Allow(*demand[:3])
        if self._denied is None or limiter._clock.monotonic() < self._ends:
            decision = await limiter._decide(demand, command, limiter._timeout)
        else:
            try:
                decision = await limiter._decide_at_server(demand, command, limiter._timeout)
            except UnavailableError:
                limiter.statistics.add(self._denied)
                return self._denied
        if decision.source == "server" and not decision:
            self._denied = decision
        return decision

    async def _poll(self) -> Decision:
        """Ask, and ask again while there is hope; in the server's queue as soon as it has a place."""
        while True:
            decision = await self._ask()
            if decision or self._limiter._is_closed or self._is_hopeless(decision):
                return decision
            pause = decision.retry_after or 0.0
            await self._sleep(max(0.001, min(pause, POLLING) if self._has_queue() else pause))
            queued = None if self._limiter._is_closed else await self._queue()
            if queued is not None:
                return queued

    async def _sleep(self, seconds: float) -> None:
        """Wait for `seconds`, or until the limiter is closed."""
        await self._limiter._clock.sleep(seconds, self._limiter._pause)
