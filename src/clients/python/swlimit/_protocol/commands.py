"""The commands that limiters send.

A command keeps its arguments as fields: durations in ms, instants in Unix ms, keys and ids in bytes. `words` spells it
when it is sent.

A caller may be cancelled, or interrupted by an exception, while its command is under way. The server executes it all
the same. `undo` then returns what to send next; every command has one, and nothing else decides about that.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from .._core.quota import Quota
from .replies import BadReply, integer, integers, rows

Words = Sequence[Any]
"""A command as it is sent: its name, then its arguments."""


Kept = Mapping[bytes, float]
"""Units of each key that somebody has."""
NOTHING: Kept = {}


class Repeat(NamedTuple):
    """How a command is sent again until the server answers it."""

    seconds: float
    """Afterwards it no longer matters."""
    is_done: Callable[[Any], bool] = lambda reply: True
    """Whether a reply is the last."""


class Command(ABC):
    """A command for the server of a key."""

    __slots__ = ()
    name: ClassVar[str] = ""
    """Its name in the script."""
    spelling: ClassVar[str] = ""
    """Its name on the server."""
    reads: ClassVar[bool] = False
    is_newer: ClassVar[bool] = False
    """Whether an older module may lack it."""
    in_script: ClassVar[bool] = True
    """Whether the script has a command of this name."""
    is_dated: ClassVar[bool] = True
    """Whether it may say the time, where the script cannot ask for it."""
    key: bytes
    repeat: Repeat | None = None
    """For commands that must reach the server; all others are sent once."""

    def __init_subclass__(cls) -> None:
        cls.spelling = f"SWLIMIT.{cls.name}"

    def __str__(self) -> str:
        return self.spelling

    @property
    def keys(self) -> Sequence[bytes]:
        return (self.key,)

    @abstractmethod
    def arguments(self) -> Words:
        """The words after the keys."""

    def script_arguments(self) -> Words:
        """The same for the script."""
        return self.arguments()

    def words(self) -> Words:
        return self.spelling, self.key, *self.arguments()

    def decoded(self, reply: Any) -> Any:
        """The reply with its numbers as integers. Raises BadReply when it is none of this command's."""
        return integer(reply)

    def grants(self, reply: Any) -> bool:
        """Whether a reply has granted what must be undone when nobody takes it."""
        return isinstance(reply, list) and bool(reply[0])

    @abstractmethod
    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> "list[Command]":
        """What to send when nobody takes this reply (None: no reply); to the server that replied, and to no other.

        sent: when the command was sent (monotonic). kept: what the caller was granted in place of this reply.
        """


class _Plain(Command):
    """A command that grants nothing, or whose grant belongs to the caller's id."""

    __slots__ = ()

    def grants(self, reply: Any) -> bool:
        return False

    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        return []


# One rate.


class RateCommand(Command):
    """The options that a command does not have stay at their defaults."""

    __slots__ = ("age", "block", "cost", "key", "partial", "quota")

    def __init__(self, key: bytes, quota: Quota, cost: int = 1, *, partial: bool = False, age: int = 0,
                 block: int = 0) -> None:
        self.key = key
        self.quota = quota
        self.cost = cost
        self.partial = partial
        self.age = age
        self.block = block

    def decoded(self, reply: Any) -> Sequence[int]:
        return integers(reply, 5)

    def arguments(self) -> Words:
        quota = self.quota
        if self.cost == 1 and not (self.partial or quota.strict or quota.warm_up or self.age or self.block):
            return quota.words
        words = [*quota.words]
        if self.cost != 1:
            words += "COST", self.cost
        if self.partial:
            words.append("PARTIAL")
        if quota.strict:
            words.append("STRICT")
        if self.age:
            words += "AGE", f"{self.age}ms"
        if quota.warm_up:
            words += quota.warm_up.words
        if self.block:
            words += "BLOCK", f"{self.block}ms"
        return words


class Allow(RateCommand):
    __slots__ = ()
    name = "ALLOW"

    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        return _refund([_of_rate(self.key, reply)], sent, kept) if reply else []


class Peek(RateCommand, _Plain):
    __slots__ = ()
    name = "PEEK"
    reads = True


class Record(RateCommand, _Plain):
    __slots__ = ()
    name = "RECORD"


