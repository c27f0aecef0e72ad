"""The commands that limiters send: the words of each, and what takes back what its reply grants.

A caller may be cancelled, or interrupted by an exception, while its command is under way. The server executes it all
the same. `Command.undo` then says what is to be sent next; every command has one, and it is said here only.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .._core.quota import Quota

Words = tuple[Any, ...]
"""A command: its name, then its arguments."""
Clause = tuple[bytes, Words]
"""A key of an ADMIT, and what is asked of it: `RATE …`, `BUDGET …` or `HOLD …`."""
TIME: Words = ("TIME",)


class Repeat(NamedTuple):
    """A command is sent again until the server answers it."""

    seconds: float
    """Afterwards it does not matter any more."""
    is_done: Callable[[Any], bool] = lambda reply: True
    """Whether a reply is the last."""


class Command(NamedTuple):
    """A command for the server of a key."""

    key: bytes
    words: Words
    undo: "Undo"
    repeat: Repeat | None = None
    """Of commands whose effect has to come; all others are sent once."""


Undo = Callable[[Any, float], list[Command]]
"""What takes back a reply that nobody takes: of the reply, None where none came, and of the instant (monotonic) at
which the command was sent. It is for the server that replied, and for no other."""


def nothing(reply: Any, sent: float) -> list[Command]:
    """The undo of commands that grant nothing, and of those whose grant belongs to whoever chose its id."""
    return []


# One rate.


def allow(key: bytes, quota: Quota, cost: int = 1, *, partial: bool = False, block: int = 0) -> Command:
    return Command(key, _rate("ALLOW", key, quota, cost, partial=partial, block=block), _undo_rate(key))


def peek(key: bytes, quota: Quota, cost: int = 1, *, partial: bool = False) -> Command:
    return Command(key, _rate("PEEK", key, quota, cost, partial=partial), nothing)


def record(key: bytes, quota: Quota, cost: int = 1, *, age: int = 0, block: int = 0) -> Command:
    return Command(key, _rate("RECORD", key, quota, cost, age=age, block=block), nothing)


def acquire(key: bytes, quota: Quota, timeout: int, cost: int = 1) -> Command:
    return Command(key, _rate("ACQUIRE", key, quota, cost, timeout), _undo_rate(key))


def refund(key: bytes, units: int, *dated: Any) -> Command:
    return Command(key, ("SWLIMIT.REFUND", key, units, *dated), nothing)


def block(key: bytes, duration: int, nx: bool) -> Command:
    return Command(key, ("SWLIMIT.BLOCK", key, f"{duration}ms", *(["NX"] if nx else [])), nothing)


def unblock(key: bytes) -> Command:
    return Command(key, ("SWLIMIT.UNBLOCK", key), nothing)


def delete(key: bytes) -> Command:
    return Command(key, ("DEL", key), nothing)


def probe(key: bytes) -> Command:
    """What is refused as any write would be, and is otherwise denied without a trace."""
    return Command(key, ("SWLIMIT.ALLOW", key, 0, "1ms", "1ms"), nothing)


# Several rates.


def allow_all(members: Sequence[tuple[bytes, Quota, int]]) -> Command:
    """Members are keys, quotas and costs."""
    keys = [key for key, _, _ in members]
    quotas = [word for _, quota, cost in members for word in (*quota.words, cost)]
    strict = ["STRICT"] if members[0][1].strict else []

    def undo(reply: Any, sent: float) -> list[Command]:
        return _dated([(key, member[0]) for key, member in zip(keys, reply[1:])], sent) if reply else []

    return Command(keys[0], ("SWLIMIT.MALLOW", len(keys), *keys, *quotas, *strict), undo)


# Budgets.


def budget(key: bytes, limit: int, until: int, cost: int = 1, *, partial: bool = False, force: bool = False) -> Command:
    words: list[Any] = ["SWLIMIT.BUDGET", key, limit, until]
    words += ["COST", cost] if cost != 1 else []
    words += ["PARTIAL"] * partial + ["FORCE"] * force

    def undo(reply: Any, sent: float) -> list[Command]:
        return _undated(key, reply, sent) if reply else []

    return Command(key, tuple(words), nothing if force else undo)


# Holds.


def hold(key: bytes, limit: int, ttl: int, id: bytes, cost: int = 1, wait: int | None = None) -> Command:
    """The id was drawn by whoever asks, and told to nobody. ttl, wait: in ms."""
    words: list[Any] = ["SWLIMIT.HOLD", key, limit, f"{ttl}ms", id]
    words += ["COST", cost] if cost != 1 else []
    words += ["WAIT", f"{wait}ms"] if wait is not None else []

    def undo(reply: Any, sent: float) -> list[Command]:
        if reply is None:
            return [release(key, id, ttl, is_certain=False)]
        return [release(key, id, ttl)] if reply[0] else []

    return Command(key, tuple(words), undo)


def release(key: bytes, id: bytes, ttl: int, *, is_certain: bool = True) -> Command:
    """is_certain: whether the hold is known to have been granted; else it is released until something was."""
    return Command(key, ("SWLIMIT.RELEASE", key, id), nothing,
                   Repeat(ttl / 1000, (lambda freed: True) if is_certain else bool))


def renew(key: bytes, ttl: int, ids: Iterable[bytes]) -> Command:
    return Command(key, ("SWLIMIT.RENEW", key, f"{ttl}ms", *ids), nothing)


def holders(key: bytes, count: int) -> Command:
    return Command(key, ("SWLIMIT.HOLDERS", key, count), nothing)


# One decision of everything.


def admit(clauses: Sequence[Clause], *, strict: bool, is_own_id: bool) -> Command:
    """is_own_id: the hold's id was drawn by whoever asks, and told to nobody."""
    keys = [key for key, _ in clauses]
    asked = [word for _, words in clauses for word in words]
    words = ("SWLIMIT.ADMIT", len(keys), *keys, *asked, *(["STRICT"] if strict else []))
    held = next((clause for clause in clauses if clause[1][0] == "HOLD"), None)
    counted = [key for key, words in clauses if words[0] != "HOLD"]

    def undo(reply: Any, sent: float) -> list[Command]:
        if not reply or not reply[0]:
            return []
        members = list(zip(clauses, reply[1:]))
        rates = [(key, member[0]) for (key, words), member in members if words[0] == "RATE"]
        budgets = [one for (key, words), member in members if words[0] == "BUDGET"
                   for one in _undated(key, member, sent)]
        return [*_dated(rates, sent), *budgets]

    def undo_hold(reply: Any, sent: float) -> list[Command]:
        assert held is not None
        key, (_, _, ttl, id, _) = held
        if reply is not None and not reply[0]:
            return []
        is_done = (lambda reply: bool(reply[0])) if reply is None else (lambda reply: True)
        return [settle(key, id, counted, [0] * len(counted), Repeat(int(ttl.removesuffix("ms")) / 1000, is_done))]

    return Command(keys[0], words, undo if held is None else undo_hold if is_own_id else nothing)


