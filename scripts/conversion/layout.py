"""The script's layout of a key, which src/server/script/swlimit.lua describes, as bytes; and the module's effects."""

import struct
from typing import NamedTuple

MAGIC, MAGIC_IN_USE = b"swl1", b"swl2"
MOST_SUBINTERVALS = 4096  # that the script takes
BUDGET_MAGIC = b"swb1"
_BUDGET = struct.Struct("<4s3d")
_IN_USE = struct.Struct("<4sd")
_HEADER = struct.Struct("<4s9d")
_SLOT = struct.Struct("<2d")


class Entry(NamedTuple):
    """What a key holds. Without counts, `window` and `resolution` are 0."""

    window: int         # ms
    resolution: int     # ms
    counts: list        # [(start of the subinterval in ms, units), …], oldest first
    blocked_until: int  # Unix time in ms; 0 without a block
    since: int = 0      # Unix time in ms, from when on the key is in use, where it remembers that


class Budget(NamedTuple):
    """Units of a period of the calendar."""

    used: int
    since: int  # Unix time in ms, when the first of them was counted
    until: int  # Unix time in ms, the period's end


def encode(entry):
    """The bytes of an entry or a budget. Raises `ValueError` if the script does not take it."""
    if isinstance(entry, Budget):
        return _BUDGET.pack(BUDGET_MAGIC, *entry)
    if not entry.counts:
        return _HEADER.pack(MAGIC, 0, 0, 0, 0, 0, entry.blocked_until, 0, 0, 0)
    subintervals = entry.window // entry.resolution
    if subintervals > MOST_SUBINTERVALS:
        raise ValueError(f"{subintervals} subintervals, above {MOST_SUBINTERVALS}")
    slots, through = [], 0
    for start, units in entry.counts:
        through += units
        slots.append((start // entry.resolution, through))
    newest, _ = slots.pop()
    previous = slots[-1][1] if slots else 0
    slid = slots[0][1] if slots and slots[0][0] == newest - subintervals else 0
    header = entry.resolution, subintervals, newest, through, slid, entry.blocked_until, len(slots), previous, 0
    value = _HEADER.pack(MAGIC, *header) + b"".join(_SLOT.pack(*slot) for slot in slots)
    return _IN_USE.pack(MAGIC_IN_USE, -entry.since) + value[4:] if entry.since else value


def decode(value):
    """The entry or the budget of these bytes. Raises `ValueError` if they are neither."""
    if value.startswith(BUDGET_MAGIC) and len(value) == _BUDGET.size:
        _, *numbers = _BUDGET.unpack(value)
        if not all(number.is_integer() and number >= 0 for number in numbers):
            raise ValueError("numbers that are not whole")
        return Budget(*map(int, numbers))
    since = 0
    if value.startswith(MAGIC_IN_USE) and len(value) >= _IN_USE.size:
        since = -_IN_USE.unpack_from(value)[1]
        if not (0 < since < 2**53 and since.is_integer()):
            raise ValueError("an instant that is not whole")
        value = MAGIC + value[_IN_USE.size:]
    if len(value) < _HEADER.size or not value.startswith(MAGIC):
        raise ValueError("not a value of the script")
    _, *numbers = _HEADER.unpack_from(value)
    if not all(number.is_integer() and number >= 0 for number in numbers):
        raise ValueError("numbers that are not whole")
    resolution, subintervals, newest, through, _, blocked, slots, _, before = map(int, numbers)
    if len(value) != _HEADER.size + slots * _SLOT.size:
        raise ValueError("a length that does not fit")
    if not resolution:
        if since:
            raise ValueError("in use without a window")
        return Entry(0, 0, [], blocked)
    counts = []
    for subinterval, total in [*_SLOT.iter_unpack(value[_HEADER.size:]), (newest, through)]:
        if not (total > before and total == int(total) and subinterval == int(subinterval)):
            raise ValueError("counts that do not add up")
        counts.append((int(subinterval) * resolution, int(total) - before))
        before = int(total)
    if counts != sorted(counts) or counts[0][0] < (newest - subintervals) * resolution:
        raise ValueError("counts out of order")
    return Entry(subintervals * resolution, resolution, counts, blocked, int(since))


def effects(entry):
    """What makes such a key."""
    if isinstance(entry, Budget):
        yield f"p{entry.until}@{entry.since}+{entry.used}"
        return
    since = f"^{entry.since}" if entry.since else ""
    for start, units in entry.counts:
        yield f"c{entry.resolution}*{entry.window // entry.resolution}@{start}+{units}{since}"
        since = ""
    if entry.blocked_until:
        yield f"b{entry.blocked_until}"