class Acquire(Allow):
    """timeout: how long to wait in the server."""

    __slots__ = ("timeout",)
    name = "ACQUIRE"
    in_script = False

    def __init__(self, key: bytes, quota: Quota, timeout: int, cost: int = 1) -> None:
        super().__init__(key, quota, cost)
        self.timeout = timeout

    def arguments(self) -> Words:
        limit, window, resolution, *options = super().arguments()
        return limit, window, resolution, f"{self.timeout}ms", *options


class Refund(_Plain):
    """age: of the units. since: the instant before which they were not counted."""

    __slots__ = ("age", "key", "since", "units")
    name = "REFUND"

    def __init__(self, key: bytes, units: int, *, age: int | None = None, since: int | None = None) -> None:
        self.key, self.units, self.age, self.since = key, units, age, since

    def arguments(self) -> Words:
        words: list[Any] = [self.units]
        if self.age is not None:
            words += "AGE", f"{self.age}ms"
        if self.since is not None:
            words += "SINCE", self.since
        return words


class Block(_Plain):
    """unless_blocked: leave a block that stands."""

    __slots__ = ("duration", "key", "unless_blocked")
    name = "BLOCK"
    is_newer = True

    def __init__(self, key: bytes, duration: int, unless_blocked: bool = False) -> None:
        self.key, self.duration, self.unless_blocked = key, duration, unless_blocked

    def arguments(self) -> Words:
        return (f"{self.duration}ms", "NX") if self.unless_blocked else (f"{self.duration}ms",)


class Unblock(_Plain):
    __slots__ = ("key",)
    name = "UNBLOCK"
    is_newer = True

    def __init__(self, key: bytes) -> None:
        self.key = key

    def arguments(self) -> Words:
        return ()


class Probe(Unblock):
    """Changes nothing, but the server refuses it whenever it would refuse a write."""

    __slots__ = ()
    name = "ALLOW"
    is_newer = False

    def arguments(self) -> Words:
        return 0, "1ms", "1ms"

    def decoded(self, reply: Any) -> Any:
        return reply


# Budgets.


class Budget(Command):
    """until: the end of the period. force: count whatever the limit."""

    __slots__ = ("cost", "force", "key", "limit", "partial", "until")
    name = "BUDGET"
    is_newer = True

    def __init__(self, key: bytes, limit: int, until: int, cost: int = 1, *, partial: bool = False,
                 force: bool = False) -> None:
        self.key, self.limit, self.until, self.cost, self.partial, self.force = key, limit, until, cost, partial, force

    def arguments(self) -> Words:
        words: list[Any] = [self.limit, self.until]
        if self.cost != 1:
            words += "COST", self.cost
        return words + ["PARTIAL"] * self.partial + ["FORCE"] * self.force

    def decoded(self, reply: Any) -> Sequence[int]:
        return integers(reply, 5)

    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        return _refund([_of_budget(self.key, reply)], sent, kept) if reply and not self.force else []


class Info(_Plain):
    """What a key holds: pairs of names and values."""

    __slots__ = ("key",)
    name = "INFO"
    reads = True
    is_dated = False

    def __init__(self, key: bytes) -> None:
        self.key = key

    def arguments(self) -> Words:
        return ()

    def decoded(self, reply: Any) -> dict[str, Any]:
        if not isinstance(reply, list) or len(reply) % 2:
            raise BadReply(reply)
        return {name.decode(): value for name, value in zip(reply[::2], reply[1::2])}


# Holds.


class HoldCommand(_Plain):
    """A command that the module's first release lacks."""

    __slots__ = ()
    is_newer = True


class Hold(HoldCommand):
    """wait: for room; None: not at all. own_id: the id was drawn for this command alone."""

    __slots__ = ("cost", "id", "key", "limit", "own_id", "ttl", "wait")
    name = "HOLD"

    def __init__(self, key: bytes, limit: int, ttl: int, id: bytes, cost: int = 1, wait: int | None = None,
                 own_id: bool = True) -> None:
        self.key, self.limit, self.ttl, self.id, self.cost, self.wait, self.own_id = (
            key, limit, ttl, id, cost, wait, own_id)

    def arguments(self) -> Words:
        words = self.script_arguments()
        return words if self.wait is None else [*words, "WAIT", f"{self.wait}ms"]

    def script_arguments(self) -> Words:
        """It waits in the module only."""
        words = [self.limit, f"{self.ttl}ms", self.id]
        return words if self.cost == 1 else [*words, "COST", self.cost]

    def decoded(self, reply: Any) -> Sequence[int]:
        return integers(reply, 6)

    def grants(self, reply: Any) -> bool:
        return isinstance(reply, list) and bool(reply[0])

    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        if not self.own_id or reply is not None and not reply[0] or kept.get(self.key, 0) >= self.cost:
            return []
        return [Release(self.key, [self.id], _repeat_undo(self.ttl, reply, bool))]


