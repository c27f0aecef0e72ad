"""Puts the scripts, which all clients share, into the package."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Scripts(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for name in ("swlimit.lua", "takeover.lua"):
            script = Path(self.root).parents[1] / "server/script" / name
            if script.exists():  # else this is a source distribution, which has it already
                build_data["force_include"][str(script)] = f"swlimit/{name}"
