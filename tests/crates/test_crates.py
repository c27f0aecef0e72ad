"""Rust's own tests, which need no server: units, properties, simulations, and the examples of its documentation."""

import subprocess

import pytest

from support.crates import CRATES, buildable, unit_tests
from support.server import ROOT


@pytest.fixture(scope="session")
def programs():
    return unit_tests()


@pytest.mark.parametrize("crate", CRATES)
def test_units(crate, programs, report):
    if crate not in programs:
        pytest.skip(buildable()[1])
    done = subprocess.run([programs[crate]], cwd=CRATES[crate], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report(done.stdout.splitlines()[-2])


def test_documentation():
    crates, _ = buildable()
    done = subprocess.run(["cargo", "test", "--quiet", *crates, "--doc"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
