"""Go, and the modules in src/go."""

import os
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
