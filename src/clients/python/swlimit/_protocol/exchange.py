"""How a command gets its answer: sent again in the words that the server understands, and after the module has taken
over keys that the script wrote."""

from collections.abc import Sequence
from typing import Any

import redis.exceptions as redis_errors

from .commands import Command, Preparation, Words
from .replies import is_unknown_command, is_wrong_type
from .script_fallback import CALLS, MOST_TRIES, Dialect, TakenOver, lua, sha

TAKEOVER = "takeover.lua"
LOOK: Words = ("SWLIMIT.PEEK",)
"""Without arguments, it is an error to every module, and executes nothing."""


class TakeOver(Preparation):
    """Hands a key to the module if the script wrote it."""

    __slots__ = ("_taken",)

    def __init__(self, key: bytes, taken: TakenOver, with_text: bool) -> None:
        super().__init__(key, *(("EVAL", lua(TAKEOVER)) if with_text else ("EVALSHA", sha(TAKEOVER))), 1, key)
        self._taken = taken

    def answered(self, reply: Any) -> None:
        super().answered(reply)
        if reply == 1:
            self._taken.add(self.key)


class Exchange:
    """A command, and what is sent until its answer has come."""

    __slots__ = ("_refusal", "_takeovers", "answer", "asks_module", "command", "dialect", "is_looking",
                 "needs_text", "tries", "words")

    def __init__(self, command: Command, dialect: Dialect) -> None:
        self.command, self.dialect = command, dialect
        self.words: Words = ()
        """The command as it was sent."""
        self.tries = 0
        self.answer: Any = None
        """The reply that counts; not always the last one."""
        self.asks_module = False
        """Whether the module is asked because the key is not the script's, or because it may be there by now."""
        self.needs_text = False
        """Whether the script goes with its text, as the server does not know its hash."""
        self.is_looking = False
        """Whether the server is asked whether it has a module, which is too old for the command."""
        self._refusal: Any = None
        """The error for which the module is asked, or looked for."""
        self._takeovers: Sequence[TakeOver] = ()

    def encode(self) -> Words:
        """The words to send."""
        if self.is_looking:
            return LOOK
        self.tries += 1
        self.asks_module = self.asks_module or self.tries == 1 and self.dialect.is_module_look_due(self.command)
        self.words = (self.command.words() if self.asks_module
                      else self.dialect.encode(self.command, self.needs_text))
        return self.words

    def again(self, reply: Any) -> Sequence[Preparation] | None:
        """What to send before the command is sent once more, as the server has done nothing; None: it has answered."""
        self.answer = reply
        if self.is_looking:
            return self._looked(reply)
        if self.asks_module:
            self.asks_module = False
            if is_unknown_command(reply):
                self.answer = self._refusal
                return () if self._refusal is None else None  # the script is asked
            self.dialect.found_module()
        if isinstance(reply, redis_errors.NoScriptError):
            self.needs_text = True
        elif self.words[0] in ("EVALSHA", "EVALSHA_RO"):
            self.dialect.has_script()
        elif self.words[0] in ("EVAL", "EVAL_RO"):
            self.dialect.text_arrived()
        if self.tries == MOST_TRIES:
            return None
        if self.dialect.may_be_old(self.command, self.words, reply):
            self._refusal, self.is_looking = reply, True
            return ()
        return self._change_over() if is_wrong_type(reply) else self.dialect.again(self.command, self.words, reply)

    def _looked(self, reply: Any) -> Sequence[Preparation] | None:
        self.is_looking = False
        if not isinstance(reply, redis_errors.ResponseError):
            return None
        self.dialect.has_old_module = not is_unknown_command(reply)
        self.answer = self._refusal
        return self.dialect.again(self.command, self.words, self._refusal)

    def _change_over(self) -> Sequence[Preparation] | None:
        """The key is of another type: the other one of module and script may have written it."""
        if self.words[0] in CALLS and self._refusal is None and self.dialect.may_find_module:
            self._refusal, self.asks_module = self.answer, True
            return ()
        if self.words[0] != self.command.spelling:
            return None
        replies = [one.reply for one in self._takeovers]
        errors = [one for one in replies if isinstance(one, Exception)]
        is_unloaded = any(isinstance(one, redis_errors.NoScriptError) for one in errors)
        # A key that was taken over may have been emptied meanwhile, and made again by a client of the script.
        if not is_unloaded and (errors or replies and 1 not in replies):
            self.answer = errors[0] if errors else self.answer
            return None
        self._takeovers = [TakeOver(key, self.dialect.taken_over, is_unloaded) for key in self.command.keys]
        return self._takeovers
