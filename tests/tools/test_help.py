"""Every script says what it is for, and does nothing else when it is asked that."""

import os
import re
import shutil
import subprocess

import pytest

from support.server import ROOT

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and os.access(path, os.X_OK))


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The scripts alone: without what they build, install or start, they could do nothing else."""
    folder = tmp_path_factory.mktemp("alone") / "scripts"
    folder.mkdir()
    for path in (ROOT / "scripts").iterdir():
        if path.is_file():
            shutil.copy2(path, folder)
    return folder


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_help(scripts, script, flag):
    before = sorted(scripts.parent.rglob("*"))
    done = subprocess.run([scripts / script, flag], cwd=scripts.parent, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    comment = (scripts / script).read_text().split("\n")[1].strip('#" ')
    assert comment in done.stdout
    assert sorted(scripts.parent.rglob("*")) == before


def test_contributing_lists_every_script():
    listed = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert listed == SCRIPTS