class Release(HoldCommand):
    __slots__ = ("ids", "key", "repeat")
    name = "RELEASE"

    def __init__(self, key: bytes, ids: Sequence[bytes], repeat: Repeat | None = None) -> None:
        self.key, self.ids, self.repeat = key, ids, repeat

    def arguments(self) -> Words:
        return self.ids


class Renew(HoldCommand):
    __slots__ = ("ids", "key", "ttl")
    name = "RENEW"

    def __init__(self, key: bytes, ttl: int, ids: Sequence[bytes]) -> None:
        self.key, self.ttl, self.ids = key, ttl, ids

    def arguments(self) -> Words:
        return f"{self.ttl}ms", *self.ids

    def decoded(self, reply: Any) -> Sequence[int]:
        return integers(reply, len(self.ids))


class Holders(HoldCommand):
    __slots__ = ("count", "key")
    name = "HOLDERS"
    reads = True

    def __init__(self, key: bytes, count: int) -> None:
        self.key, self.count = key, count

    def arguments(self) -> Words:
        return (self.count,)

    def decoded(self, reply: Any) -> list[Any]:
        if not isinstance(reply, list) or not all(isinstance(row, list) and len(row) == 5 for row in reply):
            raise BadReply(reply)
        return [[row[0], *integers(row[1:])] for row in reply]


# Several keys.


class RateClause(NamedTuple):
    """A member of MALLOW or ADMIT."""

    key: bytes
    quota: Quota
    cost: int

    def words(self) -> Words:
        return "RATE", *self.own_words

    @property
    def own_words(self) -> Words:
        """The same without its kind, as MALLOW takes it."""
        warm_up = self.quota.warm_up
        return *self.quota.words, self.cost, *(() if warm_up is None else warm_up.words)


class BudgetClause(NamedTuple):
    key: bytes
    limit: int
    until: int
    cost: int

    def words(self) -> Words:
        return "BUDGET", self.limit, self.until, self.cost


class HoldClause(NamedTuple):
    key: bytes
    limit: int
    ttl: int
    id: bytes
    cost: int
    own_id: bool = True
    """Whether the id was drawn for this command alone."""

    def words(self) -> Words:
        return "HOLD", self.limit, f"{self.ttl}ms", self.id, self.cost


Clause = RateClause | BudgetClause | HoldClause


class _SeveralKeys(Command):
    __slots__ = ("key", "keys")
    keys: Sequence[bytes]

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.key, self.keys = keys[0], keys

    def words(self) -> Words:
        return self.spelling, len(self.keys), *self.keys, *self.arguments()


class AllowAll(_SeveralKeys):
    __slots__ = ("members", "strict")
    name = "MALLOW"

    def __init__(self, members: Sequence[RateClause], *, strict: bool) -> None:
        super().__init__([member.key for member in members])
        self.members, self.strict = members, strict

    def arguments(self) -> Words:
        return [word for member in self.members for word in member.own_words] + ["STRICT"] * self.strict

    def decoded(self, reply: Any) -> list[Any]:
        return rows(reply, [5] * len(self.keys))

    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        return _refund(list(map(_of_rate, self.keys, reply[1:])), sent, kept) if reply else []


class Admit(_SeveralKeys):
    """One decision about rates, budgets and a hold."""

    __slots__ = ("clauses", "held", "strict")
    name = "ADMIT"
    is_newer = True

    def __init__(self, clauses: Sequence[Clause], *, strict: bool) -> None:
        super().__init__([clause.key for clause in clauses])
        self.clauses, self.strict = clauses, strict
        self.held = next((clause for clause in clauses if isinstance(clause, HoldClause)), None)

    def arguments(self) -> Words:
        return [word for clause in self.clauses for word in clause.words()] + ["STRICT"] * self.strict

    def decoded(self, reply: Any) -> list[Any]:
        return rows(reply, [6 if isinstance(clause, HoldClause) else 5 for clause in self.clauses])

    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        if self.held is not None:
            is_kept = kept.get(self.held.key, 0) >= self.held.cost
            if not self.held.own_id or is_kept or reply is not None and not reply[0]:
                return []
            reserved = [(clause.key, 0 if isinstance(clause, HoldClause) else int(min(kept.get(clause.key, 0),
                        clause.cost)))
                        for clause in self.clauses if clause is not self.held]
            repeat = _repeat_undo(self.held.ttl, reply, lambda settled: bool(settled[0]))
            return [Settle(self.held.key, self.held.id, reserved, repeat)]
        if not reply or not reply[0]:
            return []
        return _refund([(_of_rate if isinstance(clause, RateClause) else _of_budget)(clause.key, member)
                        for clause, member in zip(self.clauses, reply[1:])], sent, kept)


