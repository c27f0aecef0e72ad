"""What is known to be denied, so that nobody has to ask: a memory of denials. No connection, no clock.

After a denial, nothing as large can be granted before `retry_after` has passed, unless something is given back. That is
heard of from the server (`tracking`), and forgets the key.
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
_LONGEST_NAME = 64  # bytes; longer names are remembered by their hash


class Demand(NamedTuple):
    """A request, as far as the memory of denials is concerned. One that takes less when less is left has cost 1."""

    key: bytes
    quota: Quota
    cost: int
    block: float = 0.0
    """Seconds for which a denial of it blocks the key; 0: it does not."""


class Ticket(NamedTuple):
    """Read before something is asked: what is then learnt is remembered only if nothing was forgotten since."""

    demand: Demand
    sent: float
    generation: int
    block_ends: float
    """Until when a denial of this request is sure to begin no other block; 0: it begins none at all."""


class _Denial(NamedTuple):
    cost: int
    block_ends: float
    heard: float
    """When the reply came: its wait began no later, so `retry_after` is never too short."""
    ends: float
    decision: Decision


class _Shard:
    """Some of the keys. Comparing the generation and remembering is one step under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generation = 0
        self.denials: OrderedDict[tuple[bytes, Quota], _Denial] = OrderedDict()
        self.quotas: dict[bytes, set[Quota]] = {}

    def drop(self, key: bytes, quota: Quota) -> None:
        del self.denials[key, quota]
        self.quotas[key].discard(quota)
        if not self.quotas[key]:
            del self.quotas[key]

    def make_room(self, now: float, most: int) -> None:
        """Let go of the oldest ones, as far as there are too many; and of such as have ended, a few at a time."""
        for _ in range(2):
            oldest = next(iter(self.denials), None)
            if oldest and (len(self.denials) > most or self.denials[oldest].ends <= now):
                self.drop(*oldest)


class Denials:
    """The denials that hold; at most `max_keys`. Instants are those of a monotonic clock, in seconds."""

    def __init__(self, max_keys: int = 100_000) -> None:
        self._most = max(1, max_keys // _SHARDS)
        self.begin_anew()
        fork.remember(self)

    def begin_anew(self) -> None:
        self._shards = [_Shard() for _ in range(_SHARDS)]

    def __len__(self) -> int:
        return sum(len(shard.denials) for shard in self._shards)

    def known(self, demand: Demand, now: float) -> Decision | None:
        """The denial that the server would give, as far as anybody here knows."""
        name = _name(demand.key)
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
        return denial.decision.later(now - denial.heard)

    def ticket(self, demand: Demand, now: float, block_ends: float = 0.0) -> Ticket:
        """To be taken before the request is written; `block_ends` is that of an earlier one of the same demand."""
        ends = block_ends or (now + demand.block if demand.block else 0.0)
        return Ticket(demand, now, self._shard(_name(demand.key)).generation, ends)

    def learn(self, ticket: Ticket, decision: Decision, now: float, at_most: float = math.inf) -> None:
        """Remember a denial until it ends, or at most for so many seconds; unless the key was forgotten meanwhile."""
        (key, quota, cost, _), sent, generation, block_ends = ticket
        retry_after = decision.retry_after
        if decision or retry_after is None or math.isinf(retry_after):
            return
        # The server floors its clock to a ms, and clocks slew by less than a thousandth.
        ends = sent + min(retry_after * 0.999 - 0.001, at_most)
        if ends <= now:
            return
        name = _name(key)
        shard = self._shard(name)
        with shard.lock:
            if shard.generation != generation:
                return
            held = shard.denials.get((name, quota))
            if held and held.ends > now and (held.cost, -held.block_ends) < (cost, -block_ends):
                return  # it denies more than this one would
            shard.denials[name, quota] = _Denial(cost, block_ends, now, ends, decision)
            shard.denials.move_to_end((name, quota))
            shard.quotas.setdefault(name, set()).add(quota)
            shard.make_room(now, self._most)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Something about these keys has changed."""
        for key in keys:
            name = _name(key)
            shard = self._shard(name)
            with shard.lock:
                shard.generation += 1
                for quota in list(shard.quotas.get(name, ())):
                    shard.drop(name, quota)

    def forget_all(self) -> None:
        """Anything may have changed."""
        for shard in self._shards:
            with shard.lock:
                shard.generation += 1
                shard.denials.clear()
                shard.quotas.clear()

    def _shard(self, name: bytes) -> _Shard:
        return self._shards[hash(name) % _SHARDS]


def _name(key: bytes) -> bytes:
    return key if len(key) <= _LONGEST_NAME else b"#" + blake2b(key).digest()  # longer than any that is kept
