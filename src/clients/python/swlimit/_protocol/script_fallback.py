"""How a server without the module is asked: its script, `swlimit.lua`, decides.

Nothing is asked to find out: the reply to a command shows which of them the server has. Only where it refuses a command
that an older module lacks, it is asked for a command that every module has. A server whose module is too old is never
asked by the script: its keys are the module's.
"""

import hashlib
import logging
import struct
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import redis.exceptions as redis_errors

from .._core import fork
from .commands import Acquire, Allow, Command, Peek, Preparation, Probe, ServerCommand, Words
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
CALLS = "EVALSHA", "EVALSHA_RO"
"""The commands that run a script."""

log = logging.getLogger("swlimit")


@cache
def lua(name: str = "swlimit.lua") -> bytes:
    """A script; in a checkout, the one that all clients share."""
    packaged = Path(__file__).parents[1] / name
    return (packaged if packaged.exists() else Path(__file__).parents[4] / "server/script" / name).read_bytes()


@cache
def sha(name: str = "swlimit.lua") -> str:
    return hashlib.sha1(lua(name), usedforsecurity=False).hexdigest()


def load(key: bytes, name: str = "swlimit.lua") -> Preparation:
    """Makes a script known to the server of a key."""
    return Preparation(key, "SCRIPT", "LOAD", lua(name))


class TakenOver:
    """How many keys of the script a client has handed to the module."""

    def __init__(self) -> None:
        self.reset()
        fork.remember(self)

    def reset(self) -> None:
        """A forked child counts its own."""
        self._lock = threading.Lock()
        self.count = 0

    def add(self, key: bytes) -> None:
        with self._lock:
            self.count += 1
        log.info('the module is loaded now; took over key "%s", which the script wrote',
                 key.decode(errors="backslashreplace"))


class Dialect:
    """The commands that one server understands: the module's or the script's, as its replies have shown."""

    def __init__(self, module: Module, taken_over: TakenOver) -> None:
        self._module = module
        self.taken_over = taken_over
        self.reset()

    def reset(self) -> None:
        """A connection was lost: there may be another server now."""
        self.uses_script = self._module == "never"
        self.lacks_acquire = False
        self.has_old_module = False
        """Whether the module lacks commands that newer ones have."""
        self.read_only = "EVALSHA_RO"
        self.uses_own_clock = False
        """The script may not ask the server for the time, so this machine's clock decides."""

    @property
    def may_find_module(self) -> bool:
        """Whether the module may be asked when the key is not the script's."""
        return self._module == "auto"

    def found_module(self) -> None:
        """The server knows the module's commands."""
        if self.uses_script:
            log.info("the server has loaded the module, which decides from now on")
            self.reset()

    def encode(self, command: Command) -> Words:
        """The words to send; the module's for a command that the script lacks."""
        if not self.uses_script or not command.in_script:
            return command.words()
        at = time.time_ns() // 1_000_000 if self.uses_own_clock else None
        call = self.read_only if command.reads else "EVALSHA"
        if packed := _packed(command, at):
            return call, sha(), 1, command.key, packed
        if isinstance(command, ServerCommand):
            return command.words()
        if isinstance(command, Probe):  # the script denies where it could not grant, too
            return "SETRANGE", command.key, 0, b""
        dated = () if at is None or not command.is_dated else ("AT", at)
        return call, sha(), len(command.keys), *command.keys, command.name, *command.script_arguments(), *dated

    def may_be_old(self, command: Command, sent: Words, reply: Any) -> bool:
        """Whether it is unknown if the server has no module, or one that is too old for this command."""
        return (command.is_newer and sent[0] == command.spelling and self._module == "auto" and not self.uses_script
                and not self.has_old_module and is_unknown_command(reply))

    def again(self, command: Command, sent: Words, reply: Any) -> Sequence[Preparation] | None:
        """What to send before the command is sent once more, as the server has done nothing; None: it has.

        sent: the words that were sent.
        """
        if isinstance(reply, redis_errors.NoScriptError):
            return (load(command.key),)
        if not isinstance(reply, redis_errors.ResponseError):
            return None
        if str(reply).startswith(NO_CLOCK):
            if not self.uses_own_clock:
                log.warning("the script may not ask for the time: this machine's clock decides (%s)", reply)
            self.uses_own_clock = True
            return ()
        if not is_unknown_command(reply):
            return None
        if sent[0] == "EVALSHA_RO":
            self.read_only = "EVALSHA"
            return ()
        if self._module == "auto" and command.in_script and sent[0] == command.spelling and not (
                command.is_newer and self.has_old_module):
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
