"""Go, and our modules: those of src/clients/go, and the texts of the scripts."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

from .server import ROOT

GO, FORMAT = (Path(sysconfig.get_path("purelib"), "go/bin", name) for name in ("go", "gofmt"))
MODULES = ROOT / "src/clients/go"
TESTS = ROOT / "tests/clients/go"
FOLDERS = [*sorted(path.parent for path in MODULES.rglob("go.mod")), ROOT / "src/server/script"]
RACE = "-race"  # for all that is built, even to be vetted: of other builds, nothing compiled could be shared
ENVIRONMENT = os.environ | {"GOROOT": str(GO.parents[1]), "GOTOOLCHAIN": "local", "GOFLAGS": f"-mod=readonly {RACE}"}


def run(*words, cwd=MODULES, env=None, timeout=600):
    """Run the go command."""
    return subprocess.run([GO, *words], cwd=cwd, env=ENVIRONMENT | (env or {}), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=timeout)


def compile_all():
    """Compile what the tests of all modules are made of, so that those that run at once need not do it side by side.

    What does not compile is left to the tests, which say so.
    """
    ours = run("list", "-m", "-f", "{{.Dir}}/...").stdout.split()
    for folder, packages in (TESTS, ["./..."]), (MODULES, ours):
        run("list", "-e", "-export", "-deps", "-test", *packages, cwd=folder, timeout=None)


def copy_module(folder):
    """The module of the tests, in a folder for programs that need what it pins."""
    (folder / "go.sum").write_text((TESTS / "go.sum").read_text())
    (folder / "go.mod").write_text((TESTS / "go.mod").read_text().replace("../../..", str(ROOT)))


def patient(program):
    """A page's program, for a busy machine."""
    program = re.sub(r'((?:New(?:Holds|Limiter)?|Open)\((?:conn|rdb|"redis:).*)\)\n', r"\1, swlimit.Timeout(20e9))\n",
                     program)
    core = '"github.com/swlimit/swlimit/src/clients/go"'
    return program if core in program else program.replace("import (", f"import (\n{core}")


if __name__ == "__main__":
    compile_all()
