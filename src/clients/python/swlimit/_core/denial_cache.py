"""Known denials, which are repeated without asking. No connection, no clock.

After a denial, nothing as large can be granted before `retry_after` has passed, unless units are given back. The server
announces that (`invalidation`), and the key is forgotten.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from . import fork
from .decision import Decision
from .quota import Quota

_SHARDS = 16
LOOK_DENIALS = 4
"""A look at a key is two commands. It pays where so many requests are denied before one can be granted."""
_LONGEST_NAME = 64  # bytes; longer names are remembered by their hash


class Demand(NamedTuple):
    """A request as the cache sees it. A partial one has cost 1."""

    key: bytes
    quota: Quota
    cost: int
    block: int = 0
    """ms for which a denial of it blocks the key; 0: it does not."""


class Ticket(NamedTuple):
    """Taken before a request: its denial is remembered only if nothing was forgotten since."""

    demand: Demand
    sent: float
    generation: int
    block_ends: float
    """Until when a denial of this request begins no other block; 0: it never begins a block."""


class _KnownDenial(NamedTuple):
    cost: int
    block_ends: float
    replied: float
    """When the reply came: its wait began no later, so `retry_after` is never too short."""
    ends: float
    decision: Decision


class _Denied:
    """How many requests for a key were denied."""

    __slots__ = "before", "last", "since"

    def __init__(self) -> None:
        self.before = -math.inf
        """The instant from which on one can be granted."""
        self.since = self.last = 0
        """Those denied before that instant, and in the same way the last time."""


class _Shard:
    """Some of the keys. The generation is compared and the denial remembered under one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generation = 0
        self.denials: OrderedDict[tuple[bytes, Quota], _KnownDenial] = OrderedDict()
        self.quotas: dict[bytes, set[Quota]] = {}
        self.denied: OrderedDict[bytes, _Denied] = OrderedDict()

    def denied_of(self, key: bytes, most: int) -> _Denied:
        found = self.denied.get(key)
        if found is None:
            found = self.denied[key] = _Denied()
            if len(self.denied) > most:
                self.denied.popitem(last=False)
        return found

    def drop(self, key: bytes, quota: Quota) -> None:
        del self.denials[key, quota]
        self.quotas[key].discard(quota)
        if not self.quotas[key]:
            del self.quotas[key]

    def make_room(self, now: float, most: int) -> None:
        """Drop the oldest while there are too many, and those that have ended, a few at a time."""
        for _ in range(2):
            oldest = next(iter(self.denials), None)
            if oldest and (len(self.denials) > most or self.denials[oldest].ends <= now):
                self.drop(*oldest)


class DenialCache:
    """At most `max_keys` denials. Instants are those of a monotonic clock, in seconds."""

    def __init__(self, max_keys: int = 100_000) -> None:
        self._most = max(1, max_keys // _SHARDS)
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        self._shards = [_Shard() for _ in range(_SHARDS)]

    def __len__(self) -> int:
        return sum(len(shard.denials) for shard in self._shards)

    def known(self, demand: Demand, now: float) -> Decision | None:
        """The denial that the server would give, as far as is known here."""
        name = short_name(demand.key)
        shard = self._shards[hash(name) % _SHARDS]
        if not shard.denials:
            return None
        with shard.lock:
            denial = shard.denials.get((name, demand.quota))
            if denial is None:
                return None
            if now >= denial.ends:
                shard.drop(name, demand.quota)
                return None
            if demand.cost < denial.cost or demand.block and now >= denial.block_ends:
                return None
            shard.denied_of(name, self._most).since += 1
        return denial.decision.later(now - denial.replied)

    def ticket(self, demand: Demand, now: float, block_ends: float = 0.0) -> Ticket:
        """Take it before the request is written; `block_ends` is that of an earlier request for the same demand."""
        ends = block_ends or (now + demand.block / 1000 if demand.block else 0.0)
        return Ticket(demand, now, self._shard(short_name(demand.key)).generation, ends)

    def learn(self, ticket: Ticket, decision: Decision, now: float, at_most: float = math.inf) -> None:
        """Remember a denial until it ends, or at most for so many seconds; unless the key was forgotten since."""
        (key, quota, cost, *_), sent, generation, block_ends = ticket
        retry_after = decision.retry_after
        if decision or retry_after is None:
            return
        # The server floors its clock to a ms, and clocks slew by less than a thousandth.
        ends = sent + min(retry_after * 0.999 - 0.001, at_most)
        if ends <= now:
            return
        name = short_name(key)
        shard = self._shard(name)
        with shard.lock:
            if shard.generation != generation:
                return
            held = shard.denials.get((name, quota))
            if held and held.ends > now and (held.cost, -held.block_ends) < (cost, -block_ends):
                return  # it denies more than this one would
            shard.denials[name, quota] = _KnownDenial(cost, block_ends, now, ends, decision)
            shard.denials.move_to_end((name, quota))
            shard.quotas.setdefault(name, set()).add(quota)
            shard.make_room(now, self._most)

    def pays_to_look(self, key: bytes, now: float, retry_after: float) -> bool:
        """The server denied a request. Whether a look at its key pays: are so many denied, or were they the last time?
        """
        name = short_name(key)
        shard = self._shard(name)
        with shard.lock:
            denied = shard.denied_of(name, self._most)
            if denied.before <= now:
                denied.before, denied.last, denied.since = now + retry_after, denied.since, 0
            denied.since += 1
            return max(denied.since, denied.last) >= LOOK_DENIALS

    def forget(self, keys: Iterable[bytes]) -> None:
        """These keys have changed."""
        for key in keys:
            name = short_name(key)
            shard = self._shard(name)
            with shard.lock:
                shard.generation += 1
                for quota in list(shard.quotas.get(name, ())):
                    shard.drop(name, quota)

    def forget_all(self) -> None:
        """Any key may have changed."""
        for shard in self._shards:
            with shard.lock:
                shard.generation += 1
                shard.denials.clear()
                shard.quotas.clear()

    def _shard(self, name: bytes) -> _Shard:
        return self._shards[hash(name) % _SHARDS]


def short_name(key: bytes) -> bytes:
    """A key's name in this process's memory."""
    return key if len(key) <= _LONGEST_NAME else b"#" + blake2b(key).digest()  # longer than any that is kept
