"""How a limiter decides. All that waits does so by its `outside`: see there."""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

import redis.exceptions as of_redis

from . import commands
from .asking import ASK_AGAIN, Asking, Key, OnFailure, instant_after, one_of
from .backend import Module
from .breaker import LAST_PROBE
from .clock import shown
from .commands import Command
from .decision import Decision, Decisions, Source
from .denials import Demand, Denials, Ticket
from .errors import NeedsModule, NoFreeConnection, ServerAway, is_let_go, is_unknown_command
from .link import Kept
from .local import Local, instant
from .quota import Duration, Quota, checked_flag, checked_integer, milliseconds, seconds

Mode = Literal["cached", "direct", "local"]


class Deciding(Asking):
    """How limiters of rates decide."""

    def __init__(
        self, client: Any, limit: int, window: Duration, resolution: Duration | None = None, *, strict: bool = False,
        mode: Mode | None = None, on_failure: OnFailure = "local", local_share: float = 0.1, timeout: Duration = 0.05,
        max_untracked_age: Duration = 0.1, max_keys: int = 100_000, max_waiting: int = 10, prefix: Key = b"",
        module: Module = "auto",
    ) -> None:
        """At most `limit` units in each `window`, which slides in steps of `resolution`.

        client: of redis-py; None for a limiter that has no server, only windows in this process.
        resolution: by default the largest that cuts the window into 12 to 4096 parts.
        strict: no span of the window ever sees more than the limit.
        mode: "cached", which answers by itself what is known to be denied, "direct", which always asks, or "local",
            the only one without a client.
        on_failure: "allow" or "deny" everything while the server is away, or raise ServerAway ("error"), or decide by a
            window in this process with a part of the limit ("local"), `local_share`, 0.000001 to 1.
        timeout: the longest that a request waits because of the limiter.
        max_untracked_age: for how long a denial is remembered where the server does not tell of changes; 0: not at all.
        max_keys: how many keys are remembered. max_waiting: how many connections may wait in `acquire`.
        prefix: what the names of all keys begin with.
        module: "always" asks the module's commands, "never" the script, which works where no module can be loaded, and
            "auto" the script where the server does not know the module.
        """
        one_of("mode", mode, (None, *get_args(Mode)))
        if (client is None) != (mode == "local") and not (client is None and mode is None):
            raise ValueError(f"mode {mode!r} needs {'no client' if client is not None else 'a client'}")
        self.quota = Quota.of(limit, window, resolution, strict)
        self._set_up(client, on_failure, local_share, timeout, max_keys, max_waiting, prefix, module)
        self._untracked = seconds(max_untracked_age, "max_untracked_age", least=0)
        self._local = Local(self._share, max_keys)
        self._denials = Denials(max_keys) if client is not None and mode != "direct" else None
        self._connect(client)

    def __repr__(self) -> str:
        limit, window, resolution = self.quota.words
        return f"<{type(self).__name__} {limit} {window} {resolution}{' STRICT' * self.quota.strict}>"

    def forget(self, key: Key) -> None:
        """Ask about this key again; for who changes it by other commands, and cannot wait until that is heard of."""
        if self._denials is not None:
            self._denials.forget([self._name(key)])

    def forget_all(self) -> None:
        """Ask about every key again."""
        if self._denials is not None:
            self._denials.forget_all()

    # What the commands are.

    async def _allowing(self, key: Key, cost: int = 1, *, partial: bool = False, block: Duration | None = None,
                  limit: int | None = None, deadline: Duration | None = None) -> Decision:
        """Decide, and count if granted.

        cost: units, 1 … 2^53 − 1. partial: grant as much of it as is left.
        block: for how long a denial blocks the key. limit: another one, for this request.
        deadline: how long the caller waits at most; it is decided a little before.
        """
        demand, wait = self._demand(key, cost, partial, block, limit), self._wait(deadline)
        if self._link is None:
            return self._counted("ALLOW", demand, cost, "local", partial)
        known = self._known(demand)
        return known if known is not None else await self._deciding("ALLOW", demand, cost, wait, partial=partial)

    async def _peeking(self, key: Key, cost: int = 1, *, partial: bool = False, limit: int | None = None,
                       deadline: Duration | None = None) -> Decision:
        """The same decision, without counting."""
        demand, wait = self._demand(key, cost, partial, None, limit), self._wait(deadline)
        if self._link is None:
            return self._counted("PEEK", demand, cost, "local", partial)
        known = self._known(demand)
        return known if known is not None else await self._deciding("PEEK", demand, cost, wait, partial=partial)

    async def _recording(self, key: Key, cost: int = 1, *, age: Duration = 0, block: Duration | None = None,
                         limit: int | None = None, keep: bool = False) -> Decision:
        """Count, whatever the limit says; `age` ago.

        While the server is away, raises ServerAway; with `keep` it is counted here, and by the server when it is back.
        """
        demand = self._demand(key, cost, False, block, limit)
        checked_flag(keep, "keep")
        aged = milliseconds(age, "age", least=0)
        began = time.monotonic()
        try:
            return await self._deciding("RECORD", demand, cost, self._timeout, age=aged)
        except ServerAway:
            server = self._link.of(demand.key) if keep and self._link is not None else None
            if self._link is None or server is None:
                raise

            def command(passed: int) -> Command:
                return commands.record(demand.key, demand.quota, cost, age=aged + passed, block=_block(demand) or 0)

            self._link.keep(Kept(server, began, demand.quota.geometry.window / 1000, command))
        return self._counted("RECORD", demand, cost, "failure", age=aged)

    async def _refunding(self, key: Key, units: int = 1, *, age: Duration | None = None) -> int:
        """Give back units: the newest, or those counted that long ago. Returns how many. Raises ServerAway."""
        checked_integer(units, "units", least=1)
        aged = None if age is None else milliseconds(age, "age", least=0)
        dated = () if aged is None else ("AGE", f"{aged}ms")
        command = commands.refund(self._name(key), units, *dated)
        taken: int = await self._changing(command, units=units, age=aged)
        return taken

    async def _blocking(self, key: Key, duration: Duration, *, nx: bool = False) -> float:
        """Let the key grant nothing for so long; `nx`: unless it is blocked. Returns until when (Unix time).
        Raises ServerAway."""
        ms = milliseconds(duration)
        command = commands.block(self._name(key), ms, checked_flag(nx, "nx"))
        until: int = await self._changing(command, duration=ms, nx=nx)
        if self._link is None:  # by the clock of this process's windows, which nobody sets
            until += shown() - instant()
        return until / 1000

    async def _unblocking(self, key: Key) -> bool:
        """Lift a block; whether there was one. Raises ServerAway."""
        return bool(await self._changing(commands.unblock(self._name(key))))

    async def _resetting(self, key: Key) -> bool:
        """Forget all that is counted for a key, and its block; whether there was anything. Raises ServerAway."""
        return bool(await self._changing(commands.delete(self._name(key))))

    def _demand(self, key: Key, cost: int, partial: bool, block: Duration | None, limit: int | None) -> Demand:
        checked_integer(cost, "cost", 1)
        if partial is not False:
            checked_flag(partial, "partial")
        quota = self.quota if limit is None else self.quota.at(limit)
        blocked = 0.0 if block is None else milliseconds(block, "block") / 1000
        return Demand(self._name(key), quota, 1 if partial else cost, blocked)

    # How they are decided.

    def _known(self, demand: Demand) -> Decision | None:
        """The denial that nobody needs to be asked for."""
        if self._denials is None:
            return None
        if demand.cost > demand.quota.limit:
            if demand.block:
                return None
            known: Decision | None = Decision.unasked(demand.quota, 0, math.inf, "cache")
        else:
            known = self._denials.known(demand, time.monotonic())
        if known is not None:
            self.statistics.add("cache")
        return known

    async def _deciding(self, command: str, demand: Demand, cost: int, wait: float, *, partial: bool = False,
                        age: int = 0) -> Decision:
        """Ask, or go by the failure policy; remember a denial."""
        if self._link is None:
            return self._counted(command, demand, cost, "local", partial, age)
        ticket = None
        if self._denials is not None and command != "RECORD":
            ticket = self._denials.ticket(demand, time.monotonic())
        key, quota, blocked = demand.key, demand.quota, _block(demand) or 0
        if command == "ALLOW":
            asked = commands.allow(key, quota, cost, partial=partial, block=blocked)
        elif command == "PEEK":
            asked = commands.peek(key, quota, cost, partial=partial)
        else:
            asked = commands.record(key, quota, cost, age=age, block=blocked)
        try:
            reply = await self._asking(asked, wait)
        except ServerAway:
            if command == "RECORD" or self._on_failure == "error":
                raise
            if self._on_failure == "local":
                return self._counted(command, demand, cost, "failure", partial, age)
            return self._by_policy(demand.quota, cost)
        decision = Decision.of(reply, demand.quota)
        self.statistics.add("server")
        if ticket is not None and reply[2] < demand.cost:
            self._learn(ticket, decision)
        return decision

    def _counted(self, command: str, demand: Demand, cost: int, source: Source, partial: bool = False,
                 age: int = 0) -> Decision:
        """Decided by a window in this process."""
        self.statistics.add(source)
        reply = self._local.execute(
            command, demand.key, demand.quota, instant(), cost, partial, age, _block(demand))
        return Decision.of(reply, demand.quota, source)

    def _by_policy(self, quota: Quota, cost: int) -> Decision:
        """What the failure policies `allow` and `deny` decide."""
        self.statistics.add("failure")
        if self._on_failure == "allow":
            return Decision.unasked(quota, cost, 0.0, "failure")
        return Decision.unasked(quota, 0, LAST_PROBE, "failure")

    async def _changing(self, command: Command, **options: Any) -> Any:
        """A command that decides nothing. What it gives back, this process must know of at once."""
        name, key = command.words[0].removeprefix("SWLIMIT."), command.key
        if self._link is None:
            return self._local.change(name, key, instant(), **options)
        reply = await self._asking(command, self._timeout)
        if self._denials is not None:
            self._denials.forget([key])
        if name == "DEL":
            self._local.change("DEL", key, 0)
        return reply

    def _learn(self, ticket: Ticket, decision: Decision) -> None:
        """As much cannot be granted again now: have the tracker ask what is to be remembered. Meanwhile, or without
        one, this decision is remembered, for a short time only."""
        if self._denials is None or self._link is None:
            return
        server = self._link.of(ticket.demand.key)
        if server is None:
            return
        at_most = self._link.track(server, self._denials, ticket, decision.retry_after or 0.0)
        age = self._untracked if at_most is None else min(at_most, self._untracked)
        if age > 0:
            self._denials.learn(ticket, decision, time.monotonic(), age)

    # How they wait.

    async def _acquiring(self, key: Key, cost: int = 1, timeout: Duration | None = None) -> Decision:
        """`allow` that waits for its turn, at most so long; with no hope in that time it does not wait."""
        demand = self._demand(key, cost, False, None, None)
        ends = instant_after(timeout)
        decision = await self._queueing(demand, ends)
        if decision is not None:
            return decision
        queue = self._turns.of(demand.key)
        if not await queue.take(ends - time.monotonic()):
            return await self._awaiting(demand, 0.0)
        try:
            return await self._awaiting(demand, ends)
        finally:
            queue.release()

    async def _queueing(self, demand: Demand, ends: float) -> Decision | None:
        """Ask without waiting, and wait in the server's queue until the instant `ends`; None where that is not to be
        had."""
        if self._link is None or not self._has_queue(demand.key):
            return None
        first = await self._first_look(demand)
        if first is not None and (first or (first.retry_after or 0.0) > ends - time.monotonic()):
            self.statistics.add("server")
            return first

        def acquiring(left: float) -> Command:
            return commands.acquire(demand.key, demand.quota, int(left * 1000), demand.cost)

        while self._link is not None and self._has_queue(demand.key):
            server = self._link.of(demand.key)
            if server is None or server.breaker.is_open:
                return None
            try:
                reply = await self._waiting.acquire(server, acquiring, ends)
            except NoFreeConnection:
                return None
            except of_redis.AskError as error:
                self._link.redirected(error)
                await self._outside.sleep(0.05)
            except ServerAway:
                return None
            except of_redis.ResponseError as error:
                if is_let_go(error) and time.monotonic() < ends:
                    with suppress(ServerAway):  # where the key is now is learnt by it
                        await self._asking(commands.peek(demand.key, demand.quota), self._timeout)
                    await self._outside.sleep(0.05)
                    continue
                if "too many clients are waiting" not in str(error) and not is_unknown_command(error):
                    raise
                return None
            else:
                self.statistics.add("server")
                return Decision.of(reply, demand.quota)
        return None

    def _has_queue(self, key: bytes) -> bool:
        """Whether the server lets clients wait, as far as is known: neither the script nor the first release does."""
        server = None if self._link is None else self._link.topology.of(key)
        return server is None or not (server.backend.uses_script or server.backend.lacks_acquire)

    async def _first_look(self, demand: Demand) -> Decision | None:
        """Asked with no wait over the connections that all share, so that a free key never waits for a place."""
        try:
            reply = await self._asking(commands.acquire(demand.key, demand.quota, 0, demand.cost), self._timeout)
        except (ServerAway, NeedsModule):
            return None
        except of_redis.ResponseError as error:
            if not is_unknown_command(error) and "too many clients are waiting" not in str(error):
                raise
            return None
        return Decision.of(reply, demand.quota)

    async def _awaiting(self, demand: Demand, ends: float) -> Decision:
        """Ask, and ask again when there is hope, until the instant `ends`; best in the server's queue, as soon as there
        is a place."""
        while True:
            decision = self._known(demand)
            if decision is None:
                decision = await self._deciding("ALLOW", demand, demand.cost, self._timeout)
            pause = decision.retry_after or 0.0
            if decision or time.monotonic() + pause > ends:
                return decision
            if self._link is not None and self._has_queue(demand.key):
                pause = min(pause, ASK_AGAIN)
            await self._outside.sleep(max(0.001, pause))
            queued = await self._queueing(demand, ends)
            if queued is not None:
                return queued


