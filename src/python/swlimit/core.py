"""How a limiter decides: all but the sending, which `Limiter` and `AsyncLimiter` do, each in its way.

A method here that needs the outside is a generator: it yields what is to be done, most often the words of a command,
and is sent the reply, or thrown the error.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import redis.exceptions as of_redis

from .circuit import Circuit
from .connections import Home, home
from .decision import Decision, Decisions
from .denials import Demand, Denials, Ticket
from .errors import ModuleMissing, NobodyLetsWait, ServerAway, is_away, is_unknown_command
from .local import Local, Words
from .quota import Duration, Quota, checked_integer, milliseconds
from .tracking import Trackers

T = TypeVar("T")


class Acquire(NamedTuple):
    """Send this on a connection that may wait so many seconds."""

    key: bytes
    words: Words
    timeout: float


class Sleep(NamedTuple):
    """Do nothing for so many seconds."""

    seconds: float


Steps = Generator[Words | Acquire | Sleep, Any, T]
Key = str | bytes
Way = Literal["direct", "denials"]
OnFailure = Literal["allow", "deny", "local", "raise"]

LONGEST_WAIT = 20 * 24 * 60 * 60.0  # about the most that the system waits for at once
log = logging.getLogger("swlimit")


def as_bytes(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else key


@dataclass
class Statistics:
    """How many decisions were made in which way."""

    asked: int = 0
    """By the server."""
    denied_locally: int = 0
    """Known to be denied."""
    without_server: int = 0
    """By the failure policy, or by a limiter that has no server."""
    failures: int = 0
    """Requests to the server that failed, or took too long."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: str) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)


