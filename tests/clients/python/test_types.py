"""What type checkers say of a program that uses the package, and of the package itself."""

import json
import re
import subprocess
import sys

import pytest

from support.server import ROOT

pytestmark = pytest.mark.long

SOURCE, PROGRAM = ROOT / "src/clients/python", ROOT / "tests/clients/python/typed.py"
REFUSED = {number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith("  # refused")}


def run(*words, **options):
    return subprocess.run([sys.executable, "-m", *map(str, words)], capture_output=True, text=True, timeout=300,
                          **options)


def test_mypy():
    """It also checks the package."""
    done = run("mypy", "swlimit", PROGRAM, cwd=SOURCE)
    errors = re.findall(r"^(\S+?):(\d+): error: ", done.stdout, re.MULTILINE)
    assert {(path.rpartition("/")[2], int(line)) for path, line in errors} == {
        (PROGRAM.name, line) for line in REFUSED}, done.stdout + done.stderr


def test_pyright(tmp_path):
    """basedpyright is pyright with its Node.js program in the wheel."""
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({
        "include": [str(PROGRAM)], "extraPaths": [str(SOURCE)], "typeCheckingMode": "standard",
        "pythonVersion": "3.10"}))
    done = run("basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", tmp_path)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    assert {one["range"]["start"]["line"] + 1 for one in errors} == REFUSED, errors
