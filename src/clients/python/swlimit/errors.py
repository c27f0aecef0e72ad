"""The exceptions of this package."""


class SwlimitError(Exception):
    """What this package raises."""


class ServerAway(SwlimitError):
    """The server is unavailable: it does not answer, or cannot do its work at the moment."""


class NotExecuted(ServerAway):
    """It was not asked, or has refused: there is nothing to undo."""


class ModuleMissing(SwlimitError):
    """The server answers, but has no swlimit, or one that is too old for this command."""

    def __init__(self, command: str, is_old: bool = False) -> None:
        missing = (f"the server's module swlimit is too old for {command}: load a newer one" if is_old
                   else f"the server has no command {command}: load the module swlimit")
        super().__init__(f"{missing}, with `loadmodule /path/to/swlimit.so` in its configuration"
                         + ("" if is_old else ", or with MODULE LOAD"))


class NoFreeConnection(SwlimitError):
    """All connections that may wait are in use."""


class DeniedError(SwlimitError):
    """A request was denied, and its block or function was not entered."""

    def __init__(self, key: str | bytes, decision: object) -> None:
        super().__init__(f"{key!r} is limited: {decision}")
        self.key = key
        self.decision = decision