def settle(key: bytes, id: bytes, counted: Sequence[bytes], used: Sequence[int],
           repeat: Repeat | None = None) -> Command:
    """key: the hold's. counted, used: the other keys, and how many units of each were used."""
    return Command(key, ("SWLIMIT.SETTLE", 1 + len(counted), key, *counted, id, *used), nothing, repeat)


# What they have in common.


def _rate(name: str, key: bytes, quota: Quota, cost: int, timeout: int | None = None, *, partial: bool = False,
          age: int = 0, block: int = 0) -> Words:
    """The durations are in ms."""
    words: list[Any] = [f"SWLIMIT.{name}", key, *quota.words]
    if timeout is not None:
        words.append(f"{timeout}ms")
    if cost != 1:
        words += ["COST", cost]
    if partial:
        words.append("PARTIAL")
    if quota.strict:
        words.append("STRICT")
    if age:
        words += ["AGE", f"{age}ms"]
    if block:
        words += ["BLOCK", f"{block}ms"]
    return tuple(words)


def _undo_rate(key: bytes) -> Undo:
    return lambda reply, sent: _dated([(key, reply[0])], sent) if reply else []


def _dated(units: Sequence[tuple[bytes, int]], sent: float) -> list[Command]:
    """Refund units of windows, as of an instant at which they were not granted yet.

    The server's clock tells it: what is sent first is a TIME, and what has passed since the command was sent is
    subtracted. An age would be that of the refund's departure, and the refund may be late.
    """
    granted = [(key, number) for key, number in units if number]

    def refunds(reply: Any, _: float) -> list[Command]:
        if reply is None:
            return []
        now = int(reply[0]) * 1000 + int(reply[1]) // 1000
        since = now - math.ceil((time.monotonic() - sent) * 1001)  # a thousandth more, as clocks drift
        return [refund(key, number, "SINCE", max(0, since)) for key, number in granted]

    return [Command(granted[0][0], TIME, refunds)] if granted else []


def _undated(key: bytes, reply: Sequence[int], sent: float) -> list[Command]:
    """Refund units of a budget, unless its period may be over."""
    granted, _, _, _, reset_after = reply
    return [refund(key, granted)] if granted and time.monotonic() < sent + reset_after / 1000 else []
