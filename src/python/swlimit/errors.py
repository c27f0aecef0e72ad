"""The exceptions of this package."""

from typing import Any


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
