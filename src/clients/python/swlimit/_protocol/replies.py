"""What error replies mean."""

import re

import redis
import redis.exceptions as redis_errors

ERROR_REPLIES = (redis_errors.ResponseError, redis_errors.BusyLoadingError, redis_errors.AuthenticationError,
                 redis_errors.AuthorizationError)
"""redis-py's classes for error replies; its other errors mean that there was no reply."""

BROKEN = (OSError, redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.InvalidResponse)
"""What is raised when a connection breaks."""

_FAILURES = (redis_errors.BusyLoadingError, redis_errors.AuthenticationError, redis_errors.AuthorizationError,
             redis_errors.ReadOnlyError, redis_errors.OutOfMemoryError, redis_errors.ClusterDownError)
_UNKNOWN = ("unknown command", "command is not available", "unsupported command")
_FAILURE_CODES = ("BUSY ", "MISCONF ", "NOREPLICAS ", "CLUSTERDOWN ", "MASTERDOWN ", "FAILOVER ")
_CODES = {redis_errors.BusyLoadingError: "LOADING", redis.ReadOnlyError: "READONLY",
          redis_errors.OutOfMemoryError: "OOM", redis_errors.ClusterDownError: "CLUSTERDOWN"}
_REASONS = {
    "refused": ("connection refused", "no such file", "connect call failed"),
    "unresolved": ("name or service not known", "name resolution", "getaddrinfo", "nodename nor servname"),
    "certificate": ("certificate", "tls", "ssl", "fatal alert"),
    "password": ("noauth", "wrongpass", "password", "authentication"),
    "too_many_clients": ("max number of clients",),
    "module_missing": ("unknown command", "lost its module"),
    "no_answer": ("no reply", "no connection within", "has not replied", "nothing heard", "timed out", "timeout"),
    "disconnected": ("closed", "reset", "broken pipe", "terminated"),
}
_CODE = re.compile(r"(READONLY|OOM|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|CLUSTERDOWN|BUSY|FAILOVER)\b")


def is_failure(error: BaseException) -> bool:
    """Whether the server's state caused this error, not the command."""
    return isinstance(error, _FAILURES) or str(error).startswith(_FAILURE_CODES)


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
    return isinstance(error, redis_errors.ResponseError) and str(error).lower().startswith(_UNKNOWN)


def is_wrong_type(error: object) -> bool:
    return isinstance(error, redis_errors.ResponseError) and str(error).startswith("WRONGTYPE ")


def has_no_queue(error: BaseException) -> bool:
    """Whether the client polls instead of waiting in the server: too many wait there, it has no module, or the script
    wrote the key again."""
    return "too many clients are waiting" in str(error) or is_unknown_command(error) or is_wrong_type(error)


def with_code(error: Exception) -> str:
    """An error reply with its code, which redis-py cuts off."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)


def reason(message: str) -> str:
    """Why a server is unavailable, in the word that all clients use for it."""
    if found := _CODE.match(message):
        return found[0]
    text = message.lower()
    return next((word for word, parts in _REASONS.items() if any(part in text for part in parts)), "other")
