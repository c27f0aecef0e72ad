"""Puts the script, which all clients share, into the package."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Script(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        script = Path(self.root).parent / "lua/swlimit.lua"
        if script.exists():  # else this is a source distribution, which has it already
            build_data["force_include"][str(script)] = "swlimit/swlimit.lua"
