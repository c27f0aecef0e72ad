"""The module as it was at some revision of the repository, to be measured beside the present one."""

import shutil
import subprocess
from tempfile import TemporaryDirectory

from support.server import ROOT

FOLDER = ROOT / ".cache/bench/revisions"


def module_at(revision):
    """The module of this revision, built unless it has been before, by the same compiler."""
    commit = _output("git", "rev-parse", "--verify", f"{revision}^{{commit}}")
    module = FOLDER / f"{commit}-{rust()}.so"
    if not module.exists():
        print(f"bench: building {revision}", flush=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as source:  # elsewhere, or cargo would take it for a part of this workspace
            # With the time of now (-m): cargo would take files as old as their commit for those it has built already.
            subprocess.run(f"git archive {commit} | tar -x -m -C {source}", shell=True, check=True, cwd=ROOT)
            subprocess.run(["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", FOLDER / "target"],
                           check=True, cwd=source)
        shutil.copy(FOLDER / "target/release/libswlimit.so", module)
    return module


def rust():
    """The version of the compiler."""
    return _output("rustc", "--version").split()[1]


def _output(*words):
    return subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
