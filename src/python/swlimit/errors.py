"""What can go wrong, and whose fault it is."""

import redis.exceptions as of_redis

_AWAY = (OSError, of_redis.ConnectionError, of_redis.TimeoutError, of_redis.ReadOnlyError, of_redis.OutOfMemoryError,
         of_redis.ClusterError, of_redis.RedisClusterException, of_redis.AskError, of_redis.TryAgainError)
_AWAY_CODES = ("BUSY ", "MISCONF ", "NOREPLICAS ", "UNBLOCKED ", "CLUSTERDOWN ", "MASTERDOWN ", "TRYAGAIN ")
_SETTINGS = (of_redis.AuthenticationError, of_redis.AuthorizationError)


class SwlimitError(Exception):
    """What this package raises."""


class ServerAway(SwlimitError):
    """The server does not answer, or cannot do its work at the moment."""


class ModuleMissing(SwlimitError):
    """The server answers, but has no swlimit."""

    def __init__(self) -> None:
        super().__init__("the server has no command SWLIMIT.*: load the module swlimit, with `loadmodule "
                         "/path/to/swlimit.so` in its configuration, or with MODULE LOAD")


class NobodyLetsWait(SwlimitError):
    """All connections that may wait did, for as long as this request would have."""


class Limited(SwlimitError):
    """A request was denied where only a granted one may go on."""

    def __init__(self, key: str | bytes, decision: object) -> None:
        super().__init__(f"{key!r} is limited: {decision}")
        self.key = key
        self.decision = decision


def is_away(error: BaseException) -> bool:
    """Whether an error means that the server is away, and that it may come back; not that somebody asked wrongly."""
    if isinstance(error, _SETTINGS) or "same key slot" in str(error):
        return False
    return isinstance(error, _AWAY) or str(error).startswith(_AWAY_CODES)


def is_unknown_command(error: BaseException) -> bool:
    return isinstance(error, of_redis.ResponseError) and str(error).lower().startswith("unknown command 'swlimit.")
