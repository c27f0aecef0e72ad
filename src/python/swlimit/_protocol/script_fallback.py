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
from .commands import Acquire, Allow, Command, Peek, Probe, ServerCommand, Words
from .replies import is_unknown_command

Module = Literal["auto", "always", "never"]
MODULES = get_args(Module)

MOST_TRIES = 5
"""How often one command is sent at most."""
MOST_SUBINTERVALS = 4096
"""The most that the script takes."""
COUNT, PARTIAL, STRICT = 1, 2, 4
_PACKED, _PACKED_AT = struct.Struct("<B4Q"), struct.Struct("<B5Q")
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
        """The script may not ask the server for the time, so this machine's clock decides."""

    def lacks(self, command: Command) -> bool:
        """Whether the script decides, and has no command like this."""
        return self.uses_script and command.needs_module

    def check(self, command: Command) -> None:
        """Raise NeedsModule when the script has no command like this, and the module must not be used."""
        if self._module == "never" and command.needs_module:
            raise NeedsModule(str(command))

    def encode(self, command: Command) -> Words:
        """The words to send.

        A command that the script lacks is sent as its name alone: the reply shows whether the module is there by now.
        """
        if not self.uses_script:
            return command.words()
        if command.needs_module:
            return (command.spelling,)
        at = time.time_ns() // 1_000_000 if self.uses_own_clock else None
        call = self.read_only if command.reads else "EVALSHA"
        if packed := _packed(command, at):
            return call, sha(), 1, command.key, packed
        if isinstance(command, ServerCommand):
            return command.words()
        if isinstance(command, Probe):  # the script denies where it could not grant, too
            return "SETRANGE", command.key, 0, b""
        dated = () if at is None else ("AT", at)
        return call, sha(), len(command.keys), *command.keys, command.name, *command.arguments(), *dated

    def again(self, command: Command, sent: Words, reply: Any) -> tuple[Words, ...] | None:
        """What to send before the command is sent once more, as the server has done nothing; None: it has.

        sent: the words that were sent.
        """
        if isinstance(reply, redis_errors.NoScriptError):
            return (("SCRIPT", "LOAD", source()),)
        if not isinstance(reply, redis_errors.ResponseError):
            return None
        if str(reply).startswith(NO_CLOCK):
            if not self.uses_own_clock:
                log.warning("the script may not ask for the time: this machine's clock decides (%s)", reply)
            self.uses_own_clock = True
            return ()
        if command.needs_module and len(sent) == 1 and str(reply).startswith(KNOWN):
            log.info("the server has loaded the module, which decides from now on")
            self.reset()
            return ()
        if not is_unknown_command(reply):
            return None
        if sent[0] == "EVALSHA_RO":
            self.read_only = "EVALSHA"
            return ()
        if self._module == "auto" and command.in_script and sent[0] == command.spelling and len(sent) > 1:
            self.uses_script = True
            return ()
        if isinstance(command, Acquire):
            self.lacks_acquire = True
        return None


def _packed(command: Command, at: int | None) -> bytes | None:
    """All arguments of an ALLOW or a PEEK in one, which the script reads faster; None when it has no place for them:
    the script then reads the words, and refuses options that it does not know."""
    if type(command) is not Allow and type(command) is not Peek:
        return None
    quota = command.quota
    subintervals = quota.geometry.subintervals
    if command.block or command.age or subintervals > MOST_SUBINTERVALS:
        return None
    flags = COUNT * (not command.reads) | PARTIAL * command.partial | STRICT * quota.strict
    numbers = quota.limit, quota.geometry.resolution, subintervals, command.cost
    return _PACKED.pack(flags, *numbers) if at is None else _PACKED_AT.pack(flags, *numbers, at)


def unpacked(reply: bytes, limit: int) -> list[int]:
    """The module's reply to an ALLOW or a PEEK, from the bytes that the script replies."""
    first, second, reset_after = map(int, struct.unpack("<3d", reply))
    return [first, limit, second, 0, reset_after] if first > 0 else [0, limit, -first, second, reset_after]
