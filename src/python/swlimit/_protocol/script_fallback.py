"""How a server without the module is asked: its script, `swlimit.lua`, decides.

Nothing is asked to find out: the reply to a command shows which of them the server has.
"""

import hashlib
import logging
import struct
import time
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import redis.exceptions as redis_errors

from ..errors import NeedsModule
from .commands import Words, probe
from .replies import is_unknown_command

Module = Literal["auto", "always", "never"]
MODULES = get_args(Module)

SCRIPTED = frozenset(f"SWLIMIT.{name}" for name in (
    "ALLOW", "PEEK", "RECORD", "REFUND", "BLOCK", "UNBLOCK", "INFO", "MALLOW", "BUDGET", "ADMIT"))
"""The commands that the script has; ADMIT unless it names a hold."""
MOST_ROUNDS = 5
"""How often a command is sent until it is taken for answered."""
MOST_SUBINTERVALS = 4096
"""The most that the script takes."""
COUNT, PARTIAL, STRICT = 1, 2, 4
NO_CLOCK = "no clock: "
"""How the script's error begins when it could not ask for the time."""

KNOWN = "wrong number of arguments"
"""How a server's error begins when it knows a command that was sent without arguments."""

log = logging.getLogger("swlimit")


@cache
def source() -> bytes:
    """The script; in a checkout, the one that all clients share."""
    packaged = Path(__file__).parents[1] / "swlimit.lua"
    shared = Path(__file__).parents[3] / "lua/swlimit.lua"
    return (packaged if packaged.exists() else shared).read_bytes()


@cache
def sha() -> str:
    return hashlib.sha1(source(), usedforsecurity=False).hexdigest()


class Dialect:
    """The commands that one server understands: the module's or the script's, as its replies have shown."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.reset()

    def reset(self) -> None:
        """A connection was lost: there may be another server now."""
        self.uses_script = self._module == "never"
        self.lacks_acquire = False
        self.read_only = "EVALSHA_RO"
        self.uses_own_clock = False
        """The script may not ask the server for the time, so that this machine's clock decides."""

    def lacks(self, words: Words) -> bool:
        """Whether the script decides, and has no command like this."""
        if not self.uses_script or not str(words[0]).startswith("SWLIMIT."):
            return False
        is_hold = words[0] == "SWLIMIT.ADMIT" and "HOLD" in words[2 + words[1]:]
        return is_hold or words[0] not in SCRIPTED

    def check(self, words: Words) -> None:
        """Raise NeedsModule where the script has no command like this, and nothing else may be asked."""
        if self._module == "never" and self.lacks(words):
            raise NeedsModule(words)

    def spelled(self, words: Words) -> Words:
        """A command as it is sent.

        Of one that the script has not got it is the name alone: the reply tells whether there is the module by now.
        """
        if self.lacks(words):
            return (words[0],)
        if not self.uses_script or words[0] not in SCRIPTED:
            return words
        if words == probe(words[1]).words:  # the script denies where it could not grant, too
            return "SETRANGE", words[1], 0, b""
        name = words[0].removeprefix("SWLIMIT.")
        call = self.read_only if name in ("PEEK", "INFO") else "EVALSHA"
        at = time.time_ns() // 1_000_000 if self.uses_own_clock and name != "INFO" else None
        dated = () if at is None else ("AT", at)
        if name in ("MALLOW", "ADMIT"):
            return call, sha(), *words[1:2 + words[1]], name, *words[2 + words[1]:], *dated
        packed = _packed(name, words, at) if name in ("ALLOW", "PEEK") else None
        return call, sha(), 1, words[1], *((name, *words[2:], *dated) if packed is None else (packed,))

    def again(self, words: Words, sent: Words, reply: Any) -> tuple[Words, ...] | None:
        """What is to be sent before these words are sent once more, as the server has done nothing; None: it has.

        sent: as they were spelt.
        """
        if isinstance(reply, redis_errors.NoScriptError):
            return (("SCRIPT", "LOAD", source()),)
        if not isinstance(reply, redis_errors.ResponseError):
            return None
        if str(reply).startswith(NO_CLOCK) and words[0] != "SWLIMIT.INFO":
            if not self.uses_own_clock:
                log.warning("the script may not ask for the time: this machine's clock decides (%s)", reply)
            self.uses_own_clock = True
            return ()
        if len(sent) < len(words) and str(reply).startswith(KNOWN):
            log.info("the server has loaded the module, which decides from now on")
            self.reset()
            return ()
        if not is_unknown_command(reply):
            return None
        if sent[0] == "EVALSHA_RO":
            self.read_only = "EVALSHA"
            return ()
        if self._module == "auto" and words[0] in SCRIPTED and sent is words:
            self.uses_script = True
            return ()
        if words[0] == "SWLIMIT.ACQUIRE":
            self.lacks_acquire = True
        return None


def unpacked(reply: Any, limit: int) -> Any:
    """The module's reply to an ALLOW or a PEEK, where the script has packed it into bytes."""
    if not isinstance(reply, bytes):
        return reply
    first, second, reset_after = map(int, struct.unpack("<3d", reply))
    return [first, limit, second, 0, reset_after] if first > 0 else [0, limit, -first, second, reset_after]


def _packed(name: str, words: Words, at: int | None) -> bytes | None:
    """All arguments of an ALLOW or a PEEK in one, which the server reads faster; None where that is impossible."""
    _, _, limit, window, resolution, *options = words
    if "BLOCK" in options:
        return None
    length, cut = (int(duration.removesuffix("ms")) for duration in (window, resolution))
    if length // cut > MOST_SUBINTERVALS:
        return None
    cost = options[options.index("COST") + 1] if "COST" in options else 1
    flags = COUNT * (name == "ALLOW") | PARTIAL * ("PARTIAL" in options) | STRICT * ("STRICT" in options)
    numbers = [limit, cut, length // cut, cost, *([] if at is None else [at])]
    return struct.pack(f"<B{len(numbers)}Q", flags, *numbers)
