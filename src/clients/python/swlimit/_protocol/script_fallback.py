"""How a server without the module is asked: its script, `swlimit.lua`, decides.

Nothing is asked to find out: the reply to a command shows which of them the server has. Only where it refuses a command
that an older module lacks, it is asked for a command that every module has. A server whose module is too old is never
asked by the script: its keys are the module's.
"""

import hashlib
import logging
import math
import random
import struct
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import redis.exceptions as redis_errors

from .._core import fork
from .commands import Acquire, Allow, AllowAll, Command, Peek, Preparation, Probe, ServerCommand, Words
from .replies import BadReply, is_unknown_command

Module = Literal["auto", "always", "never"]
MODULES = get_args(Module)

MOST_TRIES = 5
"""How often one command is sent at most."""
MOST_LOADED = 10_000
"""The most keys that are remembered of those that the script's text was sent with."""
TEXT_TIME = 1.0
"""Seconds after which the script's text is no longer expected to arrive."""
MOST_SUBINTERVALS = 4096
"""The most that the script takes."""
COUNT, PARTIAL, STRICT, ALL = 1, 2, 4, 8
_PACKED, _PACKED_AT = struct.Struct("<B4Q"), struct.Struct("<B5Q")
_REPLY = struct.Struct("<3d")
NO_CLOCK = "no clock: "
"""How the script's error begins when it could not ask for the time."""
CALLS = "EVALSHA", "EVALSHA_RO", "EVAL", "EVAL_RO"
"""The commands that run a script."""
MINUTE = 60.0
"""Seconds between two looks at what a server can, half as long or half as long again."""

log = logging.getLogger("swlimit")


@cache
def lua(name: str = "swlimit.lua") -> bytes:
    """A script; in a checkout, the one that all clients share."""
    packaged = Path(__file__).parents[1] / name
    return (packaged if packaged.exists() else Path(__file__).parents[4] / "server/script" / name).read_bytes()


@cache
def sha(name: str = "swlimit.lua") -> str:
    return hashlib.sha1(lua(name), usedforsecurity=False).hexdigest()


