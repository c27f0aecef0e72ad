"""Go, and the modules in src/go."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

from .server import ROOT

GO, FORMAT = (Path(sysconfig.get_path("purelib"), "go/bin", name) for name in ("go", "gofmt"))
MODULES = ROOT / "src/go"
ENVIRONMENT = os.environ | {"GOROOT": str(GO.parents[1]), "GOTOOLCHAIN": "local",
                            "GOFLAGS": "-mod=readonly"}


def run(*words, cwd=MODULES, env=None, timeout=600):
    """Run the go command."""
    return subprocess.run([GO, *words], cwd=cwd, env=ENVIRONMENT | (env or {}), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=timeout)


def copy_module(folder):
    """The module of the tests, in a folder for programs that need what it pins."""
    own = ROOT / "tests/go"
    (folder / "go.sum").write_text((own / "go.sum").read_text())
    (folder / "go.mod").write_text((own / "go.mod").read_text().replace("../..", str(ROOT)))


def patient(program):
    """A page's program, for a busy machine."""
    program = re.sub(r'((?:New(?:Holds|Limiter)?|Open)\((?:conn|rdb|"redis:).*)\)\n', r"\1, swlimit.Timeout(20e9))\n",
                     program)
    core = '"github.com/swlimit/swlimit/src/go"'
    return program if core in program else program.replace("import (", f"import (\n{core}")
