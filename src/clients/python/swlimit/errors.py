"""The exceptions of this package.

    SwlimitError
    ├── DeniedError         a block or function was not entered: come back after `error.decision.retry_after`
    ├── UnavailableError    the server did not decide, and `on_failure="error"` or the method leaves that to you:
    │                       try again later; `error.reason` says in a word why
    ├── RefusedError        the server refuses the command: another type of key, a missing right, keys of several slots
    ├── ModuleMissing       `module="always"`, or a command that an older module lacks: load the module, or a newer one
    └── WrongClientError    the server is part of a cluster, and the client cannot follow it: use a RedisCluster

What is wrong with an argument is a ValueError or a TypeError, when a limiter is made or before anything is sent.
"""

from collections.abc import Callable, Mapping


class SwlimitError(Exception):
    """The base of all exceptions of this package; raised itself when a closed limiter is used."""


class UnavailableError(SwlimitError):
    """The server did not answer in time, or cannot do its work at the moment."""

    def __init__(self, message: str, reason: str = "other") -> None:
        super().__init__(message)
        self.reason = reason
        """Why, in one word, the same in all languages: such as `refused`, `no_answer`, `slow`, `auth` or `READONLY`."""
        self._keep: Callable[[Mapping[bytes, float]], None] = lambda units: None

    def keep(self, units: Mapping[bytes, float]) -> None:
        """The failure policy granted these units of each key: what the server grants late beyond these goes back.

        For limiters: it is called before they return. What nobody keeps goes back whole.
        """
        self._keep(units)


class NotExecuted(UnavailableError):
    """It was not asked, or has refused: there is nothing to undo."""


class RefusedError(SwlimitError):
    """The server answers, and refuses the command: the caller's mistake, or a right that is missing."""


class ModuleMissing(SwlimitError):
    """The server answers, but has no swlimit, or one that is too old for this command."""

    def __init__(self, command: str, is_old: bool = False) -> None:
        missing = (f"the server's module swlimit is too old for {command}: load a newer one" if is_old
                   else f"the server has no command {command}: load the module swlimit")
        super().__init__(f"{missing}, with `loadmodule /path/to/swlimit.so` in its configuration"
                         + ("" if is_old else ", or with MODULE LOAD"))


class WrongClientError(SwlimitError):
    """The server is part of a cluster, and sends the key's command elsewhere, where this client cannot follow."""


class NoFreeConnection(SwlimitError):
    """All connections that may wait are in use."""


class DeniedError(SwlimitError):
    """A request was denied, and its block or function was not entered. It has the `key` and the `decision`."""

    def __init__(self, key: str | bytes, decision: object) -> None:
        super().__init__(f"{key!r} is limited: {decision}")
        self.key = key
        self.decision = decision
