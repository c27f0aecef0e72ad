"""The cases of the page "Language models". Its programs take long to begin: those of a file share them, in one process,
one after the other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import ROOT

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.parametrize("file", ["litellm_cases.py", "pydantic_ai_cases.py"])
def test_the_page(file, capsys):
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    cases = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", HERE / file]
    done = subprocess.run(cases, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(done.stdout)