class Deciding:
    """The common part of limiters."""

    def __init__(
        self, client: Any, limit: int, window: Duration, resolution: Duration, *, strict: bool = False,
        decide: Way = "denials", on_failure: OnFailure = "local", timeout: float | None = 0.05, share: float = 0.1,
        probe_every: float = 1.0, untracked: float = 0.1, max_keys: int = 10_000, max_waiting: int = 10,
    ) -> None:
        """At most `limit` units in each `window`, which slides in steps of `resolution`.

        client: of redis-py; None for a limiter that has no server, only windows in this process.
        strict: no span of the window ever sees more than the limit.
        decide: "denials" answers by itself what is known to be denied; "direct" always asks.
        on_failure: "allow" or "deny" everything while the server is away, or "raise" an error, or decide by a window in
            this process with a `share` of the limit, "local".
        timeout: seconds that a request waits for the server; None leaves that to the client.
        probe_every: seconds between two attempts while the server is away.
        untracked: seconds for which a denial is remembered where the server does not tell of changes.
        max_keys: how many keys are remembered. max_waiting: how many connections may wait in `acquire`.
        """
        if decide not in ("direct", "denials"):
            raise ValueError(f"decide must be 'direct' or 'denials', not {decide!r}")
        if on_failure not in ("allow", "deny", "local", "raise"):
            raise ValueError(f"on_failure must be 'allow', 'deny', 'local' or 'raise', not {on_failure!r}")
        self.quota = Quota.of(limit, window, resolution, strict)
        self.statistics = Statistics()
        self._client = client
        self._on_failure = on_failure
        self._timeout = timeout
        self._untracked = untracked
        self._probe_every = probe_every
        self._circuit = Circuit(probe_every=probe_every)
        self._local = Local(1.0 if client is None else share, max_keys)
        self._denials = Denials(max_keys) if client is not None and decide == "denials" else None
        self._trackers: Trackers | None = None
        self._can_acquire = client is not None
        self._begin(max_waiting)
        if self._trackers is not None and self._denials is not None:
            self._trackers.subscribers.add(self._denials)

    def _begin(self, max_waiting: int) -> None:
        """Make what sends and waits; trackers too, where there are denials to remember."""
        raise NotImplementedError

    def __repr__(self) -> str:
        limit, window, resolution = self.quota.words
        return f"<{type(self).__name__} {limit} {window} {resolution}{' STRICT' * self.quota.strict}>"

    def request(self, key: Key, cost: int = 1) -> "Request":
        """A part of a request that several limits have to grant; see `allow_all`."""
        return Request(self, as_bytes(key), checked_integer(cost, "cost", least=1))

    def forget(self, key: Key) -> None:
        """Ask about this key again; for who changes it by other commands, and cannot wait until that is heard of."""
        if self._denials is not None:
            self._denials.forget([as_bytes(key)])

    # What the commands are.

    def _allowing(self, key: Key, cost: int, partial: bool, block: Duration | None) -> Steps[Decision]:
        checked_integer(cost, "cost", least=1)
        demand = Demand(as_bytes(key), self.quota, 1 if partial else cost, block is not None)
        known = self._known(demand, never=not demand.blocks)
        if known is not None:
            return known
        words = self._words("ALLOW", demand.key, cost, partial=partial, block=block)
        return (yield from self._deciding(words, demand))

    def _peeking(self, key: Key, cost: int, partial: bool) -> Steps[Decision]:
        checked_integer(cost, "cost", least=1)
        demand = Demand(as_bytes(key), self.quota, 1 if partial else cost)
        known = self._known(demand)
        if known is not None:
            return known
        return (yield from self._deciding(self._words("PEEK", demand.key, cost, partial=partial), demand))

    def _recording(self, key: Key, cost: int, age: Duration, block: Duration | None) -> Steps[Decision]:
        checked_integer(cost, "cost", least=1)
        words = self._words("RECORD", as_bytes(key), cost, age=age, block=block)
        return (yield from self._deciding(words))

    def _refunding(self, key: Key, units: int, age: Duration | None) -> Steps[int]:
        checked_integer(units, "units", least=1)
        aged = () if age is None else ("AGE", f"{milliseconds(age, 'age', least=0)}ms")
        taken: int = yield from self._changing(("SWLIMIT.REFUND", as_bytes(key), units, *aged))
        return taken

    def _blocking(self, key: Key, duration: Duration, nx: bool) -> Steps[float]:
        until: int = yield from self._changing(
            ("SWLIMIT.BLOCK", as_bytes(key), f"{milliseconds(duration, least=0)}ms", *(["NX"] if nx else [])))
        return until / 1000

    def _unblocking(self, key: Key) -> Steps[bool]:
        return bool((yield from self._changing(("SWLIMIT.UNBLOCK", as_bytes(key)))))

    def _words(self, command: str, key: bytes, cost: int, *, partial: bool = False, age: Duration = 0,
               block: Duration | None = None) -> Words:
        words: list[Any] = [f"SWLIMIT.{command}", key, *self.quota.words]
        if cost != 1:
            words += ["COST", cost]
        if partial:
            words.append("PARTIAL")
        if self.quota.strict:
            words.append("STRICT")
        if age != 0:
            words += ["AGE", f"{milliseconds(age, 'age', least=0)}ms"]
        if block is not None:
            words += ["BLOCK", f"{milliseconds(block, 'block')}ms"]
        return tuple(words)

    # How they are decided.

    def _known(self, demand: Demand, never: bool = False) -> Decision | None:
        """The denial that nobody needs to be asked for; `never`: also of what can never be granted."""
        if self._denials is None:
            return None
        if demand.cost <= self.quota.limit:
            known = self._denials.known(demand, time.monotonic())
        else:
            known = Decision.unasked(self.quota, 0, math.inf) if never else None
        if known is not None:
            self.statistics.add("denied_locally")
        return known

    def _deciding(self, words: Words, demand: Demand | None = None) -> Steps[Decision]:
        """Ask, or go by the failure policy; remember a denial of `demand`."""
        ticket = self._ticket(demand)
        reply, local = yield from self._asking(words)
        if reply is None:
            return self._unasked(self.quota, demand.cost if demand else 1)
        decision = Decision.of(reply, self.quota, local)
        if ticket is not None and not local and decision.remaining < ticket.demand.cost:
            self._learn(ticket, decision)
        return decision

    def _unasked(self, quota: Quota, cost: int) -> Decision:
        """What the failure policies `allow` and `deny` decide."""
        if self._on_failure == "allow":
            return Decision.unasked(quota, cost)
        return Decision.unasked(quota, 0, retry_after=self._probe_every)

    def _changing(self, words: Words) -> Steps[Any]:
        """A command that decides nothing. What it gives back, this process must know of at once."""
        reply, _ = yield from self._asking(words, must=True)
        self.forget(words[1])
        return reply

    def _asking(self, words: Words, must: bool = False) -> Steps[tuple[Any, bool]]:
        """The reply to a command, and whether this process gave it; None where the failure policy needs no reply.

        What `must` be done raises ServerAway instead.
        """
        if self._client is None:
            self.statistics.add("without_server")
            return self._local.execute(words, int(time.time() * 1000)), True
        if self._circuit.lets_ask(time.monotonic()):
            try:
                reply = yield words
            except Exception as error:
                self._failed(error)
                cause: Exception | None = error
            else:
                self._succeeded()
                return reply, False
        else:
            cause = None
        if must or self._on_failure == "raise":
            raise ServerAway(str(cause or f"{words[0]} was not sent: the server has not answered lately")) from cause
        self.statistics.add("without_server")
        if self._on_failure != "local":
            return None, True
        return self._local.execute(words, int(time.time() * 1000)), True

    def _succeeded(self) -> None:
        self.statistics.add("asked")
        if self._circuit.succeeded():
            log.warning("the server is back: %r", self)

    def _failed(self, error: Exception) -> None:
        """Count it; raise it again if the server is not the one to blame."""
        if is_unknown_command(error):
            raise ModuleMissing from error
        if not is_away(error):
            self._circuit.succeeded()
            raise error
        self.statistics.add("failures")
        if self._circuit.failed(time.monotonic()):
            log.warning("the server is away, on_failure=%r decides: %r: %s", self._on_failure, self, error)

    def _ticket(self, demand: Demand | None) -> Ticket | None:
        if self._denials is None or demand is None:
            return None
        return self._denials.ticket(demand, time.monotonic())

    def _learn(self, ticket: Ticket, decision: Decision) -> None:
        """As much cannot be granted again now: have the tracker ask what is to be remembered. Without one, this
        decision is remembered, for a short time only."""
        if self._denials is None or self._trackers is None:
            return
        try:
            tracked = self._trackers.ask(self._home(ticket.demand.key), self._denials, ticket.demand)
        except Exception as error:
            if not is_away(error):
                raise
            tracked = False
        if not tracked:
            self._denials.learn(ticket, decision, time.monotonic(), self._untracked)

    def _home(self, key: bytes) -> Home:
        return home(self._client, key)

    # How they wait.

    def _acquiring(self, key: bytes, cost: int, ends: float) -> Steps[Decision | None]:
        """Wait in the server's queue until the instant `ends`; None where that is not to be had."""
        checked_integer(cost, "cost", least=1)
        options = [*(["COST", cost] if cost != 1 else []), *(["STRICT"] if self.quota.strict else [])]
        while self._can_acquire and self._circuit.lets_ask(time.monotonic()):
            left = max(0.0, ends - time.monotonic())
            words = ("SWLIMIT.ACQUIRE", key, *self.quota.words, f"{int(left * 1000)}ms", *options)
            try:
                reply = yield Acquire(key, words, left)
            except Exception as error:
                if is_unknown_command(error):
                    self._can_acquire = False  # or there is no module at all: the next command tells
                elif left > 0 and (isinstance(error, of_redis.AskError) or str(error).startswith("UNBLOCKED ")):
                    yield from self._asking(self._words("PEEK", key, 1))  # a cluster's client learns the way by it
                    yield Sleep(0.05)
                    continue
                elif not isinstance(error, NobodyLetsWait) and "too many clients are waiting" not in str(error):
                    self._failed(error)
                return None
            self._succeeded()
            return Decision.of(reply, self.quota)
        return None

    def _awaiting(self, key: bytes, cost: int, ends: float) -> Steps[Decision]:
        """Ask, and ask again when there is hope, until the instant `ends`."""
        while True:
            decision = yield from self._allowing(key, cost, partial=False, block=None)
            if decision or time.monotonic() + decision.retry_after > ends:
                return decision
            yield Sleep(max(0.001, decision.retry_after))


