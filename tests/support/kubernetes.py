"""helm, and the strict reader of manifests: the Go module tests/daemon/kubernetes, built once into the cache."""

import fcntl
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import go

from .lacking import lacking
from .releases import CACHE
from .server import ROOT

GO = Path(go.__file__).parent / "bin/go"  # not .venv/bin/go, which runs it in a process of its own
MODULE = ROOT / "tests/daemon/kubernetes"
PROGRAMS = CACHE.parent / "kubernetes"
CHART = ROOT / "src/daemon/packaging/chart"
# What the chart cannot do without, and something to limit.
VALUES = {"image": {"repository": "registry.example.com/swlimitd"},
          "limits": {"limits.yaml": (CHART.parent / "limits.yaml").read_text()}}


def build():
    """Build both, unless they are newer than what they are built from. Raises `CalledProcessError`, mostly because Go's
    modules cannot be fetched."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    built = PROGRAMS / "built"
    with open(PROGRAMS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built.exists() and built.stat().st_mtime > max(path.stat().st_mtime for path in MODULE.iterdir()):
            return
        print("Building helm; the first time that takes minutes", file=sys.stderr, flush=True)
        words = [GO, "build", "-buildvcs=false", "-ldflags=-s", "-o", f"{PROGRAMS}/", ".", "helm.sh/helm/v4/cmd/helm"]
        subprocess.run(words, cwd=MODULE, env=os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}, check=True)
        built.touch()


@cache
def program(name):
    """Where one of the programs is. Skips the test, and says why, where it cannot be built."""
    try:
        build()
    except subprocess.CalledProcessError:
        lacking("Go's modules")
    return PROGRAMS / name


def helm(*words, **options):
    """What helm prints, whose own state is kept apart from the user's."""
    own = {f"HELM_{name}_HOME": str(PROGRAMS / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    return subprocess.run([program("helm"), *words], env=os.environ | own, capture_output=True, text=True, **options)


def rendered(**values):
    """What the chart says with these values."""
    done = helm("template", "swlimitd", CHART, "--namespace", "limits", "--values", "-",
                input=json.dumps(VALUES | values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def strictly_read(manifests):
    """The kind and name of each manifest in a text; a text that its type does not allow fails the test."""
    done = subprocess.run([program("kubernetes")], input=manifests, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


if __name__ == "__main__":
    try:
        build()
    except subprocess.CalledProcessError:
        if os.environ.get("CI") == "true":
            raise
        print("LACKING Go's modules: tests of the Helm chart are skipped", file=sys.stderr)
