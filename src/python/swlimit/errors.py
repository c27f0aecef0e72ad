"""What can go wrong, and whose fault it is."""

from typing import Any

import redis.exceptions as of_redis

REPLIES = (of_redis.ResponseError, of_redis.BusyLoadingError, of_redis.AuthenticationError,
           of_redis.AuthorizationError)
"""What a server replies that is an error; any other error of redis-py's means that there was no reply."""

BROKEN = (OSError, of_redis.ConnectionError, of_redis.TimeoutError, of_redis.InvalidResponse)

_FAILURES = (of_redis.BusyLoadingError, of_redis.AuthenticationError, of_redis.AuthorizationError,
             of_redis.ReadOnlyError, of_redis.OutOfMemoryError, of_redis.ClusterDownError)
_UNKNOWN = ("unknown command", "command is not available", "unsupported command")
_FAILURE_CODES = ("BUSY ", "MISCONF ", "NOREPLICAS ", "CLUSTERDOWN ", "MASTERDOWN ", "FAILOVER ")


class SwlimitError(Exception):
    """What this package raises."""


class ServerAway(SwlimitError):
    """The server does not answer, or cannot do its work at the moment."""


class ModuleMissing(SwlimitError):
    """The server answers, but has no swlimit, or too old a one for what was asked."""

    def __init__(self, command: str = "SWLIMIT.*") -> None:
        super().__init__(f"the server has no command {command}: load the module swlimit, with `loadmodule "
                         "/path/to/swlimit.so` in its configuration, or with MODULE LOAD")


class NeedsModule(ModuleMissing):
    """The server decides with the script, which has not got what was asked for."""

    def __init__(self, words: tuple[Any, ...]) -> None:
        command = "SWLIMIT.ADMIT of a hold" if words[0] == "SWLIMIT.ADMIT" else words[0]
        SwlimitError.__init__(
            self, f"{command} needs the module, and the server decides with the script: load the module")


class NoFreeConnection(SwlimitError):
    """All connections that may wait do."""


class DeniedError(SwlimitError):
    """A request was denied where only a granted one may go on."""

    def __init__(self, key: str | bytes, decision: object) -> None:
        super().__init__(f"{key!r} is limited: {decision}")
        self.key = key
        self.decision = decision


def is_failure(error: BaseException) -> bool:
    """Whether the server's own state made it reply so, not what was asked of it."""
    return isinstance(error, _FAILURES) or str(error).startswith(_FAILURE_CODES)


def is_let_go(error: BaseException) -> bool:
    """Whether the server ended a wait that may be begun again. Not where another client waits in its place."""
    text = str(error)
    return text.startswith("UNBLOCKED ") and "this id" not in text


def is_unknown_command(error: BaseException) -> bool:
    return isinstance(error, of_redis.ResponseError) and str(error).lower().startswith(_UNKNOWN)
