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
from ._transport.circuit_breaker import LAST_PROBE
from .errors import NoFreeConnection, ServerAway


class Acquisition:
    """One request that waits until the instant `ends` at most: in the server's queue if possible, else by polling."""

    def __init__(self, limiter: RateLimiterBase[Any], demand: Demand, ends: float) -> None:
        self._limiter, self._demand, self._ends = limiter, demand, ends

    async def outcome(self) -> Decision:
        decision = await self._queue()
        if decision is not None:
            return decision
        queue = self._limiter._queues.of(self._demand.key)
        if not await queue.take(self._ends - self._limiter._clock.monotonic()):
            return await self._poll(0.0)
        try:
            return await self._poll(self._ends)
        finally:
            queue.release()

    async def _queue(self) -> Decision | None:
        """Ask without waiting, then wait in the server's queue; None when there is no such queue."""
        limiter, demand, ends = self._limiter, self._demand, self._ends
        if limiter._state is None or not limiter._state.has_queue(demand.key):
            return None
        first = await self._first_try()
        if first is not None and (first or (first.retry_after or 0.0) > ends - limiter._clock.monotonic()):
            limiter.statistics.add(first)
            return first
        while limiter._state is not None and limiter._state.has_queue(demand.key):
            server = limiter._state.of(demand.key)
            if server is None or server.breaker.is_open:
                return None
            try:
                reply = await limiter._blocking.send(server, self._command, ends)
            except (NoFreeConnection, ServerAway):
                return None
            except redis_errors.AskError as error:
                limiter._state.redirected(error)
                await self._sleep(0.05)
            except redis_errors.ResponseError as error:
                if can_wait_again(error) and limiter._clock.monotonic() < ends:
                    with suppress(ServerAway):  # its redirection says where the key is now
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
        except ServerAway:
            return None
        except redis_errors.ResponseError as error:
            if not has_no_queue(error):
                raise
            return None
        return Decision.of(reply, self._demand.quota)

    async def _poll(self, ends: float) -> Decision:
        """Ask, and ask again while there is hope, until the instant `ends`; in the server's queue as soon as it has a
        place. Who still waits when the limiter is closed is denied."""
        limiter, demand = self._limiter, self._demand
        while not limiter._is_closed:
            decision = limiter._known(demand)
            if decision is None:
                decision = await limiter._decide(demand, Allow(*demand[:3]), limiter._timeout)
            pause = decision.retry_after or 0.0
            if decision or limiter._clock.monotonic() + pause > ends:
                return decision
            if limiter._state is not None and limiter._state.has_queue(demand.key):
                pause = min(pause, POLLING)
            await self._sleep(max(0.001, pause))
            queued = None if limiter._is_closed else await self._queue()
            if queued is not None:
                return queued
        denied = Decision.unasked(demand.quota, 0, LAST_PROBE, limiter._local_source)
        limiter.statistics.add(denied)
        return denied

    async def _sleep(self, seconds: float) -> None:
        """Wait for so long, or until the limiter is closed."""
        await self._limiter._clock.sleep(seconds, self._limiter._pause)
