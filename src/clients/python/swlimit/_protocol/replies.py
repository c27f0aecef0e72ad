"""What replies and errors mean."""

import re
import socket
import ssl
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis.exceptions as redis_errors

from ..errors import RefusedError

ERROR_REPLIES = (redis_errors.ResponseError, redis_errors.BusyLoadingError, redis_errors.AuthenticationError,
                 redis_errors.AuthorizationError)
"""redis-py's classes for error replies; its other errors mean that there was no reply."""

BROKEN = (OSError, redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.InvalidResponse)
"""What is raised when a connection breaks."""

_UNKNOWN = ("unknown command", "command is not available", "unsupported command")
_CODES = ("READONLY", "OOM", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "BUSY", "FAILOVER")
_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (redis_errors.AskError, "cluster"), (redis_errors.ReadOnlyError, "READONLY"),
    (redis_errors.OutOfMemoryError, "OOM"), (redis_errors.BusyLoadingError, "LOADING"),
    (redis_errors.MasterDownError, "MASTERDOWN"), (redis_errors.ClusterDownError, "CLUSTERDOWN"),
    (redis_errors.AuthenticationError, "auth"), (redis_errors.AuthorizationError, "auth"),
    (redis_errors.InvalidResponse, "bad_reply"), (redis_errors.TimeoutError, "no_answer"),
    (ssl.SSLEOFError, "disconnected"), (ssl.SSLZeroReturnError, "disconnected"), (ssl.SSLError, "certificate"),
    (socket.gaierror, "unresolved"), (TimeoutError, "no_answer"),
    (ConnectionResetError, "disconnected"), (BrokenPipeError, "disconnected"), (ConnectionAbortedError, "disconnected"),
    (EOFError, "disconnected"),
)
"""redis-py's classes and the system's, whose codes and numbers are known; the first that fits counts."""
_CODE = re.compile("[A-Z]{4,} (?!must be )")
_CALLERS = "WRONGTYPE", "UNBLOCKED", "NOPERM", "CROSSSLOT", "NOSCRIPT", "TRYAGAIN", "EXECABORT"
"""Codes of errors that are not the server's failures."""
_TOO_MANY = "max number of clients"
MOST_QUOTED = 100
"""Bytes of a reply that an error or the log quotes."""


class Failure(NamedTuple):
    """Why a server did not do its work: in one word, and in its own or the system's words."""

    reason: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        code = type(error).__name__ if not str(error) else quoted(with_code(error))
        return cls(reason_of(error) or "other", code)


def reason_of(error: BaseException) -> str | None:
    """The word for an error; None for an error reply that is no failure of the server."""
    text = str(error)
    if text.startswith(_TOO_MANY):
        return "too_many_clients"
    if text.startswith(("NOAUTH", "WRONGPASS", "invalid password")):
        return "auth"
    cause: BaseException | None = error
    causes = []
    while cause is not None and cause not in causes:  # redis-py raises its own error while it handles the system's
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for one in reversed(causes):
        for kind, reason in _KINDS:
            if isinstance(one, kind):
                return reason
    if isinstance(error, redis_errors.ResponseError):
        if is_unknown_command(error):
            return "module_missing"
        code = text.partition(" ")[0]
        return code if code in _CODES else "other" if _CODE.match(text) and code not in _CALLERS else None
    system = next((one for one in causes if isinstance(one, OSError)), None)
    return "refused" if system is not None else "disconnected"


def is_failure(error: BaseException) -> bool:
    """Whether the server's state caused this error, not the command."""
    return reason_of(error) not in (None, "cluster", "module_missing")


def as_raised(error: Exception) -> Exception:
    """An error reply as callers get it: no library's class, and not the whole of a long text."""
    return RefusedError(quoted(with_code(error))) if isinstance(error, ERROR_REPLIES) else error


def can_wait_again(error: BaseException) -> bool:
    """Whether the server ended a wait that the client may begin again. Not when another client now waits for this id.
    """
    text = str(error)
    return text.startswith("UNBLOCKED ") and "this id" not in text


def is_period_over(error: BaseException) -> bool:
    """Whether the end of a budget's period has passed on the server."""
    return str(error).startswith("until must be ")


def is_missing_key(error: BaseException) -> bool:
    return str(error) == "no such key"


def is_unknown_command(error: object) -> bool:
    return (isinstance(error, (redis_errors.ResponseError, RefusedError))
            and str(error).lower().startswith(_UNKNOWN))


def is_unknown_warm_up(error: object, words: Sequence[Any]) -> bool:
    """Whether an older module refuses the option WARMUP of these words. Its MALLOW takes that for the next limit."""
    return "WARMUP" in words and isinstance(error, redis_errors.ResponseError) and str(error).startswith(
        ("syntax error near 'WARMUP'", "limit must be an integer"))


def is_wrong_type(error: object) -> bool:
    return isinstance(error, (redis_errors.ResponseError, RefusedError)) and str(error).startswith("WRONGTYPE ")


def has_no_queue(error: BaseException) -> bool:
    """Whether the client polls instead of waiting in the server: too many wait there, it has no module, or the script
    wrote the key again."""
    return "too many clients are waiting" in str(error) or is_unknown_command(error) or is_wrong_type(error)


_CUT_OFF = ((redis_errors.BusyLoadingError, "LOADING"), (redis_errors.ReadOnlyError, "READONLY"),
            (redis_errors.OutOfMemoryError, "OOM"), (redis_errors.MasterDownError, "MASTERDOWN"),
            (redis_errors.ClusterDownError, "CLUSTERDOWN"), (redis_errors.NoPermissionError, "NOPERM"),
            (redis_errors.NoScriptError, "NOSCRIPT"), (redis_errors.MovedError, "MOVED"),
            (redis_errors.AskError, "ASK"), (redis_errors.TryAgainError, "TRYAGAIN"),
            (redis_errors.ClusterCrossSlotError, "CROSSSLOT"))


def with_code(error: BaseException) -> str:
    """An error reply with its code, which redis-py cuts off."""
    code = next((code for kind, code in _CUT_OFF if isinstance(error, kind)), "")
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)


def quoted(text: object) -> str:
    """A reply as errors and the log quote it: escaped, and cut."""
    escaped = str(text).encode("unicode_escape", errors="backslashreplace").decode()
    return escaped if len(escaped) <= MOST_QUOTED else f"{escaped[:MOST_QUOTED]}…"


# The numbers of replies.


class BadReply(ValueError):
    """A reply that is not what its command can reply; it says which."""

    def __init__(self, reply: object) -> None:
        super().__init__(f"a reply that is not understood: {quoted(reply)}")


def integer(value: Any) -> int:
    """An integer of a reply. Servers with another Lua reply integral doubles or decimal strings."""
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (bytes, str)):
        digits = value.decode(errors="replace") if isinstance(value, bytes) else value
        whole, _, rest = digits.partition(".")
        if whole.lstrip("-").isascii() and whole.lstrip("-").isdigit() and not rest.strip("0"):
            return int(whole)
    raise BadReply(value)


def integers(reply: Any, count: int | None = None) -> Sequence[int]:
    """So many integers."""
    if not isinstance(reply, list) or count is not None and len(reply) != count:
        raise BadReply(reply)
    for one in reply:
        if type(one) is not int:
            return [integer(one) for one in reply]
    return reply


def rows(reply: Any, counts: Sequence[int]) -> list[Any]:
    """An integer, and a row of integers for each of these."""
    if not isinstance(reply, list) or len(reply) != 1 + len(counts):
        raise BadReply(reply)
    return [integer(reply[0]), *(integers(row, count) for row, count in zip(reply[1:], counts))]
