"""Commands as words, the module's, and the commands that take them back."""

import math
from typing import Any

Words = tuple[Any, ...]
"""A command: its name, then its arguments."""


def giving_back(words: Words, reply: Any, age: float) -> list[Words]:
    """The commands that give back what this reply grants, and nobody waits for any more.

    Its grant is `age` seconds old at most when they arrive: an age that is too high takes no unit back too early.
    """
    if isinstance(reply, Exception) or not reply or not reply[0]:
        return []
    dated = "AGE", f"{math.ceil(age * 1000)}ms"
    if words[0] in ("SWLIMIT.ALLOW", "SWLIMIT.ACQUIRE"):
        return [("SWLIMIT.REFUND", words[1], reply[0], *dated)]
    if words[0] == "SWLIMIT.MALLOW":
        keys = words[2:2 + words[1]]
        return [("SWLIMIT.REFUND", key, member[0], *dated) for key, member in zip(keys, reply[1:])]
    if words[0] in ("SWLIMIT.HOLD", "SWLIMIT.ADMIT") and (undo := undoing(words)) is not None:
        return [undo]
    if words[0] == "SWLIMIT.ADMIT":
        return [("SWLIMIT.REFUND", key, clause[-1], *(dated if clause[0] == "RATE" else ()))
                for key, clause in clauses(words)]
    return []


def clauses(words: Words) -> list[tuple[bytes, Words]]:
    """The keys of an ADMIT, and what is asked of each."""
    keys, left = words[2:2 + words[1]], words[2 + words[1]:]
    found = []
    for key in keys:
        length = 4 if left[0] == "BUDGET" else 5
        found.append((key, left[:length]))
        left = left[length:]
    return found


def undoing(words: Words) -> Words | None:
    """The command after which a HOLD, or an ADMIT with a hold, is as if it had never been; None for others."""
    if words[0] == "SWLIMIT.HOLD":
        return "SWLIMIT.RELEASE", words[1], words[4]
    asked = clauses(words) if words[0] == "SWLIMIT.ADMIT" else []
    held = next((one for one in asked if one[1][0] == "HOLD"), None)
    if held is None:
        return None
    others = [key for key, _ in asked if key != held[0]]
    return "SWLIMIT.SETTLE", 1 + len(others), held[0], *others, held[1][3], *[0] * len(others)
