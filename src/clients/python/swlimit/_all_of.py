"""Several limits that decide together: all grant a request, or none counts it."""

import time
from collections.abc import Coroutine, Sequence
from typing import Any, overload

from ._core import local_windows
from ._core.decision import Decision, Decisions, Source
from ._core.quota import Duration
from ._protocol.commands import Allow, AllowAll, RateClause
from ._rate_base import RateLimiterBase, Request
from ._transport.thread_backend import run
from .errors import UnavailableError
from .rate_limiter import AsyncLimiter, Limiter


@overload
def allow_all(*requests: Request[Limiter], deadline: Duration | None = None) -> Decisions: ...


@overload
def allow_all(*requests: Request[AsyncLimiter],
              deadline: Duration | None = None) -> Coroutine[Any, Any, Decisions]: ...


def allow_all(*requests: Request[Any], deadline: Duration | None = None) -> Any:
    """Grant what all of these limits grant, or count nothing: `allow_all(a.request("k"), b.request("l", cost=2))`.

    With AsyncLimiters it is awaited. Keys differ, and in a cluster have one slot. While the server is unavailable, each
    limiter's own `on_failure` decides for it: where one raises, `allow_all` does.
    """
    if not requests or not all(isinstance(one, Request) for one in requests):
        raise TypeError("allow_all takes one or more of what `limiter.request(key)` returns")
    kinds = {type(one.limiter) for one in requests}
    if len(kinds) > 1:
        raise TypeError("limits that are decided together are all of Limiters, or all of AsyncLimiters")
    deciding = decide_together(requests, deadline)
    return deciding if isinstance(requests[0].limiter, AsyncLimiter) else run(deciding)


def decide_together(requests: Sequence[Request[Any]], deadline: Duration | None) -> Coroutine[Any, Any, Decisions]:
    """The decision of them all; traced if the first limiter is."""
    deciding, tracing = _decide(requests, deadline), requests[0].limiter._tracing
    return deciding if tracing is None else tracing("allow_all", [one.limiter for one in requests], deciding)


async def _decide(requests: Sequence[Request[Any]], deadline: Duration | None) -> Decisions:
    """Ask the server, or apply the failure policy."""
    wait: float = requests[0].limiter._wait(deadline)
    try:
        return await _ask_server(requests, wait)
    except UnavailableError as error:
        if any(one.limiter._on_failure == "error" for one in requests):
            raise
        decisions = _decide_here(requests, "failure")
        if decisions:
            error.keep({one.demand.key: one.limiter._kept(decision)
                        for one, decision in zip(requests, decisions.members)})
        return decisions


async def _ask_server(requests: Sequence[Request[Any]], wait: float) -> Decisions:
    """Ask the server, if there is one, what is not known."""
    first: RateLimiterBase[Any] = requests[0].limiter
    demands = [one.demand for one in requests]
    if len(requests) == 1:
        decision = first._known(demands[0])
        if decision is None:
            decision = await first._decide_at_server(demands[0], Allow(*demands[0][:3]), wait)
        return Decisions(bool(decision), (decision,))
    check_together([one.limiter for one in requests])
    if len({demand.key for demand in demands}) < len(demands):
        raise ValueError("a key is named twice; limits that are decided together have keys that differ")
    known = [one.limiter._known(one.demand) for one in requests]
    if any(member is not None for member in known):
        return Decisions(False, tuple(
            Decision.unasked(demand.quota, 0, None, "cache") if member is None else member
            for member, demand in zip(known, demands)))
    if first._state is None:
        return _decide_here(requests, "local")
    now = time.monotonic()
    tickets = [None if (denials := one.limiter._denials) is None else denials.ticket(one.demand, now)
               for one in requests]
    command = AllowAll([RateClause(*demand[:3]) for demand in demands], strict=first.quota.strict)
    reply = await first._send(command, wait)
    members = tuple(Decision.of(member, demand.quota) for demand, member in zip(demands, reply[1:]))
    for one, ticket, decision in zip(requests, tickets, members):
        one.limiter.statistics.add(decision)
        if ticket is not None and not decision:
            one.limiter._learn(ticket, decision)
    return Decisions(bool(reply[0]), members)


def check_together(limiters: Sequence[RateLimiterBase[Any]]) -> None:
    """Raise ValueError unless these limiters can decide in one command."""
    if len({(one._state, one.quota.strict) for one in limiters}) > 1:
        raise ValueError("limits that are decided together have one client, and are all strict or all not")


def _decide_here(requests: Sequence[Request[Any]], source: Source) -> Decisions:
    """Decide each by its own limiter's policy, or without a client by what this process counts."""
    first: RateLimiterBase[Any] = requests[0].limiter
    counted = [one for one in requests if one.limiter._counts_here]
    decided = {one.demand.key: one.limiter._by_policy(one.demand.quota, one.demand.cost)
               for one in requests if not one.limiter._counts_here}
    replies = local_windows.allow_all([(one.limiter._local, *one.demand[:3]) for one in counted],
                                      first._clock.instant(), counts=all(decided.values()))
    for one, reply in zip(counted, replies):
        decided[one.demand.key] = decision = Decision.of(reply, one.demand.quota, source)
        one.limiter.statistics.add(decision)
    members = tuple(decided[one.demand.key] for one in requests)
    return Decisions(all(members), members)