class Settle(_SeveralKeys, HoldCommand):
    """reserved: the keys beside the hold's, and how many units of each were used."""

    __slots__ = ("id", "repeat", "reserved")
    name = "SETTLE"

    def __init__(self, key: bytes, id: bytes, reserved: Sequence[tuple[bytes, int]],
                 repeat: Repeat | None = None) -> None:
        super().__init__([key, *(other for other, _ in reserved)])
        self.id, self.reserved, self.repeat = id, reserved, repeat

    def arguments(self) -> Words:
        return self.id, *(used for _, used in self.reserved)

    def decoded(self, reply: Any) -> Sequence[int]:
        return integers(reply)


# Commands of the server.


class ServerCommand(_Plain):
    """A command that every server has."""

    __slots__ = ("_words", "key")
    is_free: ClassVar[bool] = True
    """Whether the server answers it also when it cannot do its work."""

    def __init__(self, key: bytes, *words: Any) -> None:
        self.key, self._words = key, words

    def __str__(self) -> str:
        return str(self._words[0])

    def arguments(self) -> Words:
        return ()

    def words(self) -> Words:
        return self._words

    def decoded(self, reply: Any) -> Any:
        return reply


class Preparation(ServerCommand):
    """What prepares a server for another command, which is sent right after it."""

    __slots__ = ("reply",)

    def answered(self, reply: Any) -> None:
        self.reply = reply


class Delete(ServerCommand):
    __slots__ = ()
    name = "DEL"
    is_free = False

    def __init__(self, key: bytes) -> None:
        super().__init__(key, "DEL", key)


class Time(ServerCommand):
    """Asks for the server's time, by which to refund units as of an instant before they were granted. An age would be
    relative to the refund's departure, and the refund may be late."""

    __slots__ = ("_granted", "_sent")

    def __init__(self, granted: "Sequence[_Granted]", sent: float) -> None:
        super().__init__(granted[0].key, "TIME")
        self._granted, self._sent = granted, sent

    def undo(self, reply: Any, sent: float, kept: Kept = NOTHING) -> list[Command]:
        """The refunds."""
        if reply is None:
            return []
        now = int(reply[0]) * 1000 + int(reply[1]) // 1000
        since = now - math.ceil((time.monotonic() - self._sent) * 1001)  # a thousandth more, as clocks drift
        return [Refund(key, units, since=max(0, since + later)) for key, units, later in self._granted]


class _Granted(NamedTuple):
    key: bytes
    units: int
    later: int
    """The refund is dated so many ms after an instant before the grant."""


def _of_rate(key: bytes, reply: Sequence[int]) -> _Granted:
    return _Granted(key, reply[0], 0)


def _of_budget(key: bytes, reply: Sequence[int]) -> _Granted:
    """A period began with its first unit, perhaps with this one. The refund's instant is surely before its end."""
    granted, _, _, _, reset_after = reply
    return _Granted(key, granted, reset_after - 1)


def _refund(members: Sequence[_Granted], sent: float, kept: Kept) -> list[Command]:
    """Refund what was granted beyond what is kept, by the server's time."""
    granted = [one._replace(units=int(one.units - kept.get(one.key, 0))) for one in members
               if one.units > kept.get(one.key, 0)]
    return [Time(granted, sent)] if granted else []


def _repeat_undo(ttl: int, reply: Any, is_undone: Callable[[Any], bool]) -> Repeat:
    """Any reply is the last when the hold was granted; otherwise it may still be granted, until a reply says that
    something was undone."""
    return Repeat(ttl / 1000) if reply is not None else Repeat(ttl / 1000, is_undone)
