"""What is known to be denied, so that nobody has to ask: a memory of denials. No connection, no clock.

After a denial, nothing as large can be granted before `retry_after` has passed, unless something is given back. That is
heard of from the server (`tracking`), and forgets the key.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from .decision import Decision
from .quota import Quota

_SHARDS = 16


class Demand(NamedTuple):
    """A request, as far as the memory of denials is concerned. One that takes less when less is left has cost 1."""

    key: bytes
    quota: Quota
    cost: int
    blocks: bool = False


class Ticket(NamedTuple):
    """Read before something is asked: what is then learnt is remembered only if nothing was forgotten since."""

    demand: Demand
    sent: float
    generation: int


class _Denial(NamedTuple):
    cost: int
    blocks: bool
    sent: float
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

    def __init__(self, max_keys: int = 10_000) -> None:
        self._most = max(1, max_keys // _SHARDS)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing is remembered, and nobody holds a lock: in a forked process nobody would let go of it."""
        self._shards = [_Shard() for _ in range(_SHARDS)]

    def __len__(self) -> int:
        return sum(len(shard.denials) for shard in self._shards)

    def known(self, demand: Demand, now: float) -> Decision | None:
        """The denial that the server would give, as far as anybody here knows."""
        shard = self._shard(demand.key)
        if not shard.denials:
            return None
        with shard.lock:
            denial = shard.denials.get((demand.key, demand.quota))
            if denial is None:
                return None
            if now >= denial.ends:
                shard.drop(demand.key, demand.quota)
                return None
        if demand.cost < denial.cost or demand.blocks and not denial.blocks:
            return None
        return denial.decision.later(now - denial.sent)

    def ticket(self, demand: Demand, now: float) -> Ticket:
        """To be taken before the request is written."""
        return Ticket(demand, now, self._shard(demand.key).generation)

    def learn(self, ticket: Ticket, decision: Decision, now: float, at_most: float = math.inf) -> None:
        """Remember a denial until it ends, or at most for so many seconds; unless the key was forgotten meanwhile."""
        (key, quota, cost, blocks), sent, generation = ticket
        # The server floors its clock to a ms, and clocks slew by less than a thousandth.
        certain = decision.retry_after * 0.999 - 0.001
        ends = sent + min(certain, at_most)
        if decision or ends <= now or math.isinf(decision.retry_after):
            return
        shard = self._shard(key)
        with shard.lock:
            if shard.generation != generation:
                return
            held = shard.denials.get((key, quota))
            if held and held.ends > now and (held.cost, -held.blocks) < (cost, -blocks):
                return  # it denies more than this one would
            shard.denials[key, quota] = _Denial(cost, blocks, sent, ends, decision)
            shard.denials.move_to_end((key, quota))
            shard.quotas.setdefault(key, set()).add(quota)
            shard.make_room(now, self._most)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Something about these keys has changed."""
        for key in keys:
            shard = self._shard(key)
            with shard.lock:
                shard.generation += 1
                for quota in list(shard.quotas.get(key, ())):
                    shard.drop(key, quota)

    def forget_all(self) -> None:
        """Anything may have changed."""
        for shard in self._shards:
            with shard.lock:
                shard.generation += 1
                shard.denials.clear()
                shard.quotas.clear()

    def _shard(self, key: bytes) -> _Shard:
        return self._shards[hash(key) % _SHARDS]
