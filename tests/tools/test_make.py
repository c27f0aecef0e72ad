"""`make` says what it can do, and does nothing else."""

import re
import shutil
import subprocess

import pytest

from support.server import ROOT

LINES, COLUMNS = 24, 80  # what every terminal shows at once
TARGETS = set(re.search(r"^\.PHONY:((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
              .replace("\\", " ").split())


@pytest.mark.parametrize("words", [(), ("help",)], ids=["make", "make help"])
def test_it_lists_its_targets_in_one_screen(words, tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    # A make inside of another one says where it is.
    done = subprocess.run(["make", "--no-print-directory", *words], cwd=tmp_path, capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) < LINES and max(map(len, lines)) <= COLUMNS
    listed = re.findall(r"^  ([\w-]+) +\S", done.stdout, re.MULTILINE)
    assert len(listed) == len({*listed}) and {*listed} == TARGETS - {"help"}
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]