def _block(demand: Demand) -> int | None:
    """For how many ms a denial of this request blocks the key."""
    return round(demand.block * 1000) if demand.block else None


L = TypeVar("L", bound=Deciding, covariant=True)


@dataclass(frozen=True, slots=True)
class Request(Generic[L]):
    """A limiter, a demand on it and a cost: a part of a request that several limits have to grant."""

    limiter: L
    demand: Demand


async def deciding_all(requests: Sequence[Request[Any]], deadline: Duration | None = None) -> Decisions:
    """Grant what all of these limits grant, or count nothing. The first limiter asks, and says what is done when the
    server is away. `allow_all(a.request("k"), b.request("l", cost=2))`; keys differ, and in a cluster share a slot."""
    first: Deciding = requests[0].limiter
    wait = first._wait(deadline)
    demands = [one.demand for one in requests]
    if len(requests) == 1:
        decision = first._known(demands[0])
        if decision is None:
            decision = await first._deciding("ALLOW", demands[0], demands[0].cost, wait)
        return Decisions(bool(decision), (decision,))
    check_together([one.limiter for one in requests])
    if len({demand.key for demand in demands}) < len(demands):
        raise ValueError("a key is named twice; limits that are decided together have keys that differ")
    known = [one.limiter._known(one.demand) for one in requests]
    if any(member is not None for member in known):
        return Decisions(False, tuple(
            Decision.unasked(demand.quota, 0, None, "cache") if member is None else member
            for member, demand in zip(known, demands)))
    if first._link is None:
        return _all_counted(first, requests, "local")
    now = time.monotonic()
    tickets = [None if (denials := one.limiter._denials) is None else denials.ticket(one.demand, now)
               for one in requests]
    try:
        reply = await first._asking(commands.allow_all([demand[:3] for demand in demands]), wait)
    except ServerAway:
        if first._on_failure == "error":
            raise
        if first._on_failure == "local":
            return _all_counted(first, requests, "failure")
        members = tuple(first._by_policy(demand.quota, demand.cost) for demand in demands)
        return Decisions(all(members), members)
    members = tuple(Decision.of(member, demand.quota) for demand, member in zip(demands, reply[1:]))
    for one, ticket, decision in zip(requests, tickets, members):
        one.limiter.statistics.add("server")
        if ticket is not None and not decision:
            one.limiter._learn(ticket, decision)
    return Decisions(bool(reply[0]), members)


def check_together(limiters: Sequence[Deciding]) -> None:
    """Raise ValueError unless these limiters can decide in one command."""
    if len({(one._link, one.quota.strict) for one in limiters}) > 1:
        raise ValueError("limits that are decided together have one client, and are all strict or all not")


def _all_counted(first: Deciding, requests: Iterable[Request[Any]], source: Source) -> Decisions:
    demands = [one.demand for one in requests]
    replies = first._local.allow_all([demand[:3] for demand in demands], instant())
    for one in requests:
        one.limiter.statistics.add(source)
    members = tuple(Decision.of(reply, demand.quota, source) for reply, demand in zip(replies, demands))
    return Decisions(all(members), members)