@dataclass(frozen=True, slots=True)
class Request:
    """A limiter, a key and a cost: a part of a request that several limits have to grant."""

    limiter: Deciding
    key: bytes
    cost: int = 1


def deciding_all(requests: Sequence[Request]) -> Steps[Decisions]:
    """All or nothing. The first limiter asks, and says what is done when the server is away."""
    first = requests[0].limiter
    if len(requests) == 1:
        decision = yield from first._allowing(requests[0].key, requests[0].cost, partial=False, block=None)
        return Decisions(bool(decision), (decision,), decision.local)
    if any((one.limiter._client, one.limiter.quota.strict) != (first._client, first.quota.strict) for one in requests):
        raise ValueError("limits that are decided together have one client, and are all strict or all not")
    demands = [Demand(one.key, one.limiter.quota, one.cost) for one in requests]
    known = tuple(one.limiter._known(demand, never=True) for one, demand in zip(requests, demands))
    if any(member is not None for member in known):
        return Decisions(False, known, local=True)
    tickets = [one.limiter._ticket(demand) for one, demand in zip(requests, demands)]
    quotas = [word for one in requests for word in (*one.limiter.quota.words, one.cost)]
    words = ("SWLIMIT.MALLOW", len(requests), *(one.key for one in requests), *quotas,
             *(["STRICT"] if first.quota.strict else []))
    reply, local = yield from first._asking(words)
    if reply is None:
        unasked = tuple(first._unasked(one.limiter.quota, one.cost) for one in requests)
        return Decisions(all(unasked), unasked, local=True)
    members = tuple(Decision.of(member, one.limiter.quota, local) for one, member in zip(requests, reply[1:]))
    for one, ticket, decision in zip(requests, tickets, members):
        if ticket is not None and not local and not decision:
            one.limiter._learn(ticket, decision)
    return Decisions(bool(reply[0]), members, local)


def instant_after(timeout: float | None) -> float:
    """When a wait ends; None is as good as never."""
    return time.monotonic() + (LONGEST_WAIT if timeout is None else min(timeout, LONGEST_WAIT))


KeyOf = Key | Callable[..., Key]


def key_for(key: KeyOf, args: Sequence[Any], kwargs: dict[str, Any]) -> Key:
    """The key of one call of a decorated function."""
    return key(*args, **kwargs) if callable(key) else key