def soon() -> float:
    """The instant of the next look."""
    return time.monotonic() + MINUTE * random.uniform(0.5, 1.5)


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
        self.uses_text = False
        """Whether the server forgets the script: commands carry its text."""
        self._loaded: set[bytes] = set()
        """The keys whose server got the text."""
        self._text_under_way = 0.0
        """Until when other commands wait for the text that one carries."""
        self._next_module_look, self._next_sha_look = soon(), math.inf
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

    def is_module_look_due(self, command: Command) -> bool:
        """Whether to ask in the module's words: it may be there by now. Once in about a minute."""
        if (not self.uses_script or self._module != "auto" or not command.in_script
                or isinstance(command, (ServerCommand, Probe)) or time.monotonic() < self._next_module_look):
            return False
        self._next_module_look = soon()
        return True

    def encode(self, command: Command, with_text: bool = False) -> Words:
        """The words to send; the module's for a command that the script lacks. with_text: the script's text, not only
        its hash."""
        if not self.uses_script or not command.in_script:
            return command.words()
        at = time.time_ns() // 1_000_000 if self.uses_own_clock else None
        call = self.read_only if command.reads else "EVALSHA"
        script: str | bytes = sha()
        if self._takes_text(command.key, with_text):
            call, script = call.replace("SHA", ""), lua()
        if packed := _packed(command, at):
            return call, script, len(command.keys), *command.keys, packed
        if isinstance(command, ServerCommand):
            return command.words()
        if isinstance(command, Probe):  # the script denies where it could not grant, too
            return "SETRANGE", command.key, 0, b""
        dated = () if at is None or not command.is_dated else ("AT", at)
        return call, script, len(command.keys), *command.keys, command.name, *command.script_arguments(), *dated

    def _takes_text(self, key: bytes, with_text: bool) -> bool:
        """Whether a command carries the script's text: one at a time, unless the server does not keep it. Such a server
        is asked by the hash once in about a minute."""
        now = time.monotonic()
        if self.uses_text and now >= self._next_sha_look:
            self._next_sha_look = soon()
            return False
        if not self.uses_text and (not with_text or now < self._text_under_way):
            return False
        self._text_under_way = now + TEXT_TIME
        if len(self._loaded) < MOST_LOADED:
            self._loaded.add(key)
        return True

    def text_arrived(self) -> None:
        """The server has answered a command with the script's text."""
        self._text_under_way = 0.0

    def has_script(self) -> None:
        """The server has run the script by its hash."""
        if self.uses_text:
            self.uses_text = False
            self._loaded.clear()
            log.info("the server keeps the script again", extra={"event": "script_kept"})

    def lacks_script(self, key: bytes) -> None:
        """The server does not know the script's hash. Where it got the text with this key before, it does not keep it.
        """
        if key in self._loaded and not self.uses_text:
            self.uses_text, self._next_sha_look = True, soon()
            log.warning("the server does not keep the script: each command carries its text", extra={"event": "eval"})

    def may_be_old(self, command: Command, sent: Words, reply: Any) -> bool:
        """Whether it is unknown if the server has no module, or one that is too old for this command."""
        return (command.is_newer and sent[0] == command.spelling and self._module == "auto" and not self.uses_script
                and not self.has_old_module and is_unknown_command(reply))

    def again(self, command: Command, sent: Words, reply: Any) -> Sequence[Preparation] | None:
        """What to send before the command is sent once more, as the server has done nothing; None: it has.

        sent: the words that were sent.
        """
        if isinstance(reply, redis_errors.NoScriptError):
            self.lacks_script(command.key)
            return ()
        if not isinstance(reply, redis_errors.ResponseError):
            return None
        if str(reply).startswith(NO_CLOCK):
            if not self.uses_own_clock:
                log.warning("the script may not ask for the time: this machine's clock decides (%s)", reply)
            self.uses_own_clock = True
            return ()
        if not is_unknown_command(reply):
            return None
        if sent[0] in ("EVALSHA_RO", "EVAL_RO"):
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
    """All arguments of an ALLOW, a PEEK or a MALLOW of several keys in one, which the script reads faster; None when it
    has no place for them: the script then reads the words, and refuses options that it does not know."""
    if type(command) is AllowAll:
        return _packed_all(command, at)
    if type(command) is not Allow and type(command) is not Peek:
        return None
    quota = command.quota
    subintervals = quota.geometry.subintervals
    if command.block or command.age or quota.warm_up or subintervals > MOST_SUBINTERVALS:
        return None
    flags = COUNT * (not command.reads) | PARTIAL * command.partial | STRICT * quota.strict
    numbers = quota.limit, quota.geometry.resolution, subintervals, command.cost
    return _PACKED.pack(flags, *numbers) if at is None else _PACKED_AT.pack(flags, *numbers, at)


def _packed_all(command: AllowAll, at: int | None) -> bytes | None:
    quotas = [quota for _, quota, _ in command.members]
    if len(quotas) < 2 or any(one.warm_up or one.geometry.subintervals > MOST_SUBINTERVALS for one in quotas):
        return None
    numbers = [number for _, quota, cost in command.members for number in (
        quota.limit, quota.geometry.resolution, quota.geometry.subintervals, cost)]
    numbers += [] if at is None else [at]
    return struct.pack(f"<B{len(numbers)}Q", COUNT | STRICT * command.strict | ALL, *numbers)


def unpacked(reply: bytes, limit: int) -> list[int]:
    """The module's reply to an ALLOW or a PEEK, from the bytes that the script replies."""
    if len(reply) != _REPLY.size:
        raise BadReply(reply)
    first, second, reset_after = map(int, _REPLY.unpack(reply))
    return [first, limit, second, 0, reset_after] if first > 0 else [0, limit, -first, second, reset_after]
